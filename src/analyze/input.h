/* What the analyses that read a text share. */
#ifndef WN_ANALYZE_INPUT_H
#define WN_ANALYZE_INPUT_H

#include "model/layer.h"
#include "train/eval.h"
#include "winnow/analyze.h"

/* A copy of the caller's input and options, in this version's structs; *input then points to the copy. NULL stays
 * NULL. */
struct wn_analysis_own {
  wn_analysis_input input;
  wn_eval_options options;
};
wn_status wn_analysis_read(wn_context *ctx, const wn_analysis_input **input, struct wn_analysis_own *own);

/* One pass over the input with `observer` on every layer. */
wn_status wn_analysis_run(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                          const struct wn_layer_observer *observer, wn_eval_result *result);

/* What analyses need to know of a batch's tokens: which are control tokens, and where each sequence's padding
 * begins. */
struct wn_analysis_batch {
  int64_t B, T;
  const int32_t *doc_start; /* [B,T] or NULL */
  uint8_t *is_control;      /* [V] by id */
  uint8_t *control;         /* [B,T] */
  int32_t *before;          /* [B,T] number of control tokens of the row's document up to and including the row */
  int32_t *end;             /* [B] where padding begins */
};
/* ids [count]: control tokens; WN_ERR_ARGUMENT if one is outside the vocabulary. */
wn_status wn_analysis_batch_init(wn_context *ctx, const wn_model *model, const int32_t *ids, int count,
                                 struct wn_analysis_batch *out);
/* Makes room for B sequences of T tokens. */
wn_status wn_analysis_batch_reserve(wn_context *ctx, struct wn_analysis_batch *batch, int64_t B, int64_t T);
void wn_analysis_batch_take(struct wn_analysis_batch *batch, const struct wn_batch *from);
void wn_analysis_batch_clear(struct wn_analysis_batch *batch);

/* WN_OK if a pass can record the attention weights of this model; else an error that says why not. */
wn_status wn_analysis_check(wn_context *ctx, const wn_model *model, const wn_analysis_input *input, const char *what);

static inline int64_t wn_analysis_first(const struct wn_analysis_batch *batch, int64_t b, int64_t t) {
  return batch->doc_start ? batch->doc_start[b * batch->T + t] : 0;
}

#endif
