/* The model's inside: the named parameter table, the workspace of a step, forward and backward. */
#ifndef WN_MODEL_MODEL_H
#define WN_MODEL_MODEL_H

#include "backends/backends.h"
#include "base/alloc.h"
#include "model/params.h"
#include "ops/ops.h"
#include "winnow/kv.h"
#include "winnow/model.h"

/* Angles of a rotary embedding, in the backend's memory. Empty where the model has none. */
struct wn_rotary_angles {
  double *frequencies; /* [R/2] radians a position */
  double magnitude;    /* factor on cos and sin */
  float *table;        /* [rows, R/2, 2], magnitude included; NULL where the model is F64 */
};
struct wn_rotary {
  int64_t rows;
  const struct wn_memory *memory;
  struct wn_rotary_angles all, local; /* local: of layers with a window, where they have angles of their own */
};

struct wn_model {
  wn_context *ctx;
  const struct wn_backend *backend;
  wn_model_config config;
  wn_dtype dtype; /* WN_F32; WN_F64 on the ref backend, for gradient checks */
  struct wn_param_table table;
  struct wn_outer_params outer; /* rows of the tensors outside the layers */
  void *params;                 /* [table.total] of dtype, the backend's */
  void *copy;                   /* [table.total] what wn_model_tensor_at showed last, where that is not the host's */
  void *zeros; /* [Hkv,D] of the backend's, where its memory is not the host's: the key of softmax off by one */
  struct wn_rotary rotary;  /* for the context, its first 32768 positions, or longrope's short texts */
  struct wn_model *encoder; /* a view with its own config and layers on the same parameters; NULL: a decoder alone */
  struct wn_layer_params *layers; /* [L] where they find their tensors */
  void *rounded;                  /* packed rows that no file has (WN_WEIGHTS_BFLOAT16), or NULL */
  void *packed;                   /* all packed rows, the backend's, where its memory is not the host's; else NULL */
  void *strips;                   /* copies of packed rows in the backend's own order, or NULL */
  void *source;                   /* what packed rows point into, or NULL: closed with the model, by the next */
  void (*source_close)(void *source);
  uint8_t *control; /* [V] 1: control tokens, which a threshold always keeps; NULL: none */
};
/* The parameters where the host can read and write them (wn_memory_open): close takes what open gave. */
wn_status wn_model_params_open(const struct wn_model *model, void **out);
wn_status wn_model_params_close(const struct wn_model *model, void *params, bool changed);
/* Of the parameters, packed ones included: equal weights have equal ones. */
wn_status wn_model_fingerprint(const struct wn_model *model, char out[24]);
/* Number i of a row, for a few of them; NAN where it cannot be had. */
double wn_model_value(const struct wn_model *model, int row, int64_t i);
/* WN_ERR_UNSUPPORTED where the backend's arrays are not the host's: `what` ("decoding") reads or writes them. */
wn_status wn_model_need_host(wn_context *ctx, const struct wn_model *model, const char *what);
/* A model with parameters all zero. */
wn_status wn_model_allocate(wn_context *ctx, const wn_model_config *config, wn_dtype dtype, struct wn_model **out);
/* wn_model_set_attention with a whole configuration; `what` names it in messages. */
wn_status wn_model_set_attention_config(wn_context *ctx, struct wn_model *model, const wn_attention_config *attention,
                                        const char *what);
wn_status wn_model_create_dtype(wn_context *ctx, const wn_model_config *config, uint64_t seed, wn_dtype dtype,
                                struct wn_model **out);

/* A model with parameters all zero but the matrices that are packed: rows_of_table [rows of the configuration's
 * table], count 0 where the flat array has the values. What they point into must outlive the model, if the backend's
 * memory is the host's: give it as its source; else all is copied. Only projections and token tables can be packed, and
 * not with segment recurrence: WN_ERR_UNSUPPORTED, WN_ERR_SHAPE else. */
wn_status wn_model_allocate_packed(wn_context *ctx, const wn_model_config *config,
                                   const struct wn_packed *rows_of_table, struct wn_model **out);
/* Whether any matrix is packed. */
bool wn_model_is_packed(const struct wn_model *model);
/* packed.c: copies of the packed rows where the backend's operations can read them; nothing on the host. */
wn_status wn_model_take_packed(wn_context *ctx, struct wn_model *model);
/* strips.c: copies of the packed rows in the order that the backend multiplies fastest, where it has one. Products have
 * the same bits; without memory for them the model stays as it is. */
void wn_model_make_strips(wn_context *ctx, struct wn_model *model);
/* WN_ERR_UNSUPPORTED where a matrix is packed: `what` ("training") changes weights, or wants them as floats. */
wn_status wn_model_need_float(wn_context *ctx, const struct wn_model *model, const char *what);
/* WN_ERR_ARGUMENT where one of the ids [n] is outside the vocabulary; what: "session: token". */
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

/* Tokens of sequence b: those up to its last target, 0 without any. What follows is padding. */
int64_t wn_batch_tokens(const struct wn_batch *batch, int64_t b);
/* Of all its sequences. */
int64_t wn_batch_all_tokens(const struct wn_batch *batch);
/* Documents of a batch, without padding: its sequences, or what doc_start parts them into. */
int64_t wn_batch_documents(const struct wn_batch *batch);

/* For analysis; each may be NULL. `batch` is called before a step; `attention` with a layer's attention operation
 * before it runs, to put into it what is to be looked at (ops/attention.h: look, a threshold's control tokens), also
 * when the workspace is made, for the scratch: on the host's arrays, which are copies where the backend's are not;
 * `layer` after the layer's forward, with the arrays it kept (layer.h), which wn_run_open lets it read. */
struct wn_run;
struct wn_layer_acts;
struct wn_attention;
struct wn_layer_observer {
  void (*layer)(void *user, const struct wn_run *run, int64_t l, const struct wn_layer_acts *acts);
  void *user;
  void (*batch)(void *user, const struct wn_batch *batch);
  void (*attention)(void *user, const struct wn_run *run, int64_t l, struct wn_attention *attention);
};

/* What a step keeps: allocated once for (B,T), reused by every step. */
struct wn_workspace_options {
  bool backward, recompute;
  wn_dtype activation_dtype;
  wn_dtype precision; /* of products: WN_F32 (the model's dtype), or WN_BF16 for F32 models (wn_exec) */
  int64_t recurrence; /* segment recurrence: tokens of earlier blocks that each layer keeps at most, those that it can
                         see; 0: none */
  bool recurrence_whole;   /* all of them, in reach or not: for comparison */
  int64_t recurrence_sets; /* sets of earlier tokens, one for each micro-batch of a step, and one for evaluations in
                              between */
  const wn_budgets
      *budgets; /* of which policy steps may have budgets: not its tokens; read at creation only. NULL: none */
  const struct wn_layer_observer
      *observer; /* which steps may have, for the scratch its `attention` asks for. NULL: none with one */
};
typedef struct wn_workspace wn_workspace;
wn_status wn_workspace_create(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t T,
                              const struct wn_workspace_options *options, wn_workspace **out);
void wn_workspace_destroy(wn_workspace *ws);
size_t wn_workspace_bytes(const wn_workspace *ws);
/* Rooms follow the spans that the model has now: called after parameters have changed. Allocates only where a room is
 * too small, or too large by two blocks of 64 tokens. */
wn_status wn_workspace_fit(wn_workspace *ws);
/* Bytes of the rooms; and allocations of one since the beginning. */
size_t wn_workspace_recurrence_bytes(const wn_workspace *ws);
uint64_t wn_workspace_recurrence_moves(const wn_workspace *ws);
/* Empties set `set`: its next step begins new streams. */
void wn_workspace_forget(wn_workspace *ws, int64_t set);

/* For checkpoints: tokens of the streams so far, and of them held in layer l; its state [B, room+T, C] and its
 * selections [B, G, room+T] (NULL without selective attention) of the model's dtype. */
int64_t wn_workspace_recurrence_seen(const wn_workspace *ws, int64_t set);
int64_t wn_workspace_recurrence_count(const wn_workspace *ws, int64_t set, int64_t l);
void *wn_workspace_recurrence_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]);
void *wn_workspace_recurrence_selections_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]);
/* Gives layer l of every set room for `rows` tokens, at most the options' recurrence. */
wn_status wn_workspace_recurrence_reserve(wn_workspace *ws, int64_t l, int64_t rows);
void wn_workspace_recurrence_restore(wn_workspace *ws, int64_t set, int64_t seen, const int32_t *counts /* [L] */);

struct wn_step {
  void *grads;           /* [table.total] added to; NULL: forward only */
  const size_t *grad_at; /* [table.count] where in grads each row's gradient is, WN_NO_GRADIENT: it is not computed;
                            NULL: at the rows' own offsets */
  uint8_t *begun;        /* [table.count] 0: the row's gradient holds nothing yet, no zeros either, which only those may
                            that wn_model_begins names; the step overwrites it, and says so here. NULL: all are begun */
  void (*whole)(void *user, int64_t layer); /* told in backward that a layer's gradients have been added, the last layer
                                               first; before them of layer [layers], which is the output and the last
                                               norm (wn_model_whole_after). NULL: nobody is */
  void *whole_user;
  double loss_scale; /* gradient of the loss sum over counted positions: 1 / counted positions of the whole step */
  double mem_scale;  /* weight of this batch's L_mem in the step: its wn_batch_documents / those of the step. 0 with
                        grads: the step is that of a model without the term, to the bit; mem_loss is 0 */
  double span_scale; /* of its span and balance losses: its wn_batch_all_tokens / those of the step */
  bool training;     /* dropout on */
  uint64_t seed;     /* dropout */
  uint64_t step;     /* dropout: unique per micro-step */
  int64_t recurrence_set;                   /* with recurrence: the one that this batch continues, row by row */
  const struct wn_layer_observer *observer; /* or NULL */
  const wn_budgets *budgets; /* in force in every layer, for each document separately; NULL: none. What is evicted is a
                                choice without a gradient. Not with recurrence */
};
/* Whether a row's gradient need not be zeros at first: it is that of a projection, whose product overwrites it. */
bool wn_model_begins(const struct wn_model *model, int row);
/* The layer after which the row's gradient is whole in backward, as wn_step's `whole` counts; -1: at the very end. */
int64_t wn_model_whole_after(const struct wn_model *model, int row);
struct wn_step_result {
  double loss_sum; /* over counted positions, nats */
  uint64_t counted, hits;
  double mem_loss;     /* eps * mean over documents and layers of max_i M / n; 0 when off */
  double span_loss;    /* lambda/H * sum over layers and heads of limit * z; 0 when off */
  double balance_loss; /* experts.balance * mean over layers of their load; 0 when off */
  double span;         /* mean over layers and heads (and tokens, where spans are theirs) of limit * z; 0 when off */
};
/* Forward, loss and (with grads) backward of one micro-batch. With recurrence the batch's rows continue those of the
 * last step of the same set, and are kept for the next one afterwards. No allocation. B, T at most the workspace's. */
wn_status wn_model_step(struct wn_model *model, wn_workspace *ws, const struct wn_batch *batch,
                        const struct wn_step *step, struct wn_step_result *result);
/* Logits of a batch whose targets are not looked at, for who cannot hold all of them: a forward pass, then the logits
 * of some rows at a time. The batch's arrays are read until the end; *out NULL after a failure. */
struct wn_logits_pass;
wn_status wn_logits_pass_begin(wn_context *ctx, struct wn_model *model, const struct wn_batch *batch,
                               struct wn_logits_pass **out);
/* Rows that one call may ask for. */
int64_t wn_logits_pass_most(const struct wn_logits_pass *pass);
/* Of tokens [first, first+rows) of the batch: logits [rows,V]. */
wn_status wn_logits_pass_rows(struct wn_logits_pass *pass, int64_t first, int64_t rows, float *logits);
void wn_logits_pass_end(struct wn_logits_pass *pass); /* NULL is allowed */
/* Forward of an encoder by itself, `encoder` of a model that has one, with a look at its layers: the rows are
 * batch->tokens, of which count [B] are no padding (NULL: all). ws is the encoder's own. */
wn_status wn_encoder_look(const struct wn_model *encoder, wn_workspace *ws, const struct wn_batch *batch,
                          const int32_t *count, const struct wn_layer_observer *observer);

#endif
