/* The server's paths. Handlers read a request and either answer at once or make a job for the worker. */
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "serve/embed.h"
#include "serve/http.h"
#include "serve/models.h"
#include "serve/page.h"
#include "serve/props.h"
#include "serve/responses.h"
#include "winnow/serve.h"

enum { CONNECTIONS = 512, MOST_CONNECTIONS = 65536, BODY = 2 << 20 };

#define MODEL_PATH "/v1/models/"
#define RESPONSE_PATH "/v1/responses/"

struct wn_server {
  struct wn_models models;
  struct wn_http *http;
  struct wn_keys keys;
  struct wn_access_log *log; /* NULL: there is none */
  char *origins;             /* NULL: none but the server's own */
  struct wn_kept kept;       /* responses */
  int64_t started;           /* seconds since 1970 */
  _Atomic uint64_t number;   /* of the last job */
};

static void answer_error(struct wn_http_answer *answer, const struct wn_serve_error *error) {
  answer->status = error->status;
  answer->type = "application/json";
  wn_serve_error_text(error, &answer->text);
}

static void answer_json(struct wn_http_answer *answer, json_t *value) {
  wn_job_add_json(&answer->text, value, "", "\n");
}

/* The request's model: the one that it names, or the only one. */
static struct wn_served *server_served(const struct wn_http_request *request) {
  struct wn_server *s = request->user;
  return request->held ? request->held : &s->models.list[0];
}

/* The model as the thread that runs the handler may use it. */
static const struct wn_serve_model *server_front(const struct wn_http_request *request) {
  return &server_served(request)->front[request->thread];
}

static void server_refuse_name(struct wn_server *s, const char *name, struct wn_http_answer *answer) {
  char shown[100];
  struct wn_serve_error error;
  struct wn_text names = {0};
  for (int i = 0; i < s->models.count; i++) wn_text_add(&names, "%s\"%s\"", i ? ", " : "", s->models.list[i].name);
  wn_line_escape(name, shown, sizeof shown);
  wn_serve_refuse(&error, 404, "model", "there is no model \"%s\", only %s", shown, names.data ? names.data : "others");
  wn_free(names.data);
  answer_error(answer, &error);
}

/* The model that a request names, in its body or, without one, after "?model="; the first where it names none. NULL:
 * the answer says what is wrong. */
static struct wn_served *server_find(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  struct wn_serve_error error = {0};
  const bool get = !strcmp(request->method, "GET") || !strcmp(request->method, "HEAD");
  json_t *body = get ? NULL : wn_serve_body(request->body, request->body_bytes, &error);
  const json_t *value = json_object_get(body, "model");
  const char *name = get ? wn_http_query(request, "model") : json_string_value(value);
  struct wn_served *served = NULL;
  if (!get && body && value && !name && !json_is_null(value))
    wn_serve_refuse(&error, 400, "model", "model: expected a text");
  if (error.status)
    answer_error(answer, &error);
  else if (!(served = name ? wn_models_find(&s->models, name) : &s->models.list[0]))
    server_refuse_name(s, name, answer);
  json_decref(body);
  return served;
}

static enum wn_http_entry server_enter(struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_serve_error error = {0};
  if (request->held) return WN_HTTP_GOES_ON; /* it has waited */
  struct wn_served *served = server_find(request, answer);
  if (!served) return WN_HTTP_ANSWERED;
  const enum wn_http_entry entry = wn_served_enter(served, request, &error);
  if (entry != WN_HTTP_ANSWERED) return entry;
  answer->retry = error.status == 429;
  answer_error(answer, &error);
  return entry;
}

static void server_leave(struct wn_http_request *request) {
  wn_served_release(request->held);
  request->held = NULL;
}

/* Does the request have a key, if one is needed? */
static bool server_knows(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  char label[WN_KEY_LABEL];
  struct wn_serve_error error;
  const bool known = wn_keys_admit(&s->keys, wn_http_header(request, "Authorization"), label);
  wn_access_key(request->access, label);
  if (known) return true;
  wn_serve_refuse(&error, 401, "", "a key is asked for: Authorization: Bearer KEY");
  answer_error(answer, &error);
  return false;
}

/* --- answered at once --- */

static void handle_health(const struct wn_http_request *request, struct wn_http_answer *answer) {
  (void)request;
  answer->fixed = "{\"status\":\"ok\"}\n";
  answer->fixed_bytes = strlen(answer->fixed);
}

/* The page needs no key, since it asks the user for the key. */
static void handle_page(const struct wn_http_request *request, struct wn_http_answer *answer) {
  (void)request;
  answer->fixed = wn_chat_page;
  answer->fixed_bytes = strlen(wn_chat_page);
  answer->content_policy = wn_chat_page_policy;
}

static void handle_info(const struct wn_http_request *request, struct wn_http_answer *answer) {
  answer_json(answer, wn_page_info(server_front(request)));
}

/* With the models' lock, as one moment. */
static json_t *server_model(const struct wn_server *s, const struct wn_served *served) {
  json_t *state = json_pack("{s:s}", "value", wn_served_status(served));
  if (served->failed) json_object_set_new(state, "failed", json_true());
  if (served->state == WN_SERVED_LEAVING) json_object_set_new(state, "leaving", json_true());
  return json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", served->name, "object", "model", "created",
                   (json_int_t)s->started, "owned_by", "winnow", "context",
                   served->context ? json_integer((json_int_t)served->context) : json_null(), "status", state);
}

static void handle_models(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  json_t *list = json_array();
  pthread_mutex_lock(&s->models.lock);
  for (int i = 0; i < s->models.count; i++) json_array_append_new(list, server_model(s, &s->models.list[i]));
  pthread_mutex_unlock(&s->models.lock);
  answer_json(answer, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

static void handle_model(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  const char *name = request->path + strlen(MODEL_PATH);
  const struct wn_served *served = wn_models_find(&s->models, name);
  pthread_mutex_lock(&s->models.lock);
  json_t *model = served ? server_model(s, served) : NULL;
  pthread_mutex_unlock(&s->models.lock);
  if (served)
    answer_json(answer, model);
  else
    server_refuse_name(s, name, answer);
}

static void handle_metrics(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  const int n = s->models.count;
  struct wn_serve_counts *counts = NULL;
  const char **names = NULL;
  const bool good = WN_ALLOC(NULL, "counts", n, &counts) == WN_OK && WN_ALLOC(NULL, "names", n, &names) == WN_OK;
  for (int i = 0; i < n && good; i++) {
    wn_serve_worker_counts(&s->models.list[i].worker, &counts[i]);
    names[i] = s->models.list[i].name;
  }
  if (good) wn_metrics_text(&answer->text, counts, n > 1 ? names : NULL, n);
  answer->text.failed = answer->text.failed || !good;
  wn_free(counts);
  wn_free(names);
}

/* All models together. */
static void handle_slots(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  const struct wn_serve_worker *w = &s->models.list[0].worker;
  json_int_t running = 0, waiting = 0, jobs = 0, cache_bytes = 0;
  for (int i = 0; i < s->models.count; i++) {
    struct wn_serve_counts c;
    wn_serve_worker_counts(&s->models.list[i].worker, &c);
    running += c.running, waiting += c.waiting, jobs += c.jobs, cache_bytes += (json_int_t)c.cache_bytes;
  }
  answer_json(answer,
              json_pack("{s:i, s:I, s:I, s:I, s:I, s:I}", "slots", w->slots, "running", running, "waiting", waiting,
                        "requests", jobs, "cache_bytes", cache_bytes, "cache_memory", (json_int_t)w->cache_memory));
}

static void handle_tokenizer_info(const struct wn_http_request *request, struct wn_http_answer *answer) {
  answer_json(answer, wn_serve_tokenizer_info(server_front(request)));
}

static void handle_props(const struct wn_http_request *request, struct wn_http_answer *answer) {
  answer_json(answer, wn_serve_props(server_front(request), server_served(request)->worker.slots));
}

/* The body as an object with only these keys [count]; NULL: the answer says what is wrong. */
static json_t *server_body(const struct wn_http_request *request, struct wn_http_answer *answer,
                           const char *const *keys, int count) {
  struct wn_serve_error error = {0};
  json_t *body = wn_serve_body(request->body, request->body_bytes, &error);
  if (body && wn_serve_check_keys(body, request->path, NULL, keys, count, &error)) return body;
  json_decref(body);
  answer_error(answer, &error);
  return NULL;
}

static void server_complain(struct wn_http_answer *answer, const char *param, const char *why) {
  struct wn_serve_error error;
  wn_serve_refuse(&error, 400, param, "%s: %s", param, why);
  answer_error(answer, &error);
}

static json_t *server_tokens(const int32_t *ids, size_t count) {
  json_t *list = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

static void handle_tokenize(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_serve_model *m = server_front(request);
  static const char *const keys[] = {"model", "prompt", "content", "add_special_tokens"};
  json_t *body = server_body(request, answer, keys, 4);
  if (!body) return;
  const json_t *text = json_object_get(body, "prompt"), *special = json_object_get(body, "add_special_tokens");
  if (!text) text = json_object_get(body, "content");
  const bool bos = !json_is_false(special) && wn_tokenizer_bos(m->tok) >= 0;
  int32_t *ids = NULL;
  size_t count = 0;
  if (!json_is_string(text)) {
    server_complain(answer, "prompt", "expected a text");
  } else if (special && !json_is_boolean(special) && !json_is_null(special)) {
    server_complain(answer, "add_special_tokens", "expected true or false");
  } else if (wn_tokenizer_encode(m->ctx, m->tok, json_string_value(text), json_string_length(text), bos, false, &ids,
                                 &count) != WN_OK) {
    server_complain(answer, "prompt", wn_context_error(m->ctx));
  } else {
    answer_json(answer, json_pack("{s:o, s:I, s:I}", "tokens", server_tokens(ids, count), "count", (json_int_t)count,
                                  "max_model_len", (json_int_t)m->context));
  }
  wn_tokens_free(ids);
  json_decref(body);
}

static void handle_detokenize(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_serve_model *m = server_front(request);
  static const char *const keys[] = {"model", "tokens"};
  json_t *body = server_body(request, answer, keys, 2);
  if (!body) return;
  const json_t *list = json_object_get(body, "tokens");
  const size_t n = json_array_size(list);
  struct wn_bytes clean = {0};
  char *text = NULL;
  size_t bytes = 0;
  int32_t *ids = NULL;
  bool good = json_is_array(list) && WN_ALLOC(m->ctx, "tokens", n, &ids) == WN_OK;
  for (size_t i = 0; i < n && good; i++) {
    const json_int_t id = json_is_integer(json_array_get(list, i)) ? json_integer_value(json_array_get(list, i)) : -1;
    good = id >= 0 && id < wn_tokenizer_vocab_size(m->tok);
    if (good) ids[i] = (int32_t)id;
  }
  good = good && wn_tokenizer_decode(m->ctx, m->tok, ids, n, &text, &bytes) == WN_OK &&
         wn_utf8_replace_bad(text, bytes, &clean) == WN_OK;
  if (good)
    answer_json(answer, json_pack("{s:s%, s:s%}", "prompt", clean.data ? clean.data : "", clean.count, "content",
                                  clean.data ? clean.data : "", clean.count));
  else
    server_complain(answer, "tokens", "expected a list of the tokenizer's tokens");
  wn_bytes_clear(&clean);
  wn_text_free(text);
  wn_free(ids);
  json_decref(body);
}

static void handle_apply_template(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_serve_model *m = server_front(request);
  struct wn_serve_prompt prompt = {0};
  struct wn_serve_error error = {0};
  static const char *const keys[] = {"model",       "messages",         "tools",
                                     "tool_choice", "reasoning_effort", "chat_template_kwargs"};
  json_t *body = server_body(request, answer, keys, 6);
  if (!body) return;
  if (wn_serve_messages(m, body, &prompt, &error))
    answer_json(answer, json_pack("{s:o}", "tokens", server_tokens(prompt.ids, (size_t)prompt.count)));
  else
    answer_error(answer, &error);
  wn_serve_prompt_clear(&prompt);
  json_decref(body);
}

/* --- jobs --- */

static unsigned long long server_random(void) {
  unsigned long long out = 0;
  if (getentropy(&out, sizeof out) != 0) out = (unsigned long long)wn_wall_nanoseconds() * 0x9E3779B97F4A7C15u;
  return out;
}

/* Makes a job of a request, which it takes over. NULL: out of memory. */
static struct wn_serve_job *server_job(const struct wn_http_request *from, struct wn_serve_request *request) {
  wn_context *ctx = server_front(from)->ctx;
  struct wn_server *s = from->user;
  struct wn_serve_job *job;
  const int count = (int)request->n * request->prompt_count;
  if (WN_ALLOC(ctx, "a job", 1, &job) != WN_OK) return NULL;
  if (WN_ALLOC(ctx, "answers", count, &job->choices) != WN_OK) {
    wn_free(job);
    return NULL;
  }
  job->request = *request;
  *request = (struct wn_serve_request){0};
  job->count = count;
  job->created = wn_wall_nanoseconds() / 1000000000;
  job->arrived = from->arrived;
  wn_served_hold(job->served = server_served(from));
  const unsigned long long number = ++s->number;
  if (job->request.asked) /* who knows it may read the response */
    snprintf(job->id, sizeof job->id, "resp_%016llx%016llx", server_random(), server_random());
  else
    snprintf(job->id, sizeof job->id, "%s-%llx-%llu", job->request.chat ? "chatcmpl" : "cmpl",
             (unsigned long long)s->started, number);
  for (int i = 0; i < count; i++)
    job->choices[i] =
        (struct wn_serve_choice){.job = job, .index = i, .prompt = &job->request.prompts[i / job->request.n]};
  for (int i = 0; i < job->request.prompt_count; i++) job->prompt_tokens += job->request.prompts[i].count;
  return job;
}

/* Queues a request that was read (`good`), or refuses it with `error`. */
static void server_queue(const struct wn_http_request *request, struct wn_http_answer *answer, bool good,
                         struct wn_serve_request *wanted, struct wn_serve_error error) {
  struct wn_serve_worker *worker = &server_served(request)->worker;
  if (!good) {
    wn_serve_request_clear(wanted);
    answer_error(answer, &error);
    return;
  }
  struct wn_serve_job *job = server_job(request, wanted);
  wn_serve_request_clear(wanted);
  const bool fits = job && wn_serve_worker_fits(worker, server_front(request)->ctx, job, &error);
  if (fits && wn_http_stream_open(request, answer)) {
    job->stream = answer->stream;
    job->access = wn_access_hold(request->access);
    answer->waits = !job->request.stream;
    answer->type = job->request.stream ? "text/event-stream" : "application/json";
    if (wn_serve_worker_add(worker, job)) return;
    wn_http_stream_end(job->stream);
    wn_http_stream_drop(job->stream);
    answer->stream = NULL;
    answer->waits = false;
    answer->retry = 1;
    wn_serve_refuse(&error, 429, "", "the queue is full: %d requests", worker->queue);
  } else if (!job || fits) {
    wn_serve_refuse(&error, 503, "", "out of memory");
  }
  wn_job_destroy(job);
  answer_error(answer, &error);
}

static void server_generate(const struct wn_http_request *request, struct wn_http_answer *answer, bool chat) {
  struct wn_serve_request wanted;
  struct wn_serve_error error;
  const bool good =
      wn_serve_request_read(server_front(request), chat, request->body, request->body_bytes, &wanted, &error);
  server_queue(request, answer, good, &wanted, error);
}

static void handle_embeddings(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_serve_request wanted;
  struct wn_serve_error error;
  const bool good = wn_embed_request_read(server_front(request), request->body, request->body_bytes, &wanted, &error);
  server_queue(request, answer, good, &wanted, error);
}

static void handle_completions(const struct wn_http_request *request, struct wn_http_answer *answer) {
  server_generate(request, answer, false);
}

static void handle_chat(const struct wn_http_request *request, struct wn_http_answer *answer) {
  server_generate(request, answer, true);
}

static void handle_responses(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  struct wn_serve_request wanted;
  struct wn_serve_error error;
  const bool good =
      wn_responses_read(server_front(request), &s->kept, request->body, request->body_bytes, &wanted, &error);
  server_queue(request, answer, good, &wanted, error);
}

static void handle_response(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  const char *id = request->path + strlen(RESPONSE_PATH);
  const bool drop = !strcmp(request->method, "DELETE");
  char shown[200];
  struct wn_serve_error error;
  json_t *kept = drop ? NULL : wn_kept_response(&s->kept, id);
  if (drop && wn_kept_drop(&s->kept, id))
    kept = json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1);
  if (kept) {
    answer_json(answer, kept);
    return;
  }
  wn_line_escape(id, shown, sizeof shown);
  wn_serve_refuse(&error, 404, "response_id", "there is no response \"%s\", or not any more", shown);
  answer_error(answer, &error);
}

/* No model that winnow runs gives a score to a pair of texts. */
static void handle_rerank(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_serve_error error;
  wn_serve_refuse(&error, 400, "model",
                  "model: \"%s\" writes texts and does not rank them; /v1/embeddings compares them",
                  server_served(request)->name);
  answer_error(answer, &error);
}

#define READS(where, handler)                                                                                          \
  {                                                                                                                    \
    .method = "POST", .path = (where), .type = "application/json", .body_limit = BODY, .reads = true, .enters = true,  \
    .handle = (handler)                                                                                                \
  }
#define OF_MODEL(where, handler)                                                                                       \
  { .method = "GET", .path = (where), .type = "application/json", .reads = true, .enters = true, .handle = (handler) }
static const struct wn_http_route routes[] = {
    {.method = "GET", .path = "/", .type = "text/html; charset=utf-8", .open = true, .handle = handle_page},
    OF_MODEL("/info", handle_info),
    {.method = "GET", .path = "/health", .type = "application/json", .open = true, .handle = handle_health},
    {.method = "GET", .path = "/v1/models", .type = "application/json", .handle = handle_models},
    {.method = "GET", .path = MODEL_PATH "*", .type = "application/json", .handle = handle_model},
    {.method = "GET", .path = "/metrics", .type = "text/plain; version=0.0.4", .handle = handle_metrics},
    {.method = "GET", .path = "/slots", .type = "application/json", .handle = handle_slots},
    OF_MODEL("/props", handle_props),
    OF_MODEL("/tokenizer_info", handle_tokenizer_info),
    READS("/tokenize", handle_tokenize),
    READS("/detokenize", handle_detokenize),
    READS("/apply-template", handle_apply_template),
    READS("/v1/completions", handle_completions),
    READS("/v1/chat/completions", handle_chat),
    READS("/v1/responses", handle_responses),
    READS("/v1/embeddings", handle_embeddings),
    READS("/v1/rerank", handle_rerank),
    {.method = "GET", .path = RESPONSE_PATH "*", .type = "application/json", .handle = handle_response},
    {.method = "DELETE", .path = RESPONSE_PATH "*", .type = "application/json", .handle = handle_response},
};

/* --- start and stop --- */

/* What holds for all models. */
static wn_status server_describe(wn_context *ctx, struct wn_server *s, const wn_server_options *o) {
  if (o->context < 0 || o->slots < 0 || o->queue < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: context %lld, slots %d, queue %d: expected numbers from 0",
                   (long long)o->context, o->slots, o->queue);
  if (o->draft < 0 || o->draft > WN_DRAFT_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: draft is %d, expected 0 to %d", o->draft, WN_DRAFT_MAX);
  if (o->connections < 0 || o->connections > MOST_CONNECTIONS || !(o->timeout >= 0))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: connections %d, timeout %g: expected 1 to %d, and seconds",
                   o->connections, o->timeout, MOST_CONNECTIONS);
  if (o->api_key) WN_TRY(wn_keys_set(ctx, &s->keys, o->api_key));
  if (o->access) WN_TRY(wn_access_log_start(ctx, o->access, o->access_user, &s->log));
  if (o->origins && !(s->origins = wn_strdup(ctx, o->origins))) return WN_ERR_MEMORY;
  return WN_OK;
}

static void server_close(struct wn_server *s) {
  if (s->http) wn_http_close(s->http); /* no new requests, and streams are cut off */
  wn_models_stop(&s->models);
  wn_http_stop(s->http); /* until here handlers may still ask the workers, over kept-alive connections */
  wn_models_clear(&s->models);
  wn_access_log_stop(s->log); /* all requests are done */
  wn_keys_close(&s->keys);
  wn_kept_close(&s->kept);
  wn_free(s->origins);
  wn_free(s);
}

/* models: NULL: `model` is the only one. */
static wn_status server_start(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const wn_server_models *models,
                              const wn_server_options *o, wn_server **out) {
  const char *const only = o->name ? o->name : "winnow";
  struct wn_server *s;
  wn_status status;
  WN_TRY(WN_ALLOC(ctx, "a server", 1, &s));
  s->started = wn_wall_nanoseconds() / 1000000000;
  wn_kept_open(&s->kept);
  wn_keys_open(&s->keys);
  WN_TRY_GOTO(wn_models_open(ctx, &s->models, o, models ? models->names : &only, models ? models->count : 1), fail);
  WN_TRY_GOTO(server_describe(ctx, s, o), fail);
  if (models) {
    s->models.given = *models;
    for (int i = 0; i < models->count && models->bytes; i++) s->models.list[i].bytes = models->bytes[i];
    WN_TRY_GOTO(wn_models_start(ctx, &s->models), fail);
  } else {
    WN_TRY_GOTO(wn_served_open(ctx, &s->models.list[0], model, tok, o->budgets), fail);
    s->models.list[0].state = WN_SERVED_READY;
  }
  const struct wn_http_options http = {.address = o->address,
                                       .port = o->port,
                                       .routes = routes,
                                       .route_count = sizeof routes / sizeof *routes,
                                       .always = "/health",
                                       .user = s,
                                       .admit = server_knows,
                                       .enter = models ? server_enter : NULL,
                                       .leave = server_leave,
                                       .origins = s->origins,
                                       .log = s->log,
                                       .connections = o->connections ? o->connections : CONNECTIONS};
  WN_TRY_GOTO(wn_http_start(s->models.fronts[0], &http, &s->http), listen);
  wn_handle_mark(s, WN_HANDLE_SERVER);
  *out = s;
  return WN_OK;
listen:
  wn_fail(ctx, status, "%s", wn_context_error(s->models.fronts[0]));
fail:
  server_close(s);
  return status;
}

wn_status wn_server_start(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const wn_server_options *options,
                          wn_server **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_HANDLE_AS("tok", tok, TOKENIZER), WN_POINTER(options), WN_POINTER(out));
  wn_server_options o;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_server_options, options, &o));
  return server_start(ctx, model, tok, NULL, &o, out);
}

wn_status wn_server_start_models(wn_context *ctx, const wn_server_models *models, const wn_server_options *options,
                                 wn_server **out) {
  WN_CHECK_WORK(WN_POINTER(models), WN_POINTER(options), WN_POINTER(out));
  wn_server_options o;
  wn_server_models m;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_server_options, options, &o));
  WN_TRY(WN_OPTIONS_READ(ctx, wn_server_models, models, &m));
  if (m.count < 1 || m.count > WN_MODELS || !m.names || !m.load)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "server: %d models: expected 1 to %d, with names and a function that loads them", m.count,
                   WN_MODELS);
  return server_start(ctx, NULL, NULL, &m, &o, out);
}

int wn_server_port(const wn_server *server) {
  WN_CHECK_OR(0, WN_HANDLE(server, SERVER));
  return wn_http_port(server->http);
}

wn_status wn_server_set_keys(wn_context *ctx, wn_server *server, const char *keys) {
  WN_CHECK_CALL(WN_HANDLE(server, SERVER), WN_POINTER(keys));
  return wn_keys_set(ctx, &server->keys, keys);
}

void wn_server_stop(wn_server *s) {
  WN_CHECK_OR(, WN_HANDLE_AS("server", s, SERVER));
  server_close(s);
}
