/* Evaluation over a source, shared by wn_eval, wn_eval_text and the periodic evaluation of a run. */
#ifndef WN_TRAIN_EVAL_H
#define WN_TRAIN_EVAL_H

#include "model/model.h"
#include "winnow/train.h"

struct wn_eval_sums {
  double loss, span; /* span: sum over batches of the mean span times the batch's tokens */
  uint64_t counted, hits, tokens, batches, workspace_bytes, recurrence_bytes;
};

/* Fills batch `index`, arrays [B,T]. *packed: doc_start is filled. */
typedef wn_status (*wn_eval_batch_fn)(void *user, uint64_t index, int32_t *tokens, int32_t *targets, int32_t *doc_start,
                                      bool *packed);
struct wn_eval_loop {
  struct wn_model *model;
  wn_workspace *ws;
  int64_t B, T;
  int32_t *tokens, *targets, *doc_start; /* [B,T] each, of the caller */
  int64_t recurrence_set;                /* with recurrence: the workspace's set to use; it is emptied first */
  bool continues;                        /* recurrence: each batch continues the last one */
  uint64_t batches;
  int64_t S;                     /* with an encoder: the length of its rows, which `input_batch` fills for each batch */
  int32_t *inputs, *input_count; /* [B,S], [B] */
  wn_status (*input_batch)(void *user, uint64_t index, int32_t *inputs, int32_t *input_count);
  wn_eval_batch_fn batch;
  void *batch_user;
  void (*progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
  void *progress_user;
  const struct wn_layer_observer *observer; /* may be NULL */
  const wn_budgets *budgets;                /* in force; NULL: none */
  wn_row_sums *rows; /* [batches,B] zeros, to which each row's sums are added; NULL: not wanted */
};
/* Allocates nothing. WN_ERR_CANCELLED at the next batch after wn_context_cancel. */
wn_status wn_eval_loop_run(wn_context *ctx, const struct wn_eval_loop *loop, struct wn_eval_sums *sums);

/* wn_eval and wn_eval_text with an observer on every layer. */
wn_status wn_eval_observed(wn_context *ctx, wn_model *model, const wn_data_source *source,
                           const wn_eval_options *options, const struct wn_layer_observer *observer,
                           wn_eval_result *result);
wn_status wn_eval_text_observed(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const char *text,
                                size_t bytes, const wn_eval_options *options, const struct wn_layer_observer *observer,
                                wn_eval_result *result);

#endif
