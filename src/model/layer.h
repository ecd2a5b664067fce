/* One decoder layer: its arrays and functions. Private to src/model.
 *
 * Norms before the branches (pre):
 *   x   -> norm1 -> qkv (-> q,k norm) (-> rotary) -> attention -> out map (-> dropout) -> + x   = mid
 *   mid -> norm2 -> ffn in -> activation -> ffn out (-> dropout)                        -> + mid = next layer's x
 * Norms after the residual additions (post):
 *   x = last layer's n2 + branch -> its norm -> n1 -> qkv ... -> out map -> + n1 = mid
 *   mid -> norm -> n2 -> ffn ... -> + n2                                        = next layer's x
 * The two differ in what the residual is added to and in which norm comes first. Each addition is fused into the norm
 * that reads the sum, so a layer hands on (mid or n2, branch) and not their sum. Norms on both sides (both): as pre,
 * and each branch's output goes through a norm of its own before dropout and the addition. Norms on branches (branch):
 * only these. */
#ifndef WN_MODEL_LAYER_H
#define WN_MODEL_LAYER_H

#include "attention/params.h"
#include "base/arrays.h"
#include "model/run.h"

/* What a layer's forward stores for its backward. M = B*T rows, N = (H + 2 Hkv) D. */
struct wn_layer_acts {
  /* Large arrays; they may be stored in reduced precision until the backward pass. */
  void *x;           /* [M,C] residual stream at the entry */
  void *att;         /* [M,H*D] */
  void *mid;         /* [M,C] */
  void *in;          /* [M,2F] with a gate, else [M,F]; backward overwrites it with its gradient */
  void *out1, *out2; /* [M,C] with norms on the branches' outputs: these outputs before the norm, else NULL */
  /* Derived arrays: recomputed from the others without a matrix product (except q and k with recurrence, which are
   * exact then). */
  void *n1;    /* [M,C] */
  void *n2;    /* [M,C] */
  void *act;   /* [M,F] */
  void *q, *k; /* [M,H*D], [M,Hkv*D] with QK-norm, else NULL: q and k are read in place */
  /* Exact arrays, never in reduced precision: backward computes the selections F and the rows' sums of exponentials
   * from them again, and the values must agree. */
  void *qkv; /* [M,N] q, k and v of each row, concatenated; with recurrence [M,H*D], only q */
  void *kv;  /* [B*(rows+T), 2 Hkv*D] with recurrence: keys and values of earlier tokens and of the block */
  void *input[WN_MECHANISM_INPUTS_MAX];  /* [M,width] the mechanisms' inputs, by slot, else NULL; with recurrence those
                                            per key have the rows of kv */
  void *hidden[WN_MECHANISM_INPUTS_MAX]; /* [M,hidden] of inputs with a hidden layer: before its activation */
  void *hidden_act[WN_MECHANISM_INPUTS_MAX];           /* [M,hidden] and after it */
  void *key, *key_norms, *rstd_key;                    /* of the input that reads keys, else NULL: [M,Hkv,D] before
                                                          rotation; [M,Hkv,2D] normed, before it and after; [Hkv,2,M] */
  void *rstd1, *mean1, *rstd2, *mean2;                 /* [M]; means NULL for RMSNorm */
  void *rstd_out1, *mean_out1, *rstd_out2, *mean_out2; /* [M] */
  void *rstd_q, *mean_q;                               /* [M*H] */
  void *rstd_k, *mean_k;                               /* [M*Hkv] */
  void *lse;                                           /* [B,H,T] */
  void *M;                                             /* [B,G,T] with L_mem */
  void *dot;                                           /* [B,H,T] with exclusive self attention */
  void *ungated;                                       /* [B,T,H,D] with gated outputs */
  double *cut;                                         /* [B,H,T,2] with a threshold */
  /* With experts (shapes in ops.h): `in` then has a row for each expert of a token, and there is no `act`. shared_in
   * and shared_out are large arrays, the rest exact. */
  void *prob, *weight, *shared_in, *shared_factor, *shared_out;
  int32_t *chosen, *place;
  double *balance; /* [1] one of the step's sums, or NULL */
  /* With an encoder, S its context. cmid and catt are large, cn is derived, the rest exact. */
  void *cmid, *cn;            /* [M,C] residual stream after the layer's own attention, and its norm */
  void *cq, *catt;            /* [M,H*D] */
  void *ckv;                  /* [B*S, 2 Hkv*D] */
  void *crstd, *cmean, *clse; /* [M], [M], [B,H,T] */
};
/* The three kinds of arrays, each in a block of its own. */
struct wn_layer_blocks {
  char *large, *derived, *exact;
  size_t large_bytes, derived_bytes, exact_bytes;
  bool one_act; /* all layers share one array `act`; it is not among the derived arrays */
  void *act;
};
/* Lays the arrays out from the blocks' base addresses on (NULL: only sizes) and sets the blocks' sizes. With recurrence
 * recurrence_room.c lays out k, kv, rstd_k, mean_k and sk, whose size depends on the layer's reach. False on
 * overflow. */
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
  void *d_input[WN_MECHANISM_INPUTS_MAX]; /* as input; with recurrence d_kv, d_k and the inputs per key are in its rooms
                                           */
  void *d_hidden[WN_MECHANISM_INPUTS_MAX]; /* as hidden */
  void *d_key_norms;                       /* as key_norms */
  void *d_ckv;                             /* as ckv */
};
void wn_layer_temp_lay(const wn_model_config *config, struct wn_layer_types types, int64_t B, int64_t T, bool recurrent,
                       bool backward, struct wn_arrays *arrays, struct wn_layer_temp *out);

/* Everything before the attention: norm1 of a->x = prev_mid + prev_branch (or of the given a->x if prev_mid is NULL),
 * then projections, QK-norm and rotation. */
wn_status wn_layer_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *prev_mid,
                          const void *prev_branch);
/* Only the rotation, where wn_layer_before left it out (run->unturned). */
wn_status wn_layer_turn(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* A view of a's arrays from row `row` on: the arrays that a pass over a sequence whose rows stand there reads and
 * writes in attention. All other arrays are NULL. */
void wn_layer_acts_from(const wn_model_config *config, wn_dtype dtype, const struct wn_layer_acts *a, int64_t row,
                        struct wn_layer_acts *out);
/* The attention call on a's arrays, terms included. The caller adds the pointers for backward. */
void wn_layer_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a, struct wn_attention *out);
/* Does layer l's attention give tokens their cache positions, for whole sequences (cache_positions.c)? The operation's
 * q and k are not rotated then. */
bool wn_layer_has_cache_positions(const struct wn_run *run, int64_t l);
wn_status wn_layer_attend_cache_positions(struct wn_run *run, int64_t l, const struct wn_attention *op);
/* Everything after the attention. With `output` the feed-forward's output is left in temp->branch. Without it the pass
 * ends at a->act, which is all that backward needs. */
wn_status wn_layer_after(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                         bool output);
/* Computes a->act from a->in: in forward, and again in backward if one array serves all layers. */
wn_status wn_layer_activate(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* The array to which the next layer adds the branch at its entry. */
static inline const void *wn_layer_stream(const struct wn_run *run, const struct wn_layer_acts *a) {
  return wn_norm_is_post(&run->model->config) ? a->n2 : a->mid;
}

/* Segment recurrence (recurrence.c). _read: how many tokens of earlier blocks layer l reads in this pass. _before:
 * queries, keys and values from a->n1. _attention: sets the attention's q, k and v. _backward: from the attention to
 * temp->d_qkv and d_kv. _maps_backward: through the projections to d_in [M,C]. */
int64_t wn_recurrence_read(const struct wn_run *run, int64_t l);
wn_status wn_recurrence_before(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
void wn_recurrence_attention(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             struct wn_attention *out);
wn_status wn_recurrence_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                                 struct wn_attention *attention);
wn_status wn_recurrence_maps_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                      const struct wn_layer_temp *temp, void *d_in, bool accumulate);

/* The gradient of a branch's output: that of the residual stream, through residual_scale and dropout if there are
 * any. */
wn_status wn_layer_branch_grad(struct wn_run *run, int64_t place, struct wn_layer_temp *temp, const void **out);

/* The attention over an encoder's states (cross.c), between a layer's own attention, whose output is in temp->branch,
 * and its feed-forward. It sets a->cmid, and in temp->branch its own output, which is to be added to a->cmid. Backward:
 * temp->d_res holds the gradient of its output and receives that of its input. */
wn_status wn_cross_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);
wn_status wn_cross_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
wn_status wn_cross_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);
/* Computes keys and values of the encoder's states: kv [B*S, 2 Hkv*D]. */
wn_status wn_cross_keys(struct wn_run *run, int64_t l, void *kv);

/* A mixture of experts in place of the feed-forward (experts.c): y [M,C] from a->n2; backward computes a->n2's gradient
 * dx from dy. wn_expert_rows: how many rows of a->in a token has; 1 without experts. */
static inline int64_t wn_expert_rows(const wn_model_config *c) {
  return c->experts.count > 0 ? c->experts.active : 1;
}
wn_status wn_layer_experts_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, void *y);
wn_status wn_layer_experts_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *dy, void *dx);

/* The mechanisms' inputs, computed from the layer's input (inputs.c). With recurrence recurrence.c computes those per
 * key, together with the keys. */
int wn_layer_inputs(const wn_model_config *config, struct wn_attention_input *out /* [WN_MECHANISM_INPUTS_MAX] */);
struct wn_linear wn_input_projection(const struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                     int64_t rows);
/* y [rows,width] = transform(y), in place, without running sums; _sum: these, over the T tokens of whole sequences
 * (sessions have them in their caches); and backward through both, d_y in place. */
wn_status wn_input_transform(struct wn_run *run, const struct wn_attention_input *in, int64_t rows, void *y);
wn_status wn_input_sum(struct wn_run *run, const struct wn_attention_input *in, int64_t B, int64_t T, void *y);
wn_status wn_input_transform_back(struct wn_run *run, const struct wn_attention_input *in, int64_t B, int64_t T,
                                  const void *y, void *d_y);
/* Of an input that reads keys (input_keys.c): is there one? _lay: its arrays in `out`, none without `reads`. _keep:
 * between QK-norm and rotation, copies the keys. _norm: norms them, before rotation and after it. _norm_back: from
 * temp's d_key_norms adds to the gradient of the keys after rotation (`rotated`), or to that before it. */
bool wn_layer_reads_keys(const wn_model_config *config);
void wn_input_keys_lay(const wn_model_config *config, bool reads, int64_t M, size_t element, struct wn_arrays *arrays,
                       struct wn_layer_acts *out);
wn_status wn_input_keys_keep(struct wn_run *run, const struct wn_layer_acts *a);
wn_status wn_input_keys_norm(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                             const struct wn_layer_acts *a);
wn_status wn_input_keys_norm_back(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                  const struct wn_layer_acts *a, const struct wn_layer_temp *temp, bool rotated);
/* Backward of that input, from d_input to the gradient of the keys after rotation; then on to that before it. */
wn_status wn_inputs_keys_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                  const struct wn_layer_temp *temp, bool rotated);
/* The running sums of a pass over whole sequences; recurrence.c has its own. */
wn_status wn_inputs_sum(struct wn_run *run, const struct wn_layer_acts *a);
wn_status wn_inputs_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, bool of_keys);
/* Sets the inputs, or their gradients, in the operation. */
void wn_inputs_bind(const struct wn_run *run, const struct wn_layer_acts *a, struct wn_attention *out);
void wn_inputs_bind_gradients(const struct wn_run *run, const struct wn_layer_temp *temp, struct wn_attention *out);
/* Backward of the other inputs: adds to d_x [M,C]. The gradients of the inputs are overwritten. */
wn_status wn_inputs_backward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                             const struct wn_layer_temp *temp, void *d_x);

/* The loss of gates: adds up what those of layer l keep (sums of WN_SUM_GATES), and its gradient to theirs. */
wn_status wn_gates_forward(struct wn_run *run, struct wn_workspace *ws, int64_t l, const struct wn_layer_acts *a);
double wn_gates_loss(const struct wn_run *run, const struct wn_workspace *ws, const double *sums);

/* Spans (span.c). The slot of the input that holds each token's spans; -1: there is none. */
int wn_span_input(const wn_model_config *config);
/* The greatest distance at which a head of layer l sees a token, with the model's present spans and window. INT64_MAX:
 * no bound. Dynamic spans are bounded only by their limit. A cache that is fed one token at a time needs so many tokens
 * and the new one. One number for all heads: that of the widest. */
int64_t wn_layer_reach(const struct wn_model *model, int64_t l);
/* How many tokens of earlier blocks layer l keeps: its reach, rounded up to a multiple of the grain so that rooms are
 * seldom reallocated, and one grain more while spans are learned. */
#define WN_RECURRENCE_GRAIN 64
int64_t wn_layer_recurrence(const struct wn_model *model, int64_t l, int64_t recurrence, bool learning);
/* The layer's static spans: [H] ratios of the model's dtype; NULL if it has none. */
const void *wn_layer_spans(const struct wn_model *model, int64_t l);
/* With spans: *sum, in the backend's memory, receives the sum of z over heads; of dynamic spans the mean over
 * tokens. */
wn_status wn_span_forward(struct wn_run *run, int64_t l, const struct wn_layer_acts *a, double *sum);
/* Adds the gradient of the span loss with respect to z to that of the parameter, or of the input with dynamic spans. */
wn_status wn_span_backward(struct wn_run *run, int64_t l, const struct wn_layer_temp *temp);

/* The operation that sums L_mem over the layer's M into *sum, in the backend's memory. */
struct wn_memory_loss wn_layer_memory_loss(const struct wn_run *run, const struct wn_layer_acts *a, double *sum);

/* wn_layer_before, the attention and wn_layer_after. */
wn_status wn_layer_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp,
                           const void *prev_mid, const void *prev_branch, bool output);
/* Two parts of it (layer_look.c): finding which keys the rows no longer see, and the attention, which an observer may
 * look at. */
wn_status wn_layer_evict(struct wn_run *run, int64_t l, const struct wn_attention *attention);
wn_status wn_layer_attend(struct wn_run *run, int64_t l, struct wn_attention *attention);
/* Recomputes the derived arrays from the large and the exact ones. */
wn_status wn_layer_rebuild(struct wn_run *run, int64_t l, struct wn_layer_acts *a);
/* temp->d_res holds the gradient of the layer's output and receives that of its input. */
wn_status wn_layer_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, struct wn_layer_temp *temp);

#endif
