/* One decoder layer, and what runs it: private to src/model.
 *
 * Norms before the branches (pre):
 *   x   -> norm1 -> qkv (-> q,k norm) (-> rotary) -> attention -> out map (-> dropout) -> + x   = mid
 *   mid -> norm2 -> ffn in -> activation -> ffn out (-> dropout)                        -> + mid = next layer's x
 * Norms after the residual additions (post):
 *   x = last layer's n2 + branch -> its norm -> n1 -> qkv ... -> out map -> + n1 = mid
 *   mid -> norm -> n2 -> ffn ... -> + n2                                        = next layer's x
 * so that the two differ in what the residual is added to and in which norm comes first. The two additions are fused
 * into the norm that reads their result, so a layer hands on (mid or n2, branch), not their sum. Norms on both sides
 * (both): as pre, and a branch goes through a norm of its own before its dropout and the addition; branch: that norm
 * alone. */
#ifndef WN_MODEL_LAYER_H
#define WN_MODEL_LAYER_H

#include "attention/params.h"
#include "base/arrays.h"
#include "model/run.h"

/* What a layer's forward keeps for its backward. M = B*T rows, N = (H + 2 Hkv) D. */
struct wn_layer_acts {
  /* Large; may wait for the backward pass in reduced precision. */
  void *x;           /* [M,C] residual stream at the entry */
  void *att;         /* [M,H*D] */
  void *mid;         /* [M,C] */
  void *in;          /* [M,2F] with a gate, else [M,F]; backward overwrites it with its gradient */
  void *out1, *out2; /* [M,C] with norms on both sides: the branches before theirs, else NULL */
  /* Derived from the others without a product (with recurrence, q and k are not: they are exact then). */
  void *n1;    /* [M,C] */
  void *n2;    /* [M,C] */
  void *act;   /* [M,F] */
  void *q, *k; /* [M,H*D], [M,Hkv*D] with QK-norm, else NULL: q and k are read in place */
  /* Exact: the selections F and the rows' sums of exponentials are formed again from these, and have to agree. */
  void *qkv;                            /* [M,N] q, k, v next to each other; with recurrence [M,H*D], only q */
  void *kv;                             /* [B*(rows+T), 2 Hkv*D] with recurrence: keys and values of the earlier tokens
                                           and of the block */
  void *input[WN_MECHANISM_INPUTS_MAX]; /* [M,width] the mechanisms' inputs, by slot, else NULL; those of keys as kv
                                           with recurrence */
  void *rstd1, *mean1, *rstd2, *mean2;  /* [M]; means NULL for RMSNorm */
  void *rstd_out1, *mean_out1, *rstd_out2, *mean_out2; /* [M] */
  void *rstd_q, *mean_q;                               /* [M*H] */
  void *rstd_k, *mean_k;                               /* [M*Hkv] */
  void *lse;                                           /* [B,H,T] */
  void *M;                                             /* [B,G,T] with L_mem */
  void *dot;                                           /* [B,H,T] with exclusive self attention */
  void *ungated;                                       /* [B,T,H,D] with gated outputs */
  double *cut;                                         /* [B,H,T,2] with a threshold */
  /* With experts (ops.h has their shapes), for which `in` has a row for each expert of a token, and `act` is not there:
   * large shared_in and shared_out, exact the rest. */
  void *prob, *weight, *shared_in, *shared_factor, *shared_out;
  int32_t *chosen, *place;
  double *balance; /* [1] among what a step reads out, or NULL */
  /* With an encoder, S its context: large cmid, catt; derived cn; exact the rest. */
  void *cmid, *cn;            /* [M,C] residual stream after the layer's own attention, and its norm */
  void *cq, *catt;            /* [M,H*D] */
  void *ckv;                  /* [B*S, 2 Hkv*D] */
  void *crstd, *cmean, *clse; /* [M], [M], [B,H,T] */
};
/* The three kinds of arrays, each in a block of its own. */
struct wn_layer_blocks {
  char *large, *derived, *exact;
  size_t large_bytes, derived_bytes, exact_bytes;
  bool one_act; /* `act` is not among the derived: one array serves all layers */
  void *act;
};
/* With recurrence recurrence_room.c lays out k, kv, rstd_k, mean_k and sk, whose size depends on the layer's reach.
 * Lays the arrays out from the blocks' bases on (NULL: only sizes) and sets the blocks' sizes. False on overflow. */
bool wn_layer_acts_plan(const wn_model_config *config, struct wn_layer_types types, int64_t B, int64_t T,
                        bool recurrent, struct wn_layer_blocks *blocks, struct wn_layer_acts *out);

/* A layer's temporary arrays, shared by all layers. */
struct wn_layer_temp {
  void *branch; /* [M,C] output of a residual branch */
  /* backward only */
  void *d_res;                            /* [M,C] gradient of the residual stream, accumulated in place */
  void *d_n;                              /* [M,C] */
  void *d_act;                            /* [M,max(F, H*D)] gradient of the activation's or the attention's output */
  void *d_qkv;                            /* [M,N]; with recurrence [M,H*D] */
  void *d_kv;                             /* as kv */
  void *d_q, *d_k;                        /* as q, k */
  void *d_input[WN_MECHANISM_INPUTS_MAX]; /* as input; with recurrence those of keys, d_kv and d_k are in its rooms */
  void *d_ckv;                            /* as ckv */
};
void wn_layer_temp_lay(const wn_model_config *config, struct wn_layer_types types, int64_t B, int64_t T, bool recurrent,
                       bool backward, struct wn_arrays *arrays, struct wn_layer_temp *out);

/* Everything before the attention: norm1 of (prev_mid + prev_branch -> a->x), or of a->x when prev_mid is NULL; then
 * the maps, QK-norm and rotation. */
wn_status wn_layer_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *prev_mid,
                          const void *prev_branch);
/* QK-norm of `heads` heads side by side, one by one or all at once. */
struct wn_norm wn_head_norm_args(const struct wn_run *run, int64_t rows, int64_t heads, struct wn_norm_site site);
/* The rotation alone, for what wn_layer_before left out (run->unturned). */
wn_status wn_layer_turn(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* What the attention reads and writes of row `row` of a's, laid out for M rows of single tokens: a pass over that row
 * alone sees its own arrays there. The other arrays stay NULL. */
void wn_layer_acts_row(const wn_model_config *config, wn_dtype dtype, const struct wn_layer_acts *a, int64_t row,
                       struct wn_layer_acts *out);
/* The attention call on a's arrays, terms included; pointers for backward are added by the caller. */
void wn_layer_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a, struct wn_attention *out);
/* Whole sequences whose tokens have their cache positions (cache_positions.c): is layer l's attention computed so? The
 * operation's q and k are not rotated then. */
bool wn_layer_has_cache_positions(const struct wn_run *run, int64_t l);
wn_status wn_layer_attend_cache_positions(struct wn_run *run, int64_t l, const struct wn_attention *op);
/* Everything after it. With `output` the feed-forward's output is left in temp->branch; without, the pass ends at
 * a->act: all that backward needs. */
wn_status wn_layer_after(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                         bool output);
/* a->act from a->in: in the forward pass, and again where one array serves all layers. */
wn_status wn_layer_activate(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* What the next layer adds the branch to at its entry. */
static inline const void *wn_layer_stream(const struct wn_run *run, const struct wn_layer_acts *a) {
  return wn_norm_is_post(&run->model->config) ? a->n2 : a->mid;
}

/* Segment recurrence (recurrence.c), in this order: the tokens of earlier blocks that layer l reads in this pass;
 * queries, keys and values from a->n1; the attention's q, k, v; backward from the attention to temp->d_qkv and d_kv;
 * backward through the projections to d_in [M,C]. */
int64_t wn_recurrence_read(const struct wn_run *run, int64_t l);
wn_status wn_recurrence_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
void wn_recurrence_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             struct wn_attention *out);
wn_status wn_recurrence_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                                 struct wn_attention *attention);
wn_status wn_recurrence_maps_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                      const struct wn_layer_temp *temp, void *d_in, bool accumulate);

/* The gradient of a branch's output: the residual stream's own, through its factor and dropout where it has them. */
wn_status wn_layer_branch_grad(struct wn_run *run, int64_t place, struct wn_layer_temp *temp, const void **out);

/* The attention over an encoder's states (cross.c). Between a layer's own attention, whose branch is in temp->branch,
 * and its feed-forward: a->cmid, and the branch that is to be added to it in temp->branch. Backward: temp->d_res holds
 * the gradient of its output and receives that of its input. */
wn_status wn_cross_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);
wn_status wn_cross_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
wn_status wn_cross_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);
/* Keys and values of the states: kv [B*S, 2 Hkv*D]. */
wn_status wn_cross_keys(struct wn_run *run, int64_t l, void *kv);

/* A mixture of experts in the feed-forward's place (experts.c): y [M,C] of a->n2; and back from dy to dx, its gradient.
 * wn_expert_rows: rows of a->in for each token, 1 without experts. */
static inline int64_t wn_expert_rows(const wn_model_config *c) {
  return c->experts.count > 0 ? c->experts.active : 1;
}
wn_status wn_layer_experts_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, void *y);
wn_status wn_layer_experts_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *dy, void *dx);

/* What mechanisms read of the layer's input (inputs.c). With recurrence, those of keys are computed where the keys are
 * (recurrence.c). */
int wn_layer_inputs(const wn_model_config *config, struct wn_attention_input *out /* [WN_MECHANISM_INPUTS_MAX] */);
struct wn_linear wn_input_projection(const struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                     int64_t rows);
/* y [rows,width] = transform(y); and d_y through it. */
wn_status wn_input_transform(struct wn_run *run, const struct wn_attention_input *in, int64_t rows, void *y);
wn_status wn_input_transform_back(struct wn_run *run, const struct wn_attention_input *in, int64_t rows, const void *y,
                                  void *d_y);
wn_status wn_inputs_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, bool of_keys);
/* Puts these inputs, or their gradients, into the operation. */
void wn_inputs_bind(const struct wn_run *run, const struct wn_layer_acts *a, struct wn_attention *out);
void wn_inputs_bind_gradients(const struct wn_run *run, const struct wn_layer_temp *temp, struct wn_attention *out);
/* Adds to d_x [M,C]; the gradients of the inputs are overwritten. */
wn_status wn_inputs_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             const struct wn_layer_temp *temp, void *d_x);

/* Spans (span.c). The slot of the input that gives each token its spans; -1: there is none. */
int wn_span_input(const wn_model_config *config);
/* Tokens before a row that some head of layer l can see with the model's present spans and window: no head sees a
 * greater distance. INT64_MAX: there is no bound. Dynamic spans are bounded by their limit alone. A cache that is fed
 * one token at a time needs this many and the token itself. One number for all heads: that of the widest. */
int64_t wn_layer_reach(const struct wn_model *model, int64_t l);
/* Tokens of earlier blocks that layer l keeps: its reach rounded up to whole grains, so that rooms are seldom
 * reallocated, and one grain more while spans are learned. */
#define WN_RECURRENCE_GRAIN 64
int64_t wn_layer_recurrence(const struct wn_model *model, int64_t l, int64_t recurrence, bool learning);
/* Its static spans, [H] ratios of the model's dtype; NULL without. */
const void *wn_layer_spans(const struct wn_model *model, int64_t l);
/* With spans: *sum, the backend's, is that of z over heads, and its mean over tokens where each token has its own. */
wn_status wn_span_forward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a, double *sum);
/* The gradient of the span loss with respect to z: added to the parameter's, or to the input's where each token has its
 * own spans. */
wn_status wn_span_backward(struct wn_run *run, int64_t l, const struct wn_layer_temp *temp);

/* L_mem of the layer's M, whose sum goes to *sum, the backend's. */
struct wn_memory_loss wn_layer_memory_loss(const struct wn_run *run, const struct wn_layer_acts *a, double *sum);

/* wn_layer_before, the attention and wn_layer_after. */
wn_status wn_layer_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                           const void *prev_mid, const void *prev_branch, bool output);
/* Parts of it (layer_look.c): which keys its rows no longer see, and the attention, with an observer's look. */
wn_status wn_layer_evict(struct wn_run *run, int64_t l, const struct wn_attention *attention);
wn_status wn_layer_attend(struct wn_run *run, int64_t l, struct wn_attention *attention);
/* Recomputes the derived arrays from the large and the exact ones. */
wn_status wn_layer_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* temp->d_res holds the gradient of the layer's output and receives that of its input. */
wn_status wn_layer_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);

#endif
