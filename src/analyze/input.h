/* What the analyses that read a text share. */
#ifndef WN_ANALYZE_INPUT_H
#define WN_ANALYZE_INPUT_H

#include "model/layer.h"
#include "train/eval.h"
#include "winnow/analyze.h"

/* What the caller's input and its options are here; *input then points at it. NULL stays NULL. */
struct wn_analysis_own {
  wn_analysis_input input;
  wn_eval_options options;
};
wn_status wn_analysis_read(wn_context *ctx, const wn_analysis_input **input, struct wn_analysis_own *own);

/* One pass over the input with `observer` on every layer. */
wn_status wn_analysis_run(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                          const struct wn_layer_observer *observer, wn_eval_result *result);

/* The tokens of a batch as analyses see them: which are control tokens, and where each sequence's padding begins. */
struct wn_analysis_batch {
  int64_t B, T;
  const int32_t *doc_start; /* [B,T] or NULL */
  uint8_t *is_control;      /* [V] by id */
  uint8_t *control;         /* [B,T] */
  int32_t *before;          /* [B,T] control tokens of the row's document up to and with it */
  int32_t *end;             /* [B] */
};
/* ids [count] are refused outside the vocabulary. */
wn_status wn_analysis_batch_init(wn_context *ctx, const wn_model *model, const int32_t *ids, int count,
                                 struct wn_analysis_batch *out);
/* Room for B sequences of T. */
wn_status wn_analysis_batch_reserve(wn_context *ctx, struct wn_analysis_batch *batch, int64_t B, int64_t T);
void wn_analysis_batch_take(struct wn_analysis_batch *batch, const struct wn_batch *from);
void wn_analysis_batch_clear(struct wn_analysis_batch *batch);

/* Why a pass cannot look at the weights of this model, or WN_OK. */
wn_status wn_analysis_check(wn_context *ctx, const wn_model *model, const wn_analysis_input *input, const char *what);

static inline int64_t wn_analysis_first(const struct wn_analysis_batch *batch, int64_t b, int64_t t) {
  return batch->doc_start ? batch->doc_start[b * batch->T + t] : 0;
}

#endif
