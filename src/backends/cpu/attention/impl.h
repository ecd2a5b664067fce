/* Internals of the fused attention: the plan of a call, its tiles, and the tile operations of an instruction set.
 *
 * The score matrix is cut into tiles at multiples of WN_TILE positions, in rows and columns. So a chunk of a prompt has
 * the same tiles as the whole prompt, and the diagonal crosses exactly one tile of each row block. Products are libxsmm
 * kernels on packed tiles with row length WN_TILE (columns padded with zeros). Selection, masks, softmax and their
 * gradients are the tile operations of tile.inc, compiled once per instruction set. A mechanism is a term on a tile: if
 * it subtracts the same from all heads it is added to F; if it masks, it clears bits of `seen`; if it is per head, it
 * changes the logits between product and softmax. */
#ifndef WN_BACKENDS_CPU_ATTENTION_IMPL_H
#define WN_BACKENDS_CPU_ATTENTION_IMPL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "backends/cpu/attention/attention.h"
#include "backends/cpu/attention/bf16.h"
#include "backends/cpu/product.h"
#include "base/arrays.h"
#include "base/parallel.h"

enum {
  WN_TILE = 64,
  WN_TILE_AREA = WN_TILE * WN_TILE,
  WN_TILE_LANES = 16, /* partial sums kept per row */
  WN_STRIP = 32,      /* diagonal tiles are processed in strips of this many rows, each only as wide as needed */
  WN_STRIPS_MAX = WN_TILE / WN_STRIP,
  WN_SKEW_ROWS = 16,                     /* relative positions: rows whose distances are computed together, */
  WN_SKEW_WIDTH = WN_TILE + WN_SKEW_ROWS /* and the number of these distances */
};

#define LOG2E 1.44269504088896341f

/* log of a row's sum of exponentials. top: the reference subtracted in them; sum: the sum of exp(logit - top). */
static inline float wn_attention_lse(float top, float sum) {
  return (float)((double)top + log((double)sum));
}

/* --- tile operations; all tiles have row length WN_TILE --- */

/* The selective term, rows in order: F[i] = `carry` plus the column's sum of S over the tile's earlier rows; S =
 * strength * relu(base) where allowed. */
struct wn_tile_select {
  const float *base;     /* [rows,64] the selecting logits */
  const uint64_t *allow; /* [rows] bits of the columns that the row may select, or NULL: all */
  float *carry;          /* [64] updated: the value after the last row */
  float *F;              /* [rows,64], or NULL: compute only the carry */
  int64_t rows;
  bool relu, shift;
  float strength;
  const uint64_t *seen; /* [rows] or NULL: all; used only for mem */
  float inv_tau;
  float *mem; /* [rows] += sum over seen columns of max(0, 1 - F/tau), or NULL */
};

/* One head's span on a tile of its ramp: m of row i, column j is min((rest[i] + first[i] + j) / ramp, 1); it is
 * positive where the row sees the column. */
struct wn_tile_span {
  float ramp;
  float first[WN_TILE], rest[WN_TILE];
};

struct wn_tile_softmax {
  float *a;                        /* [rows,64] logits, replaced by exp(a - F - m), times the span mask */
  const float *F;                  /* [rows,64] or NULL */
  const uint64_t *seen;            /* [rows] or NULL: all */
  const struct wn_tile_span *span; /* or NULL; requires `seen` */
  int64_t rows, width;             /* width: columns, a multiple of 16 */
  float *m;                        /* [rows] the reference subtracted in exponents */
  float *l;                        /* [rows,16] partial sums of the exponentials */
  float *acc;                      /* [rows,acc_width] output so far; rescaled with l when the reference changes */
  int64_t acc_width;
};

/* G of one head on one tile. */
struct wn_tile_gradient {
  const float *a;       /* [rows,64] logits */
  float *w;             /* [rows,64] the attention weights W = exp(a - F - lse); may be a */
  float *g;             /* [rows,64] dW, replaced by G = W * (dW - delta) */
  const float *F;       /* [rows,64] or NULL */
  const uint64_t *seen; /* [rows] or NULL: all */
  int64_t rows, width;
  const float *lse;                /* [rows] */
  const float *delta;              /* [rows] */
  float *dF;                       /* [rows,64] -= G, or NULL */
  const struct wn_tile_span *span; /* or NULL; requires `seen` */
  float *dz;                       /* with span: [rows] += the sum of G/m over the ramp */
  float *steep;                    /* with span: [rows] += the sum of W/m over the ramp; or NULL */
};

/* out[k] = add[k] + strength * dS[k] for rows k that were allowed to select and did (else add[k]). dS[k] is the sum of
 * dF[i] over rows i > k (i >= k without shift) of the tile, plus `carry`, that of the rows below. The tile's dF is then
 * added to the carry. out may alias add; add NULL means 0. */
struct wn_tile_select_gradient {
  const float *base;     /* [rows,64] */
  const uint64_t *allow; /* [rows] or NULL: all */
  const float *dF;       /* [rows,64] */
  float *carry;          /* [64] */
  const float *add;
  float *out;
  int64_t rows;
  bool relu, shift;
  float strength;
  double *dstrength; /* [1] += sum of dS * base, or NULL */
};

/* Open rows that select (tile_open.inc): a row's share of a column's sum is strength * relu(x) where allowed. open_sum:
 * adds the rows' shares to hi + lo. open_rest: out = hi + lo - the row's share (with `own`: hi + lo). open_gradient:
 * given dS of the shares, adds that of x to out, and the sum of dS * relu(x) to *dstrength (or NULL). */
struct wn_tile_open {
  const float *x;        /* [rows,64] */
  const uint64_t *allow; /* [rows] or NULL: all */
  int64_t rows;
  bool relu, own;
  float strength;
  float *hi, *lo; /* [64] a sum, and its rounding error */
  float *out;     /* [rows,64] */
};

struct wn_tile_finish {
  const float *m; /* [64] references of the softmax */
  const float *l; /* [64,16] its partial sums; rows from `rows` on are ignored */
  int64_t rows;
  float *factor; /* [64] 1 / the row's sum */
  float *lse;    /* [rows] or NULL */
};

/* Which attention weights dropout keeps: bit j of keep[i] is word (n % 4) of wn_philox(seed, stream, n / 4) >= least,
 * where n = first + i * step + j. */
struct wn_tile_dropout {
  uint64_t seed, stream, first, step;
  uint32_t least;
  int64_t rows;
  uint64_t *keep; /* [rows] */
};

/* Rows with their own values. Backward: y is after the projection. */
struct wn_tile_exclusive {
  const float *v; /* [rows,D] */
  int64_t v_stride;
  float *y;        /* [rows,D] */
  const float *dy; /* [rows,D], with the strides of y */
  int64_t y_stride;
  float *dot; /* [rows] y.v before the projection; forward: may be NULL */
  float *out; /* [rows,D] backward's result */
  int64_t out_stride;
  float *delta; /* [rows] */
  int64_t rows, D;
  double gate;
};

/* Counts how many of a row's heaviest content keys reach given shares of their total weight. */
struct wn_tile_count {
  const float *logits; /* [n], -inf from n to the next multiple of 16, and where a key is not seen */
  int64_t n;
  const uint8_t *control; /* [n] or NULL */
  double lse;             /* log of the sum of all keys' exponentials, if nothing else has weight; NAN: unknown */
  int64_t shares;
  const double *tau; /* [shares] ascending */
  int32_t *count;    /* [shares] */
  float *work;       /* 3 (n + 32) */
};

struct wn_ranked_key {
  double weight;
  float logit;
  int32_t key;
};

/* A threshold's choice in one row, except for a few last keys. Keys heavier than all of order[few] are kept for
 * certain; lighter keys are not kept. */
struct wn_tile_narrow {
  const float *logits; /* [n], like those of count */
  int64_t n;
  const uint8_t *control; /* [n] or NULL */
  double tau;
  float *work;                 /* 4 (n + 32) */
  int64_t seen;                /* content keys */
  int64_t kept, few;           /* if all are kept: seen, 0 */
  double lacks;                /* if > 0: the weight that keys of order must still add, in its own unit */
  float below;                 /* the largest logit below those in order; -inf: none */
  struct wn_ranked_key *order; /* [n] room for the undecided keys */
};

struct wn_tile_ops {
  const struct wn_product_ops *products; /* product.h */
  void (*select)(const struct wn_tile_select *);
  void (*softmax)(const struct wn_tile_softmax *);
  void (*finish)(const struct wn_tile_finish *);
  void (*gradient)(const struct wn_tile_gradient *);
  void (*select_gradient)(const struct wn_tile_select_gradient *);
  void (*dropout)(const struct wn_tile_dropout *);
  /* tile[rows,64]: the first `width` columns times factor where kept, else 0 */
  void (*drop)(float *tile, const uint64_t *keep, int64_t rows, int64_t width, float factor);
  /* Relative positions. Row i of R[n,width+16] has its numbers from column 15-first-i on. skew_add: tile[n,64] += R.
   * skew: R = G[n,64], zeros elsewhere. */
  void (*skew_add)(float *tile, const float *R, int64_t n, int64_t width, int64_t first);
  void (*skew)(float *R, const float *G, int64_t n, int64_t width, int64_t first);
  /* dst[D,16] with row stride `stride`: column t is factor * p[x-t], or zeros outside p[P,D] */
  void (*pack_distances)(float *dst, int64_t stride, const float *p, int64_t P, int64_t x, int64_t D, float factor);
  /* dst[rows_out,width] = src[rows,D] (row stride `stride`) times factor; zeros elsewhere */
  void (*pack)(float *dst, int64_t rows_out, int64_t width, const float *src, int64_t stride, int64_t rows, int64_t D,
               float factor);
  /* dst[D,64] = factor * src[rows,D]^T, zeros from column `rows` on */
  void (*pack_transposed)(float *dst, const float *src, int64_t stride, int64_t rows, int64_t D, float factor);
  /* dst[i,d] = factor[i] (or `all` if factor is NULL) * the sum over parts of src[part*part_step + i*width + d] */
  void (*unpack)(float *dst, int64_t stride, const float *src, int64_t width, int64_t parts, int64_t part_step,
                 int64_t rows, int64_t D, const float *factor, float all);
  /* out[i] = sum_d x[i,d] y[i,d] */
  void (*row_dot)(float *out, const float *x, int64_t x_stride, const float *y, int64_t y_stride, int64_t rows,
                  int64_t D);
  /* logits[j] = factor * q[D] . k[j,D] for j < count <= 64 */
  /* Converts `rows` stored rows of D, `step` bytes apart, to contiguous floats. */
  void (*widen[WN_GGUF_TYPE_COUNT])(float *to, const void *from, size_t step, int64_t rows, int64_t D);
  void (*decode_logits)(float *logits, const float *q, const float *k, int64_t stride, int64_t count, int64_t D,
                        float factor);
  /* acc[D] += sum over j < count of w[j] v[j,D] */
  void (*decode_values)(float *acc, const float *w, const float *v, int64_t stride, int64_t count, int64_t D);
  /* The same on rows at[n] of k and v (row stride `stride`), n < count <= 64. */
  void (*gather_logits)(float *logits, const float *q, const float *k, const int32_t *at, int64_t stride, int64_t count,
                        int64_t D, float factor);
  /* tile_exclusive.inc */
  void (*exclusive)(const struct wn_tile_exclusive *);
  void (*exclusive_gradient)(const struct wn_tile_exclusive *);
  void (*exclusive_values)(const struct wn_tile_exclusive *);
  void (*gather_values)(float *acc, const float *w, const float *v, const int32_t *at, int64_t stride, int64_t count,
                        int64_t D);
  /* rows at[n] of acc += w[n] x[D] */
  void (*scatter)(float *acc, const float *w, const float *x, const int32_t *at, int64_t stride, int64_t count,
                  int64_t D);
  void (*open_sum)(const struct wn_tile_open *);
  void (*open_rest)(const struct wn_tile_open *);
  void (*open_gradient)(const struct wn_tile_open *, const float *dS, double *dstrength);
  /* Like gradient, but lse and delta are [rows,64]: one per pair. */
  void (*gradient_pairs)(const struct wn_tile_gradient *);
  /* tile_look.inc. show: x[n] = exp(x - m - log_sum), n a multiple of 16 */
  void (*count)(const struct wn_tile_count *);
  void (*narrow)(struct wn_tile_narrow *);
  uint64_t (*above)(const float *x, float limit); /* bit j: x[j] > limit, for 64 numbers */
  void (*show)(float *x, int64_t n, float m, float log_sum);
};
extern const struct wn_tile_ops wn_tile_ops_avx2, wn_tile_ops_avx512;

/* --- plan --- */

/* A libxsmm kernel in row-major terms: C[n,m] (+)= X[n,k] Y[k,m] is kernel(Y, X, C). */
typedef void (*wn_tile_kernel)(const float *y, const float *x, float *c, ...);

/* Kernels by width / 16 and number of rows. Those that a call's tiles need are set; without libxsmm none is:
 * products.h. */
struct wn_tile_kernels {
  wn_tile_kernel logits[WN_TILE / 16 + 1][WN_TILE + 1];  /* C[rows,width] = X[rows,D] Y[D,width] */
  wn_tile_kernel values[WN_TILE / 16 + 1][WN_TILE + 1];  /* C[rows,Dp] += X[rows,width] Y[width,Dp] */
  wn_tile_kernel columns[WN_TILE / 16 + 1][WN_TILE + 1]; /* C[width,Dp] += X[rows,width]^T Y[rows,Dp] */
  /* The same on the distances of at most WN_SKEW_ROWS rows; there are width + 16 of them. */
  wn_tile_kernel skew_logits[WN_TILE / 16 + 1][WN_SKEW_ROWS + 1];
  wn_tile_kernel skew_values[WN_TILE / 16 + 1][WN_SKEW_ROWS + 1];
  wn_tile_kernel skew_columns[WN_TILE / 16 + 1][WN_SKEW_ROWS + 1];
};

/* Scratch of the terms, after all else; NULL if the call does not need it. */
struct wn_terms_scratch {
  float *span_rows;     /* [B,H,Tq] gradient of static spans */
  float *distances;     /* [D][stride] relative positions times scale, from the farthest to the nearest */
  float *distance_rows; /* [columns][Dp] the same with rows and columns swapped, without the scale */
  float *distance_sums; /* [parts][columns][Dp] their gradient */
  double *strength;     /* [B*G], for a team [chunks*B]: the gradient of the strengths */
  float *sink_sums;     /* [parts][Hkv][2][n][Dp] the gradients of the learned sinks' keys and values */
};

struct wn_attention_plan {
  const struct wn_exec *exec;
  const struct wn_attention *a;
  const struct wn_tile_ops *ops;
  const struct wn_bf16_ops *bf16; /* products of operands in bf16; NULL: floats, `kernels` (operands.h) */
  bool rounds;                    /* operands in bf16 are rounded from rows of floats */
  int64_t Dp;                     /* D rounded up to a multiple of 16 */
  int64_t offset;                 /* Tk - Tq: the position of the first query */
  int64_t first_block, blocks;    /* row blocks first_block..blocks-1 have queries; column blocks are 0..blocks-1 */
  int64_t group;                  /* query heads per key-value head */
  int threads;
  bool own;       /* each thread takes whole units of heads that share nothing; else a team shares a sequence */
  int64_t units;  /* own: B sequences, or B*Hkv head groups if nothing ties the heads together */
  int64_t chunks; /* team: number of parts of one sequence */
  struct {        /* sparse.h */
    bool on;
    bool direct;          /* forward: far keys and values are read in place, not packed first */
    int64_t near;         /* smaller distances are processed by tiles */
    int64_t count;        /* number of distances from there on that rows see */
    const int32_t *x;     /* [count] ascending */
    const uint64_t *seen; /* [tiles][64] what the keep rules show in a tile, by how many blocks it is before its rows */
  } sparse;
  struct {       /* dead_keys.h */
    bool wanted; /* there is scratch for lists of keys */
    bool on;     /* and they are used */
    float limit; /* log of the largest attention weight skipped, relative to the row's sum */
  } dead_keys;
  struct wn_tile_kernels kernels;
  float *bias, *dbias; /* biases by distance, and sums for their parameters, in scratch; NULL: none */
  double *dkeys;       /* sums for the keys' numbers, in scratch; NULL: none */
  struct wn_terms_scratch terms;
};

/* The heads of one unit. */
struct wn_attention_unit {
  int64_t b, h0, heads, g0, groups;
  int64_t select; /* the selecting head, counted from h0; -1: no selection, or the bilinear form */
  int64_t choice; /* the selection group in its sequence */
};

/* Rows of a tile that are processed together: query rows row..row+rows-1 of the block, columns 0..width-1 of the
 * tile. */
struct wn_attention_strip {
  int64_t row, rows, width;
  bool empty;            /* nothing is seen or selected */
  bool skip;             /* nothing is seen: only selection is left to do */
  const uint64_t *seen;  /* NULL: all */
  const uint64_t *allow; /* pairs that may be selected; NULL: all */
  const uint64_t *past;  /* seen if there were no keep rules: what M of L_mem counts; NULL: all */
  uint64_t masks[3][WN_TILE];
};

/* One row block of one sequence. */
struct wn_attention_rows {
  int64_t b, block, r0, p0, rows; /* first query row and its position; number of rows */
  int64_t doc_min, doc_max;       /* smallest and largest document start of the rows */
};

wn_status wn_attention_plan_init(struct wn_attention_plan *p, const struct wn_exec *exec, const struct wn_attention *a,
                                 const struct wn_tile_ops *ops, bool backward);
wn_status wn_attention_plan_kernels(struct wn_attention_plan *p, bool avx512);
void wn_attention_unit_init(const struct wn_attention_plan *p, int64_t index, struct wn_attention_unit *u);
void wn_attention_rows_init(const struct wn_attention_plan *p, int64_t b, int64_t block, struct wn_attention_rows *r);
/* The strips of a tile (these rows, column block c), in order; returns how many, at most WN_STRIPS_MAX. */
int wn_attention_strips(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                        struct wn_attention_strip *strips);
/* The first column block that these rows see, apart from selections. */
int64_t wn_attention_first_column(const struct wn_attention_plan *p, const struct wn_attention_rows *r);
/* First row block of chunk n, if chunks have about equal numbers of pairs. */
int64_t wn_attention_chunk(const struct wn_attention_plan *p, int64_t n);

void wn_attention_forward_run(const struct wn_attention_plan *p);
void wn_attention_backward_run(const struct wn_attention_plan *p);
void wn_attention_decode_run(const struct wn_attention_plan *p);
/* Open rows: no causality, hence no terms that look back; see struct wn_attention. */
void wn_open_forward_run(const struct wn_attention_plan *p);
void wn_open_backward_run(const struct wn_attention_plan *p);
/* The same with selection. Backward divides columns into parts. */
void wn_open_select_forward_run(const struct wn_attention_plan *p);
void wn_open_select_backward_run(const struct wn_attention_plan *p);
/* The sizes of their arrays, which come first in scratch. */
struct wn_arrays wn_open_scratch(const struct wn_attention_plan *p, bool backward);
struct wn_arrays wn_open_select_scratch(const struct wn_attention_plan *p, bool backward);
struct wn_arrays wn_attention_forward_scratch(const struct wn_attention_plan *p);
struct wn_arrays wn_attention_backward_scratch(const struct wn_attention_plan *p);
bool wn_attention_decodes(const struct wn_attention *a, bool backward); /* is it a call for decode.c? */
struct wn_arrays wn_attention_decode_scratch(const struct wn_attention_plan *p);

static inline int64_t wn_div_up(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}
static inline int64_t wn_min_i64(int64_t x, int64_t y) {
  return x < y ? x : y;
}
static inline int64_t wn_max_i64(int64_t x, int64_t y) {
  return x > y ? x : y;
}

/* The strength of selection group `choice`. */
static inline float wn_strength(const struct wn_attention *a, int64_t choice) {
  return a->sel.strength ? ((const float *)a->sel.strength)[choice] : 1.0f;
}

/* Row t of head h in a strided array. */
static inline const float *wn_floats_at(const void *x, struct wn_stride s, int64_t b, int64_t t, int64_t h) {
  return (const float *)x + b * s.b + t * s.t + h * s.h;
}
/* The floats of stored rows t..t+rows-1: to `wide` [rows,D]. */
static inline void wn_widen(const struct wn_attention_plan *p, wn_gguf_type type, const void *x, struct wn_stride s,
                            int64_t b, int64_t t, int64_t h, int64_t rows, float *wide) {
  const char *from = (const char *)x + wn_stored_bytes(type, WN_F32, b * s.b + t * s.t + h * s.h);
  p->ops->widen[type](wide, from, wn_stored_bytes(type, WN_F32, s.t), rows, p->a->D);
}
static inline float *wn_floats_out(void *x, struct wn_stride s, int64_t b, int64_t t, int64_t h) {
  return (float *)x + b * s.b + t * s.t + h * s.h;
}

#endif
