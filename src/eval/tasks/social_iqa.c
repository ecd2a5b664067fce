/* SocialIQA: Sap et al., "Social IQa: Commonsense Reasoning about Social Interactions", EMNLP 2019. */
#include "eval/task.h"

static wn_status social_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  static const char *const fields[] = {"answerA", "answerB", "answerC"};
  const char *before, *question, *answers[3];
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "context", &before));
  WN_TRY(wn_task_text(ctx, q, line, "question", &question));
  for (int i = 0; i < 3; i++) WN_TRY(wn_task_text(ctx, q, line, fields[i], &answers[i]));
  WN_TRY(wn_task_number(ctx, q, line, "label", 1, 3, &q->gold));
  wn_status status = wn_task_format(ctx, &context, "Q: %s %s\nA:", before, question);
  for (int i = 0; i < 3 && status == WN_OK; i++) status = wn_task_ask(ctx, q, context.data, " ", answers[i]);
  wn_free(context.data);
  return status;
}

const struct wn_task_row wn_task_social_iqa = {{"social_iqa", "why people do something, and what they feel",
                                                "context, question, answerA, answerB, answerC, label 1-3",
                                                WN_METRICS_ACC},
                                               social_read};
