/* Requests of /v1/responses as requests for chats. A table has a row for each field; what chats have as well goes on as
 * it is, and is read there. */
#include "serve/responses.h"

#include <stdio.h>

struct reading {
  const struct wn_serve_model *m;
  struct wn_kept *kept;
  struct wn_serve_error *error;
  const json_t *body;
  json_t *chat, *messages;
};

static json_t *borrow(const json_t *json) {
  return json_incref((json_t *)(uintptr_t)json);
}
static const char *text_of(const json_t *object, const char *key) {
  return json_string_value(json_object_get(object, key));
}
static bool is_text(const json_t *object, const char *key, const char *text) {
  const char *found = text_of(object, key);
  return found && !strcmp(found, text);
}

/* --- input --- */

/* Texts, or the parts of one: input_text and output_text are text. NULL: something else. A new reference. */
static json_t *input_content(const json_t *content) {
  static const char *const types[] = {"input_text", "output_text", "reasoning_text", "text"};
  json_t *out, *part;
  size_t i, k;
  if (json_is_string(content)) return borrow(content);
  if (!json_is_array(content)) return NULL;
  out = json_array();
  json_array_foreach(content, i, part) {
    for (k = 0; k < 4 && !is_text(part, "type", types[k]);) k++;
    if (k == 4 || !json_is_string(json_object_get(part, "text"))) {
      json_decref(out);
      return NULL;
    }
    json_array_append_new(out, json_pack("{s:s, s:O}", "type", "text", "text", json_object_get(part, "text")));
  }
  return out;
}

/* The last message, if it is the assistant's and may go on, or a new one. */
static json_t *input_assistant(const struct reading *x, bool with_text) {
  json_t *last = json_array_get(x->messages, json_array_size(x->messages) - 1);
  const bool own = json_array_size(x->messages) > 0 && is_text(last, "role", "assistant");
  const bool free =
      own && (!with_text || (json_is_null(json_object_get(last, "content")) && !json_object_get(last, "tool_calls")));
  if (free) return last;
  json_array_append_new(x->messages, json_pack("{s:s, s:n}", "role", "assistant", "content"));
  return json_array_get(x->messages, json_array_size(x->messages) - 1);
}

static bool input_message(const struct reading *x, const json_t *item) {
  static const char *const roles[] = {"user", "assistant", "system", "developer"};
  int role = 0;
  while (role < 4 && !is_text(item, "role", roles[role])) role++;
  if (role == 4) return false;
  json_t *content = input_content(json_object_get(item, "content"));
  if (!content) return false;
  if (is_text(item, "role", "assistant")) return json_object_set_new(input_assistant(x, true), "content", content) == 0;
  return json_array_append_new(x->messages,
                               json_pack("{s:O, s:o}", "role", json_object_get(item, "role"), "content", content)) == 0;
}

static bool input_call(const struct reading *x, const json_t *item) {
  const char *id = text_of(item, "call_id"), *name = text_of(item, "name"), *arguments = text_of(item, "arguments");
  if (!id || !name || !arguments) return false;
  json_t *message = input_assistant(x, false);
  if (!json_object_get(message, "tool_calls")) json_object_set_new(message, "tool_calls", json_array());
  return json_array_append_new(json_object_get(message, "tool_calls"),
                               json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name",
                                         name, "arguments", arguments)) == 0;
}

static bool input_result(const struct reading *x, const json_t *item) {
  json_t *content = input_content(json_object_get(item, "output"));
  const json_t *id = json_object_get(item, "call_id");
  if (!content || !json_is_string(id)) {
    json_decref(content);
    return false;
  }
  return json_array_append_new(
             x->messages, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content)) == 0;
}

/* Thoughts of an earlier answer, whose text or calls follow. Summaries and what is encrypted have no text for a model.
 */
static bool input_thoughts(const struct reading *x, const json_t *item) {
  json_t *content = input_content(json_object_get(item, "content"));
  json_t *text = json_array_size(content) > 0 ? wn_serve_message_text(content) : NULL;
  json_decref(content);
  return !text || json_object_set_new(input_assistant(x, true), "reasoning_content", text) == 0;
}

static const struct item {
  const char *type;
  bool (*read)(const struct reading *x, const json_t *item);
  const char *expected;
} items[] = {
    {"message", input_message,
     "{\"role\": user, assistant, system or developer, \"content\": a text, or parts of type input_text or "
     "output_text}"},
    {"function_call", input_call, "{\"call_id\", \"name\", \"arguments\": a text}"},
    {"function_call_output", input_result, "{\"call_id\", \"output\": a text}"},
    {"reasoning", input_thoughts, ""},
};

static bool read_input(const struct reading *x, const json_t *value) {
  const json_t *item;
  size_t i;
  if (json_is_string(value))
    return json_array_append_new(x->messages, json_pack("{s:s, s:O}", "role", "user", "content", value)) == 0;
  if (json_array_size(value) < 1 || json_array_size(value) > WN_SERVE_MESSAGES)
    return wn_serve_refuse(x->error, 400, "input", "input: expected a text, or a list of 1 to %d items",
                           WN_SERVE_MESSAGES);
  json_array_foreach(value, i, item) {
    const char *type = text_of(item, "type");
    const struct item *known = items, *end = items + sizeof items / sizeof *items;
    while (type && known < end && strcmp(known->type, type) != 0) known++; /* without a type it is a message */
    if (known == end)
      return wn_serve_refuse(x->error, 400, "input", "input[%zu]: items of type \"%.64s\" are not served", i, type);
    if (!known->read(x, item))
      return wn_serve_refuse(x->error, 400, "input", "input[%zu]: expected %s", i, known->expected);
  }
  return true;
}

/* --- other fields --- */

static bool set(const struct reading *x, const char *name, json_t *value) {
  return json_object_set_new(x->chat, name, value) == 0 || wn_serve_refuse(x->error, 503, name, "out of memory");
}

static bool read_functions(const struct reading *x, const json_t *value) {
  json_t *tools, *tool;
  size_t i;
  if (!json_is_array(value)) return wn_serve_refuse(x->error, 400, "tools", "tools: expected a list");
  tools = json_array();
  json_array_foreach(value, i, tool) {
    json_t *function = json_is_object(tool) ? json_copy(tool) : NULL;
    json_object_del(function, "type");
    if (!is_text(tool, "type", "function") || !text_of(tool, "name")) {
      json_decref(function);
      json_decref(tools);
      return wn_serve_refuse(x->error, 400, "tools",
                             "tools[%zu]: expected {\"type\": \"function\", \"name\", ..}; other "
                             "tools are not served",
                             i);
    }
    json_array_append_new(tools, json_pack("{s:s, s:o}", "type", "function", "function", function));
  }
  return set(x, "tools", tools);
}

static bool read_choice(const struct reading *x, const json_t *value) {
  const json_t *name = json_object_get(value, "name");
  if (json_is_object(value) && is_text(value, "type", "function") && json_is_string(name))
    return set(x, "tool_choice", json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
  return set(x, "tool_choice", borrow(value));
}

static bool read_text(const struct reading *x, const json_t *value) {
  static const char *const keys[] = {"format", "verbosity"};
  const json_t *format = json_object_get(value, "format");
  if (!json_is_object(value)) return wn_serve_refuse(x->error, 400, "text", "text: expected an object");
  if (!wn_serve_check_keys(value, "text", "text", keys, 2, x->error)) return false;
  if (!format || json_is_null(format)) return true;
  if (!is_text(format, "type", "json_schema")) return set(x, "response_format", borrow(format));
  json_t *schema = json_copy((json_t *)(uintptr_t)format);
  json_object_del(schema, "type");
  return set(x, "response_format", json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema));
}

static bool read_reasoning(const struct reading *x, const json_t *value) {
  static const char *const keys[] = {"effort", "summary", "generate_summary"};
  const json_t *effort = json_object_get(value, "effort");
  if (!json_is_object(value)) return wn_serve_refuse(x->error, 400, "reasoning", "reasoning: expected an object");
  if (!wn_serve_check_keys(value, "reasoning", "reasoning", keys, 3, x->error)) return false;
  return !json_is_string(effort) || set(x, "reasoning_effort", borrow(effort));
}

static bool read_include(const struct reading *x, const json_t *value) {
  size_t i;
  const json_t *one;
  json_array_foreach(value, i, one) {
    const char *what = json_string_value(one);
    if (what && !strcmp(what, "message.output_text.logprobs"))
      set(x, "logprobs", json_true());
    else if (!what || strcmp(what, "reasoning.encrypted_content") != 0)
      return wn_serve_refuse(x->error, 400, "include", "include: \"%.64s\" is not served", what ? what : "");
  }
  return json_is_array(value) || wn_serve_refuse(x->error, 400, "include", "include: expected a list");
}

static bool read_truncation(const struct reading *x, const json_t *value) {
  const char *text = json_string_value(value);
  return (text && (!strcmp(text, "disabled") || !strcmp(text, "auto"))) ||
         wn_serve_refuse(x->error, 400, "truncation", "truncation: expected \"disabled\" or \"auto\"");
}

static bool read_false(const struct reading *x, const json_t *value) {
  return json_is_false(value) || wn_serve_refuse(x->error, 400, "background", "background: only false is served");
}

static bool read_store(const struct reading *x, const json_t *value) {
  return json_is_boolean(value) || wn_serve_refuse(x->error, 400, "store", "store: expected true or false");
}

/* NULL in both: goes on to the chat's field of this name. */
static const struct field {
  const char *name, *chat;
  bool (*read)(const struct reading *x, const json_t *value);
} fields[] = {
    {"input", .read = read_input},
    {"max_output_tokens", .chat = "max_completion_tokens"},
    {"tools", .read = read_functions},
    {"tool_choice", .read = read_choice},
    {"text", .read = read_text},
    {"reasoning", .read = read_reasoning},
    {"include", .read = read_include},
    {"truncation", .read = read_truncation},
    {"background", .read = read_false},
    {"store", .read = read_store},
    {"previous_response_id", .chat = ""}, /* read before */
    {"instructions", .chat = ""},
    {"stream_options", .chat = ""}, /* of obfuscation */
    {"max_tool_calls", .chat = ""},
    {.name = "model"},
    {.name = "temperature"},
    {.name = "top_p"},
    {.name = "top_logprobs"},
    {.name = "stream"},
    {.name = "user"},
    {.name = "metadata"},
    {.name = "service_tier"},
    {.name = "parallel_tool_calls"},
    {.name = "safety_identifier"},
    {.name = "prompt_cache_key"},
    {.name = "prompt_cache_retention"},
    {.name = "top_k"},
    {.name = "min_p"},
    {.name = "seed"},
    {.name = "stop"},
    {.name = "presence_penalty"},
    {.name = "frequency_penalty"},
    {.name = "repetition_penalty"},
    {.name = "logit_bias"},
    {.name = "chat_template_kwargs"},
    {.name = "winnow"},
};

static bool responses_field(const struct reading *x, const char *key, const json_t *value) {
  const struct field *f = fields, *end = fields + sizeof fields / sizeof *fields;
  while (f < end && strcmp(f->name, key) != 0) f++;
  if (f == end) return wn_serve_refuse(x->error, 400, key, "%.64s: this field is not known to /v1/responses", key);
  if (f->read) return f->read(x, value);
  return (f->chat && !*f->chat) || set(x, f->chat ? f->chat : key, borrow(value));
}

/* The messages of the response that this one goes on from. */
static bool responses_previous(struct reading *x) {
  const json_t *id = json_object_get(x->body, "previous_response_id"), *said = json_object_get(x->body, "instructions");
  if (id && !json_is_null(id) && !json_is_string(id))
    return wn_serve_refuse(x->error, 400, "previous_response_id", "previous_response_id: expected a text");
  if (said && !json_is_null(said) && !json_is_string(said))
    return wn_serve_refuse(x->error, 400, "instructions", "instructions: expected a text");
  x->messages = json_is_string(id) ? wn_kept_turns(x->kept, json_string_value(id)) : json_array();
  return x->messages || wn_serve_refuse(x->error, 400, "previous_response_id",
                                        "previous_response_id: there is no response \"%.64s\", or not any more",
                                        json_string_value(id));
}

/* Names of this API's fields in errors about a chat's. */
static void responses_rename(struct wn_serve_error *error) {
  static const char *const names[][2] = {{"messages", "input"},
                                         {"response_format.json_schema", "text.format"},
                                         {"response_format", "text.format"},
                                         {"max_completion_tokens", "max_output_tokens"},
                                         {"reasoning_effort", "reasoning.effort"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const size_t n = strlen(names[i][0]);
    char copy[sizeof error->message];
    if (!strcmp(error->param, names[i][0])) snprintf(error->param, sizeof error->param, "%s", names[i][1]);
    if (strncmp(error->message, names[i][0], n) != 0 || strchr("_", error->message[n])) continue;
    snprintf(copy, sizeof copy, "%s", error->message + n);
    snprintf(error->message, sizeof error->message, "%s%.*s", names[i][1], 480, copy);
  }
}

bool wn_responses_read(const struct wn_serve_model *m, struct wn_kept *kept, const char *body, size_t bytes,
                       struct wn_serve_request *out, struct wn_serve_error *error) {
  const char *key;
  json_t *value, *json;
  *error = (struct wn_serve_error){0};
  *out = (struct wn_serve_request){0};
  json = wn_serve_body(body, bytes, error);
  struct reading x = {.m = m, .kept = kept, .error = error, .body = json, .chat = json ? json_object() : NULL};
  bool good = json && responses_previous(&x);
  json_object_foreach(json, key, value) good = good && (json_is_null(value) || responses_field(&x, key, value));
  if (good && !json_object_get(json, "input")) good = wn_serve_refuse(error, 400, "input", "input: missing");
  const json_t *said = json_object_get(json, "instructions");
  json_t *all = json_array();
  if (json_is_string(said)) json_array_append_new(all, json_pack("{s:s, s:O}", "role", "system", "content", said));
  json_array_extend(all, x.messages);
  good = good && set(&x, "messages", borrow(all));
  if (!good) {
    json_decref(x.chat);
  } else if (!wn_serve_request_take(m, true, x.chat, out, error)) {
    responses_rename(error);
    good = false;
  } else if (out->trace) {
    good = wn_serve_refuse(error, 400, "winnow", "winnow.trace: not in a response");
  }
  json_decref(all);
  if (!good) {
    json_decref(json);
    json_decref(x.messages);
    return false;
  }
  json_object_del(json, "input");
  out->asked = json;
  out->turns = x.messages;
  out->kept = json_is_false(json_object_get(json, "store")) ? NULL : kept;
  return true;
}
