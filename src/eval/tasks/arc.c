/* ARC, easy and challenge: Clark et al., "Think you have Solved Question Answering? Try ARC, the AI2 Reasoning
 * Challenge", arXiv 1803.05457, 2018. */
#include "eval/task.h"

static wn_status arc_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *question;
  const json_t *texts;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "question", &question));
  WN_TRY(wn_task_labelled(ctx, q, line, &texts));
  wn_status status = wn_task_format(ctx, &context, "Question: %s\nAnswer:", question);
  if (status == WN_OK) status = wn_task_ask_list(ctx, q, context.data, texts);
  wn_free(context.data);
  return status;
}

#define ARC_FIELDS "question, choices {text [3-5], label [3-5]}, answerKey"
const struct wn_task_row wn_task_arc_easy = {
    {"arc_easy", "school science, the easier questions", ARC_FIELDS, WN_METRICS_NORM}, arc_read};
const struct wn_task_row wn_task_arc_challenge = {
    {"arc_challenge", "school science, the harder questions", ARC_FIELDS, WN_METRICS_NORM}, arc_read};
