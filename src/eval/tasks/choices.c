/* Questions of your own: one context with choices, several contexts with one continuation, or one of each. */
#include "eval/task.h"

static wn_status choices_read(wn_context *ctx, const json_t *line, struct wn_question *q) {
  const char *context = "", *delimiter = " ", *continuation;
  const json_t *list;
  if (json_object_get(line, "delimiter")) WN_TRY(wn_task_text(ctx, q, line, "delimiter", &delimiter));
  if (json_object_get(line, "contexts")) {
    WN_TRY(wn_task_list(ctx, q, line, "contexts", &list));
    WN_TRY(wn_task_text(ctx, q, line, "continuation", &continuation));
    for (size_t i = 0; i < json_array_size(list); i++)
      WN_TRY(wn_task_ask(ctx, q, json_string_value(json_array_get(list, i)), delimiter, continuation));
  } else {
    WN_TRY(wn_task_text(ctx, q, line, "context", &context));
    if (json_object_get(line, "continuation")) {
      WN_TRY(wn_task_text(ctx, q, line, "continuation", &continuation));
      return wn_task_ask(ctx, q, context, delimiter, continuation);
    }
    WN_TRY(wn_task_list(ctx, q, line, "choices", &list));
    for (size_t i = 0; i < json_array_size(list); i++)
      WN_TRY(wn_task_ask(ctx, q, context, delimiter, json_string_value(json_array_get(list, i))));
  }
  return wn_task_number(ctx, q, line, "gold", 0, q->count, &q->gold);
}

const struct wn_task_row wn_task_choices = {
    {"choices", "questions of your own",
     "context and choices [..], or contexts [..] and continuation, with gold 0..; or context and continuation alone;"
     " delimiter \" \"",
     WN_METRICS_NORM | 1u << WN_METRIC_PERPLEXITY},
    choices_read};
