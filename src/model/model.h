/* The internals of a model: its struct, the workspace of a step, and a step's forward and backward. */
#ifndef WN_MODEL_MODEL_H
#define WN_MODEL_MODEL_H

#include <math.h>
#include <stdatomic.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "model/params.h"
#include "ops/ops.h"
#include "winnow/estimate.h"
#include "winnow/kv.h"
#include "winnow/model.h"

/* Angles of a rotary embedding, in the backend's memory. Empty where the model has none. */
struct wn_rotary_angles {
  double *frequencies; /* [R/2] radians per position */
  double magnitude;    /* factor on cos and sin */
  float *table;        /* [rows, R/2, 2], magnitude included; NULL where the model is F64 */
};
struct wn_rotary {
  int64_t rows;
  const struct wn_memory *memory;
  struct wn_rotary_angles all, local; /* local: local: for layers with a window, if they have angles of their own */
};

struct wn_model {
  wn_context *ctx;
  const struct wn_backend *backend;
  wn_model_config config;
  wn_dtype dtype; /* WN_F32; WN_F64 on the ref backend, for gradient checks */
  struct wn_param_table table;
  struct wn_outer_params outer; /* rows of the tensors outside the layers */
  void *params;                 /* [table.total] of dtype, in the backend's memory */
  void *copy;  /* [table.total] host copy of what wn_model_tensor_at gave last, if the parameters are not on the host */
  void *zeros; /* [Hkv,D] in the backend's memory, if that is not the host's: the key of softmax off by one */
  struct wn_rotary rotary;  /* for the context, at most its first 32768 positions; with longrope for short texts */
  struct wn_model *encoder; /* its own config and layers, on the same parameters; NULL: a decoder alone */
  struct wn_layer_params *layers; /* [L] the rows of each layer's tensors in the table */
  void *rounded;                  /* packed matrices that were rounded on loading (WN_WEIGHTS_BFLOAT16), or NULL */
  void *packed; /* all packed matrices, in the backend's memory, if that is not the host's; else NULL */
  void *strips; /* copies of packed matrices in the order that the backend multiplies fastest, or NULL */
  void *source; /* the file that packed matrices point into, or NULL; closed with the model, by source_close */
  void (*source_close)(void *source);
  uint8_t *control;     /* [V] 1: control tokens, which a threshold always keeps; NULL: none */
  wn_declared declared; /* what the model's files say about generating */
  atomic_int users;     /* its owner, until wn_model_destroy, and each session; the last one frees it */
  atomic_bool destroyed;
};
void wn_model_keep(const struct wn_model *model);
void wn_model_release(const struct wn_model *model);
/* Gives the parameters where the host can read and write them (wn_memory_open). close gets the pointer that open
 * gave. */
wn_status wn_model_params_open(const struct wn_model *model, void **out);
wn_status wn_model_params_close(const struct wn_model *model, void *params, bool changed);
/* A fingerprint of the parameters, packed ones included: equal parameters have equal fingerprints. */
wn_status wn_model_fingerprint(const struct wn_model *model, char out[24]);
/* Number i of a tensor, for callers that need a few; NAN where it cannot be read. */
static inline double wn_model_value(const struct wn_model *model, int row, int64_t i) {
  double value = 0; /* a zero of either type */
  const void *at = wn_element(model->params, (int64_t)model->table.rows[row].offset + i, model->dtype);
  if (model->backend->memory->host) return wn_number(at, 0, model->dtype);
  const wn_status status = wn_memory_read(model->ctx, model->backend->memory, &value, at, wn_dtype_size(model->dtype));
  return status == WN_OK ? wn_number(&value, 0, model->dtype) : NAN;
}
/* WN_ERR_UNSUPPORTED if the backend's arrays are not in the host's memory. what: what needs them there ("decoding"). */
wn_status wn_model_need_host(wn_context *ctx, const struct wn_model *model, const char *what);
/* A model whose parameters are all zero. */
wn_status wn_model_allocate(wn_context *ctx, const wn_model_config *config, wn_dtype dtype, struct wn_model **out);
/* wn_model_set_attention with a whole configuration; `what` names it in messages. */
wn_status wn_model_set_attention_config(wn_context *ctx, struct wn_model *model, const wn_attention_config *attention,
                                        const char *what);
wn_status wn_model_create_dtype(wn_context *ctx, const wn_model_config *config, uint64_t seed, wn_dtype dtype,
                                struct wn_model **out);

/* A model with packed matrices, whose other parameters are all zero. rows_of_table [rows of the configuration's table];
 * count 0: the flat array has the values. If the backend's memory is the host's, the file that they point into must
 * outlive the model, so give it as model->source; otherwise everything is copied. Only projections and token tables can
 * be packed, and not with segment recurrence: WN_ERR_UNSUPPORTED or WN_ERR_SHAPE. */
wn_status wn_model_allocate_packed(wn_context *ctx, const wn_model_config *config,
                                   const struct wn_packed *rows_of_table, struct wn_model **out);
/* Is any matrix packed? */
bool wn_model_is_packed(const struct wn_model *model);
/* Is any in bf16 or in blocks, so that products with it round activations? */
bool wn_model_rounds(const struct wn_model *model);
/* packed.c: copies packed matrices to where the backend's operations can read them; does nothing on the host. */
wn_status wn_model_take_packed(wn_context *ctx, struct wn_model *model);
/* strips.c: copies packed matrices into the order that the backend multiplies fastest, if it has one. Products have the
 * same bits. If memory does not suffice, the model stays as it is. */
void wn_model_make_strips(wn_context *ctx, struct wn_model *model);
/* WN_ERR_UNSUPPORTED if a matrix is packed. what: what changes parameters or needs them as floats ("training"). */
wn_status wn_model_need_float(wn_context *ctx, const struct wn_model *model, const char *what);
/* WN_ERR_ARGUMENT if one of the ids [n] is outside the vocabulary. what: for the message, "session: token". */
wn_status wn_model_check_ids(wn_context *ctx, const struct wn_model *model, const char *what, const int32_t *ids,
                             int64_t n);

struct wn_batch {
  int64_t B, T;
  const int32_t *tokens;    /* [B,T] */
  const int32_t *targets;   /* [B,T], -1: not counted */
  const int32_t *doc_start; /* [B,T] or NULL */
  /* Encoder-decoder: */
  int64_t S;
  const int32_t *inputs;      /* [B,S] */
  const int32_t *input_count; /* [B] tokens of each row, the rest is padding; NULL: S */
};

/* The number of tokens of sequence b, up to its last target; 0 if it has none. The rest is padding. */
int64_t wn_batch_tokens(const struct wn_batch *batch, int64_t b);
/* The same, summed over all sequences. */
int64_t wn_batch_all_tokens(const struct wn_batch *batch);
/* The number of documents of a batch, without padding: its sequences, or the documents that doc_start divides them
 * into. */
int64_t wn_batch_documents(const struct wn_batch *batch);

/* Callbacks for analysis; each may be NULL. `batch` is called before a step. `attention` is called before a layer's
 * attention operation runs and may ask it to record something (ops/attention.h: look, a threshold's control tokens);
 * its arrays are on the host, as copies if need be. It is also called when the workspace is made, to size the scratch.
 * `layer` is called after the layer's forward with the arrays that it keeps (layer.h), which wn_run_open makes
 * readable. */
struct wn_run;
struct wn_layer_acts;
struct wn_attention;
struct wn_layer_observer {
  void (*layer)(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts);
  void *user;
  void (*batch)(void *user, const struct wn_batch *batch);
  void (*attention)(void *user, const struct wn_run *run, int64_t l, struct wn_attention *attention);
};

/* The options of a workspace: the memory of steps, allocated once for (B,T) and reused by every step. */
struct wn_workspace_options {
  bool backward, recompute;
  wn_dtype activation_dtype;
  wn_dtype precision; /* of matrix products: WN_F32 (the model's dtype), or WN_BF16 for F32 models (wn_exec) */
  int64_t recurrence; /* segment recurrence: each layer keeps at most so many tokens of earlier blocks, and only those
                         that it can see; 0: none */
  bool recurrence_whole;     /* keep them all, also those that the layer cannot see; for comparison */
  int64_t recurrence_sets;   /* number of sets of earlier tokens: one for each micro-batch of a step, and one for
                                evaluations in between */
  const wn_budgets *budgets; /* the policy of the budgets that steps may have; its tokens are ignored, and it is only
                                read at creation. NULL: steps have no budgets */
  const struct wn_layer_observer *observer; /* the observer that steps may have, to size the scratch for its
                                               `attention`. NULL: steps have none with `attention` */
};
typedef struct wn_workspace wn_workspace;
wn_status wn_workspace_create(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t T,
                              const struct wn_workspace_options *options, wn_workspace **out);
void wn_workspace_destroy(wn_workspace *ws);
size_t wn_workspace_bytes(const wn_workspace *ws);
/* Adapts the rooms of segment recurrence to the model's present spans; to be called after parameters have changed.
 * Allocates only if a room is too small, or too large by two blocks of 64 tokens. */
wn_status wn_workspace_fit(wn_workspace *ws);
/* Bytes of all rooms; and how often a room has been allocated so far. */
size_t wn_workspace_recurrence_bytes(const wn_workspace *ws);
uint64_t wn_workspace_recurrence_moves(const wn_workspace *ws);
/* Empties set `set`: its next step begins new streams. */
void wn_workspace_forget(wn_workspace *ws, int64_t set);

/* For checkpoints. _seen: tokens of the streams so far. _count: how many of them layer l holds. _at: the layer's states
 * [B, room+T, C]. _selections_at: its selections [B, G, room+T], NULL without selective attention. Both have the
 * model's dtype. */
int64_t wn_workspace_recurrence_seen(const wn_workspace *ws, int64_t set);
int64_t wn_workspace_recurrence_count(const wn_workspace *ws, int64_t set, int64_t l);
void *wn_workspace_recurrence_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]);
void *wn_workspace_recurrence_selections_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]);
/* Gives layer l of every set room for `rows` tokens, at most the options' recurrence. */
wn_status wn_workspace_recurrence_reserve(wn_workspace *ws, int64_t l, int64_t rows);
void wn_workspace_recurrence_restore(wn_workspace *ws, int64_t set, int64_t seen, const int32_t *counts /* [L] */);

struct wn_step {
  void *grads;           /* [table.total] added to; NULL: forward only */
  const size_t *grad_at; /* [table.count] the offset in grads of each tensor's gradient; WN_NO_GRADIENT: it is not
                            computed. NULL: the tensors' own offsets */
  uint8_t *begun; /* [table.count] 0: the tensor's gradient is uninitialised; the step overwrites it instead of adding,
                     and sets 1. Only for tensors of wn_model_begins. NULL: all gradients are initialised */
  void (*whole)(void *user,
                int64_t layer); /* called in backward when all gradients of a layer have been added: first with layer =
                                   number of layers, for the output and the last norm (wn_model_whole_after), then for
                                   the layers from the last to the first. NULL: not wanted */
  void *whole_user;
  double loss_scale; /* factor of the loss summed over counted positions: 1 / counted positions of the whole step */
  double mem_scale; /* factor of this batch's L_mem: its wn_batch_documents / those of the whole step. 0 with grads: the
                       step has the same bits as for a model without L_mem, and mem_loss is 0 */
  double
      span_scale; /* factor of its span, balance and gate losses: its wn_batch_all_tokens / those of the whole step */
  double gate_weight; /* 0 to 1, how far training has raised the loss of gates: its coefficient or, with `keep`, what it
                         asks for */
  bool training;      /* dropout on */
  uint64_t seed;      /* dropout */
  uint64_t step;      /* dropout: unique per micro-step */
  int64_t recurrence_set;                   /* with recurrence: the set that this batch continues, row by row */
  const struct wn_layer_observer *observer; /* or NULL */
  const wn_budgets *budgets; /* in force for each document by itself; NULL: none. Evictions are constants for gradients.
                                Not with recurrence */
  wn_row_sums *rows; /* [B] the sums of each row are added here, for which the losses of all positions are copied to the
                        host; NULL: not wanted */
};
/* May a tensor's gradient be uninitialised at first? True for a projection, whose product can overwrite it. */
bool wn_model_begins(const struct wn_model *model, int row);
/* The layer after whose backward the tensor's gradient is complete, counted as by `whole` of wn_step; -1: at the very
 * end. */
int64_t wn_model_whole_after(const struct wn_model *model, int row);
struct wn_step_result {
  double loss_sum; /* over counted positions, nats */
  uint64_t counted, hits;
  double mem_loss;     /* eps * mean over documents and layers of max_i M / n; 0 when off */
  double span_loss;    /* lambda/H * sum over layers and heads of limit * z; 0 when off */
  double balance_loss; /* experts.balance * mean over layers of their load; 0 when off */
  double gate_loss;    /* sum over mechanisms of their loss times the mean over layers of what their gates keep (with
                          `keep`, beyond it); 0: off */
  double span;         /* mean over layers and heads (and tokens, where spans are theirs) of limit * z; 0 when off */
};
/* Forward, loss and (with grads) backward of one micro-batch, B and T at most the workspace's. With recurrence the
 * batch's rows continue those of the last step of the same set, and are kept for the next one. No allocation. */
wn_status wn_model_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch,
                        const struct wn_step *step, struct wn_step_result *result);
/* Logits of a batch for callers that cannot hold all of them: a forward pass, then the logits of some rows at a time.
 * Targets are not read. The batch's arrays must stay valid until the end. *out is NULL after a failure. */
struct wn_logits_pass;
wn_status wn_logits_pass_begin(wn_context *ctx, struct wn_model *model, const struct wn_batch *batch,
                               struct wn_logits_pass **out);
/* The most rows that one call may ask for. */
int64_t wn_logits_pass_most(const struct wn_logits_pass *pass);
/* Writes logits [rows,V] of tokens [first, first+rows) of the batch. */
wn_status wn_logits_pass_rows(struct wn_logits_pass *pass, int64_t first, int64_t rows, float *logits);
void wn_logits_pass_end(struct wn_logits_pass *pass); /* NULL is allowed */
/* Runs only the forward of an encoder (model->encoder), with an observer on its layers. Its rows are batch->tokens;
 * count [B] of each sequence are no padding (NULL: all). ws is the encoder's own. */
wn_status wn_encoder_look(const struct wn_model *encoder, wn_workspace *ws, const struct wn_batch *batch,
                          const int32_t *count, const struct wn_layer_observer *observer);

#endif
