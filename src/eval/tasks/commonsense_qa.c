/* CommonsenseQA: Talmor et al., "CommonsenseQA: A Question Answering Challenge Targeting Commonsense Knowledge", NAACL
 * 2019. The choices are part of the question, and the answer is a letter. */
#include "eval/task.h"

static wn_status commonsense_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *question, *begin;
  size_t bytes;
  const json_t *texts;
  struct wn_text context = {0};
  WN_TRY(wn_task_text(ctx, q, line, "question", &question));
  WN_TRY(wn_task_labelled(ctx, q, line, &texts));
  if (json_array_size(texts) != 5)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"choices\": expected 5 of them, found %zu", q->where,
                   json_array_size(texts));
  wn_task_strip(question, &begin, &bytes);
  wn_status status = wn_task_format(ctx, &context, "Question: %.*s\n", (int)bytes, begin);
  for (int i = 0; i < 5 && status == WN_OK; i++)
    status = wn_task_format(ctx, &context, "%c. %s\n", 'A' + i, json_string_value(json_array_get(texts, (size_t)i)));
  if (status == WN_OK) status = wn_task_format(ctx, &context, "Answer:");
  for (int i = 0; i < 5 && status == WN_OK; i++)
    status = wn_task_ask(ctx, q, context.data, " ", (const char[]){(char)('A' + i), 0});
  wn_free(context.data);
  return status;
}

const struct wn_task_row wn_task_commonsense_qa = {
    {"commonsense_qa", "everyday knowledge: the letter of one of five answers",
     "question, choices {text [5], label [5]}, answerKey", WN_METRICS_ACC},
    commonsense_read};
