/* BoolQ: Clark et al., "BoolQ: Exploring the Surprising Difficulty of Natural Yes/No Questions", NAACL 2019. */
#include "eval/task.h"

static wn_status boolq_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *passage, *question;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "passage", &passage));
  WN_TRY(wn_task_text(ctx, q, line, "question", &question));
  WN_TRY(wn_task_number(ctx, q, line, "label", 0, 2, &q->gold));
  wn_status status = wn_task_format(ctx, &context, "%s\nQuestion: %s?\nAnswer:", passage, question);
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", "no");
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", "yes");
  wn_free(context.data);
  return status;
}

const struct wn_task_row wn_task_boolq = {
    {"boolq", "yes or no, after a passage", "passage, question (without its mark), label 0 no, 1 yes", WN_METRICS_ACC},
    boolq_read};
