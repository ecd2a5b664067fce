/* Reads requests with a table that has a row for each field of the API, so that a field that is not supported is named
 * in an error and never ignored silently. */
#include "serve/request.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "decode/session.h"
#include "serve/format.h"
#include "text/schema.h"

enum { BODY_DEPTH = 4 * WN_SCHEMA_DEPTH + 4 }; /* the deepest schema takes all but a few of these levels */

/* --- rows --- */

enum field_kind {
  FIELD_BOOL,
  FIELD_INT,     /* int64_t */
  FIELD_NUMBER,  /* double */
  FIELD_READ,    /* read by a function */
  FIELD_IGNORED, /* a text without effect */
  FIELD_IDLE,    /* changes nothing here, and is named in the log once */
  FIELD_UNSERVED /* not supported, and refused unless its value asks for nothing */
};

struct reading {
  const struct wn_serve_model *m;
  struct wn_serve_request *r;
  struct wn_serve_error *error;
};

struct field {
  const char *name;
  enum field_in { TEXT = 1, CHAT, BOTH } in; /* /v1/completions, /v1/chat/completions */
  enum field_kind kind;
  size_t at;
  double min, max;
  bool (*read)(const struct reading *x, const json_t *value);
};

/* Where a prompt is read from, for messages. */
struct prompt_field {
  const struct wn_serve_model *m;
  const char *name;
  struct wn_serve_error *error;
};

static bool prompt_read_ids(const struct prompt_field *x, const json_t *list, struct wn_serve_prompt *out) {
  const size_t n = json_array_size(list);
  if ((int64_t)n > x->m->context)
    return wn_serve_refuse(x->error, 400, x->name, "%s: %zu tokens, the context has %lld", x->name, n,
                           (long long)x->m->context);
  if (WN_ALLOC(x->m->ctx, "a prompt", n, &out->ids) != WN_OK)
    return wn_serve_refuse(x->error, 503, x->name, "out of memory");
  out->count = (int64_t)n;
  for (size_t i = 0; i < n; i++) {
    const json_t *id = json_array_get(list, i);
    const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value >= x->m->entries)
      return wn_serve_refuse(x->error, 400, x->name, "%s: element %zu is no token, expected 0 to %d", x->name, i,
                             x->m->entries - 1);
    out->ids[i] = (int32_t)value;
  }
  return true;
}

static bool prompt_read_text(const struct prompt_field *x, const json_t *text, struct wn_serve_prompt *out) {
  size_t count = 0;
  if (!wn_serve_may_fit(x->m, x->name, json_string_length(text), x->error)) return false;
  if (wn_prompt_encode(x->m->ctx, x->m->tok, json_string_value(text), json_string_length(text), &out->ids, &count) !=
      WN_OK)
    return wn_serve_refuse(x->error, 400, x->name, "%s: %s", x->name, wn_context_error(x->m->ctx));
  out->count = (int64_t)count;
  return true;
}

/* Makes room for a request's prompts. */
static bool prompts_allocate(const struct wn_serve_model *m, const char *name, size_t n, struct wn_serve_request *r,
                             struct wn_serve_error *error) {
  return WN_ALLOC(m->ctx, "prompts", n, &r->prompts) == WN_OK || wn_serve_refuse(error, 503, name, "out of memory");
}

bool wn_serve_prompts(const struct wn_serve_model *m, const char *name, size_t most, const json_t *value,
                      struct wn_serve_request *r, struct wn_serve_error *error) {
  const struct prompt_field x = {m, name, error};
  const json_t *first = json_array_get(value, 0);
  const bool list = json_is_array(value) && (json_is_string(first) || json_is_array(first));
  const size_t n = list ? json_array_size(value) : 1;
  if (!json_is_string(value) && !first)
    return wn_serve_refuse(error, 400, name, "%s: expected a text, tokens, or a list of either", name);
  if (n > most) return wn_serve_refuse(error, 400, name, "%s: a list of %zu, at most %zu", name, n, most);
  if (!prompts_allocate(m, name, n, r, error)) return false;
  for (size_t i = 0; i < n; i++) {
    const json_t *one = list ? json_array_get(value, i) : value;
    struct wn_serve_prompt *out = &r->prompts[r->prompt_count++];
    if (json_is_string(one) ? !prompt_read_text(&x, one, out) : !json_is_array(one) || !prompt_read_ids(&x, one, out))
      return error->status ? false
                           : wn_serve_refuse(error, 400, name, "%s: element %zu is neither a text nor tokens", name, i);
    if (out->count == 0) return wn_serve_refuse(error, 400, name, "%s: there are no tokens in it", name);
  }
  return true;
}

static bool read_prompt(const struct reading *x, const json_t *value) {
  return wn_serve_prompts(x->m, "prompt", WN_SERVE_WRITTEN, value, x->r, x->error);
}

static bool read_messages(const struct reading *x, const json_t *value) {
  return value && prompts_allocate(x->m, "messages", 1, x->r, x->error) &&
         wn_serve_messages(x->m, x->r->json, &x->r->prompts[x->r->prompt_count++], x->error);
}

/* Calls are wanted where there are functions that may be called. */
static bool read_tools(const struct reading *x, const json_t *value) {
  const char *choice = json_string_value(json_object_get(x->r->json, "tool_choice"));
  if (json_array_size(value) > 0 && (!choice || strcmp(choice, "none") != 0))
    x->r->calls = wn_call_form_of(wn_chat_source(x->m->tok, true));
  return true;
}

static bool read_beside(const struct reading *x, const json_t *value) { /* read with the messages */
  return value && x->r;
}

static bool read_stop(const struct reading *x, const json_t *value) {
  struct wn_serve_request *r = x->r;
  const size_t n = json_is_array(value) ? json_array_size(value) : 1;
  if (n > WN_SERVE_STOPS)
    return wn_serve_refuse(x->error, 400, "stop", "stop: %zu texts, at most %d", n, WN_SERVE_STOPS);
  for (size_t i = 0; i < n; i++) {
    const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
    if (!json_is_string(one) || !*json_string_value(one))
      return wn_serve_refuse(x->error, 400, "stop", "stop: expected a text or a list of texts, none empty");
    r->stops[r->stop_count++] = json_string_value(one);
  }
  return true;
}

static bool read_logprobs(const struct reading *x, const json_t *value) {
  struct wn_serve_request *r = x->r;
  if (r->chat) {
    if (!json_is_boolean(value)) return wn_serve_refuse(x->error, 400, "logprobs", "logprobs: expected true or false");
    r->scores = json_is_true(value);
    return true;
  }
  const json_int_t top = json_is_integer(value) ? json_integer_value(value) : -1;
  if (top < 0 || top > WN_SERVE_TOP)
    return wn_serve_refuse(x->error, 400, "logprobs", "logprobs: expected 0 to %d", WN_SERVE_TOP);
  r->scores = true;
  r->top = (int)top;
  return true;
}

static bool read_top_logprobs(const struct reading *x, const json_t *value) {
  const json_int_t top = json_is_integer(value) ? json_integer_value(value) : -1;
  if (top < 0 || top > WN_SERVE_TOP)
    return wn_serve_refuse(x->error, 400, "top_logprobs", "top_logprobs: expected 0 to %d", WN_SERVE_TOP);
  x->r->top = (int)top;
  return true;
}

static bool read_logit_bias(const struct reading *x, const json_t *value) {
  const char *key;
  json_t *bias;
  if (!json_is_object(value)) return wn_serve_refuse(x->error, 400, "logit_bias", "logit_bias: expected an object");
  json_object_foreach((json_t *)(uintptr_t)value, key, bias) {
    char *end;
    const long id = strtol(key, &end, 10);
    const double b = json_number_value(bias);
    if (!*key || *end || id < 0 || id >= x->m->entries || !json_is_number(bias) || !(b >= -100 && b <= 100))
      return wn_serve_refuse(x->error, 400, "logit_bias",
                             "logit_bias: expected tokens 0 to %d with numbers from -100 to 100", x->m->entries - 1);
    if (x->r->bias_count == WN_SERVE_BIASES)
      return wn_serve_refuse(x->error, 400, "logit_bias", "logit_bias: more than %d tokens", WN_SERVE_BIASES);
    x->r->biases[x->r->bias_count].id = (int32_t)id;
    x->r->biases[x->r->bias_count++].bias = b <= -100 ? -INFINITY : (float)b;
  }
  return true;
}

static bool read_stream_options(const struct reading *x, const json_t *value) {
  const char *key;
  json_t *option;
  if (!json_is_object(value))
    return wn_serve_refuse(x->error, 400, "stream_options", "stream_options: expected an object");
  json_object_foreach((json_t *)(uintptr_t)value, key, option) {
    if (json_is_null(option)) continue;
    if (strcmp(key, "include_usage") != 0 || !json_is_boolean(option))
      return wn_serve_refuse(x->error, 400, "stream_options",
                             "stream_options: \"%.32s\": expected include_usage, true or false", key);
    x->r->include_usage = json_is_true(option);
  }
  return true;
}

static bool read_response_format(const struct reading *x, const json_t *value) {
  return wn_serve_format(x->m, value, &x->r->constraint, x->error);
}

static bool read_best_of(const struct reading *x, const json_t *value) {
  const json_t *n = json_object_get(x->r->json, "n");
  const json_int_t wanted = json_is_integer(n) ? json_integer_value(n) : 1;
  if (json_is_integer(value) && json_integer_value(value) == wanted) return true;
  return wn_serve_refuse(x->error, 400, "best_of", "best_of: only the value of n is served");
}

/* Is it "64", "64,32", "0.25", "25%", "2MiB"? A request must not name a file. */
static bool budget_is_number(const char *text) {
  return *text >= '0' && *text <= '9' && strspn(text, "0123456789.,:kKMGiB%") == strlen(text);
}

const wn_budgets *wn_serve_budgets(const struct wn_serve_model *m, const struct wn_serve_request *r) {
  return r->budgets.layers > 0 ? &r->budgets : m->budgets;
}

/* Checks that the model can do what is asked for. */
static bool read_winnow_check(const struct reading *x) {
  const struct wn_serve_request *r = x->r;
  wn_attention_config unused;
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .budgets = wn_serve_budgets(x->m, r),
                                      .cache = x->m->cache,
                                      .tau = r->tau};
  return wn_session_check_options(x->m->ctx, x->m->model, &options, &unused) == WN_OK ||
         wn_serve_refuse(x->error, 400, "winnow", "winnow: %s", wn_context_error(x->m->ctx));
}

/* Reads the field "winnow", an extension of the API: how much of its context a request keeps. */
static bool read_winnow(const struct reading *x, const json_t *value) {
  wn_context *ctx = x->m->ctx;
  wn_budgets *b = &x->r->budgets;
  const char *key, *text, *budget = NULL;
  int64_t window = 0;
  bool policy = false, sinks = false;
  bool how = false; /* the request says how tokens are kept, not only how many */
  json_t *option;
  char number[32];
  if (!json_is_object(value)) return wn_serve_refuse(x->error, 400, "winnow", "winnow: expected an object");
  const json_t *trace = json_object_get(value, "trace");
  x->r->trace = json_is_true(trace);
  const size_t beside = json_is_boolean(trace) + (x->r->chat && json_object_get(value, "pin") != NULL);
  if (beside > 0 && json_object_size(value) == beside) return true;
  json_object_foreach((json_t *)(uintptr_t)value, key, option) {
    text = json_string_value(option);
    if (json_is_null(option) || (option == trace && json_is_boolean(trace))) continue;
    if (!strcmp(key, "pin") && x->r->chat) continue; /* read with the messages */
    if (!strcmp(key, "budgets") && json_is_integer(option)) {
      snprintf(number, sizeof number, "%lld", (long long)json_integer_value(option));
      budget = number;
    } else if (!strcmp(key, "budgets") && text) {
      budget = text;
    } else if (!strcmp(key, "policy") && text && wn_policy_find(NULL, text, &b->policy) == WN_OK) {
      how = policy = true;
    } else if (!strcmp(key, "window") && json_is_integer(option) && json_integer_value(option) > 0 &&
               json_integer_value(option) <= INT32_MAX) {
      window = json_integer_value(option);
    } else if (!strcmp(key, "tau") && json_is_number(option) && json_number_value(option) >= 0 &&
               json_number_value(option) <= 1) {
      x->r->tau = json_number_value(option) > 0 ? json_number_value(option) : WN_TAU_NONE;
    } else if (!strcmp(key, "sinks") && json_is_integer(option) && json_integer_value(option) >= 0 &&
               json_integer_value(option) <= INT32_MAX) {
      b->sinks = json_integer_value(option);
      how = sinks = true;
    } else if (!strcmp(key, "options") && text) {
      how = true;
      if (wn_budgets_set(ctx, text, b) != WN_OK)
        return wn_serve_refuse(x->error, 400, "winnow", "winnow.options: %s", wn_context_error(ctx));
    } else {
      return wn_serve_refuse(x->error, 400, "winnow",
                             "winnow.%.32s: expected budgets (a number or a text such as \"64,32\"), policy (a name), "
                             "sinks, options, window (tokens), tau (0 to 1), and in a chat pin",
                             key);
    }
  }
  if (window > 0) { /* a window, possibly with sinks, is a policy and a budget */
    if (budget || policy)
      return wn_serve_refuse(x->error, 400, "winnow", "winnow.window: budgets and policy say something else");
    if (wn_policy_find(NULL, sinks && b->sinks > 0 ? "streaming" : "window", &b->policy) != WN_OK) return false;
    snprintf(number, sizeof number, "%lld", (long long)(window + (sinks ? b->sinks : 0)));
    budget = number;
  }
  if (!budget && !how && json_object_size(value) > 0) return read_winnow_check(x);
  if (!budget) return wn_serve_refuse(x->error, 400, "winnow", "winnow: budgets are missing");
  if (!budget_is_number(budget))
    return wn_serve_refuse(x->error, 400, "winnow", "winnow.budgets: expected tokens, such as 64 or \"64,32\"");
  b->cache = wn_cache_format_resolve(ctx, x->m->model, NULL, x->m->cache);
  if (wn_budgets_parse(ctx, wn_model_config_get(x->m->model), budget, b) != WN_OK ||
      wn_budgets_check(ctx, b, wn_model_config_get(x->m->model)) != WN_OK)
    return wn_serve_refuse(x->error, 400, "winnow", "winnow: %s", wn_context_error(ctx));
  return read_winnow_check(x);
}

#define AT(member) offsetof(struct wn_serve_request, member)
#define ROW(name_, in_, kind_, ...)                                                                                    \
  { .name = #name_, .in = in_, .kind = FIELD_##kind_, __VA_ARGS__ }
static const struct field fields[] = {
    ROW(model, BOTH, IGNORED),
    ROW(prompt, TEXT, READ, .read = read_prompt),
    ROW(messages, CHAT, READ, .read = read_messages),
    ROW(max_tokens, BOTH, INT, .at = AT(max_tokens), .max = 1 << 24),
    ROW(max_completion_tokens, CHAT, INT, .at = AT(max_tokens), .max = 1 << 24),
    ROW(temperature, BOTH, NUMBER, .at = AT(temperature), .max = 100),
    ROW(top_p, BOTH, NUMBER, .at = AT(top_p), .max = 1),
    ROW(top_k, BOTH, INT, .at = AT(top_k), .max = 1 << 24),
    ROW(min_p, BOTH, NUMBER, .at = AT(min_p), .max = 1),
    ROW(presence_penalty, BOTH, NUMBER, .at = AT(presence_penalty), .min = -2, .max = 2),
    ROW(repetition_penalty, BOTH, NUMBER, .at = AT(repetition_penalty), .max = 10),
    ROW(frequency_penalty, BOTH, NUMBER, .at = AT(frequency_penalty), .min = -2, .max = 2),
    ROW(seed, BOTH, INT, .at = AT(seed), .max = 9e15),
    ROW(n, BOTH, INT, .at = AT(n), .min = 1, .max = WN_SERVE_CHOICES),
    ROW(best_of, TEXT, READ, .read = read_best_of),
    ROW(echo, TEXT, BOOL, .at = AT(echo)),
    ROW(stream, BOTH, BOOL, .at = AT(stream)),
    ROW(stream_options, BOTH, READ, .read = read_stream_options),
    ROW(stop, BOTH, READ, .read = read_stop),
    ROW(logprobs, BOTH, READ, .read = read_logprobs),
    ROW(top_logprobs, CHAT, READ, .read = read_top_logprobs),
    ROW(return_tokens_as_token_ids, BOTH, BOOL, .at = AT(by_id)),
    ROW(logit_bias, BOTH, READ, .read = read_logit_bias),
    ROW(response_format, BOTH, READ, .read = read_response_format),
    ROW(tools, CHAT, READ, .read = read_tools),
    ROW(tool_choice, CHAT, READ, .read = read_beside),
    ROW(chat_template_kwargs, CHAT, READ, .read = read_beside),
    ROW(reasoning_effort, CHAT, READ, .read = read_beside),
    ROW(user, BOTH, IGNORED),
    ROW(store, BOTH, IDLE),
    ROW(metadata, BOTH, IDLE),
    ROW(service_tier, BOTH, IDLE),
    ROW(parallel_tool_calls, BOTH, IDLE),
    ROW(safety_identifier, BOTH, IDLE),
    ROW(prompt_cache_key, BOTH, IDLE),
    ROW(prompt_cache_retention, BOTH, IDLE),
    ROW(prediction, BOTH, IDLE),
    ROW(cache_prompt, BOTH, IDLE),
    ROW(functions, CHAT, UNSERVED),
    ROW(suffix, TEXT, UNSERVED),
    ROW(winnow, BOTH, READ, .read = read_winnow),
};
#undef ROW
#undef AT

static const struct field *request_field(const char *name, bool chat) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].in & (chat ? CHAT : TEXT) && !strcmp(fields[i].name, name)) return &fields[i];
  return NULL;
}

/* Does the value ask for nothing: an empty list, no suffix? */
static bool field_asks_nothing(const char *name, const json_t *value) {
  const char *text = json_string_value(value);
  if (!text) return json_is_array(value) && json_array_size(value) == 0;
  return !*text && !strcmp(name, "suffix");
}

/* Names a field in the log, the first time that a request of this server has it. */
static void field_log(const struct wn_serve_model *m, const struct field *f) {
  _Static_assert(sizeof fields / sizeof *fields <= 64, "a bit for each field");
  const uint64_t bit = UINT64_C(1) << (f - fields);
  if (m->idle && !(atomic_fetch_or(m->idle, bit) & bit))
    wn_log(m->ctx, WN_LOG_INFO, "server: requests have the field %s, which changes nothing here", f->name);
}

static bool request_read_field(const struct reading *x, const struct field *f, const json_t *value) {
  char *at = (char *)x->r + f->at;
  switch (f->kind) {
  case FIELD_BOOL:
    if (!json_is_boolean(value)) return wn_serve_refuse(x->error, 400, f->name, "%s: expected true or false", f->name);
    *(bool *)at = json_is_true(value);
    return true;
  case FIELD_INT:
    if (!json_is_integer(value) || (double)json_integer_value(value) < f->min ||
        (double)json_integer_value(value) > f->max)
      return wn_serve_refuse(x->error, 400, f->name, "%s: expected a whole number from %.0f to %.0f", f->name, f->min,
                             f->max);
    *(int64_t *)(void *)at = json_integer_value(value);
    return true;
  case FIELD_NUMBER:
    if (!json_is_number(value) || !(json_number_value(value) >= f->min && json_number_value(value) <= f->max))
      return wn_serve_refuse(x->error, 400, f->name, "%s: expected a number from %g to %g", f->name, f->min, f->max);
    *(double *)(void *)at = json_number_value(value);
    return true;
  case FIELD_IGNORED:
    return json_is_string(value) || wn_serve_refuse(x->error, 400, f->name, "%s: expected a text", f->name);
  case FIELD_IDLE:
    field_log(x->m, f);
    return true;
  case FIELD_UNSERVED:
    return field_asks_nothing(f->name, value) ||
           wn_serve_refuse(x->error, 400, f->name, "%s: this field is not served", f->name);
  case FIELD_READ:
    break;
  }
  return f->read(x, value);
}

/* --- whole requests --- */

/* jansson parses recursively, and values take many times their bytes: deep or long bodies are refused before
 * parsing. */
static bool body_is_shallow(const char *body, size_t bytes) {
  int depth = 0;
  bool text = false;
  for (size_t i = 0; i < bytes; i++) {
    const char c = body[i];
    if (text && c == '\\')
      i++;
    else if (c == '"')
      text = !text;
    else if (!text && (c == '[' || c == '{') && ++depth > BODY_DEPTH)
      return false;
    else if (!text && (c == ']' || c == '}'))
      depth--;
  }
  return true;
}

static bool body_has_nul(const json_t *value) {
  const char *key;
  json_t *one;
  size_t i;
  if (json_is_string(value)) return strlen(json_string_value(value)) != json_string_length(value);
  json_array_foreach(value, i, one) if (body_has_nul(one)) return true;
  json_object_foreach((json_t *)(uintptr_t)value, key, one) if (body_has_nul(one)) return true;
  return false;
}

/* A field that has a NUL. Texts that become tokens may have one, others are C strings. NULL: there is no such field. */
static const char *body_nul(const json_t *value) {
  static const char *const texts[] = {"prompt", "input", "messages", "content", "text", "output"};
  const char *key, *bad = NULL;
  json_t *one;
  size_t i;
  json_array_foreach(value, i, one) if ((bad = body_nul(one))) return bad;
  json_object_foreach((json_t *)(uintptr_t)value, key, one) {
    bool text = false;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) text = text || !strcmp(key, texts[k]);
    bad = text ? body_nul(one) : body_has_nul(one) ? key : NULL;
    if (bad) return bad;
  }
  return NULL;
}

json_t *wn_serve_body(const char *body, size_t bytes, struct wn_serve_error *error) {
  json_error_t why;
  if (!body_is_shallow(body, bytes)) {
    wn_serve_refuse(error, 400, "", "the body is nested deeper than %d", BODY_DEPTH);
    return NULL;
  }
  json_t *j = json_loadb(body, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
  if (!j) wn_serve_refuse(error, 400, "", "the body is not JSON: %.200s (line %d)", why.text, why.line);
  if (!j) return NULL;
  const char *bad = body_nul(j);
  if (json_is_object(j) && !bad) return j;
  if (!json_is_object(j))
    wn_serve_refuse(error, 400, "", "the body is JSON, but not an object");
  else
    wn_serve_refuse(error, 400, bad, "%.64s: has a NUL (\\u0000); only prompt, input and content may have one", bad);
  json_decref(j);
  return NULL;
}

/* A call that must come holds the answer to its schema. */
static bool request_calls(const struct wn_serve_model *m, struct wn_serve_request *r, struct wn_serve_error *error) {
  r->calls_must = r->calls && wn_serve_calls_must(r->json);
  if (!r->calls_must) return true;
  if (r->constraint || r->prompts[0].goes_on)
    return wn_serve_refuse(error, 400, "tool_choice", "tool_choice: a call is not asked for %s",
                           r->constraint ? "beside a response_format" : "in an answer that is begun already");
  return wn_serve_calls_format(m, r->json, r->calls, &r->constraint, error);
}

/* Checks lengths and the number of answers. */
static bool request_check(const struct wn_serve_model *m, struct wn_serve_request *r, struct wn_serve_error *error) {
  if (r->prompt_count == 0)
    return wn_serve_refuse(error, 400, r->chat ? "messages" : "prompt", "%s: missing", r->chat ? "messages" : "prompt");
  if (r->prompt_count * r->n > WN_SERVE_CHOICES)
    return wn_serve_refuse(error, 400, "n", "n: %lld answers to %d prompts, at most %d in all", (long long)r->n,
                           r->prompt_count, WN_SERVE_CHOICES);
  if (r->repetition_penalty > 0 && r->repetition_penalty < 0.01)
    return wn_serve_refuse(error, 400, "repetition_penalty",
                           "repetition_penalty: expected 0 or a number from 0.01 to 10");
  if (r->top_p == 0) r->top_p = 1, r->top_k = 1; /* only the most probable token */
  const int64_t V = wn_model_config_get(m->model)->vocab_size;
  if (r->top > V) r->top = (int)V; /* there are no more */
  if (r->top > 0 && !r->scores) return wn_serve_refuse(error, 400, "top_logprobs", "top_logprobs: needs logprobs");
  if (r->constraint && r->prompts[0].goes_on)
    return wn_serve_refuse(error, 400, "response_format",
                           "response_format: an answer that is begun already (the last message is the assistant's) is "
                           "not continued as JSON");
  if (!request_calls(m, r, error)) return false;
  if (r->stream && r->echo && r->scores)
    return wn_serve_refuse(error, 400, "echo", "echo: with logprobs it is not streamed");
  if (r->trace && (!r->stream || r->prompt_count * r->n != 1))
    return wn_serve_refuse(error, 400, "winnow", "winnow.trace: only in a stream of one answer");
  int64_t longest = 0;
  for (int i = 0; i < r->prompt_count; i++)
    if (r->prompts[i].count > longest) longest = r->prompts[i].count;
  if (longest + (r->max_tokens < 0 ? 1 : r->max_tokens) > m->context)
    return wn_serve_refuse(error, 400, r->chat ? "messages" : "prompt",
                           "the prompt has %lld tokens and max_tokens is %lld: together more than the context, %lld",
                           (long long)longest, (long long)(r->max_tokens < 0 ? 1 : r->max_tokens),
                           (long long)m->context);
  return true;
}

bool wn_serve_request_read(const struct wn_serve_model *m, bool chat, const char *body, size_t bytes,
                           struct wn_serve_request *r, struct wn_serve_error *error) {
  *error = (struct wn_serve_error){0};
  *r = (struct wn_serve_request){0};
  json_t *json = wn_serve_body(body, bytes, error);
  return json && wn_serve_request_take(m, chat, json, r, error);
}

bool wn_serve_request_take(const struct wn_serve_model *m, bool chat, json_t *body, struct wn_serve_request *r,
                           struct wn_serve_error *error) {
  const struct reading x = {m, r, error};
  const char *key;
  json_t *value;
  *error = (struct wn_serve_error){0};
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.sampling.temperature = o.sampling.top_p = 1; /* the API's defaults, unless the model declares its own */
  wn_generate_options_declared(m->model, &o);
  *r = (struct wn_serve_request){.chat = chat,
                                 .n = 1,
                                 .max_tokens = chat ? -1 : 16,
                                 .temperature = o.sampling.temperature,
                                 .top_p = o.sampling.top_p,
                                 .min_p = o.sampling.min_p,
                                 .top_k = o.sampling.top_k,
                                 .repetition_penalty = o.repetition_penalty,
                                 .seed = -1,
                                 .json = body};
  wn_budgets_init(&r->budgets, &wn_model_config_get(m->model)->attention);
  json_object_foreach(r->json, key, value) {
    const struct field *f = request_field(key, chat);
    if (!f)
      return wn_serve_refuse(error, 400, key, "%.64s: this field is not known to /v1/%scompletions", key,
                             chat ? "chat/" : "");
    if (!json_is_null(value) && !request_read_field(&x, f, value)) return false;
  }
  json_object_del(r->json, chat ? "messages" : "prompt"); /* many times its text's bytes, and no longer needed */
  if (!request_check(m, r, error)) return false;
  if (chat && !r->constraint && !r->prompts[0].goes_on)
    r->thoughts = wn_reasoning_form_of(wn_chat_source(m->tok, r->calls != NULL));
  return true;
}

void wn_serve_prompt_clear(struct wn_serve_prompt *p) {
  wn_tokens_free(p->ids);
  wn_free(p->owners.of);
  json_decref(p->told);
}

void wn_serve_request_clear(struct wn_serve_request *r) {
  for (int i = 0; i < r->prompt_count; i++) wn_serve_prompt_clear(&r->prompts[i]);
  wn_free(r->prompts);
  wn_budgets_clear(&r->budgets);
  wn_constraint_destroy(r->constraint);
  json_decref(r->json);
  json_decref(r->asked);
  json_decref(r->turns);
  *r = (struct wn_serve_request){0};
}
