/* Winograd schemas: Levesque, Davis, Morgenstern, "The Winograd Schema Challenge", KR 2012; partial scoring as in
 * WinoGrande. */
#include "eval/task.h"

static wn_status wsc273_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *continuation;
  const json_t *contexts;
  WN_TRY(wn_task_list(ctx, q, line, "contexts", &contexts));
  WN_TRY(wn_task_text(ctx, q, line, "continuation", &continuation));
  WN_TRY(wn_task_number(ctx, q, line, "label", 0, (int)json_array_size(contexts), &q->gold));
  for (size_t i = 0; i < json_array_size(contexts); i++)
    WN_TRY(wn_task_ask(ctx, q, json_string_value(json_array_get(contexts, i)), " ", continuation));
  return WN_OK;
}

const struct wn_task_row wn_task_wsc273 = {
    {"wsc273", "whom a pronoun means, by what follows", "contexts [2], continuation, label 0-1", WN_METRICS_ACC},
    wsc273_read};
