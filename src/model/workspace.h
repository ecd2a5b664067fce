/* The memory of a pass over the model. Private to src/model. */
#ifndef WN_MODEL_WORKSPACE_H
#define WN_MODEL_WORKSPACE_H

#include "model/layer.h"

/* How activations are kept until the backward pass. */
enum wn_keep {
  WN_KEEP_NOTHING, /* forward only: all layers share one block */
  WN_KEEP_ALL,     /* each layer has its own */
  WN_KEEP_INPUT,   /* recompute: one shared block, and each layer's input */
  WN_KEEP_REDUCED, /* each layer has its own exact arrays and bf16 copies of the large ones; the rest is shared */
};

/* A batch's arrays for its pass. The host fills them (ws->host), and they are copied as one block to the backend's
 * memory (ws->device). If that is the host's memory both are the same, and the batch's own arrays are read where they
 * are. */
struct wn_workspace_batch {
  struct wn_arrays arrays;
  int32_t *positions;                    /* [M] */
  int32_t *row_count;                    /* [B] rows of the batch before its padding */
  uint8_t *control;                      /* [M] with a threshold and control tokens */
  int32_t *tokens, *targets, *doc_start; /* [M] only if the backend's memory is not the host's */
  int32_t *key_count;                    /* [B] of an encoder; likewise */
};

/* The sums of a step, doubles that are copied to the host together: loss and hits, then some numbers per layer, of
 * gates one for each input (slot). */
enum wn_sum { WN_SUM_LOSS, WN_SUM_MEM, WN_SUM_SPAN, WN_SUM_BALANCE, WN_SUM_GATES };
enum { WN_SUM_LOSSES = 2, WN_SUMS_OF_LAYER = WN_SUM_GATES - 1 + WN_MECHANISM_INPUTS_MAX };

/* One arena for the arrays, one block for the operations' scratch. Arrays are in the backend's memory unless said
 * otherwise. */
struct wn_workspace {
  wn_context *ctx;
  const struct wn_model *model;
  int64_t B, T; /* the largest batch */
  struct wn_workspace_options options;
  struct wn_arrays arrays;
  enum wn_keep keep;
  struct wn_layer_types types;
  /* of the first layer; if layers have blocks of their own, these follow one after the other */
  struct wn_layer_blocks blocks;
  char *kept; /* [L][kept_bytes]: inputs or reduced copies, or NULL */
  size_t kept_bytes;
  struct wn_layer_temp temp;
  struct wn_workspace_batch host, device;
  double *sums;      /* [sums_count] */
  double *sums_read; /* [sums_count] their copy on the host; the same array if the backend's memory is the host's */
  int64_t sums_count;
  struct wn_arrays own;                   /* of arrays on the host: the next four and sums_read */
  struct wn_recurrence_layer *recurrence; /* [sets][L] */
  struct wn_recurrence_room *rooms;       /* [L+1]; the last one holds what all layers share */
  int64_t *recurrence_seen;               /* [sets] tokens of the streams so far */
  int32_t *recurrence_positions;          /* [recurrence+T] */
  size_t recurrence_bytes;                /* bytes of all rooms */
  uint64_t recurrence_moves;              /* how often a room has been allocated so far */
  struct wn_rotary rotary; /* its own table, if recurrence and block exceed the model's; wn_workspace_rotary says which
                              table a batch uses */
  struct wn_workspace *encoder;  /* workspace of the model's encoder, for encoder.context tokens, or NULL */
  void *embedded;                /* [M,C] input of the embedding's norm, if there is one */
  void *embed_rstd, *embed_mean; /* [M] */
  void *x_out;                   /* [M,C] residual stream at the end */
  void *n_out;                   /* [M,C] after the final norm */
  void *rstd, *mean;             /* [M] */
  void *logits;                  /* [chunk,V]; their gradient takes their place */
  double *loss;                  /* [chunk] */
  uint8_t *hit;                  /* [chunk] */
  wn_budgets budgets;            /* the policy of the budgets that steps may have, without tokens */
  int64_t evicting;              /* P, groups of key-value heads that evict on their own; 0: no budgets */
  int32_t *evicted_at;           /* [L,B,P,T] */
  int64_t chunk;                 /* rows of logits per chunk */
  void *scratch, *host_scratch;  /* host_scratch only if the backend's memory is not the host's (run.h) */
  size_t scratch_bytes, host_scratch_bytes;
};

/* A layer's allocations whose size depends on its reach. states: states and F of all sets. keys: keys and what belongs
 * to them. */
struct wn_recurrence_room {
  int64_t rows;
  void *states, *keys;
  size_t bytes;
};
/* Makes every layer's room as large as its reach requires, at the beginning and after spans have changed. Rooms that
 * fit are kept. *changed: a room was reallocated. */
wn_status wn_recurrence_fit(struct wn_workspace *ws, bool *changed);
void wn_recurrence_clear(struct wn_workspace *ws);
/* Sets the arrays of layer l's keys: kv, k, rstd_k, mean_k, sk. */
void wn_recurrence_keys(const struct wn_workspace *ws, int64_t l, struct wn_layer_acts *out);
/* _bind: gives a run the earlier tokens of set `set`. _advance: after the run, adds its block to the set. */
void wn_recurrence_bind(struct wn_run *run, const struct wn_workspace *ws, int64_t set);
wn_status wn_recurrence_advance(const struct wn_run *run, struct wn_workspace *ws, int64_t set);

static inline const struct wn_memory *wn_workspace_memory(const struct wn_workspace *ws) {
  return ws->model->backend->memory;
}
/* The index of a layer's sum among the sums (what: enum wn_sum, or WN_SUM_GATES + slot; for WN_SUM_LOSS l counts the
 * losses), and its address. */
static inline int64_t wn_workspace_sum_at(const struct wn_workspace *ws, int what, int64_t l) {
  return what == WN_SUM_LOSS ? l : WN_SUM_LOSSES + ((int64_t)what - 1) * ws->model->config.layers + l;
}
static inline double *wn_workspace_sum(const struct wn_workspace *ws, int what, int64_t l) {
  return ws->sums + wn_workspace_sum_at(ws, what, l);
}

/* The angles for a batch whose longest document has `longest` tokens. */
/* A workspace for long texts also takes short ones, which may have other angles. */
static inline const struct wn_rotary *wn_workspace_rotary(const wn_workspace *ws, int64_t longest) {
  const bool other = ws->model->config.rope_scaling.type == WN_ROPE_LONG && ws->options.recurrence == 0 &&
                     longest <= ws->model->rotary.rows;
  return ws->rotary.rows > 0 && !other ? &ws->rotary : &ws->model->rotary;
}
/* How many rows of logits are computed at a time: so few that M x V never exists, enough for an efficient product. */
int64_t wn_logits_rows(int64_t M, int64_t V);

/* The start of the residual stream: embedding, its norm (whose input is kept in `raw` [M,C]), dropout. */
wn_status wn_run_embed(struct wn_run *run, void *raw, void *rstd, void *mean, void *x);
/* Prepares a run over a batch of at most the workspace's size: sets the scratch, checks the batch's arrays and copies
 * them to the backend. Targets and doc_start may be NULL. count [B]: keys of each sequence of an encoder, or NULL. */
wn_status wn_run_batch(struct wn_run *run, const struct wn_model *model, struct wn_workspace *ws,
                       const struct wn_batch *batch, const int32_t *count);
/* Puts a step's budgets in force (NULL: none). */
wn_status wn_run_budgets(struct wn_run *run, const struct wn_workspace *ws, const wn_budgets *budgets);
/* Does the pass compute L_mem? */
static inline bool wn_run_has_mem(const struct wn_run *run) {
  const wn_selective_config *sel = &run->model->config.attention.selective;
  return sel->enabled && sel->mem.enabled && !run->no_mem;
}
/* Embedding to final norm: ws->n_out, and the layers' sums. */
wn_status wn_run_stack(struct wn_run *run, struct wn_workspace *ws);
/* Backward from temp.d_n, the gradient of the final norm's output, to the embedding. */
wn_status wn_run_backward(struct wn_run *run, struct wn_workspace *ws);
/* Encoder-decoder: runs the encoder over the batch's inputs, before the run's own pass, and its backward after it.
 * wn_encoder_measure sets what a measuring pass of the decoder reads. */
wn_status wn_encoder_forward(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch);
wn_status wn_encoder_backward(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch);
void wn_encoder_measure(struct wn_run *run, const struct wn_workspace *ws);
/* The final norm; the caller gives the arrays for rstd and mean. */
struct wn_norm_site wn_run_final_norm(const struct wn_run *run, void *rstd, void *mean);
/* logits [rows,V] of x [rows,C], the final norm's output. */
wn_status wn_run_output(struct wn_run *run, const void *x, int64_t rows, void *logits);
/* wn_model_step on a prepared run. */
wn_status wn_run_step(struct wn_run *run, struct wn_workspace *ws, const struct wn_batch *batch,
                      const struct wn_step *step, struct wn_step_result *result);

#endif
