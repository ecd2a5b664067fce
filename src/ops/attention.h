/* The attention operation: one loop with optional terms (docs/mechanisms.md). Forward serves whole sequences, chunks of
 * a prompt and single-token decoding: the Tq queries are the last Tq of the Tk keys. */
#ifndef WN_OPS_ATTENTION_H
#define WN_OPS_ATTENTION_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "io/stored.h"
#include "ops/score.h"
#include "ops/stride.h"
#include "ops/term/square_root.h"
#include "winnow/tensor.h"

/* Attention weights of rows r..r+rows-1 of head h of sequence b: w[rows, columns], with `stride` elements from row to
 * row. Column j is key j; 0 if the row does not see it. A row sums to 1 together with its learned sinks. Under a
 * threshold these are the attention weights of the kept keys. Dropout is not applied. */
struct wn_attention_view {
  const struct wn_attention *a;
  int64_t b, h, r, rows, columns, stride;
  const float *w;
  int thread; /* which of exec.threads calls */
};

/* The largest head size for keys that are stored in another type. */
#define WN_STORED_D 256

struct wn_attention {
  int64_t B, Tq, Tk, H, Hkv, D; /* query row i (0..Tq-1) has position i + Tk - Tq */
  /* Head h of the call is head head0 + h * head_step of the model (a step of 0 means 1). Used to index per-head
   * tables. */
  int64_t head0, head_step;
  double scale;

  /* The type of q, k, v, y, dy, dq, dk and dv: 0 or exec->dtype, or WN_BF16 (strides are in elements of that type).
   * Products with bf16 rows may round their other operand (attention weights, gradients of logits) to bf16 too. Sums,
   * all other arrays and all other numbers are of exec->dtype. */
  wn_dtype row_type;
  /* Keys in half floats, several rows: products may round q, k, v and the attention weights to bf16, where that is
   * faster, so that a row's last digits depend on whether it was a call's only one. A setting of the run. */
  bool rounds;

  const void *q;
  struct wn_stride s_q; /* [B,Tq,H,D] */
  const void *k, *v;
  struct wn_stride s_k, s_v;   /* [B,Tk,Hkv,D] */
  wn_gguf_type k_type, v_type; /* F32 (0): k and v are rows like the others; else a cache stores them so
                                * (io/stored.h), with strides of whole blocks. Both or neither; forward only, F32,
                                * D at most WN_STORED_D; only terms with WN_TRAIT_HALF */
  void *y;
  struct wn_stride s_y;     /* [B,Tq,H,D] */
  bool open;                /* no causality: every row sees every key. Row i has position i, and the keys may be another
                             * sequence's (any Tk). Only terms with WN_TRAIT_OPEN; whole sequences only */
  const int32_t *key_count; /* [B] open only: keys from this index on are padding, not seen; NULL: no padding */
  const int32_t *doc_start; /* [B,Tk] position of the first token of each token's document, or NULL. Keys before the
                             * query's doc_start are masked */
  void *lse;                /* [B,H,Tq] log of the sum of the row's exponentials, for backward (under a threshold over
                             * the kept keys; -inf if the row sees no key); or NULL */

  /* Keep rules: which keys a row sees, besides causality and documents. They intersect. x = i - j. */
  int64_t window;  /* x < window; 0: no window */
  int64_t strided; /* x < strided or x % strided == 0 (Child et al. 2019); 0: off */
  struct {         /* square-root mask (Fernandez, Unsal): x < buffer, or */
    bool on;       /* x - buffer + 1 = floor((m/density)^2) for some m >= 1 */
    int64_t buffer;
    double density;
  } root;

  /* Eviction and compact caches (docs/pruning.md). P is 1, or Hkv if each key-value head keeps its own keys. */
  struct {
    int64_t groups;            /* P; 0 reads as 1 */
    const int32_t *evicted_at; /* [B,P,Tk] position of the first row that no longer sees the key; NULL: no key is
                                * evicted. Constant in backward */
    const int32_t *at;         /* [B,P,Tk] absolute position of the key; NULL: key j is at j. The last Tq keys are the
                                * rows' own, in order; the keys before them may be in any order, all older. Excludes
                                * doc_start; forward only */
    int64_t stride;            /* elements from one row of evicted_at and at to the next; 0: Tk */
    void *sums;                /* [B,P,Tk] overwritten: the sum of the attention weights that the Tq rows and the heads
                                * of the group gave each key (before dropout); NULL: not wanted */
  } slots;

  /* Selective term (arXiv 2410.02703 §3.2, 3.3). */
  struct {
    bool on, relu, protect_first, protect_self, shift, bilinear;
    int64_t groups; /* G: 1, one F for all heads; or Hkv, one F for each key-value head and its queries (0 means 1) */
    int head;       /* the selecting head, in [0,H/G), of each group */
    const void *sq, *sk;
    struct wn_stride s_sq, s_sk; /* bilinear only: [B,Tq,G,D], [B,Tk,G,D] */
    const void *strength;        /* [G] factor of S, or NULL: 1 */
    void *dstrength;             /* [G] added to; or NULL */
    const void *f_in;            /* [B,G,Tk] the cache's F: selections made by rows before the first query; NULL: 0 */
    void *f_out;                 /* [B,G,Tk] F after the last query row; NULL: not wanted. May alias f_in */
    int64_t f_stride;            /* elements from one row of f_in and f_out to the next; 0: Tk */
    void *F; /* [B,G,Tq,Tk] for inspection only; usually NULL. For j > i it is the running sum too */
    /* L_mem: M[b,g,i] = (i+1-doc_start) - sum_j min(F[g,i,j], tau)/tau, over the causal j in the row's document. */
    bool mem;
    double mem_tau;
    /* Dead-key skipping: a row may skip keys in everything but f_out and M, if their attention weights are sure to add
     * up to less than this share of the row's sum. 0: skip none. This is a setting of the run (from the context), not
     * of the model; only F32 uses it. */
    double dead_share;
    void *M;        /* [B,G,Tq], written by forward; NULL: not wanted */
    const void *dM; /* [B,G,Tq] the gradient of M, which backward adds to that of F; NULL: 0 */
  } sel;

  /* Adaptive and dynamic span (Sukhbaatar et al. 2019, §2.2): before normalisation, the attention weight of key j is
   * multiplied by m = clamp((ramp + limit*z - x)/ramp, 0, 1). If m = 0 the row does not see the key.
   * dm/dz = limit/ramp on the ramp. At its two ends m has a kink. There it is the derivative from above, and from below
   * for z >= 1: z is clamped to [0,1], and can leave 0, where training starts, only upwards and 1 only downwards. So
   * the end that counts is wn_span_edge, and the key there adds exp(A[i,j] - lse_i) (dW - delta) limit/ramp to dz,
   * which is not 0 where W and m are. A threshold must keep the key: if W = 0, with tau = 1 or as a control key. */
  struct {
    bool on, dynamic, exclude_self; /* exclude_self: x >= 1 only */
    double limit, ramp;
    const void *z;
    struct wn_stride s_z; /* ratios in [0,1]: [H] (only .h counts), dynamic: [B,Tq,H] */
    void *dz;             /* strides of z; static: added to, dynamic: overwritten */
  } span;

  /* Relative positions (Shaw et al. 2018), shared by all heads: the logit is scale * q . (k + p[x]). */
  struct {
    int64_t P;     /* number of rows of p, more than any x seen; 0: off */
    const void *p; /* [P,D] */
    void *dp;      /* [P,D] added to */
  } relative;

  /* Score maps, applied in order (ops/score.h), after scale * q . (k + p[x]). */
  int64_t maps;
  struct wn_score_map map[WN_SCORE_MAPS_MAX];

  /* Learned sinks: n keys and values that every row sees. No mask, selection or span acts on them. */
  struct {
    int64_t n;         /* 0: off */
    const void *k, *v; /* [Hkv,n,D] */
    void *dk, *dv;     /* [Hkv,n,D] added to */
  } sinks;

  /* Threshold (meaningful attention): a row keeps the fewest content keys whose attention weights reach tau of the
   * content's total weight: heaviest first, ties to the oldest. It always keeps control keys and learned sinks. The
   * kept attention weights are normalised again. The choice carries no gradient. */
  struct {
    bool on;
    double tau;             /* in (0,1] */
    const uint8_t *control; /* [B,Tk] 1: control token; with slots.at, [B,P,Tk] in slot order; NULL: none */
    int32_t *count;         /* [B,H,Tq] number of content keys kept; NULL: not wanted */
    double *cut;            /* [B,H,Tq,2] where the choice cut, written by forward for backward; or NULL */
  } threshold;

  /* Reports on the attention weights, for analysis. Results stay the same (except for rounding with spans). Forward,
   * causal rows only. */
  struct {
    int64_t n;              /* how many shares of the content's weight are asked for (meaningful attention); 0: none */
    const double *tau;      /* [n] ascending, in (0,1] */
    const uint8_t *control; /* [B,Tk] 1: control token, not counted; NULL: none */
    int32_t *count;         /* [B,H,Tq,n] the fewest content keys whose attention weights reach tau of the content's
                             * weight; for tau = 1 all seen. A threshold is not applied before */
    void (*rows)(void *user, const struct wn_attention_view *view); /* called for every row, by several threads at once,
                                                                     * heads and rows in any order; NULL: not wanted */
    void *user;
  } look;

  /* Dropout on the attention weights, after normalisation: W *= keep/(1-p), where keep is
   *   word n%4 of wn_philox(seed, stream, n/4) >= p * 2^32,  n = ((b*H + h)*Tq + r)*Tk + j.
   * Learned sinks are not dropped. */
  struct {
    double p;
    uint64_t seed, stream;
  } dropout;

  /* Exclusive self attention (Zhai): y -= gate * (y.v)/|v|^2 v, where v is the row's own value in its key-value head.
   * |v|^2 is clamped from below, which keeps the result orthogonal to v (for gate 1). */
  struct {
    bool on;
    const void *gate; /* [H], or NULL: 1 */
    void *dgate;      /* [H] added to */
    void *dot;        /* [B,H,Tq] y.v before the projection, written by forward for backward; or NULL */
  } exclusive;

  /* Gated outputs (Qiu et al. 2025), applied last: y *= g. */
  struct {
    bool on, elementwise;
    const void *g; /* elementwise: [B,Tq,H,D], the D values contiguous; else [B,Tq,H] */
    struct wn_stride s_g;
    void *dg;      /* strides of g; overwritten; or NULL */
    void *ungated; /* [B,Tq,H,D] y before the gates, written by forward for backward; or NULL */
  } gate;

  /* Backward. dq, dk, dv, dsq, dsk have the strides of q, k, v, sq, sk; dy those of y. y, lse and other saved arrays
   * come from forward. Keys before dk_from are constant (cached keys of an earlier segment): their rows of dk, dv, dsk
   * are neither computed nor written. f_in is constant. */
  const void *dy;
  void *dq, *dk, *dv, *dsq, *dsk;
  int64_t dk_from;
};

static inline bool wn_attention_looks(const struct wn_attention *a) {
  return a->look.n > 0 || a->look.rows;
}

/* Do the keep rules by distance, and exclude_self, let a row see the key at distance x? */
static inline bool wn_distance_seen(const struct wn_attention *a, int64_t x) {
  if (a->window > 0 && x >= a->window) return false;
  if (a->strided > 0 && x >= a->strided && x % a->strided != 0) return false;
  if (a->root.on && !square_root_sees(a->root.buffer, a->root.density, x)) return false;
  return !(a->span.on && a->span.exclude_self && x == 0);
}

/* A row's dz is cut to this size: a key at the ramp's end has no attention weight that would bound what it adds. So its
 * exponent is cut as well, where the exponential of a float could overflow; times a gradient of 0 that were no number.
 */
#define WN_SPAN_STEEPEST 0x1p40
#define WN_SPAN_EXPONENT 64
#define WN_SPAN_CUT(dz, most) ((dz) > (most) ? (most) : (dz) < -(most) ? -(most) : (dz))

/* The distance of the ramp's end that counts in the gradient of z; -1: no key is there. */
static inline int64_t wn_span_edge(const struct wn_attention *a, double z) {
  const double x = (z < 1 ? a->span.ramp : 0) + a->span.limit * z;
  return x >= 0 && x < 1e12 && x == floor(x) ? (int64_t)x : -1;
}

/* G; below, the number of elements between rows of f_in and f_out. */
static inline int64_t wn_selection_groups(const struct wn_attention *a) {
  return a->sel.groups > 0 ? a->sel.groups : 1;
}
static inline int64_t wn_selection_stride(const struct wn_attention *a) {
  return a->sel.f_stride > 0 ? a->sel.f_stride : a->Tk;
}
/* The model's head number of head h. */
static inline int64_t wn_model_head(const struct wn_attention *a, int64_t h) {
  return a->head0 + h * (a->head_step > 0 ? a->head_step : 1);
}
/* The curve among a call's maps; NULL: none. */
static inline const struct wn_score_map *wn_score_curve(const struct wn_attention *a) {
  return a->maps > 0 && a->map[a->maps - 1].kind->forward_double ? &a->map[a->maps - 1] : NULL;
}
/* Is the call's last map one whose derivative backward computes from mapped logits: a curve, or keyed and scaling? */
static inline bool wn_score_bends(const struct wn_attention *a) {
  return a->maps > 0 && (a->map[a->maps - 1].kind->forward_double || a->map[a->maps - 1].kind->scales);
}
/* How many maps of the call are keyed. */
static inline int64_t wn_score_keyed(const struct wn_attention *a) {
  int64_t n = 0;
  for (int64_t i = 0; i < a->maps; i++) n += a->map[i].kind->keyed_double != NULL;
  return n;
}
/* sums[n] += the biases of head h (of the call) at distances x[n], or, with x NULL, first, first - 1, ... */
void wn_score_biases(const struct wn_attention *a, bool wide, int64_t h, int64_t first, const int32_t *x, int64_t n,
                     double *sums);
/* A row of sequence b and one of its keys: head, the row's own key, the key, their distance. */
struct wn_score_place {
  int64_t b, h, own, j, x;
};
/* Maps a logit; below, from the gradient G of the mapped logit y to that of the logit, and to those of map i's numbers,
 * the key's and the own key's. wide: arrays have doubles. */
double wn_score_logit(const struct wn_attention *a, bool wide, struct wn_score_place at, double logit);
struct wn_score_back {
  double G, key[WN_SCORE_MAPS_MAX], row[WN_SCORE_MAPS_MAX];
};
struct wn_score_back wn_score_logit_back(const struct wn_attention *a, bool wide, struct wn_score_place at, double y,
                                         double G);
/* Have biases parameters? Backward sums the gradients of logits by distance for them. */
static inline bool wn_score_learns(const struct wn_attention *a) {
  for (int64_t i = 0; i < a->maps; i++)
    if (a->map[i].kind->slope) return true;
  return false;
}
/* All distances of a call whose keys are in order. */
static inline struct wn_interval wn_score_distances(const struct wn_attention *a) {
  const struct wn_interval all = {a->open ? 1 - a->Tk : 0, (a->open ? a->Tq : a->Tk) - 1};
  return all;
}
/* Adds to dtheta of the maps. sums: by distance, from the first on, of the gradients of head h's logits; `type` is
 * theirs. */
void wn_score_gradient(const struct wn_attention *a, bool wide, int64_t h, const void *sums, wn_dtype type);

/* P; below, where a key-value head's slots begin. */
static inline int64_t wn_slot_groups(const struct wn_attention *a) {
  return a->slots.groups > 0 ? a->slots.groups : 1;
}
static inline int64_t wn_slot_row(const struct wn_attention *a, int64_t b, int64_t kv_head) {
  const int64_t P = wn_slot_groups(a);
  return (b * P + (P > 1 ? kv_head : 0)) * (a->slots.stride > 0 ? a->slots.stride : a->Tk);
}
static inline int64_t wn_slot_stride(const struct wn_attention *a) {
  return a->slots.stride > 0 ? a->slots.stride : a->Tk;
}
/* The absolute position of slot j. */
static inline int64_t wn_slot_position(const struct wn_attention *a, int64_t b, int64_t kv_head, int64_t j) {
  return a->slots.at ? a->slots.at[wn_slot_row(a, b, kv_head) + j] : j;
}
/* The positions of a key-value head's slots; NULL: slot j holds position j. */
static inline const int32_t *wn_slot_positions(const struct wn_attention *a, int64_t b, int64_t kv_head) {
  return a->slots.at ? a->slots.at + wn_slot_row(a, b, kv_head) : NULL;
}
/* Which of a head's keys count as control tokens for a threshold; NULL: none. */
static inline const uint8_t *wn_control_keys(const struct wn_attention *a, int64_t b, int64_t kv_head) {
  if (!a->threshold.control) return NULL;
  return a->threshold.control + (a->slots.at ? wn_slot_row(a, b, kv_head) : b * a->Tk);
}

/* Does the threshold keep key j of key-value head kv_head if its attention weight is 0? */
static inline bool wn_keeps_weightless(const struct wn_attention *a, int64_t b, int64_t kv_head, int64_t j) {
  const uint8_t *control = wn_control_keys(a, b, kv_head);
  return a->threshold.tau >= 1 || (control && control[j]);
}

#endif
