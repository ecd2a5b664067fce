/* How an answer is saved: a line of JSON. */
#include <math.h>
#include <string.h>

#include "eval/answers_run.h"

const char *const wn_answer_names[WN_ANSWER_NUMBERS] = {
    "score", "prompt_tokens", "context_tokens", "answer_tokens", "context_kept",
    "kept",  "cache_peak",    "cache_final",    "first_seconds", "answer_seconds"};

/* What the line says; else where the context has the only reference, a share of its bytes. Negative: neither. */
static double saved_depth(const struct wn_sample *s) {
  const json_t *given = json_object_get(s->line, "depth");
  if (given) return json_number_value(given);
  const char *at = s->reference_count == 1 ? strstr(s->context, s->references[0]) : NULL;
  return at ? (double)(at - s->context) / (double)strlen(s->context) : -1;
}

wn_status wn_answers_save(struct wn_answers *a, struct wn_answers_column *column, const struct wn_sample *s,
                          const char *text, wn_generate_end end) {
  const double *numbers = column->all[s->number].numbers;
  if (!column->log.f) return WN_OK;
  json_t *line = json_pack("{s:I, s:s, s:s, s:s}", "sample", (json_int_t)s->number, "task", s->task, "answer", text,
                           "end", wn_generate_end_name(end));
  for (int n = 0; line && n < WN_ANSWER_NUMBERS; n++)
    json_object_set_new(line, wn_answer_names[n],
                        numbers[n] == floor(numbers[n]) ? json_integer((json_int_t)numbers[n]) : json_real(numbers[n]));
  const double depth = saved_depth(s);
  if (line && depth >= 0) json_object_set_new(line, "depth", json_real(depth));
  WN_TRY(wn_eval_log_add(a->ctx, &column->log, line));
  return wn_eval_log_flush(a->ctx, &column->log);
}
