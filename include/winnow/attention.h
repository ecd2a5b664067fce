/* winnow: attention as one operation.
 *
 * For query row i, key column j <= i, head h with key-value group g = h / (H/Hkv):
 *   L[h,i,j] = scale * q[h,i] . k[g,j]     (j <= i unless bidirectional)
 *   A[h,i,j] = L[h,i,j] - F[i,j]           masked entries are -inf
 *   W = softmax_j(A);  y[h,i] = sum_j W[h,i,j] v[g,j]
 * Selective attention: Leviathan, Kalman, Matias, arXiv 2410.02703, section 3 (F: 3.3; L_mem: section 4, equation 2).
 */
#ifndef WINNOW_ATTENTION_H
#define WINNOW_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/tensor.h"

WN_STABLE_BEGIN

/* The factor of selections: 0 gives dense attention, 1 the paper's.
 * "fixed": 1, no parameter.
 * "learned": a parameter of each layer (and each selection); it starts at 0 and is clamped to 0 or above after each
 * step. "scheduled": the same parameter without a gradient; training sets it as train.strength_steps says. */
typedef enum wn_selective_strength {
  WN_STRENGTH_FIXED,
  WN_STRENGTH_LEARNED,
  WN_STRENGTH_SCHEDULED
} wn_selective_strength;

/* Selective attention and its ablations (paper, section 3.2, 3.3, appendix A.2 to A.4).
 * S[i,j] = strength * relu(base[i,j]) where allowed, else 0; F[i,j] = sum over rows k < i of S[k,j]. */
typedef struct wn_selective_config {
  bool enabled;
  int head;           /* the head whose logits select; default 0 */
  bool relu;          /* default true; false keeps negative selections */
  bool protect_first; /* default true: a document's first token is never selected */
  bool protect_self;  /* default true: a token does not select itself */
  bool shift;         /* default true: row i's selections act from row i+1 on; false: F[i,j] = sum k <= i */
  bool bilinear;      /* default false: base = scale * sq . sk from their own projections of one head's size */
  bool per_kv_head;   /* default false: one F per layer; true: one for each key-value head, chosen by head `head` of its
                         group (an extension of the paper) */
  wn_selective_strength strength; /* default "fixed" */
  struct {                        /* L_mem, equation 2; off unless enabled */
    bool enabled;
    double eps; /* default 0.1 */
    double tau; /* default 1 */
  } mem;
} wn_selective_config;

/* Adaptive span (Sukhbaatar, Grave, Bojanowski, Joulin, ACL 2019): m(x) = clamp((ramp + limit*z - x)/ramp, 0, 1)
 * multiplies the weight of the key at distance x. Each head has one ratio z; with a dynamic span z comes from the
 * input. At the ramp's two ends m has a kink; there the gradient of z is the derivative from above, and at z = 1 from
 * below, because the clamp of z to [0,1] can only be left that way. */
typedef struct wn_span_config {
  bool enabled;
  bool dynamic;      /* default false: z = sigmoid(v.x + b) of each token and head, b starting at -4 */
  bool exclude_self; /* default false: the sums run over x >= 1, as the paper writes them */
  double limit;      /* S: the longest span in tokens; default 1024 */
  double ramp;       /* R: default 32 */
  double init;       /* z at the start; default 0 (adaptive span) */
  double loss;       /* lambda: the loss adds lambda/H * sum over the heads of limit*z in every layer; default 2e-6 */
} wn_span_config;

/* The configuration of a layer's attention: one struct for a model's config.json, for recipes and for `winnow op
 * attention` cases. Mechanisms compose: score terms add up, keep rules intersect, the transformation of the output
 * comes last. A "layers" pattern of '1' and '0' is repeated over the layers; "" is every layer. */
typedef struct wn_attention_config {
  double scale;       /* 0: 1/sqrt(head size) */
  bool bidirectional; /* default false; true: rows see later keys too, as in an encoder. Goes with `buckets`,
                         `selective` (without mem), `softcap` and dropout only. A model's encoder is always
                         bidirectional, its decoder never */
  wn_selective_config selective;
  wn_span_config span;
  struct { /* Shaw et al. 2018: learned p[x], one table for all heads and layers */
    bool enabled;
    int64_t length; /* rows of p; default 0: as many as the layer can see */
  } relative;
  struct { /* T5's position biases (Raffel et al. 2020): one learned number per head and bucket of distances */
    bool enabled;
    int64_t count;    /* default 32; bidirectional: half of them each way */
    int64_t farthest; /* default 128: distances from here on share the last bucket */
  } buckets;
  int64_t window; /* keys with i - j < window; default 0: all */
  char window_layers[256];
  int64_t strided; /* i - j < strided or i - j a multiple of it (Child et al. 2019); default 0: off */
  struct {         /* square-root mask (Fernandez, Unsal) */
    bool enabled;
    int64_t buffer; /* default 64 */
    double density; /* default 1 */
  } root;           /* key "sqrt" */
  int64_t sinks;    /* learned keys and values that every row sees; default 0 */
  struct {          /* exclusive self attention (Zhai) */
    bool enabled;
    bool gate;        /* default false: a learned factor per head on what is removed */
    double gate_init; /* default 1 */
    char layers[64];
  } exclusive;
  struct { /* meaningful attention (Fernandez, Unsal): the fewest content keys that reach tau of the weight */
    bool enabled;
    double tau; /* default 0.95 */
  } threshold;
  double dropout; /* on the weights, in training; default 0 */
  /* Settings of all other mechanisms. Each mechanism has its own places here and sets them by its keys
   * (wn_attention_config_parse, recipes, --set) */
  uint64_t settings[32][8];
} wn_attention_config;

void wn_attention_config_init(wn_attention_config *config); /* the defaults: dense causal */
/* Parses the JSON object `text` (the "attention" object of a config or an oracle case). The presence of a mechanism's
 * object enables it, unless it says "enabled": false. */
wn_status wn_attention_config_parse(wn_context *ctx, const char *text, wn_attention_config *out);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* A mechanism that a configuration uses, for reports. */
typedef struct wn_mechanism_use {
  const char *name, *summary; /* "selective"; one line, with the paper */
  bool in_layer;              /* false where a pattern over the layers excludes it */
} wn_mechanism_use;
/* Mechanism i of a configuration, as layer `layer` uses it; false past the last. Dense attention, which every layer
 * has, is not listed. */
bool wn_mechanism_use_at(const wn_attention_config *config, int i, int64_t layer, wn_mechanism_use *out);

/* One attention call on the caller's arrays, which are contiguous and of dtype F32 or F64 (F64: ref backend only).
 * Inputs are borrowed. Outputs that are NULL are not computed. */
typedef struct wn_attention_arrays {
  int64_t B, T, H, Hkv, D;
  int64_t Tk; /* bidirectional: keys of another sequence, k and v are [B,Hkv,Tk,D]; 0: T */
  wn_dtype dtype;
  const void *q;               /* [B,H,T,D] */
  const void *k, *v;           /* [B,Hkv,T,D] */
  const void *sq, *sk;         /* [B,T,G,D]; only with selective.bilinear. G: Hkv with selective.per_kv_head, else 1 */
  const void *strength;        /* [G]; only with a selective.strength that is not fixed */
  const void *z;               /* [H]; only with span */
  const void *zt;              /* [B,H,T]; only with span.dynamic, instead of z */
  const void *p;               /* [P,D]; only with relative. P: relative.length, or T where that is 0 */
  const void *bias;            /* [buckets.count,H]; only with buckets */
  const void *sink_k, *sink_v; /* [Hkv,n,D]; only with sinks */
  const void *gate;            /* [H]; only with exclusive.gate */
  const void *output_gate;     /* [B,T,H,D] with gate "elementwise", [B,T,H] with "head" */
  const uint8_t *control;      /* [B,T] 1: a control token, which every threshold keeps; may be NULL */
  const int32_t *key_count;    /* [B] bidirectional: keys of each sequence, the rest is padding; NULL: all */
  const int32_t *evicted_at;   /* [B,P,T] first row that no longer sees the key (kv.h: wn_attention_evictions); backward
                                  treats it as a constant. NULL: no key is evicted */
  int64_t evicted_groups;      /* P: 1, or Hkv; 0 reads as 1 */
  const int32_t *doc_start;    /* [B,T] index of the first token of each token's document, or NULL: one document */
  const int32_t *row_count; /* [B] causal: how many rows of each sequence are tokens, 0 to T; the rest is padding, which
                               L_mem leaves out. NULL: all */
  void *y;                  /* [B,H,T,D] */
  void *F; /* [B,G,T,T] for inspection: quadratic, filled only if not NULL. Entries j > i hold the column's running sum
              too, as in the tests' oracle */
  void *M; /* [B,G,T]; needs selective.mem */
  /* [1] eps * sum over documents of mean_g max_i M / n, where n is the number of the document's rows */
  double *mem_loss;
  int32_t *count;  /* [B,H,T] content keys that the threshold kept */
  const void *dy;  /* [B,H,T,D]; NULL: forward only */
  void *dq;        /* [B,H,T,D] */
  void *dk, *dv;   /* [B,Hkv,T,D] */
  void *dsq, *dsk; /* [B,T,G,D] */
  void *dstrength; /* [G] */
  void *dz, *dzt, *dp, *dbias, *dsink_k, *dsink_v, *dgate, *doutput_gate; /* as their inputs */
  /* Numbers of the keys, [B,T,Hkv] (forget.per_query_head: [B,T,H]), each only with its mechanism: the running sums of
   * the log of the forget gates, and the log of the write and the retention gates */
  const void *forget, *write, *fade;
  void *dforget, *dwrite, *dfade;
} wn_attention_arrays;

/* An array that a configuration needs or returns in addition to q, k, v, y and their gradients. For programs that treat
 * all mechanisms alike. Offsets are those of fields of wn_attention_arrays. */
typedef struct wn_attention_slot {
  const char *name; /* "z", "sink_k", ...: the field's name */
  int ndim;
  int64_t shape[4];
  wn_dtype dtype;  /* WN_I32 for counts, WN_F64 for mem_loss, else that of the call */
  bool is_input;   /* else a result */
  size_t offset;   /* of the array's pointer */
  size_t gradient; /* of the pointer to its gradient, "d" before its name; 0: a result */
} wn_attention_slot;
#define WN_ATTENTION_SLOTS_MAX 24
/* Fills out[] for the B, T, H, Hkv, D and dtype of `arrays`; returns how many there are. */
int wn_attention_slots(const wn_attention_config *config, const wn_attention_arrays *arrays,
                       wn_attention_slot out[WN_ATTENTION_SLOTS_MAX]);

/* Forward and, when dy is given, backward (the gradient of sum(y*dy) + mem_loss), on ctx's backend. */
wn_status wn_attention_run(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays);

/* A prepared call for timing and repeated use: scratch is allocated once, run allocates nothing. */
typedef struct wn_attention_plan wn_attention_plan;
wn_status wn_attention_plan_create(wn_context *ctx, const wn_attention_config *config,
                                   const wn_attention_arrays *arrays, wn_attention_plan **out);
wn_status wn_attention_plan_forward(wn_attention_plan *plan);
wn_status wn_attention_plan_backward(wn_attention_plan *plan); /* after a forward */
/* For a backend whose memory is not the host's. Every run of a plan copies its arrays to the backend and the results
 * back. After `put` the arrays stay on the backend: forward and backward work on them there, copy nothing, and may
 * return before they are done. `take` copies the results to the caller's arrays; later runs copy again. Where the
 * backend works in the host's memory a plan uses the caller's arrays in any case, but after `put` mem_loss arrives with
 * `take`. */
wn_status wn_attention_plan_put(wn_attention_plan *plan);
wn_status wn_attention_plan_take(wn_attention_plan *plan);
void wn_attention_plan_destroy(wn_attention_plan *plan);

WN_API_END
#endif
