/* PIQA: Bisk et al., "PIQA: Reasoning about Physical Commonsense in Natural Language", AAAI 2020. */
#include "eval/task.h"

static wn_status piqa_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *goal, *sol1, *sol2;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "goal", &goal));
  WN_TRY(wn_task_text(ctx, q, line, "sol1", &sol1));
  WN_TRY(wn_task_text(ctx, q, line, "sol2", &sol2));
  WN_TRY(wn_task_number(ctx, q, line, "label", 0, 2, &q->gold));
  wn_status status = wn_task_format(ctx, &context, "Question: %s\nAnswer:", goal);
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", sol1);
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", sol2);
  wn_free(context.data);
  return status;
}

const struct wn_task_row wn_task_piqa = {
    {"piqa", "which of two ways reaches a goal", "goal, sol1, sol2, label 0-1", WN_METRICS_NORM}, piqa_read};
