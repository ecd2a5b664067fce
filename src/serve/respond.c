/* Answers of /v1/responses: a list of items (thoughts, messages, calls), and the events that tell how it grows. An item
 * is open until something of another kind comes. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/responses.h"

enum respond_open { RESPOND_NONE, RESPOND_THOUGHTS, RESPOND_TEXT };

struct wn_respond {
  json_t *items;  /* that have ended */
  json_t *scores; /* of the open item's tokens */
  enum respond_open open;
  struct wn_bytes text; /* of the open item */
  int sequence;         /* of the next event */
  char id[WN_KEPT_ID + 24];
};

/* How the two kinds of items with text are named. */
static const struct kind {
  const char *type, *part, *prefix, *event;
} kinds[] = {[RESPOND_THOUGHTS] = {"reasoning", "reasoning_text", "rs", "response.reasoning_text"},
             [RESPOND_TEXT] = {"message", "output_text", "msg", "response.output_text"}};

void wn_respond_destroy(struct wn_respond *r) {
  if (!r) return;
  json_decref(r->items);
  json_decref(r->scores);
  wn_bytes_clear(&r->text);
  wn_free(r);
}

/* --- parts of the answer --- */

static json_t *respond_or(const json_t *object, const char *key, json_t *otherwise) {
  json_t *value = json_object_get(object, key);
  if (!value || json_is_null(value)) return otherwise;
  json_decref(otherwise);
  return json_incref(value);
}

/* The response: what was asked for, and what there is of the answer. */
static json_t *respond_object(const struct wn_serve_model *m, const struct wn_serve_job *job, const char *status) {
  static const char *const echoed[] = {"instructions",   "max_output_tokens", "previous_response_id",
                                       "user",           "reasoning",         "metadata",
                                       "max_tool_calls", "safety_identifier", "prompt_cache_key"};
  const struct wn_serve_choice *c = &job->choices[0];
  const struct wn_serve_request *r = &job->request;
  const json_t *asked = r->asked;
  json_t *out =
      json_pack("{s:s, s:s, s:I, s:s, s:n, s:n, s:s, s:O, s:f, s:f, s:s, s:b, s:b}", "id", job->id, "object",
                "response", "created_at", (json_int_t)job->created, "status", status, "error", "incomplete_details",
                "model", m->name, "output", c->respond->items, "temperature", r->temperature, "top_p", r->top_p,
                "truncation", "disabled", "store", r->kept != NULL, "background", 0);
  for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++)
    json_object_set_new(out, echoed[i], respond_or(asked, echoed[i], json_null()));
  json_object_set_new(out, "tools", respond_or(asked, "tools", json_array()));
  json_object_set_new(out, "tool_choice", respond_or(asked, "tool_choice", json_string("auto")));
  json_object_set_new(out, "parallel_tool_calls", respond_or(asked, "parallel_tool_calls", json_true()));
  json_object_set_new(out, "text", respond_or(asked, "text", json_pack("{s:{s:s}}", "format", "type", "text")));
  if (!strcmp(status, "incomplete"))
    json_object_set_new(out, "incomplete_details", json_pack("{s:s}", "reason", "max_output_tokens"));
  json_object_set_new(out, "usage", json_null());
  if (!c->finish || !out) return out;
  json_t *usage = wn_job_usage(m, job), *details = json_object_get(usage, "completion_tokens_details");
  json_object_set_new(
      out, "usage",
      json_pack("{s:O, s:O, s:O, s:{s:I}, s:O, s:O}", "input_tokens", json_object_get(usage, "prompt_tokens"),
                "output_tokens", json_object_get(usage, "completion_tokens"), "total_tokens",
                json_object_get(usage, "total_tokens"), "output_tokens_details", "reasoning_tokens",
                json_integer_value(json_object_get(details, "reasoning_tokens")), "input_tokens_details",
                json_object_get(usage, "prompt_tokens_details"), "winnow", json_object_get(usage, "winnow")));
  json_decref(usage);
  return out;
}

static void respond_event(struct wn_serve_job *job, struct wn_respond *r, const char *type, json_t *value) {
  if (!job->request.stream) {
    json_decref(value);
    return;
  }
  json_t *event = json_pack("{s:s, s:i}", "type", type, "sequence_number", r->sequence++);
  json_object_update(event, value);
  json_decref(value);
  wn_text_add(&job->out, "event: %s\n", type);
  wn_job_add_json(&job->out, event, "data: ", "\n\n");
}

/* The answer's state; the first call tells that the answer has begun. NULL: out of memory. */
static struct wn_respond *respond_begin(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  static const char *const events[] = {"response.created", "response.in_progress"};
  if (c->respond) return c->respond;
  c->job->out.failed |= WN_ALLOC(NULL, "a response", 1, &c->respond) != WN_OK;
  if (c->job->out.failed) return NULL;
  c->respond->items = json_array();
  for (int i = 0; i < 2; i++)
    respond_event(c->job, c->respond, events[i],
                  json_pack("{s:o}", "response", respond_object(m, c->job, "in_progress")));
  return c->respond;
}

static void respond_id(struct wn_serve_job *job, struct wn_respond *r, const char *prefix) {
  snprintf(r->id, sizeof r->id, "%s%s_%zu", prefix, job->id + strlen("resp"), json_array_size(r->items));
}

static json_t *respond_part(const struct wn_respond *r, const char *text, size_t bytes) {
  json_t *part = json_pack("{s:s, s:s%}", "type", kinds[r->open].part, "text", text, bytes);
  if (r->open != RESPOND_TEXT) return part;
  json_object_set_new(part, "annotations", json_array());
  json_object_set_new(part, "logprobs", r->scores ? json_incref(r->scores) : json_array());
  return part;
}

static json_t *respond_item(const struct wn_respond *r, const char *status, json_t *part) {
  json_t *item =
      json_pack("{s:s, s:s, s:s, s:[o*]}", "id", r->id, "type", kinds[r->open].type, "status", status, "content", part);
  if (r->open == RESPOND_TEXT)
    json_object_set_new(item, "role", json_string("assistant"));
  else
    json_object_set_new(item, "summary", json_array());
  return item;
}

/* An event of the open item: its place, and a field of its own, released. */
static json_t *respond_place(const struct wn_respond *r, const char *field, json_t *value) {
  return json_pack("{s:s, s:i, s:i, s:o}", "item_id", r->id, "output_index", (int)json_array_size(r->items),
                   "content_index", 0, field, value);
}

static json_t *respond_index(const struct wn_respond *r, json_t *item) {
  return json_pack("{s:i, s:o}", "output_index", (int)json_array_size(r->items), "item", item);
}

static void respond_close(struct wn_serve_job *job, struct wn_respond *r, const char *status) {
  if (r->open == RESPOND_NONE) return;
  const char *text = r->text.data ? r->text.data : "";
  char name[64];
  json_t *part = respond_part(r, text, r->text.count), *item = respond_item(r, status, json_incref(part));
  json_t *done = respond_place(r, "text", json_stringn(text, r->text.count));
  if (r->open == RESPOND_TEXT) json_object_set(done, "logprobs", json_object_get(part, "logprobs"));
  snprintf(name, sizeof name, "%s.done", kinds[r->open].event);
  respond_event(job, r, name, done);
  respond_event(job, r, "response.content_part.done", respond_place(r, "part", part));
  respond_event(job, r, "response.output_item.done", respond_index(r, json_incref(item)));
  job->out.failed |= json_array_append_new(r->items, item) != 0;
  json_decref(r->scores);
  r->scores = NULL;
  r->text.count = 0;
  r->open = RESPOND_NONE;
}

/* The scores since the last piece, which are added to the item's. */
static json_t *respond_scores(struct wn_serve_choice *c) {
  json_t *fresh = json_object_get(c->scores, "content"), *out = json_array();
  if (!c->scores) return out;
  json_array_extend(out, fresh);
  json_array_clear(fresh);
  if (!c->respond->scores) c->respond->scores = json_array();
  json_array_extend(c->respond->scores, out);
  return out;
}

void wn_respond_text(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes,
                     bool thought) {
  const enum respond_open open = thought ? RESPOND_THOUGHTS : RESPOND_TEXT;
  struct wn_serve_job *job = c->job;
  struct wn_respond *r = respond_begin(m, c);
  char name[64];
  if (!r) return;
  if (r->open != open) {
    respond_close(job, r, "completed");
    r->open = open;
    respond_id(job, r, kinds[open].prefix);
    respond_event(job, r, "response.output_item.added", respond_index(r, respond_item(r, "in_progress", NULL)));
    respond_event(job, r, "response.content_part.added", respond_place(r, "part", respond_part(r, "", 0)));
  }
  job->out.failed |= wn_bytes_add(m->ctx, &r->text, text, bytes) != WN_OK;
  json_t *delta = respond_place(r, "delta", json_stringn(text, bytes)), *scores = respond_scores(c);
  if (open == RESPOND_TEXT) json_object_set(delta, "logprobs", scores);
  json_decref(scores);
  snprintf(name, sizeof name, "%s.delta", kinds[open].event);
  respond_event(job, r, name, delta);
}

static json_t *respond_call_item(const struct wn_respond *r, const json_t *call, const char *status, bool whole) {
  const json_t *function = json_object_get(call, "function");
  return json_pack("{s:s, s:s, s:s, s:O, s:O, s:o}", "id", r->id, "type", "function_call", "status", status, "call_id",
                   json_object_get(call, "id"), "name", json_object_get(function, "name"), "arguments",
                   whole ? json_incref(json_object_get(function, "arguments")) : json_string(""));
}

void wn_respond_call(const struct wn_serve_model *m, struct wn_serve_choice *c, const json_t *call) {
  struct wn_serve_job *job = c->job;
  struct wn_respond *r = respond_begin(m, c);
  if (!r) return;
  respond_close(job, r, "completed");
  respond_id(job, r, "fc");
  json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
  json_t *item = respond_call_item(r, call, "completed", true);
  json_t *place = json_pack("{s:s, s:i}", "item_id", r->id, "output_index", (int)json_array_size(r->items));
  json_t *delta = json_copy(place);
  respond_event(job, r, "response.output_item.added",
                respond_index(r, respond_call_item(r, call, "in_progress", false)));
  json_object_set(delta, "delta", arguments);
  respond_event(job, r, "response.function_call_arguments.delta", delta);
  json_object_set(place, "arguments", arguments);
  json_object_set(place, "name", json_object_get(item, "name"));
  respond_event(job, r, "response.function_call_arguments.done", place);
  respond_event(job, r, "response.output_item.done", respond_index(r, json_incref(item)));
  job->out.failed |= json_array_append_new(r->items, item) != 0;
}

/* --- the end --- */

/* Adds the answer's items to the messages that a later request goes on from. */
static void respond_keep(struct wn_serve_job *job, const struct wn_respond *r, const json_t *response) {
  json_t *message = json_pack("{s:s, s:n}", "role", "assistant", "content"), *calls = json_array(), *item;
  size_t i;
  json_array_foreach(r->items, i, item) {
    const json_t *text = json_object_get(json_array_get(json_object_get(item, "content"), 0), "text");
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!text)
      json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(item, "call_id"), "type",
                                             "function", "function", "name", json_object_get(item, "name"), "arguments",
                                             json_object_get(item, "arguments")));
    else
      json_object_set(message, !strcmp(type, "message") ? "content" : "reasoning_content", (json_t *)(uintptr_t)text);
  }
  if (json_array_size(calls) > 0)
    json_object_set(message, "tool_calls", calls);
  else if (json_is_null(json_object_get(message, "content")))
    json_object_set_new(message, "content", json_string(""));
  json_decref(calls);
  json_array_append_new(job->request.turns, message);
  wn_kept_add(job->request.kept, job->id, job->request.turns, response);
}

void wn_respond_end(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  struct wn_serve_job *job = c->job;
  struct wn_respond *r = respond_begin(m, c);
  const char *status = !strcmp(c->finish, "length") ? "incomplete" : "completed";
  char name[64];
  if (!r) return;
  if (r->open == RESPOND_NONE && json_array_size(r->items) == 0) wn_respond_text(m, c, "", 0, false);
  respond_close(job, r, status);
  json_t *response = respond_object(m, job, status);
  if (job->request.kept && response) respond_keep(job, r, response);
  snprintf(name, sizeof name, "response.%s", status);
  if (job->request.stream)
    respond_event(job, r, name, json_pack("{s:o}", "response", response));
  else
    wn_job_add_json(&job->out, response, "", "\n");
  job->finished = !job->out.failed;
}

void wn_respond_fail(struct wn_serve_job *job, const char *message) {
  struct wn_respond *r = job->choices[0].respond;
  json_t *event = json_pack("{s:s, s:s, s:n, s:i}", "type", "error", "message", message, "param", "sequence_number",
                            r ? r->sequence : 0);
  json_object_set_new(event, "code", json_string("server_error"));
  wn_text_add(&job->out, "event: error\n");
  wn_job_add_json(&job->out, event, "data: ", "\n\n");
  job->finished = true;
}
