/* Reads lines of questions with written answers, and makes the tokens of their prompts. */
#include <string.h>

#include "eval/answers.h"
#include "winnow/generate.h"

enum { ANSWER_TOKENS = 128 };

void wn_sample_clear(struct wn_sample *s) {
  wn_tokens_free(s->ids);
  json_decref(s->line);
  *s = (struct wn_sample){0};
}

/* A field that may be absent: then *out stays. */
static wn_status sample_text(wn_context *ctx, const struct wn_sample *s, const char *field, const char **out) {
  const struct wn_question q = {.where = s->where};
  return json_object_get(s->line, field) ? wn_task_text(ctx, &q, s->line, field, out) : WN_OK;
}

static wn_status sample_list(wn_context *ctx, const struct wn_sample *s, const char *field, const char **out,
                             int *count) {
  const struct wn_question q = {.where = s->where};
  const json_t *list;
  WN_TRY(wn_task_list(ctx, &q, s->line, field, &list));
  for (*count = 0; *count < (int)json_array_size(list); ++*count) {
    out[*count] = json_string_value(json_array_get(list, (size_t)*count));
    if (!*out[*count]) return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"%s\": a text is empty", s->where, field);
  }
  return WN_OK;
}

static wn_status sample_read(wn_context *ctx, const wn_answers_options *o, struct wn_sample *s) {
  const char *scorer = NULL;
  const json_t *tokens = json_object_get(s->line, "max_tokens");
  s->task = s->context = s->question = s->prefix = "";
  WN_TRY(sample_text(ctx, s, "task", &s->task));
  WN_TRY(sample_text(ctx, s, "context", &s->context));
  WN_TRY(sample_text(ctx, s, "question", &s->question));
  WN_TRY(sample_text(ctx, s, "answer_prefix", &s->prefix));
  if (!*s->context && !*s->question && !*s->prefix)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: expected a \"context\", a \"question\" or an \"answer_prefix\"", s->where);
  WN_TRY(sample_list(ctx, s, "references", s->references, &s->reference_count));
  WN_TRY(sample_text(ctx, s, "scorer", &scorer));
  if (!wn_scorer_find(scorer, &s->scorer))
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: field \"scorer\": expected all, any, exact, f1, rouge-l or number, found %s%s%s", s->where,
                   scorer ? "\"" : "", scorer ? scorer : "nothing", scorer ? "\"" : "");
  if (json_array_size(json_object_get(s->line, "stop")) > 0)
    WN_TRY(sample_list(ctx, s, "stop", s->stop, &s->stop_count));
  else if (json_object_get(s->line, "stop") && !json_is_array(json_object_get(s->line, "stop")))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"stop\": expected a list of texts", s->where);
  for (int i = 0; s->scorer == WN_SCORER_NUMBER && i < s->reference_count; i++)
    if (!strpbrk(s->references[i], "0123456789"))
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: field \"references\": expected a number in each text, for the scorer number", s->where);
  const json_t *depth = json_object_get(s->line, "depth");
  if (depth && !(json_is_number(depth) && json_number_value(depth) >= 0 && json_number_value(depth) <= 1))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"depth\": expected a number from 0 to 1", s->where);
  s->max_tokens = tokens ? json_integer_value(tokens) : o->max_tokens ? o->max_tokens : ANSWER_TOKENS;
  if (s->max_tokens < 1 || s->max_tokens > WN_ANSWER_MOST_TOKENS)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: field \"max_tokens\": expected a number from 1 to %d", s->where,
                   (int)WN_ANSWER_MOST_TOKENS);
  return WN_OK;
}

wn_status wn_sample_next(wn_context *ctx, const wn_answers_options *o, struct wn_lines *lines, struct wn_sample *out,
                         bool *more) {
  *out = (struct wn_sample){0};
  WN_TRY(wn_question_line_next(ctx, lines, out->where, &out->line));
  *more = out->line != NULL;
  const wn_status status = *more ? sample_read(ctx, o, out) : WN_OK;
  if (status != WN_OK) wn_sample_clear(out);
  return status;
}

/* --- tokens --- */

/* The tokens of context and question; prefix NULL: of a context alone. */
static wn_status sample_tokens(wn_context *ctx, const wn_answers_options *o, const char *context, const char *question,
                               const char *prefix, int32_t **ids, size_t *n) {
  struct wn_text user = {0};
  wn_status status = wn_task_format(ctx, &user, "%s%s%s", context, question, o->chat || !prefix ? "" : prefix);
  if (status == WN_OK && o->chat) {
    const wn_chat_message messages[] = {{WN_CHAT_SYSTEM, o->system ? o->system : ""},
                                        {WN_CHAT_USER, user.data},
                                        {WN_CHAT_ASSISTANT, prefix ? prefix : ""}};
    const int first = o->system ? 0 : 1, count = prefix && *prefix ? 3 : 2;
    status = wn_chat_encode(ctx, o->tok, o->chat, messages + first, count - first, true, ids, n);
  } else if (status == WN_OK) {
    status = wn_prompt_encode(ctx, o->tok, user.data, user.bytes, ids, n);
  }
  wn_free(user.data);
  return status;
}

/* The prompt is one text, so that its tokens are those of the same prompt elsewhere. Its context is what it has in
 * common with the context alone: where a token reaches from the context into the question, the context ends before it.
 * At least one token is left to be read after the context. */
wn_status wn_sample_encode(wn_context *ctx, const wn_answers_options *o, struct wn_sample *s) {
  int32_t *context = NULL;
  size_t n = 0, context_n = 0, common = 0;
  wn_status status = sample_tokens(ctx, o, s->context, s->question, s->prefix, &s->ids, &n);
  if (status == WN_OK && *s->context) status = sample_tokens(ctx, o, s->context, "", NULL, &context, &context_n);
  if (status != WN_OK) return wn_fail_prefix(ctx, status, "%s", s->where);
  while (common < context_n && common + 1 < n && context[common] == s->ids[common]) common++;
  s->n = (int64_t)n;
  s->context_n = (int64_t)common;
  wn_tokens_free(context);
  return WN_OK;
}
