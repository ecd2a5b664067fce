/* Answers in the shapes of the OpenAI API. */
#include <math.h>
#include <string.h>

#include "serve/embed.h"
#include "serve/responses.h"
#include "text/utf8.h"
#include "winnow/model.h"

void wn_serve_error_text(const struct wn_serve_error *e, struct wn_text *out) {
  wn_job_add_json(out,
                  json_pack("{s:{s:s, s:s, s:s?, s:i}}", "error", "message", e->message, "type", e->type, "param",
                            e->param[0] ? e->param : NULL, "code", e->status),
                  "", "\n");
}

/* Does this token begin the choice's text? */
static bool answer_begins(const struct wn_serve_choice *c) {
  return c->job->request.chat ? c->tokens <= 1 && !c->prompt->goes_on : c->echo && c->characters == 0;
}

static json_t *answer_by_id(int32_t id) {
  return json_sprintf("token_id:%d", (int)id);
}

/* What stands for a token. NULL: out of memory. */
static json_t *answer_token(const struct wn_serve_model *m, const struct wn_serve_choice *c, int32_t id, bool begins) {
  char *text = NULL;
  size_t bytes = 0;
  if (c->job->request.by_id) return answer_by_id(id);
  const wn_status status = wn_tokenizer_token_label(m->ctx, m->tok, id, begins, &text, &bytes);
  json_t *out = status == WN_OK ? json_stringn(text, bytes) : NULL;
  wn_text_free(text);
  return out;
}

static json_t *answer_number(double x) {
  return isfinite(x) ? json_real(x) : json_null();
}

/* {"token", "logprob", "bytes"} of the chat API. A control token adds no bytes to the text: null. */
static json_t *answer_chat_token(const struct wn_serve_model *m, const struct wn_serve_choice *c, int32_t id,
                                 double log_probability, bool begins) {
  char *text = NULL;
  size_t n = 0;
  const bool control = wn_tokenizer_is_control(m->tok, id);
  json_t *bytes = control ? json_null() : json_array();
  if (!control && wn_tokenizer_token_bytes(m->ctx, m->tok, id, begins, &text, &n) != WN_OK) {
    json_decref(bytes);
    return NULL;
  }
  for (size_t i = 0; i < n; i++) json_array_append_new(bytes, json_integer((unsigned char)text[i]));
  wn_text_free(text);
  return json_pack("{s:o, s:o, s:o}", "token", answer_token(m, c, id, begins), "logprob",
                   answer_number(log_probability), "bytes", bytes);
}

/* Adds a token to the list of most probable ones. One whose text is there already, or is `taken` by the drawn token,
 * stands there by its number. */
static void answer_add_top(json_t *top, json_t *token, int32_t id, double log_probability, const char *taken) {
  const char *name = json_string_value(token);
  if (name && (json_object_get(top, name) || (taken && !strcmp(name, taken)))) {
    json_decref(token);
    name = json_string_value(token = answer_by_id(id));
  }
  if (name) json_object_set_new(top, name, answer_number(log_probability));
  json_decref(token);
}

void wn_job_score(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id, double log_probability,
                  const int32_t *top, const double *top_log_probability, int K) {
  if (!c->scores) return;
  const bool begins = answer_begins(c);
  if (c->job->request.chat) {
    json_t *one = answer_chat_token(m, c, id, log_probability, begins), *others = json_array();
    for (int j = 0; j < K; j++)
      json_array_append_new(others, answer_chat_token(m, c, top[j], top_log_probability[j], begins));
    json_object_set_new(one, "top_logprobs", others);
    json_array_append_new(json_object_get(c->scores, "content"), one);
    return;
  }
  const bool known = !isnan(log_probability);
  json_t *token = answer_token(m, c, id, begins), *others = known ? json_object() : json_null();
  bool among = false;
  for (int j = 0; j < K && known; j++) {
    among = among || top[j] == id;
    answer_add_top(others, answer_token(m, c, top[j], begins), top[j], top_log_probability[j],
                   top[j] == id ? NULL : json_string_value(token));
  }
  if (known && !among) answer_add_top(others, json_incref(token), id, log_probability, NULL);
  json_array_append_new(json_object_get(c->scores, "tokens"), token);
  json_array_append_new(json_object_get(c->scores, "text_offset"), json_integer((json_int_t)(c->characters + c->held)));
  json_array_append_new(json_object_get(c->scores, "token_logprobs"),
                        known ? answer_number(log_probability) : json_null());
  json_array_append_new(json_object_get(c->scores, "top_logprobs"), others);
}

static json_t *answer_new_scores(bool chat) {
  if (chat) return json_pack("{s:[]}", "content");
  return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

json_t *wn_job_new_scores(const struct wn_serve_request *request) {
  return request->scores ? answer_new_scores(request->chat) : NULL;
}

/* --- events --- */

static json_t *answer_head(const struct wn_serve_model *m, const struct wn_serve_job *job, bool event) {
  const char *object = !job->request.chat ? "text_completion" : event ? "chat.completion.chunk" : "chat.completion";
  return json_pack("{s:s, s:s, s:I, s:s}", "id", job->id, "object", object, "created", (json_int_t)job->created,
                   "model", m->name);
}

/* Sends an event of one choice with a value, released, in this field; NULL: its end. */
static void answer_event(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *field, json_t *value) {
  struct wn_serve_job *job = c->job;
  json_t *j = answer_head(m, job, true);
  json_t *finish = field ? json_null() : json_string(c->finish);
  json_t *scores = c->scores ? json_incref(c->scores) : json_null(), *delta = json_object();
  if (field) json_object_set_new(delta, field, value);
  if (job->request.chat && !c->told) json_object_set_new(delta, "role", json_string("assistant"));
  if (!job->request.chat && !field) json_object_set_new(delta, "text", json_string(""));
  json_t *choice = json_pack("{s:i, s:o, s:o}", "index", c->index, "logprobs", scores, "finish_reason", finish);
  if (job->request.chat)
    json_object_set(choice, "delta", delta);
  else
    json_object_update(choice, delta);
  json_decref(delta);
  c->told = true;
  if (c->scores) { /* the scores of this event have been sent */
    json_decref(c->scores);
    c->scores = answer_new_scores(job->request.chat);
  }
  json_object_set_new(j, "choices", json_pack("[o]", choice));
  wn_job_add_json(&job->out, j, "data: ", "\n\n");
}

void wn_job_add_event(const struct wn_serve_model *m, struct wn_serve_job *job, json_t *winnow) {
  json_t *j = winnow ? answer_head(m, job, true) : NULL;
  if (j) json_object_set_new(j, "choices", json_array());
  if (j) json_object_set_new(j, "winnow", winnow);
  wn_job_add_json(&job->out, j, "data: ", "\n\n");
}

static void answer_text(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes,
                        bool thought) {
  if (bytes == 0) return;
  if (c->job->request.asked)
    wn_respond_text(m, c, text, bytes, thought);
  else if (c->job->request.stream)
    answer_event(m, c,
                 thought                ? "reasoning_content"
                 : c->job->request.chat ? "content"
                                        : "text",
                 json_stringn(text, bytes));
  else
    c->job->out.failed |= wn_bytes_add(m->ctx, thought ? &c->thought : &c->text, text, bytes) != WN_OK;
  if (!thought) c->characters += wn_utf8_characters(text, bytes);
}

static void answer_call(const struct wn_serve_model *m, struct wn_serve_choice *c, const struct wn_call_event *call) {
  c->call_count++;
  if (c->job->request.asked) {
    wn_respond_call(m, c, call->call);
    return;
  }
  if (!c->job->request.stream) {
    if (!c->called) c->called = json_array();
    c->job->out.failed |= json_array_append(c->called, call->call) != 0;
    return;
  }
  json_t *delta = json_copy(call->call);
  json_object_set_new(delta, "index", json_integer((json_int_t)call->index));
  answer_event(m, c, "tool_calls", json_pack("[o]", delta));
}

/* Adds what is no thought: what is certain to be text, or a call. */
static void answer_split(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes,
                         bool end) {
  struct wn_call_event e;
  if (!c->calls) {
    answer_text(m, c, text, bytes, false);
    return;
  }
  c->job->out.failed |= bytes > 0 && !wn_calls_push(c->calls, text, bytes);
  while (wn_calls_next(c->calls, end, &e)) {
    if (e.call)
      answer_call(m, c, &e);
    else
      answer_text(m, c, e.text, e.bytes, false);
  }
  c->job->out.failed |= wn_calls_failed(c->calls);
}

/* Adds a piece of the answer; `end`: its last. */
static void answer_say(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes,
                       bool end) {
  bool thought;
  if (!c->thoughts) {
    if (bytes > 0 || end) answer_split(m, c, text, bytes, end);
    return;
  }
  c->job->out.failed |= !wn_reasoning_push(c->thoughts, text, bytes);
  while (wn_reasoning_next(c->thoughts, end, &text, &bytes, &thought)) {
    if (thought)
      answer_text(m, c, text, bytes, true);
    else
      answer_split(m, c, text, bytes, false);
  }
  if (end) answer_split(m, c, "", 0, true);
}

void wn_job_say(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes) {
  answer_say(m, c, text, bytes, false);
}

/* --- the end --- */

static json_t *answer_choice(const struct wn_serve_choice *c) {
  const char *text = c->text.data ? c->text.data : "";
  json_t *scores = c->scores ? json_incref(c->scores) : json_null();
  if (c->job->request.chat) {
    json_t *content = c->called && !c->text.count ? json_null() : json_stringn(text, c->text.count);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
    if (c->called) json_object_set(message, "tool_calls", c->called);
    if (c->thought.count > 0)
      json_object_set_new(message, "reasoning_content", json_stringn(c->thought.data, c->thought.count));
    return json_pack("{s:i, s:o, s:o, s:s}", "index", c->index, "message", message, "logprobs", scores, "finish_reason",
                     c->finish);
  }
  return json_pack("{s:i, s:s%, s:o, s:s}", "index", c->index, "text", text, c->text.count, "logprobs", scores,
                   "finish_reason", c->finish);
}

static void answer_embeddings(const struct wn_serve_model *m, struct wn_serve_job *job) {
  struct wn_serve_error error = {0};
  json_t *j = wn_embed_answer(m, job, &error);
  if (error.status) {
    wn_http_stream_set_status(job->stream, error.status);
    wn_serve_error_text(&error, &job->out);
  } else {
    wn_job_add_json(&job->out, j, "", "\n");
  }
  job->finished = !job->out.failed;
}

static void answer_end(const struct wn_serve_model *m, struct wn_serve_job *job) {
  json_t *j = answer_head(m, job, job->request.stream), *choices = json_array();
  for (int i = 0; i < job->count && !job->request.stream; i++)
    json_array_append_new(choices, answer_choice(&job->choices[i]));
  json_object_set_new(j, "choices", choices);
  json_object_set_new(j, "usage", wn_job_usage(m, job));
  if (!job->request.stream) {
    wn_job_add_json(&job->out, j, "", "\n");
  } else {
    if (job->request.include_usage)
      wn_job_add_json(&job->out, j, "data: ", "\n\n");
    else
      json_decref(j);
    wn_text_add(&job->out, "data: [DONE]\n\n");
  }
  job->finished = !job->out.failed;
}

void wn_job_finish_choice(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  struct wn_serve_job *job = c->job;
  c->state = WN_CHOICE_DONE;
  if (job->finished) return;
  answer_say(m, c, "", 0, true);
  if (c->call_count && !strcmp(c->finish, "stop")) c->finish = "tool_calls";
  if (job->request.stream && !job->request.asked) answer_event(m, c, NULL, NULL);
  if (++job->done < job->count) return;
  if (job->request.embed.wanted)
    answer_embeddings(m, job);
  else if (job->request.asked)
    wn_respond_end(m, c);
  else
    answer_end(m, job);
}

void wn_job_fail(struct wn_serve_job *job, int status, const char *message) {
  struct wn_serve_error error;
  if (job->finished) return;
  wn_serve_refuse(&error, status, "", "%s", message);
  job->out.failed = false; /* there may be memory for a short message */
  if (job->request.stream && job->request.asked) {
    wn_respond_fail(job, error.message);
    return;
  }
  if (!job->request.stream) wn_http_stream_set_status(job->stream, status);
  if (job->request.stream) wn_text_add(&job->out, "data: ");
  wn_serve_error_text(&error, &job->out);
  if (job->request.stream) wn_text_add(&job->out, "\n");
  job->finished = true;
}
