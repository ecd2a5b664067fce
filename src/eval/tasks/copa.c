/* COPA: Roemmele, Bejan, Gordon, "Choice of Plausible Alternatives", AAAI Spring Symposium 2011. The context ends with
 * "because" or "therefore". */
#include "eval/task.h"

static wn_status copa_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *context;
  const json_t *choices;
  WN_TRY(wn_task_text(ctx, q, line, "context", &context));
  WN_TRY(wn_task_list(ctx, q, line, "choices", &choices));
  WN_TRY(wn_task_number(ctx, q, line, "label", 0, (int)json_array_size(choices), &q->gold));
  return wn_task_ask_list(ctx, q, context, choices);
}

const struct wn_task_row wn_task_copa = {
    {"copa", "which of two is the cause, or what follows", "context, choices [2], label 0-1", WN_METRICS_ACC},
    copa_read};
