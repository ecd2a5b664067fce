/* winnow: attention as one operation.
 *
 * For query row i, key column j <= i, head h with key-value group g = h / (H/Hkv):
 *   L[h,i,j] = scale * q[h,i] . k[g,j]
 *   A[h,i,j] = L[h,i,j] - F[i,j]           masked entries are -inf
 *   W = softmax_j(A);  y[h,i] = sum_j W[h,i,j] v[g,j]
 * Selective attention: Leviathan, Kalman, Matias, arXiv 2410.02703, section 3 (F: 3.3; L_mem: eq. 2). */
#ifndef WINNOW_ATTENTION_H
#define WINNOW_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/safetensors.h"

WN_API_BEGIN

/* Selective attention and its ablations (paper, section 3.2, 3.3, appendix A.2 to A.4).
 * S[i,j] = relu(base[i,j]) where allowed, else 0; F[i,j] = sum over rows k < i of S[k,j]. */
typedef struct wn_selective_config {
  bool enabled;
  int head;           /* the head whose logits select; default 0 */
  bool relu;          /* default true; false leaves negative selections in */
  bool protect_first; /* default true: a document's first token is never selected */
  bool protect_self;  /* default true: a token does not select itself */
  bool shift;         /* default true: row i counts from row i+1 on; false: F[i,j] = sum k <= i */
  bool bilinear;      /* default false: base = scale * sq . sk from their own projections of one head's size */
  struct {            /* L_mem, equation 2; off unless enabled */
    bool enabled;
    double eps;       /* default 0.1 */
    double tau;       /* default 1 */
  } mem;
} wn_selective_config;

/* Everything that shapes a layer's attention: one struct for a model's config.json,
 * for recipes and for `winnow op attention` cases. */
typedef struct wn_attention_config {
  double scale; /* 0: 1/sqrt(head size) */
  wn_selective_config selective;
} wn_attention_config;

void wn_attention_config_init(wn_attention_config *config); /* the defaults: dense causal */
/* Parses the JSON object `text` (the "attention" object of a config or an oracle case).
 * A mechanism's object being there enables it unless it says "enabled": false. */
wn_status wn_attention_config_parse(wn_context *ctx, const char *text, wn_attention_config *out);

/* One attention call on caller's arrays, contiguous and of dtype F32 or F64 (F64: ref backend only).
 * Inputs are borrowed; outputs that are NULL are not computed. */
typedef struct wn_attention_arrays {
  int64_t B, T, H, Hkv, D;
  wn_dtype dtype;
  const void *q;             /* [B,H,T,D] */
  const void *k, *v;         /* [B,Hkv,T,D] */
  const void *sq, *sk;       /* [B,T,D]; only with selective.bilinear */
  const int32_t *doc_start;  /* [B,T] index of the first token of each token's document, or NULL: one document */
  void *y;                   /* [B,H,T,D] */
  void *F;                   /* [B,T,T] for inspection: quadratic, only filled when asked for; entries j > i hold
                                the column's running sum as well, as the oracle has it */
  void *M;                   /* [B,T]; needs selective.mem */
  double *mem_loss;          /* [1] eps * sum_b max_i M[b,i] / T */
  const void *dy;            /* [B,H,T,D]; NULL: forward only */
  void *dq;                  /* [B,H,T,D] */
  void *dk, *dv;             /* [B,Hkv,T,D] */
  void *dsq, *dsk;           /* [B,T,D] */
} wn_attention_arrays;

/* Forward and, when dy is given, backward (the gradient of sum(y*dy) + mem_loss), on ctx's backend. */
wn_status wn_attention_run(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays);

/* A prepared call for timing and repeated use: scratch is allocated once, run allocates nothing. */
typedef struct wn_attention_plan wn_attention_plan;
wn_status wn_attention_plan_create(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                                   wn_attention_plan **out);
wn_status wn_attention_plan_forward(wn_attention_plan *plan);
wn_status wn_attention_plan_backward(wn_attention_plan *plan); /* after a forward */
void wn_attention_plan_destroy(wn_attention_plan *plan);

WN_API_END
#endif
