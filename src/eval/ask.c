/* What all tasks share when they read a line: its fields, and making requests. */
#include "eval/task.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *task_json_kind(const json_t *value) {
  static const char *const kinds[] = {
      [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "a list",  [JSON_STRING] = "a text",
      [JSON_INTEGER] = "a number",    [JSON_REAL] = "a number", [JSON_TRUE] = "true or false",
      [JSON_FALSE] = "true or false", [JSON_NULL] = "null"};
  return value ? kinds[json_typeof(value)] : "nothing";
}

wn_status wn_task_text(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const char **out) {
  const json_t *value = json_object_get(line, field);
  *out = json_string_value(value);
  if (*out) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected a text, found %s", q->where, field,
                 task_json_kind(value));
}

wn_status wn_task_number(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field, int first,
                         int count, int *out) {
  const json_t *value = json_object_get(line, field);
  const char *text = json_string_value(value);
  json_int_t n = -1;
  if (json_is_integer(value)) n = json_integer_value(value);
  if (text && text[0] >= '0' && text[0] <= '9' && (!text[1] || (text[1] >= '0' && text[1] <= '9' && !text[2])))
    n = text[1] ? 10 * (text[0] - '0') + text[1] - '0' : text[0] - '0';
  if (n >= first && n < first + count) {
    *out = (int)n - first;
    return WN_OK;
  }
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected a number from %d to %d", q->where, field, first,
                 first + count - 1);
}

wn_status wn_task_list(wn_context *ctx, const struct wn_question *q, const json_t *line, const char *field,
                       const json_t **out) {
  const json_t *list = json_object_get(line, field);
  const size_t n = json_array_size(list);
  *out = list;
  if (n < 1 || n > WN_TASK_CHOICES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected a list of 1 to %d texts, found %s", q->where, field,
                   WN_TASK_CHOICES, json_is_array(list) ? "another number of them" : task_json_kind(list));
  for (size_t i = 0; i < n; i++)
    if (!json_is_string(json_array_get(list, i)))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": expected texts, element %zu is %s", q->where, field, i,
                     task_json_kind(json_array_get(list, i)));
  return WN_OK;
}

wn_status wn_task_format(wn_context *ctx, struct wn_text *out, const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  const int n = vasprintf(&text, format, args);
  va_end(args);
  if (n >= 0) wn_text_add(out, "%s", text);
  if (n >= 0) free(text);
  return n >= 0 && !out->failed ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a question");
}

wn_status wn_task_ask(wn_context *ctx, struct wn_question *q, const char *context, const char *delimiter,
                      const char *text) {
  if (q->count == WN_TASK_CHOICES)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: more than %d choices", q->where, WN_TASK_CHOICES);
  struct wn_task_request *r = &q->requests[q->count++];
  WN_TRY(wn_task_format(ctx, &r->context, "%s", context));
  r->bare = strlen(delimiter);
  WN_TRY(wn_task_format(ctx, &r->continuation, "%s%s", delimiter, text));
  if (!*text) return wn_fail(ctx, WN_ERR_FORMAT, "%s: choice %d is empty", q->where, q->count - 1);
  return WN_OK;
}

wn_status wn_task_ask_list(wn_context *ctx, struct wn_question *q, const char *context, const char *delimiter,
                           const json_t *choices) {
  for (size_t i = 0; i < json_array_size(choices); i++)
    WN_TRY(wn_task_ask(ctx, q, context, delimiter, json_string_value(json_array_get(choices, i))));
  return WN_OK;
}

wn_status wn_task_labelled(wn_context *ctx, struct wn_question *q, const json_t *line, const json_t **texts) {
  const json_t *choices = json_object_get(line, "choices"), *labels;
  const char *key;
  if (!json_is_object(choices))
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: field \"choices\": expected an object with \"text\" and \"label\", found %s", q->where,
                   task_json_kind(choices));
  WN_TRY(wn_task_list(ctx, q, choices, "text", texts));
  WN_TRY(wn_task_list(ctx, q, choices, "label", &labels));
  WN_TRY(wn_task_text(ctx, q, line, "answerKey", &key));
  if (json_array_size(labels) != json_array_size(*texts))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"choices\": %zu labels for %zu texts", q->where,
                   json_array_size(labels), json_array_size(*texts));
  for (size_t i = 0; i < json_array_size(labels); i++)
    if (!strcmp(json_string_value(json_array_get(labels, i)), key)) {
      q->gold = (int)i;
      return WN_OK;
    }
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"answerKey\": \"%s\" is none of the labels", q->where, key);
}

static bool task_is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
}

void wn_task_strip(const char *text, const char **begin, size_t *bytes) {
  size_t n = strlen(text);
  while (n > 0 && task_is_space(*text)) text++, n--;
  while (n > 0 && task_is_space(text[n - 1])) n--;
  *begin = text;
  *bytes = n;
}

void wn_question_clear(struct wn_question *q) {
  for (int i = 0; i < q->count; i++) {
    wn_free(q->requests[i].context.data);
    wn_free(q->requests[i].continuation.data);
    q->requests[i] = (struct wn_task_request){0};
  }
  q->count = 0;
  q->gold = -1;
}
