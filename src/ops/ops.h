/* The operations: one table, one struct of arguments each, with shapes next to the pointers.
 *
 * A `void *` array holds exec->dtype (float or double) unless noted; ld* are row strides in elements. If a struct has a
 * field <array>_type (or `type`, for all its arrays), WN_BF16 there means that the array holds bf16: values are
 * converted to float when read, and rounded to nearest even when stored; 0 means exec->dtype. exec->dtype is then
 * WN_F32. Arrays are in the backend's memory; structs and arrays of structs (packed, expert, map, look) are in host
 * memory. Forward reads the forward fields; backward reads those it needs again and the d* fields. Gradients of
 * parameters are ADDED; gradients of inputs are overwritten unless noted. A gradient whose pointer is NULL is not
 * computed. Call wn_op_<name>_forward/backward: they check shapes, then call the backend. An empty slot is
 * WN_ERR_UNSUPPORTED with operation and backend. */
#ifndef WN_OPS_OPS_H
#define WN_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/context.h"
#include "base/error.h"
#include "base/memory.h"
#include "io/stored.h"
#include "ops/packed.h"
#include "ops/stride.h"
#include "tensor/bf16.h"
#include "winnow/tensor.h"

struct wn_attention; /* ops/attention.h, included only by code that looks inside a call; likewise below */
struct wn_adjust;    /* ops/sample.h */
struct wn_sample;    /* ops/sample.h */
struct wn_evict;     /* ops/evict.h */
struct wn_evictions; /* ops/evictions.h */

/* Element n of an array of the dtype (NULL stays NULL); below, its value. */
static inline void *wn_element(const void *base, int64_t n, wn_dtype dtype) {
  return base ? (char *)(uintptr_t)base + n * (dtype == WN_F64 ? 8 : dtype == WN_BF16 ? 2 : 4) : NULL;
}
static inline double wn_number(const void *x, int64_t n, wn_dtype dtype) {
  if (dtype == WN_BF16) return (double)wn_bf16_value(((const uint16_t *)x)[n]);
  return dtype == WN_F64 ? ((const double *)x)[n] : (double)((const float *)x)[n];
}
static inline void wn_number_set(void *x, int64_t n, wn_dtype dtype, double value) {
  if (dtype == WN_BF16)
    ((uint16_t *)x)[n] = wn_bf16_round((float)value);
  else if (dtype == WN_F64)
    ((double *)x)[n] = value;
  else
    ((float *)x)[n] = (float)value;
}

/* The type of an array whose type field is `type`. */
static inline wn_dtype wn_array_type(wn_dtype type, wn_dtype dtype) {
  return type == WN_BF16 ? WN_BF16 : dtype;
}

/* How an operation runs. The caller provides scratch (the largest wn_op_<name>_scratch of what it will call); no
 * operation allocates. */
struct wn_exec {
  wn_context *ctx;
  const struct wn_backend *backend;
  int threads;
  wn_dtype dtype;     /* WN_F32, or WN_F64 (ref only) */
  wn_dtype precision; /* of linear: WN_BF16 rounds the factors to bf16 and sums in float; 0: dtype */
  int64_t exact_rows; /* of wn_context_options */
  void *scratch;      /* WN_ALIGN-aligned */
  size_t scratch_bytes;
};
/* The same exec with the first `bytes` of scratch reserved for the caller. */
static inline struct wn_exec wn_exec_behind(const struct wn_exec *exec, size_t bytes) {
  struct wn_exec inner = *exec;
  inner.scratch = (char *)exec->scratch + bytes;
  inner.scratch_bytes = exec->scratch_bytes > bytes ? exec->scratch_bytes - bytes : 0;
  return inner;
}

/* y[M,N] = x[M,K] w[N,K]^T + b[N] (+ y when accumulate). 2MNK flops. dx[M,K] = dy w (added to dx when accumulate_dx);
 * dw += dy^T x; db += column sums of dy. With packed, the weights are read from blocks and a->w is ignored; there is no
 * dw then. rows_apart (forward only): each row of y is bitwise what a call with M = 1 gives, whatever M and the other
 * rows are. Without it a backend may sum in another order for few rows than for many. */
struct wn_linear {
  int64_t M, N, K;
  wn_dtype x_type, y_type, dy_type, dx_type; /* bf16 only with precision WN_BF16 */
  bool rows_apart;
  const void *x;
  int64_t ldx;                    /* [M,K] */
  const void *w;                  /* [N,K] contiguous */
  const struct wn_packed *packed; /* [N,K], or NULL */
  const void *b;                  /* [N] or NULL */
  void *y;
  int64_t ldy; /* [M,N] */
  bool accumulate;
  const void *dy;
  int64_t lddy; /* [M,N] */
  void *dx;
  int64_t lddx; /* [M,K] */
  bool accumulate_dx;
  void *dw, *db; /* [N,K], [N] */
  bool dw_fresh; /* dw is uninitialised: overwrite it */
};

/* y[M,C] = scale tok[ids[m]] + pos[positions[m]]. dtok and dpos are added to, in a fixed order. With packed, tok is
 * read from blocks and a->tok is ignored; there is no dtok then. */
struct wn_embedding {
  int64_t M, C, V, P;
  const int32_t *ids;             /* [M] in [0,V): checked */
  const int32_t *positions;       /* [M] in [0,P), NULL when pos is NULL */
  const void *tok;                /* [V,C] */
  const struct wn_packed *packed; /* [V,C], or NULL */
  double scale;                   /* for tok only; 0 means 1 */
  const void *pos;                /* [P,C] or NULL */
  void *y;                        /* [M,C] */
  const void *dy;                 /* [M,C] */
  void *dtok, *dpos;
};

/* Norm of `groups` vectors of `width` in each of `rows` rows. groups 1: over the model width; groups H: QK-norm. With
 * add: sum = x + add is computed first, stored in `sum` and normed (sum may alias x or add).
 * RMS: y = gain * x / sqrt(mean(x^2) + eps).  Layer: y = gain * (x - mean) / sqrt(var + eps) + shift.
 * Backward: the input is `sum` if add was given, else x. dx = gradient; added to dx when accumulate_dx. dx may alias dy
 * when not accumulating. Zhang & Sennrich 2019; Ba et al. 2016. */
struct wn_norm {
  int64_t rows, groups, width;
  wn_dtype x_type, y_type, dy_type, dx_type; /* bf16 x: no add, and y is bf16 too; bf16 dx: no accumulate_dx */
  bool layer;                                /* false: RMS */
  double eps;
  const void *x;
  int64_t ldx; /* [rows, groups*width] */
  const void *add;
  int64_t ldadd;
  void *sum;
  int64_t ldsum;
  const void *gain, *shift; /* [width] shared by groups; shift NULL unless layer with bias */
  void *y;
  int64_t ldy;
  void *rstd, *mean; /* [rows*groups]; mean only for layer */
  const void *dy;
  int64_t lddy;
  void *dx;
  int64_t lddx;
  bool accumulate_dx;
  void *dgain, *dshift;
};

/* Rotary embedding, in place, on the first R elements of `heads` vectors of size D per row: pairs (i, i + R/2), or (2i,
 * 2i + 1) when adjacent; angle position * theta^(-2i/R). Backward rotates x the other way (pass the gradient as x). Su
 * et al. 2021. */
struct wn_rope {
  int64_t rows, heads, D;
  int64_t R; /* even; 0: D */
  wn_dtype type;
  bool adjacent;
  void *x;
  int64_t ldx;              /* [rows, heads*D] */
  const int32_t *positions; /* [rows] */
  const float *cos_sin;     /* [P, R/2, 2] table from wn_rope_table (float); NULL for WN_F64, which computes it */
  int64_t P;                /* rows of the table */
  double theta;
  const double *frequencies; /* [R/2] radians per position, replaces theta; NULL: use theta */
  double magnitude;          /* factor on cos and sin (already in a table); 0 means 1 */
};

/* y = act(x). With a gate, x is [M,2F], gate first: SWIGLU y = silu(gate) * up, GEGLU y = gelu(gate) * up (tanh form),
 * [M,F]. GELU (tanh form), RELU, GELU_ERF (x Phi(x)) and RELU2 (max(x, 0)^2): x is [M,F].
 * dx may alias x. */
enum wn_act_kind { WN_ACT_SWIGLU, WN_ACT_GELU, WN_ACT_RELU, WN_ACT_GELU_ERF, WN_ACT_GEGLU, WN_ACT_RELU2, WN_ACT_KINDS };
static inline bool wn_act_has_gate(enum wn_act_kind kind) {
  return kind == WN_ACT_SWIGLU || kind == WN_ACT_GEGLU;
}
struct wn_act {
  enum wn_act_kind kind;
  wn_dtype type;
  int64_t M, F;
  const void *x;  /* [M,2F] or [M,F] */
  void *y;        /* [M,F] */
  const void *dy; /* [M,F] */
  void *dx;       /* as x */
};

/* y = x s(x), element-wise, s the logistic function. dx may alias dy. */
struct wn_silu {
  int64_t n;
  const void *x;  /* [n] */
  void *y;        /* [n] */
  const void *dy; /* [n] */
  void *dx;       /* [n] */
};

/* Mixture of experts: E feed-forwards e(x) = out (silu(g) u), [g; u] = in x. Each row uses the `top` experts with the
 * largest router weights, and a shared expert that all rows use, with or without a gate:
 *
 *   p = softmax(router x);  K = the top largest of p (ties to the lowest index)
 *
 *   w_k = p_k, divided by their sum if normalize
 *
 *   y = sum_{k in K} w_k e_k(x) + sigmoid(shared_gate . x) shared(x)
 *
 * Shazeer et al. 2017; Jiang et al. 2024 (Mixtral). 2M(top 3CF + 3CS + CE) flops forward. `in` has one row for each
 * pair of a row and an expert that it chose, sorted by expert, then by row; `place` is the index there.
 * balance = E sum_e f_e P_e (Fedus et al. 2021; `top` if all are equal): f_e is the number of rows that choose e
 * divided by the number of rows, P_e the mean of p_e, both over rows that count: those before row_count in each T. Its
 * gradient times balance_scale is added to the router's. rows_apart: as in wn_linear. Arrays are contiguous. */
struct wn_expert {
  const void *in, *out;                           /* [2F,C], [C,F] */
  const struct wn_packed *packed_in, *packed_out; /* replace `in` and `out`, or NULL; packed experts have no gradient */
  void *d_in, *d_out;                             /* added to */
};
struct wn_experts {
  int64_t M, T, C, E, top, F, S; /* S: F of the shared expert; 0: none */
  bool normalize, rows_apart;
  const void *x;                  /* [M,C] */
  const void *router;             /* [E,C] */
  const struct wn_expert *expert; /* [E] */
  struct wn_expert shared;
  const void *shared_gate; /* [C]; NULL: the factor is 1 */
  void *y;                 /* [M,C] */
  /* Saved by forward for backward. */
  void *prob, *weight;      /* [M,E], [M,top] */
  int32_t *chosen, *place;  /* [M,top] expert, and row of `in`; largest weight first */
  void *in;                 /* [M*top,2F] before the activation; backward overwrites it */
  void *shared_in;          /* [M,2S]; backward overwrites it */
  void *shared_factor;      /* [M] */
  void *shared_out;         /* [M,C] */
  const int32_t *row_count; /* [M/T] or NULL: all */
  double *balance;          /* [1] or NULL */
  const void *dy;           /* [M,C] */
  double balance_scale;
  void *dx; /* [M,C], not dy */
  bool accumulate_dx;
  void *d_router, *d_shared_gate; /* [E,C], [C] added to */
};
/* The most experts that a row may use, and that a layer may have. */
#define WN_EXPERTS_TOP 64
#define WN_EXPERTS_MAX 512

/* x *= keep/(1-p): forward on values and backward on gradients are the same map. keep[i] is word i%4 of wn_philox(seed,
 * stream, i/4) >= p * 2^32. `stream` identifies layer, place and step. */
struct wn_dropout {
  wn_dtype type;
  int64_t n;
  double p;
  uint64_t seed, stream;
  void *x; /* [n] */
};

/* x += log(u / (1 - u)), noise with the logistic distribution, the difference of two of Gumbel's: u = (word + 1/2) /
 * 2^32 of the word that dropout would draw for i. Backward is the identity and needs no call. */
struct wn_noise {
  int64_t n;
  uint64_t seed, stream;
  void *x; /* [n] */
};

/* y = x + z (element-wise), any may alias. Backward is the identity and needs no call. */
struct wn_add {
  int64_t n;
  const void *x, *z;
  void *y;
};

/* x = cap tanh(x / cap): soft-capping (Gemma 2, arXiv 2408.00118, §2). Forward only: cross-entropy includes its
 * gradient. */
struct wn_softcap {
  int64_t n;
  double cap; /* above 0 */
  void *x;    /* [n] */
};

/* x = factor x: forward on values and backward on gradients are the same map. */
struct wn_scale {
  int64_t n;
  double factor;
  void *x; /* [n] */
};

/* Softmax cross-entropy. loss[m] = logsumexp(logits[m]) - logits[m,target]; 0 where target is -1. When dlogits is given
 * (may alias logits): (softmax - onehot) * scale, 0 where target is -1. hit[m] = arg-max is the target (ties to the
 * lowest id). Forward only: it computes the gradient too. With a cap, the logits are softcap's output, and dlogits is
 * the gradient of softcap's input: times 1 - (logit/cap)^2. */
struct wn_cross_entropy {
  int64_t M, V;
  const void *logits;
  int64_t ld;             /* [M,V] */
  const int32_t *targets; /* [M] in [-1,V): checked */
  double scale;
  double cap;    /* 0: none */
  void *dlogits; /* [M,V], same ld, or NULL */
  double *loss;  /* [M] */
  uint8_t *hit;  /* [M] or NULL */
};

/* Attention sums: the total attention weight that R rows (a group's heads, for one query) give each of N columns.
 * L[r,c] = scale logits[r,c] + add[r/share,c] + extra[r,c]; -inf: the row does not see the column.
 * W[r,c] = factor[r,c] exp(L[r,c]) / (sum_s exp(scale sink[r,s]) + sum_c factor[r,c] exp(L[r,c]));
 * sums[c] += sum_r W[r,c], row by row. A row that sees no column adds 0. */
struct wn_attention_sums {
  int64_t R, N, S; /* S: learned sinks, which take their share of attention weight */
  double scale;
  const void *logits;
  int64_t ld;                 /* [R,N] */
  int64_t share;              /* this many rows share one row of add */
  const void *add;            /* [R/share,N] contiguous */
  const void *extra, *factor; /* [R,N] contiguous, each or NULL: 0, 1 */
  const void *sink;
  int64_t ld_sink; /* [R,S]; unused if S is 0 */
  void *sums;      /* [N] added to */
};

/* AdamW (Loshchilov & Hutter 2019) on one tensor: g is scaled by grad_scale first (accumulation and clipping).
 * m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * (mhat/(sqrt(vhat)+eps) + wd p); step counts from 1. */
struct wn_adamw {
  int64_t n;
  void *p;
  const void *g;
  void *m, *v;
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step;
};
/* Adagrad (Duchi et al. 2011): v += g^2; p -= lr * (g/(sqrt(v)+eps) + wd p). */
struct wn_adagrad {
  int64_t n;
  void *p;
  const void *g;
  void *v;
  double lr, eps, weight_decay, grad_scale;
};
/* y = f x + h y. With h = 0, y is only written and may alias x. With sumsq, f is divided by sqrt(*sumsq) + 1e-7, which
 * brings x to length 1. */
struct wn_mix {
  int64_t n;
  double f, h;
  const double *sumsq; /* [1] or NULL */
  const void *x;       /* [n] */
  void *y;             /* [n] */
};
/* x = min(max(x, low), high). */
struct wn_clamp {
  int64_t n;
  double low, high;
  void *x; /* [n] */
};
/* y = x in another type: F32 to BF16 (rounded to nearest even), or back. exec->dtype is F32. */
struct wn_convert {
  int64_t n;
  wn_dtype x_type, y_type;
  const void *x; /* [n] */
  void *y;       /* [n] */
};
/* Copies rows of D numbers: y[b,h,j] = x[b,h,index[b,p,j]]; x[b,h,j] if index is NULL; 0 if x is NULL. Head h is one of
 * the H/P heads of group p. y must not overlap x. */
struct wn_gather {
  int64_t B, H, T, D;
  wn_gguf_type x_type, y_type; /* how rows are stored (io/stored.h), F32: in exec->dtype; y as x, or, if x has F32,
                                * in any type that caches have */
  const void *x;               /* NULL: zeros */
  struct wn_stride s_x;
  int64_t groups;       /* P; 0 reads as 1 */
  const int32_t *index; /* [B,P,T], none negative, or NULL */
  void *y;
  struct wn_stride s_y;
};
/* s(x) = 1 / (1 + exp(-x)), in place; backward gets forward's output and turns dx into the gradient of its input.
 *   SIGMOID   x = s(x)
 *   LOG       x = log max(s(x), floor), rounded to multiples of 2^-26 (of doubles 2^-46, exact up to 128), so that
 *             sums in doubles are exact; backward gives nothing to what the floor holds
 *   SUMS      x[b,t,w] = sum over u <= t of x[b,u,w]. Backward goes through LOG as well: to the input of log s */
enum wn_sigmoid_kind { WN_SIGMOID, WN_SIGMOID_LOG, WN_SIGMOID_SUMS };
struct wn_sigmoid {
  enum wn_sigmoid_kind kind;
  double floor;    /* of LOG, below 1 */
  int64_t n, T, W; /* SUMS: n = B T W */
  void *x;         /* [n] */
  void *dx;        /* [n] */
  /* Forward of SUMS, tokens that follow others: the sums of those, and after these; NULL: 0; not wanted. */
  const double *from;
  double *to;           /* [B,W] */
  struct wn_stride s_x; /* of x [B,T,W] in forward; all 0: contiguous */
};
static inline struct wn_stride wn_sums_stride(const struct wn_sigmoid *a) {
  const struct wn_stride whole = {a->T * a->W, a->W, 1};
  return a->s_x.t ? a->s_x : whole;
}

/* What a step reports. Sums are in double and sequential, so that every backend gives the same bits. */

/* Call after cross_entropy: sums[0] += loss and sums[1] += hit, over positions that have a target. */
struct wn_loss_sums {
  int64_t M;
  const double *loss;     /* [M] */
  const uint8_t *hit;     /* [M] */
  const int32_t *targets; /* [M] below 0: no target */
  double *sums;           /* [2] added to */
};
/* Spans z: *sum = their sum over heads and over rows that count (those before row_count in each T), divided by
 * `tokens`. Backward: dz += scale / tokens there. */
struct wn_span_sum {
  int64_t rows, heads, T;   /* T is ignored without row_count */
  const int32_t *row_count; /* [rows/T] or NULL: all */
  double tokens;
  const void *z; /* [rows,heads] */
  double *sum;   /* [1] */
  double scale;
  void *dz; /* [rows,heads] added to */
};
/* L_mem (arXiv 2410.02703, §4, equation 2) from attention's M: *sum = the sum over documents and selections of max_i
 * M[i] / n, where n is the number of the document's rows that are tokens. Backward: M is replaced by scale times its
 * gradient: scale / n in the first row that has the document's largest M, 0 in all others. */
struct wn_memory_loss {
  int64_t B, G, T;
  const int32_t *doc_start; /* [B,T] or NULL: each sequence is one document */
  const int32_t *count;     /* [B] rows that are tokens; the rest is padding; NULL: T */
  void *M;                  /* [B,G,T] */
  double *sum;              /* [1] */
  double scale;
};

/* What gates of keys keep (attention/keyed.h), from their logs c: *sum = the mean over tokens and heads of e^c, or,
 * with `ages`, where a key that is a rows old counts e^(a c), of what all rows of each document together keep, as a
 * share of all that they see. Backward: dc += scale times its gradient, but nothing if the mean of `sums` is not
 * above `most`. Padding counts nowhere. */
struct wn_gate_share {
  int64_t B, T, heads;
  const int32_t *doc_start; /* [B,T] or NULL: each sequence is one document */
  const int32_t *count;     /* [B] rows that are tokens; the rest is padding; NULL: T */
  bool ages;
  const void *c; /* [B,T,heads] at most 0 */
  double *sum;   /* [1] */
  double scale, most;
  const double *sums; /* [layers] in backward; NULL: something is always added */
  int64_t layers;
  void *dc; /* [B,T,heads] added to */
};

/* *out = sum of squares of x[n], summed in double in an order that depends only on n and threads. */
struct wn_sumsq {
  int64_t n;
  const void *x;
  double *out; /* [1] */
};

/* name, argument struct, has a backward */
#define WN_OPS(X)                                                                                                      \
  X(linear, struct wn_linear, true)                                                                                    \
  X(embedding, struct wn_embedding, true)                                                                              \
  X(norm, struct wn_norm, true)                                                                                        \
  X(rope, struct wn_rope, true)                                                                                        \
  X(act, struct wn_act, true)                                                                                          \
  X(silu, struct wn_silu, true)                                                                                        \
  X(experts, struct wn_experts, true)                                                                                  \
  X(dropout, struct wn_dropout, false)                                                                                 \
  X(noise, struct wn_noise, false)                                                                                     \
  X(add, struct wn_add, false)                                                                                         \
  X(softcap, struct wn_softcap, false)                                                                                 \
  X(scale, struct wn_scale, false)                                                                                     \
  X(cross_entropy, struct wn_cross_entropy, false)                                                                     \
  X(attention_sums, struct wn_attention_sums, false)                                                                   \
  X(adamw, struct wn_adamw, false)                                                                                     \
  X(adagrad, struct wn_adagrad, false)                                                                                 \
  X(sumsq, struct wn_sumsq, false)                                                                                     \
  X(mix, struct wn_mix, false)                                                                                         \
  X(clamp, struct wn_clamp, false)                                                                                     \
  X(convert, struct wn_convert, false)                                                                                 \
  X(gather, struct wn_gather, false)                                                                                   \
  X(sigmoid, struct wn_sigmoid, true)                                                                                  \
  X(loss_sums, struct wn_loss_sums, false)                                                                             \
  X(span_sum, struct wn_span_sum, true)                                                                                \
  X(memory_loss, struct wn_memory_loss, true)                                                                          \
  X(gate_share, struct wn_gate_share, true)                                                                            \
  X(adjust, struct wn_adjust, false)                                                                                   \
  X(sample, struct wn_sample, false)                                                                                   \
  X(evict, struct wn_evict, false)                                                                                     \
  X(evictions, struct wn_evictions, false)                                                                             \
  X(attention, struct wn_attention, true)

/* Terms of attention (ops/terms.h) that a backend serves: in forward with several rows; in forward with a single row
 * and no look; in backward. A call with another term is refused before it reaches the backend. */
struct wn_attention_served {
  uint32_t forward, row, backward;
};

/* One backend: for each operation forward, backward and scratch bytes (scratch NULL: none needed). */
#define WN_OP_SLOTS(name, args, has_backward)                                                                          \
  wn_status (*name##_forward)(const struct wn_exec *, const args *);                                                   \
  wn_status (*name##_backward)(const struct wn_exec *, const args *);                                                  \
  size_t (*name##_scratch)(const struct wn_exec *, const args *, bool backward);
struct wn_backend {
  const char *name;
  /* The memory of all arrays given to operations (base/memory.h). NULL, in tables that are only called directly: host
   * memory. */
  const struct wn_memory *memory;
  bool doubles; /* also computes in F64 */
  /* F passed on between calls (f_out to f_in) keeps full precision: a text in pieces that begin at tile bounds gives
   * bitwise the result of a single call. */
  bool whole_selections;
  struct wn_attention_served attention_served;
  /* The backend's own order for quantised weights, which linear reads faster (wn_packed_part.strips). strips_bytes: the
   * bytes for this many rows of K weights, 0 if the type has no such order; strips_make: converts a part. NULL: no type
   * has one. */
  size_t (*strips_bytes)(wn_gguf_type type, int64_t rows, int64_t K);
  void (*strips_make)(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t K, void *to);
  WN_OPS(WN_OP_SLOTS)
  /* Forward of n calls that do not depend on each other, call i with exec[i], with the bits of each alone. NULL: one
   * after the other. */
  wn_status (*attention_together)(const struct wn_exec *exec, const struct wn_attention *a, int64_t n);
  wn_status (*gather_together)(const struct wn_exec *exec, const struct wn_gather *a, int64_t n);
};

static inline bool wn_backend_on_host(const struct wn_backend *backend) {
  return !backend->memory || backend->memory->host;
}

#define WN_OP_DECLARE(name, args, has_backward)                                                                        \
  wn_status wn_op_##name##_forward(const struct wn_exec *, const args *);                                              \
  wn_status wn_op_##name##_backward(const struct wn_exec *, const args *);                                             \
  size_t wn_op_##name##_scratch(const struct wn_exec *, const args *, bool backward);
WN_OPS(WN_OP_DECLARE)
wn_status wn_op_attention_together(const struct wn_exec *exec, const struct wn_attention *a, int64_t n);
wn_status wn_op_gather_together(const struct wn_exec *exec, const struct wn_gather *a, int64_t n);

/* Fills table [P, D/2, 2] with (cos, sin) for the first P positions. */
void wn_rope_table(float *table, int64_t P, int64_t D, double theta);
/* The same for n given frequencies (radians per position), times magnitude: [P, n, 2]. */
void wn_rope_table_frequencies(float *table, int64_t P, int64_t n, const double *frequencies, double magnitude);

#endif
