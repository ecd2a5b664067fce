/* LAMBADA, OpenAI's detokenised test: Paperno et al., "The LAMBADA dataset: Word prediction requiring a broad discourse
 * context", ACL 2016; Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. */
#include "eval/task.h"

#include <string.h>

static wn_status lambada_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *text;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "text", &text));
  const char *space = strrchr(text, ' ');
  wn_status status = wn_task_format(ctx, &context, "%.*s", space ? (int)(space - text) : 0, text);
  if (status == WN_OK) status = wn_task_ask(ctx, q, context.data, " ", space ? space + 1 : text);
  wn_free(context.data);
  return status;
}

const struct wn_task_row wn_task_lambada_openai = {
    {"lambada_openai", "the last word of a passage", "text", WN_METRICS_ACC | 1u << WN_METRIC_PERPLEXITY},
    lambada_read};
