/* The operations: one table, one struct of arguments each, shapes next to the pointers.
 *
 * All `void *` arrays hold exec->dtype (float or double) unless said otherwise; ld* are row strides in elements. Where
 * a struct has a field <array>_type, or `type` for all its arrays, WN_BF16 there says that the array holds bf16: it is
 * read as the floats that it stands for and what is stored is rounded to nearest even; zero is exec->dtype. exec->dtype
 * is WN_F32 then. Arrays lie in the backend's memory; structs and arrays of structs (packed, expert, map, look) in the
 * host's. Forward reads the forward fields; backward reads those it needs again and the d* fields. Gradients of
 * parameters are ADDED to; gradients of inputs are overwritten unless the struct says otherwise. A gradient pointer
 * that is NULL is not computed. Call wn_op_<name>_forward/backward: they check shapes, then dispatch to the backend; an
 * empty slot is WN_ERR_UNSUPPORTED naming operation and backend. */
#ifndef WN_OPS_OPS_H
#define WN_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/context.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/packed.h"
#include "ops/stride.h"
#include "tensor/bf16.h"
#include "winnow/tensor.h"

struct wn_attention; /* ops/attention.h, which only what looks into a call includes; so the others' headers */
struct wn_adjust;    /* ops/sample.h */
struct wn_sample;    /* ops/sample.h */
struct wn_evict;     /* ops/evict.h */
struct wn_evictions; /* ops/evictions.h */

/* Element n of an array of the dtype (NULL stays NULL), and its value. */
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

/* The type of an array whose field says `type`. */
static inline wn_dtype wn_array_type(wn_dtype type, wn_dtype dtype) {
  return type == WN_BF16 ? WN_BF16 : dtype;
}

/* How an operation runs. scratch is the caller's (from wn_op_<name>_scratch, the largest of what will be called);
 * no operation allocates. */
struct wn_exec {
  wn_context *ctx;
  const struct wn_backend *backend;
  int threads;
  wn_dtype dtype;     /* WN_F32, or WN_F64 (ref only) */
  wn_dtype precision; /* of linear: WN_BF16 rounds what is multiplied to bf16 and sums in float; zero: dtype's */
  void *scratch;      /* WN_ALIGN-aligned */
  size_t scratch_bytes;
};
/* The same with what is left of the scratch behind its first `bytes`, which the caller uses itself. */
static inline struct wn_exec wn_exec_behind(const struct wn_exec *exec, size_t bytes) {
  struct wn_exec inner = *exec;
  inner.scratch = (char *)exec->scratch + bytes;
  inner.scratch_bytes = exec->scratch_bytes > bytes ? exec->scratch_bytes - bytes : 0;
  return inner;
}

/* y[M,N] = x[M,K] w[N,K]^T + b[N] (+ y when accumulate). 2MNK flops. dx[M,K] = dy w (added to when accumulate_dx); dw
 * += dy^T x; db += column sums of dy. With packed, w is in blocks and a->w is not read; there is no dw then.
 * rows_apart: each row of y has, to the bit, what a call with M 1 gives it, whatever M is and whatever the other rows
 * hold. Without it a backend may sum differently for few rows and for many. Forward alone looks at it. */
struct wn_linear {
  int64_t M, N, K;
  wn_dtype x_type, y_type, dy_type, dx_type; /* bf16 with the precision WN_BF16 alone */
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
  bool dw_fresh; /* dw holds nothing yet: it is overwritten */
};

/* y[M,C] = scale tok[ids[m]] + pos[positions[m]]. dtok, dpos added to, in a fixed order. With packed, tok is in blocks
 * and a->tok is not read; there is no dtok then. */
struct wn_embedding {
  int64_t M, C, V, P;
  const int32_t *ids;             /* [M] in [0,V): checked */
  const int32_t *positions;       /* [M] in [0,P), NULL when pos is NULL */
  const void *tok;                /* [V,C] */
  const struct wn_packed *packed; /* [V,C], or NULL */
  double scale;                   /* of tok alone; 0: 1 */
  const void *pos;                /* [P,C] or NULL */
  void *y;                        /* [M,C] */
  const void *dy;                 /* [M,C] */
  void *dtok, *dpos;
};

/* Norm of `groups` vectors of `width` in each of `rows` rows (groups 1: over the model width; groups H: QK-norm).
 * With add: sum = x + add is formed first, stored to `sum` and normed (sum may alias x or add).
 * RMS: y = gain * x / sqrt(mean(x^2) + eps).  Layer: y = gain * (x - mean) / sqrt(var + eps) + shift.
 * Backward: input is `sum` when add was given, else x.  dx = gradient, added to what is there when accumulate_dx.
 * dx may alias dy when not accumulating. Zhang & Sennrich 2019; Ba et al. 2016. */
struct wn_norm {
  int64_t rows, groups, width;
  wn_dtype x_type, y_type, dy_type, dx_type; /* bf16 x: no add, and y is bf16 too; bf16 dx: not added to */
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

/* Rotary embedding in place on the first R elements of `heads` vectors of size D per row: pairs (i, i + R/2), or
 * (2i, 2i + 1) when adjacent, angle position * theta^(-2i/R). Backward turns the other way, on x as well (pass the
 * gradient as x). Su et al. 2021. */
struct wn_rope {
  int64_t rows, heads, D;
  int64_t R; /* even; 0: D */
  wn_dtype type;
  bool adjacent;
  void *x;
  int64_t ldx;              /* [rows, heads*D] */
  const int32_t *positions; /* [rows] */
  const float *cos_sin;     /* [P, R/2, 2] table made by wn_rope_table (float also for WN_F64: NULL there, computed) */
  int64_t P;                /* rows of the table */
  double theta;
  const double *frequencies; /* [R/2] radians a position, in theta's place; NULL: theta's */
  double magnitude;          /* factor on cos and sin (a table holds it already); 0: 1 */
};

/* y = act(x). With a gate, x is [M,2F], gate first: SWIGLU y = silu(gate) * up, GEGLU y = gelu(gate) * up (tanh form),
 * [M,F]. GELU (tanh form), RELU and GELU_ERF (x Phi(x)): x is [M,F].
 * dx may alias x. */
enum wn_act_kind { WN_ACT_SWIGLU, WN_ACT_GELU, WN_ACT_RELU, WN_ACT_GELU_ERF, WN_ACT_GEGLU, WN_ACT_KINDS };
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

/* Mixture of experts: E feed-forwards e(x) = out (silu(g) u), [g; u] = in x, of which each row takes the `top` that its
 * router weighs most, and one more that all rows take, with a gate or without:
 *
 *   p = softmax(router x);  K = the top largest of p (ties to the lowest index)
 *
 *   w_k = p_k, over their sum if normalize
 *
 *   y = sum_{k in K} w_k e_k(x) + sigmoid(shared_gate . x) shared(x)
 *
 * Shazeer et al. 2017; Jiang et al. 2024 (Mixtral). 2M(top 3CF + 3CS + CE) flops forward. A row's place among its
 * expert's rows (experts in order, rows in order) is what `place` and the rows of `in` are about.
 * balance = E sum_e f_e P_e, f_e the rows' choices of e over the rows, P_e the mean of p_e (Fedus et al. 2021; `top`
 * when all are alike), over rows that count: those before row_count in each T. Its gradient, times balance_scale, joins
 * the router's. rows_apart: as in wn_linear. Arrays are contiguous. */
struct wn_expert {
  const void *in, *out;                           /* [2F,C], [C,F] */
  const struct wn_packed *packed_in, *packed_out; /* in their place, or NULL: no gradient then */
  void *d_in, *d_out;                             /* added to */
};
struct wn_experts {
  int64_t M, T, C, E, top, F, S; /* S: the shared expert's F; 0: there is none */
  bool normalize, rows_apart;
  const void *x;                  /* [M,C] */
  const void *router;             /* [E,C] */
  const struct wn_expert *expert; /* [E] */
  struct wn_expert shared;
  const void *shared_gate; /* [C]; NULL: its factor is 1 */
  void *y;                 /* [M,C] */
  /* Forward's notes for backward. */
  void *prob, *weight;      /* [M,E], [M,top] */
  int32_t *chosen, *place;  /* [M,top] expert, and row of `in`, largest weight first */
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
/* The most experts that a row may take, and that a layer of a model may have. */
#define WN_EXPERTS_TOP 64
#define WN_EXPERTS_MAX 512

/* x *= keep/(1-p): forward on values and backward on gradients are the same map. keep[i] is word i%4 of
 * wn_philox(seed, stream, i/4) >= p * 2^32. `stream` names layer, place and step. */
struct wn_dropout {
  wn_dtype type;
  int64_t n;
  double p;
  uint64_t seed, stream;
  void *x; /* [n] */
};

/* y = x + z (element-wise), any may alias. Backward is the identity and needs no call. */
struct wn_add {
  int64_t n;
  const void *x, *z;
  void *y;
};

/* x = cap tanh(x / cap): soft-capping (Gemma 2, arXiv 2408.00118, section 2). Forward only: cross-entropy takes its
 * gradient in. */
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

/* Softmax cross-entropy. loss[m] = logsumexp(logits[m]) - logits[m,target]; 0 where target is -1.
 * When dlogits is given (may alias logits): (softmax - onehot) * scale, 0 where target is -1. hit[m] = arg-max is the
 * target (ties to the lowest id). Forward only: the gradient comes with it. With a cap the logits are what softcap
 * gave, and dlogits is the gradient of what softcap was given: times 1 - (logit/cap)^2. */
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

/* Attention sums: what R rows (the heads of a group, for one query) that look at the same N columns give to each.
 * L[r,c] = scale logits[r,c] + add[r/share,c] + extra[r,c]; where it is -inf the row does not see the column.
 * W[r,c] = factor[r,c] exp(L[r,c]) / (sum_s exp(scale sink[r,s]) + sum_c factor[r,c] exp(L[r,c]));
 * sums[c] += sum_r W[r,c], row by row. A row that sees nothing gives nothing. */
struct wn_attention_sums {
  int64_t R, N, S; /* S: learned sinks, which take their part of the weights */
  double scale;
  const void *logits;
  int64_t ld;                 /* [R,N] */
  int64_t share;              /* rows that have one row of add */
  const void *add;            /* [R/share,N] contiguous */
  const void *extra, *factor; /* [R,N] contiguous, each or NULL: 0, 1 */
  const void *sink;
  int64_t ld_sink; /* [R,S]; not read where S is 0 */
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
/* y = f x + h y. With h 0 y is only written, and may be x. With sumsq, x is brought to length 1 first: f over the root
 * of *sumsq plus 1e-7. */
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
/* y = x in another type: F32 to BF16, rounded to nearest even, or back. exec->dtype is F32. */
struct wn_convert {
  int64_t n;
  wn_dtype x_type, y_type;
  const void *x; /* [n] */
  void *y;       /* [n] */
};
/* Rows of D numbers to another place: y[b,h,j] = x[b,h,index[b,p,j]], or x[b,h,j] without an index, or zeros without an
 * x. Head h is one of the H/P of group p. What is written is not read. */
struct wn_gather {
  int64_t B, H, T, D;
  bool x_half, y_half; /* that array holds half floats; a y that does takes an x that does, or floats that it rounds */
  const void *x;       /* NULL: zeros */
  struct wn_stride s_x;
  int64_t groups;       /* P; 0 reads as 1 */
  const int32_t *index; /* [B,P,T] none below 0, or NULL */
  void *y;
  struct wn_stride s_y;
};
/* Forward: x = 1 / (1 + exp(-x)). Backward, x what forward gave: dx *= x (1 - x). */
struct wn_sigmoid {
  int64_t n;
  void *x;  /* [n] */
  void *dx; /* [n] */
};

/* What a step reads out. Each sum is of doubles, one after the other, so that it is the same however it is computed. */

/* sums[0] += loss and sums[1] += hit of the positions that have a target: after cross_entropy. */
struct wn_loss_sums {
  int64_t M;
  const double *loss;     /* [M] */
  const uint8_t *hit;     /* [M] */
  const int32_t *targets; /* [M] below 0: none */
  double *sums;           /* [2] added to */
};
/* Spans z: *sum = their sum over heads, and over rows that count (those before row_count in each T), over `tokens`.
 * Backward: dz += scale / tokens there. */
struct wn_span_sum {
  int64_t rows, heads, T;   /* without row_count T is not looked at */
  const int32_t *row_count; /* [rows/T] or NULL: all */
  double tokens;
  const void *z; /* [rows,heads] */
  double *sum;   /* [1] */
  double scale;
  void *dz; /* [rows,heads] added to */
};
/* L_mem (arXiv 2410.02703, section 4, equation 2) of attention's M: *sum = the sum over documents and selections of
 * max_i M[i] / n, over the document's n rows that are tokens. Backward: M is replaced by scale times its gradient:
 * scale / n in the first of a document's longest rows, 0 in all others. */
struct wn_memory_loss {
  int64_t B, G, T;
  const int32_t *doc_start; /* [B,T] or NULL: each sequence is one document */
  const int32_t *count;     /* [B] rows that are tokens, the rest is padding; NULL: T */
  void *M;                  /* [B,G,T] */
  double *sum;              /* [1] */
  double scale;
};

/* *out = sum of squares of x[n], summed in double in an order that depends on nothing but n and threads. */
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
  X(experts, struct wn_experts, true)                                                                                  \
  X(dropout, struct wn_dropout, false)                                                                                 \
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
  X(adjust, struct wn_adjust, false)                                                                                   \
  X(sample, struct wn_sample, false)                                                                                   \
  X(evict, struct wn_evict, false)                                                                                     \
  X(evictions, struct wn_evictions, false)                                                                             \
  X(attention, struct wn_attention, true)

/* Terms of attention (ops/terms.h) that a backend serves: forward on several rows, forward of a single row that nobody
 * looks at, backward. A call with another term is refused before the backend sees it. */
struct wn_attention_served {
  uint32_t forward, row, backward;
};

/* One backend: a slot each for forward, backward and scratch bytes (NULL scratch: none needed). */
#define WN_OP_SLOTS(name, args, has_backward)                                                                          \
  wn_status (*name##_forward)(const struct wn_exec *, const args *);                                                   \
  wn_status (*name##_backward)(const struct wn_exec *, const args *);                                                  \
  size_t (*name##_scratch)(const struct wn_exec *, const args *, bool backward);
struct wn_backend {
  const char *name;
  /* Where the arrays lie that operations are given, all of them (base/memory.h). NULL, of tables that are called alone:
   * the host's. */
  const struct wn_memory *memory;
  bool doubles; /* computes in F64 as well */
  /* F that attention hands on between calls (f_out to f_in) has all bits that it has within one: a text in pieces that
   * begin with tiles gives the bits of a single call. */
  bool whole_selections;
  struct wn_attention_served attention_served;
  /* An order of its own for packed weights that linear reads faster (wn_packed_part.strips): its bytes for so many rows
   * of K weights, 0 where there is none; and making it of a part's data. NULL: none for any type. */
  size_t (*strips_bytes)(wn_gguf_type type, int64_t rows, int64_t K);
  void (*strips_make)(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t K, void *to);
  WN_OPS(WN_OP_SLOTS)
};

static inline bool wn_backend_on_host(const struct wn_backend *backend) {
  return !backend->memory || backend->memory->host;
}

#define WN_OP_DECLARE(name, args, has_backward)                                                                        \
  wn_status wn_op_##name##_forward(const struct wn_exec *, const args *);                                              \
  wn_status wn_op_##name##_backward(const struct wn_exec *, const args *);                                             \
  size_t wn_op_##name##_scratch(const struct wn_exec *, const args *, bool backward);
WN_OPS(WN_OP_DECLARE)

/* table [P, D/2, 2] of (cos, sin) for the first P positions. */
void wn_rope_table(float *table, int64_t P, int64_t D, double theta);
/* The same of n frequencies (radians a position), times magnitude: [P, n, 2]. */
void wn_rope_table_frequencies(float *table, int64_t P, int64_t n, const double *frequencies, double magnitude);

#endif
