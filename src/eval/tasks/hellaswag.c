/* HellaSwag: Zellers et al., "HellaSwag: Can a Machine Really Finish Your Sentence?", ACL 2019. */
#include "eval/task.h"

static wn_status hellaswag_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *query;
  const json_t *choices;
  WN_TRY(wn_task_text(ctx, q, line, "query", &query));
  WN_TRY(wn_task_list(ctx, q, line, "choices", &choices));
  WN_TRY(wn_task_number(ctx, q, line, "gold", 0, (int)json_array_size(choices), &q->gold));
  return wn_task_ask_list(ctx, q, query, choices);
}

const struct wn_task_row wn_task_hellaswag = {
    {"hellaswag", "which of four sentences continues the text", "query, choices [4], gold 0-3", WN_METRICS_NORM},
    hellaswag_read};
