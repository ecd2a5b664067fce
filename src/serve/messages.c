/* The messages of a request, as the model's chat template gets them: texts in parts are joined, arguments of calls are
 * read, so that a template writes them as it likes. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/format.h"
#include "text/chat.h"

json_t *wn_serve_message_text(const json_t *content) {
  char *joined = NULL;
  size_t bytes = 0, i;
  const json_t *part;
  if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
  if (!json_is_array(content)) return NULL;
  json_array_foreach(content, i, part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
      free(joined);
      return NULL;
    }
    char *longer = realloc(joined, bytes + json_string_length(text) + 1);
    if (!longer) {
      free(joined);
      return NULL;
    }
    joined = longer;
    memcpy(joined + bytes, json_string_value(text), json_string_length(text) + 1);
    bytes += json_string_length(text);
  }
  json_t *out = json_stringn(joined ? joined : "", bytes);
  free(joined);
  return out;
}

/* Calls of functions in an answer, with arguments that are an object where they are a text of one. NULL: they are no
 * such list. A new reference. */
static json_t *message_calls(const json_t *calls) {
  json_t *copy = json_is_array(calls) ? json_deep_copy(calls) : NULL, *call;
  size_t i;
  json_array_foreach(copy, i, call) {
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name"))) {
      json_decref(copy);
      return NULL;
    }
    json_t *read = json_is_string(arguments) ? json_loads(json_string_value(arguments), 0, NULL) : NULL;
    if (read) json_object_set_new(function, "arguments", read);
  }
  return copy;
}

/* Adds the fields of a message; other fields that clients send back with answers are null or an empty list. */
static bool message_fields(const json_t *message, size_t i, json_t *out, struct wn_serve_error *error) {
  static const char *const texts[] = {"name", "tool_call_id", "reasoning_content"};
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)message, key, value) {
    json_t *kept = NULL;
    if (!strcmp(key, "role") || !strcmp(key, "content") || json_is_null(value)) continue;
    if (!strcmp(key, "pin") && json_is_boolean(value)) continue;
    if (json_is_array(value) && json_array_size(value) == 0) continue;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
      if (!strcmp(key, texts[k]) && json_is_string(value)) kept = json_incref(value);
    if (!strcmp(key, "tool_calls")) kept = message_calls(value);
    if (!kept)
      return wn_serve_refuse(error, 400, "messages", "messages[%zu]: \"%.64s\" is not served%s", i, key,
                             !strcmp(key, "tool_calls") ? " in this form: expected a list of {\"function\": {\"name\", "
                                                          "\"arguments\"}}"
                                                        : "");
    json_object_set_new(out, key, kept);
  }
  return true;
}

/* A message as templates expect it, a new reference; NULL: refused. */
static json_t *message_read(const json_t *message, size_t i, struct wn_serve_error *error) {
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  const char *role = json_string_value(json_object_get(message, "role"));
  const json_t *calls = json_object_get(message, "tool_calls");
  json_t *text = wn_serve_message_text(json_object_get(message, "content"));
  size_t r = 0;
  if (role && !strcmp(role, "developer")) role = "system";
  while (r < 4 && (!role || strcmp(role, roles[r]) != 0)) r++;
  if (!text && r == 2 && json_array_size(calls) > 0) text = json_null();
  if (r == 4 || !text) {
    json_decref(text);
    wn_serve_refuse(error, 400, "messages",
                    "messages[%zu]: expected {\"role\": system, user, assistant or tool, \"content\": a text}", i);
    return NULL;
  }
  json_t *out = json_pack("{s:s, s:o}", "role", roles[r], "content", text);
  if (out && message_fields(message, i, out, error)) return out;
  json_decref(out);
  return NULL;
}

/* ---- pins ---- */

/* Does winnow.pin, a role, a message's number or a list of these, name this message? */
static bool message_named(const json_t *pin, size_t i, const char *role) {
  size_t k;
  const json_t *one;
  json_array_foreach(pin, k, one) if (message_named(one, i, role)) return true;
  return json_is_string(pin) ? !strcmp(json_string_value(pin), role)
                             : json_is_integer(pin) && json_integer_value(pin) == (json_int_t)i;
}

/* Is it such a list? */
static bool message_check_pin(const json_t *pin, size_t messages, bool list, struct wn_serve_error *error) {
  static const char *const roles[] = {"system", "user", "assistant", "tool"};
  size_t k;
  const json_t *one;
  bool known = !pin || json_is_null(pin) || (list && json_is_array(pin)) ||
               (json_is_integer(pin) && json_integer_value(pin) >= 0 && (size_t)json_integer_value(pin) < messages);
  for (size_t r = 0; json_is_string(pin) && r < sizeof roles / sizeof *roles; r++)
    known = known || !strcmp(json_string_value(pin), roles[r]);
  json_array_foreach(pin, k, one) known = known && message_check_pin(one, messages, false, error);
  return known || error->status != 0 ||
         wn_serve_refuse(
             error, 400, "winnow",
             "winnow.pin: expected a role (system, user, assistant, tool), a message's number from 0 to %zu, "
             "or a list of these",
             messages - 1);
}

/* Lists the messages as usage names them. given: as the request has them. */
static bool message_tell(const struct wn_serve_model *m, const json_t *body, const json_t *given,
                         const json_t *messages, struct wn_serve_prompt *out, struct wn_serve_error *error) {
  const json_t *pin = json_object_get(json_object_get(body, "winnow"), "pin"), *one;
  size_t i;
  if (!message_check_pin(pin, json_array_size(given), true, error) || error->status != 0) return false;
  if (json_is_null(pin)) pin = NULL;
  out->told = json_array();
  json_array_foreach(messages, i, one) {
    const char *role = json_string_value(json_object_get(one, "role"));
    const json_t *own = json_object_get(json_array_get(given, i), "pin");
    const bool pinned = json_is_boolean(own) ? json_is_true(own)
                        : pin                ? message_named(pin, i, role)
                                             : m->pin_system && !strcmp(role, "system");
    if (json_array_append_new(out->told, json_pack("{s:s, s:b}", "role", role, "pinned", pinned))) return false;
  }
  return out->told != NULL;
}

/* The ranges of tokens that pinned messages have. */
static bool message_pin(struct wn_serve_prompt *p, struct wn_serve_error *error) {
  struct wn_pins *pins = &p->pins;
  size_t i;
  const json_t *one;
  bool any = false;
  json_array_foreach(p->told, i, one) any = any || json_is_true(json_object_get(one, "pinned"));
  if (any && !p->owners.of)
    return wn_serve_refuse(error, 400, "winnow",
                           "winnow.pin: the tokens of messages are not found in the model's text");
  for (int64_t t = 0; any && t < p->owners.tokens; t++) {
    if (!json_is_true(json_object_get(json_array_get(p->told, (size_t)p->owners.of[t]), "pinned"))) continue;
    struct wn_pin *last = pins->count > 0 ? &pins->of[pins->count - 1] : NULL;
    if (last && last->end == t)
      last->end++;
    else if (pins->count < WN_PINS)
      pins->of[pins->count++] = (struct wn_pin){(int32_t)t, (int32_t)t + 1};
    else
      return wn_serve_refuse(error, 400, "winnow", "winnow.pin: pinned messages in more than %d places", WN_PINS);
  }
  return true;
}

/* Are these functions? */
static bool message_check_tools(const struct wn_serve_model *m, const json_t *tools, struct wn_serve_error *error) {
  size_t i;
  const json_t *tool;
  if (!json_is_array(tools)) return wn_serve_refuse(error, 400, "tools", "tools: expected a list");
  json_array_foreach(tools, i, tool) {
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type || strcmp(type, "function") != 0 ||
        !json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
      return wn_serve_refuse(error, 400, "tools",
                             "tools[%zu]: expected {\"type\": \"function\", \"function\": {\"name\", ..}}", i);
  }
  const char *template = wn_chat_source(m->tok, true);
  return json_array_size(tools) == 0 || (template && strstr(template, "tools")) ||
         wn_serve_refuse(error, 400, "tools", "tools: the model's chat template has no place for them");
}

/* Is tool_choice served for these tools? */
static bool message_check_choice(const struct wn_serve_model *m, const json_t *body, struct wn_serve_error *error) {
  const json_t *choice = json_object_get(body, "tool_choice"), *tools = json_object_get(body, "tools"), *tool;
  const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
  const char *text = json_string_value(choice);
  size_t i;
  bool known = text && !strcmp(text, "required");
  if (!choice || json_is_null(choice) || (text && (!strcmp(text, "none") || !strcmp(text, "auto")))) return true;
  if (!known && !json_is_string(name))
    return wn_serve_refuse(error, 400, "tool_choice",
                           "tool_choice: expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                           "\"function\": {\"name\"}}");
  json_array_foreach(tools, i, tool) known =
      known || json_equal(name, json_object_get(json_object_get(tool, "function"), "name"));
  if (!known || json_array_size(tools) == 0)
    return wn_serve_refuse(error, 400, "tool_choice", "tool_choice: %s",
                           known ? "there are no tools" : "this function is not among the tools");
  return wn_call_form_of(wn_chat_source(m->tok, true))->begun ||
         wn_serve_refuse(error, 400, "tool_choice",
                         "tool_choice: the model writes calls in a form that is not JSON; \"auto\" and \"none\" are "
                         "served");
}

/* Appends the mark that precedes a call. */
static bool message_begin_call(const struct wn_serve_model *m, const char *mark, struct wn_serve_prompt *out,
                               struct wn_serve_error *error) {
  const int32_t id = wn_tokenizer_find(m->tok, mark, strlen(mark));
  int32_t *more = NULL, *all = NULL;
  size_t count = id >= 0;
  if (!*mark) return true;
  if (id < 0 && wn_tokenizer_encode(m->ctx, m->tok, mark, strlen(mark), false, false, &more, &count) != WN_OK)
    return wn_serve_refuse(error, 400, "tool_choice", "tool_choice: %s", wn_context_error(m->ctx));
  if (WN_ALLOC(m->ctx, "a prompt", (size_t)out->count + count, &all) == WN_OK) {
    memcpy(all, out->ids, (size_t)out->count * sizeof *all);
    for (size_t i = 0; i < count; i++) all[(size_t)out->count + i] = more ? more[i] : id;
    wn_tokens_free(out->ids);
    out->ids = all;
    out->count += (int64_t)count;
  }
  wn_tokens_free(more);
  return all || wn_serve_refuse(error, 503, "messages", "out of memory");
}

/* What stands beside the messages: tools, and variables of the template. */
static bool message_beside(const struct wn_serve_model *m, const json_t *body, struct wn_chat_request *out,
                           struct wn_serve_error *error) {
  const json_t *tools = json_object_get(body, "tools"), *effort = json_object_get(body, "reasoning_effort");
  const json_t *more = json_object_get(body, "chat_template_kwargs");
  const char *chosen = json_string_value(json_object_get(body, "tool_choice"));
  if (tools && !json_is_null(tools) && !message_check_tools(m, tools, error)) return false;
  if (!message_check_choice(m, body, error)) return false;
  if (more && !json_is_null(more) && !json_is_object(more))
    return wn_serve_refuse(error, 400, "chat_template_kwargs", "chat_template_kwargs: expected an object");
  if (effort && !json_is_null(effort) && !json_is_string(effort))
    return wn_serve_refuse(error, 400, "reasoning_effort", "reasoning_effort: expected a text");
  if (json_array_size(tools) > 0 && (!chosen || strcmp(chosen, "none") != 0)) out->tools = tools;
  json_t *own = json_is_object(more) ? json_copy((json_t *)(uintptr_t)more) : json_object();
  if (json_is_string(effort)) json_object_set(own, "reasoning_effort", (json_t *)(uintptr_t)effort);
  out->more = own;
  return own || wn_serve_refuse(error, 503, "messages", "out of memory");
}

bool wn_serve_messages(const struct wn_serve_model *m, const json_t *body, struct wn_serve_prompt *out,
                       struct wn_serve_error *error) {
  const json_t *list = json_object_get(body, "messages");
  const size_t n = json_array_size(list);
  size_t count = 0, bytes = 0;
  if (!m->chat) return wn_serve_refuse(error, 400, "messages", "messages: %s", m->no_chat);
  if (n < 1 || n > WN_SERVE_MESSAGES)
    return wn_serve_refuse(error, 400, "messages", "messages: expected a list of 1 to %d", WN_SERVE_MESSAGES);
  json_t *messages = json_array();
  struct wn_chat_request request = {.messages = messages};
  bool ok = messages && message_beside(m, body, &request, error);
  for (size_t i = 0; ok && i < n; i++) {
    json_t *one = message_read(json_array_get(list, i), i, error);
    bytes += json_string_length(json_object_get(one, "content"));
    ok = one && !json_array_append_new(messages, one);
  }
  ok = ok && wn_serve_may_fit(m, "messages", bytes, error);
  const char *last = ok ? json_string_value(json_object_get(json_array_get(messages, n - 1), "role")) : NULL;
  out->goes_on = last && !strcmp(last, "assistant");
  const bool tells = ok && ((m->budgets && m->budgets->layers > 0) || json_object_get(body, "winnow"));
  if (tells) ok = message_tell(m, body, list, messages, out, error);
  if (ok && wn_chat_encode_request(m->ctx, m->tok, m->chat, &request, &out->ids, &count, tells ? &out->owners : NULL) !=
                WN_OK)
    ok = wn_serve_refuse(error, 400, "messages", "messages: %s", wn_context_error(m->ctx));
  out->count = (int64_t)count;
  if (ok && tells) ok = message_pin(out, error);
  if (ok && wn_serve_calls_must(body) && !out->goes_on)
    ok = message_begin_call(m, wn_call_form_of(wn_chat_source(m->tok, true))->begun, out, error);
  json_decref((json_t *)(uintptr_t)request.more);
  json_decref(messages);
  return ok || (error->status == 0 && wn_serve_refuse(error, 503, "messages", "out of memory"));
}
