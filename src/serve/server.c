/* The server's paths. Handlers read a request and either answer at once or make a job for the worker. */
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "kv/budgets.h"
#include "serve/embed.h"
#include "serve/http.h"
#include "serve/page.h"
#include "serve/props.h"
#include "serve/responses.h"
#include "serve/worker.h"
#include "text/template/template.h"
#include "winnow/serve.h"

enum { SLOTS = 8, QUEUE = 64, CONNECTIONS = 512, MOST_CONNECTIONS = 65536, BODY = 2 << 20 };

#define MODEL_PATH "/v1/models/"
#define RESPONSE_PATH "/v1/responses/"

struct wn_server {
  struct wn_serve_model front[WN_HTTP_THREADS]; /* for the handlers, each thread's with a context of its own */
  struct wn_serve_worker worker;
  struct wn_http *http;
  wn_budgets budgets;
  char *name;
  struct wn_keys keys;
  struct wn_access_log *log; /* NULL: there is none */
  char *origins;             /* NULL: none but the server's own */
  char *no_chat;             /* why the chat template cannot be read; NULL: it can */
  struct wn_kept kept;       /* responses */
  int64_t started;           /* seconds since 1970 */
  _Atomic uint64_t number;   /* of the last job */
  _Atomic uint64_t idle;     /* fields that have been named in the log */
};

static void answer_error(struct wn_http_answer *answer, const struct wn_serve_error *error) {
  answer->status = error->status;
  answer->type = "application/json";
  wn_serve_error_text(error, &answer->text);
}

static void answer_json(struct wn_http_answer *answer, json_t *value) {
  char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
  json_decref(value);
  if (text) wn_text_add(&answer->text, "%s\n", text);
  answer->text.failed = answer->text.failed || !text;
  free(text);
}

/* The model as the thread that runs the handler may use it. */
static const struct wn_serve_model *server_front(const struct wn_http_request *request) {
  return &((const struct wn_server *)request->user)->front[request->thread];
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

static json_t *server_model(const struct wn_server *s) {
  return json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", s->name, "object", "model", "created", (json_int_t)s->started,
                   "owned_by", "winnow", "context", (json_int_t)s->front[0].context);
}

static void handle_models(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_server *s = request->user;
  answer_json(answer, json_pack("{s:s, s:[o]}", "object", "list", "data", server_model(s)));
}

static void handle_model(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_server *s = request->user;
  const char *name = request->path + strlen(MODEL_PATH);
  char shown[200];
  struct wn_serve_error error;
  if (!strcmp(name, s->name)) {
    answer_json(answer, server_model(s));
    return;
  }
  wn_line_escape(name, shown, sizeof shown);
  wn_serve_refuse(&error, 404, "model", "there is no model \"%s\", only \"%s\"", shown, s->name);
  answer_error(answer, &error);
}

static void handle_metrics(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  struct wn_serve_counts c;
  wn_serve_worker_counts(&s->worker, &c);
  wn_metrics_text(&answer->text, &c, NULL, 1);
}

static void handle_slots(const struct wn_http_request *request, struct wn_http_answer *answer) {
  struct wn_server *s = request->user;
  struct wn_serve_counts c;
  wn_serve_worker_counts(&s->worker, &c);
  answer_json(answer, json_pack("{s:i, s:i, s:i, s:i, s:I, s:I}", "slots", s->worker.slots, "running", c.running,
                                "waiting", c.waiting, "requests", c.jobs, "cache_bytes", (json_int_t)c.cache_bytes,
                                "cache_memory", (json_int_t)s->worker.cache_memory));
}

static void handle_tokenizer_info(const struct wn_http_request *request, struct wn_http_answer *answer) {
  answer_json(answer, wn_serve_tokenizer_info(server_front(request)));
}

static void handle_props(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_server *s = request->user;
  answer_json(answer, wn_serve_props(server_front(request), s->worker.slots));
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
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_integer(ids[i]));
    answer_json(answer, json_pack("{s:o, s:I, s:I}", "tokens", list, "count", (json_int_t)count, "max_model_len",
                                  (json_int_t)m->context));
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
  void *memory = NULL;
  bool good = json_is_array(list) && wn_alloc(m->ctx, "tokens", n * sizeof(int32_t), &memory) == WN_OK;
  for (size_t i = 0; i < n && good; i++) {
    const json_int_t id = json_is_integer(json_array_get(list, i)) ? json_integer_value(json_array_get(list, i)) : -1;
    good = id >= 0 && id < wn_tokenizer_vocab_size(m->tok);
    if (good) ((int32_t *)memory)[i] = (int32_t)id;
  }
  good = good && wn_tokenizer_decode(m->ctx, m->tok, memory, n, &text, &bytes) == WN_OK &&
         wn_utf8_replace_bad(text, bytes, &clean) == WN_OK;
  if (good)
    answer_json(answer, json_pack("{s:s%, s:s%}", "prompt", clean.data ? clean.data : "", clean.count, "content",
                                  clean.data ? clean.data : "", clean.count));
  else
    server_complain(answer, "tokens", "expected a list of the tokenizer's tokens");
  wn_bytes_clear(&clean);
  wn_text_free(text);
  wn_free(memory);
  json_decref(body);
}

static void handle_apply_template(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const struct wn_serve_model *m = server_front(request);
  struct wn_serve_prompt prompt = {0};
  struct wn_serve_error error = {0};
  static const char *const keys[] = {"model",       "messages",         "tools",
                                     "tool_choice", "reasoning_effort", "chat_template_kwargs"};
  json_t *body = server_body(request, answer, keys, 6);
  char *text = NULL;
  size_t bytes;
  if (!body) return;
  if (!wn_serve_messages(m, body, &prompt, &error)) {
    answer_error(answer, &error);
  } else if (wn_tokenizer_decode(m->ctx, m->tok, prompt.ids, (size_t)prompt.count, &text, &bytes) != WN_OK) {
    server_complain(answer, "messages", wn_context_error(m->ctx));
  } else {
    json_t *list = json_array();
    for (int64_t i = 0; i < prompt.count; i++) json_array_append_new(list, json_integer(prompt.ids[i]));
    answer_json(answer, json_pack("{s:o}", "tokens", list));
  }
  wn_tokens_free(prompt.ids);
  wn_text_free(text);
  json_decref(body);
}

/* --- jobs --- */

static unsigned long long server_random(void) {
  unsigned long long out = 0;
  if (getentropy(&out, sizeof out) != 0) out = (unsigned long long)wn_wall_nanoseconds() * 0x9E3779B97F4A7C15u;
  return out;
}

/* Makes a job of a request, which it takes over. NULL: out of memory. */
static struct wn_serve_job *server_job(wn_context *ctx, struct wn_server *s, double arrived,
                                       struct wn_serve_request *request) {
  void *memory, *choices;
  const int count = (int)request->n * request->prompt_count;
  if (wn_alloc(ctx, "a job", sizeof(struct wn_serve_job), &memory) != WN_OK) return NULL;
  if (wn_alloc(ctx, "answers", (size_t)count * sizeof(struct wn_serve_choice), &choices) != WN_OK) {
    wn_free(memory);
    return NULL;
  }
  struct wn_serve_job *job = memory;
  job->request = *request;
  *request = (struct wn_serve_request){0};
  job->choices = choices;
  job->count = count;
  job->created = wn_wall_nanoseconds() / 1000000000;
  job->arrived = arrived;
  job->model = s->name;
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
  struct wn_server *s = request->user;
  if (!good) {
    wn_serve_request_clear(wanted);
    answer_error(answer, &error);
    return;
  }
  struct wn_serve_job *job = server_job(server_front(request)->ctx, s, request->arrived, wanted);
  wn_serve_request_clear(wanted);
  const bool fits = job && wn_serve_worker_fits(&s->worker, server_front(request)->ctx, job, &error);
  if (fits && wn_http_stream_open(request, answer)) {
    job->stream = answer->stream;
    job->access = wn_access_hold(request->access);
    answer->waits = !job->request.stream;
    answer->type = job->request.stream ? "text/event-stream" : "application/json";
    if (wn_serve_worker_add(&s->worker, job)) return;
    wn_http_stream_end(job->stream);
    wn_http_stream_drop(job->stream);
    answer->stream = NULL;
    answer->waits = false;
    answer->retry = 1;
    wn_serve_refuse(&error, 429, "", "the queue is full: %d requests", s->worker.queue);
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
  const struct wn_server *s = request->user;
  struct wn_serve_error error;
  wn_serve_refuse(&error, 400, "model",
                  "model: \"%s\" writes texts and does not rank them; /v1/embeddings compares them", s->name);
  answer_error(answer, &error);
}

#define READS(where, handler)                                                                                          \
  {                                                                                                                    \
    .method = "POST", .path = (where), .type = "application/json", .body_limit = BODY, .reads = true,                  \
    .handle = (handler)                                                                                                \
  }
static const struct wn_http_route routes[] = {
    {.method = "GET", .path = "/", .type = "text/html; charset=utf-8", .open = true, .handle = handle_page},
    {.method = "GET", .path = "/info", .type = "application/json", .handle = handle_info},
    {.method = "GET", .path = "/health", .type = "application/json", .open = true, .handle = handle_health},
    {.method = "GET", .path = "/v1/models", .type = "application/json", .handle = handle_models},
    {.method = "GET", .path = MODEL_PATH "*", .type = "application/json", .handle = handle_model},
    {.method = "GET", .path = "/metrics", .type = "text/plain; version=0.0.4", .handle = handle_metrics},
    {.method = "GET", .path = "/slots", .type = "application/json", .handle = handle_slots},
    {.method = "GET", .path = "/props", .type = "application/json", .handle = handle_props},
    {.method = "GET", .path = "/tokenizer_info", .type = "application/json", .handle = handle_tokenizer_info},
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

/* The bytes of the longest token, with the space that a tokenizer may leave out at a text's beginning. */
static size_t server_longest_token(wn_context *ctx, const wn_tokenizer *tok) {
  size_t longest = 1;
  for (int32_t id = 0; id < wn_tokenizer_vocab_size(tok); id++) {
    char *text = NULL;
    size_t bytes = 0, name = 0;
    if (!wn_tokenizer_token_name(tok, id, &name)) name = 0;
    if (wn_tokenizer_decode(ctx, tok, &id, 1, &text, &bytes) != WN_OK) bytes = 0;
    wn_text_free(text);
    if (bytes + 1 > longest) longest = bytes + 1;
    if (name > longest) longest = name;
  }
  return longest;
}

static wn_status server_describe(wn_context *ctx, struct wn_server *s, wn_model *model, const wn_tokenizer *tok,
                                 const wn_server_options *o) {
  const wn_model_config *c = wn_model_config_get(model);
  const wn_context_options front = {.size = sizeof front,
                                    .threads = 1,
                                    .backend = wn_context_backend(ctx),
                                    .log = ctx->log,
                                    .log_user = ctx->log_user};
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "server: the model has an encoder, requests are for decoders");
  if (o->context < 0 || (c->position == WN_POS_LEARNED && o->context > c->context) || o->slots < 0 || o->queue < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: context %lld, slots %d, queue %d: expected a context of 1 to %lld",
                   (long long)o->context, o->slots, o->queue, (long long)c->context);
  if (o->draft < 0 || o->draft > WN_DRAFT_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: draft is %d, expected 0 to %d", o->draft, WN_DRAFT_MAX);
  if (o->connections < 0 || o->connections > MOST_CONNECTIONS || !(o->timeout >= 0))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: connections %d, timeout %g: expected 1 to %d, and seconds",
                   o->connections, o->timeout, MOST_CONNECTIONS);
  if (o->api_key) WN_TRY(wn_keys_set(ctx, &s->keys, o->api_key));
  if (o->access) WN_TRY(wn_access_log_start(ctx, o->access, o->access_user, &s->log));
  if (o->budgets && o->budgets->layers > 0) {
    WN_TRY(wn_budgets_check(ctx, o->budgets, c));
    WN_TRY(wn_budgets_copy(ctx, o->budgets, &s->budgets));
  }
  for (int i = 0; i < WN_HTTP_THREADS; i++) WN_TRY(wn_context_create(&front, &s->front[i].ctx));
  const char *name = o->name ? o->name : "winnow"; /* often a file's name, which may be any bytes */
  struct wn_bytes clean = {0};
  WN_TRY(wn_utf8_replace_bad(name, strlen(name), &clean));
  s->name = clean.data;
  if (!s->name && !(s->name = wn_strdup(ctx, ""))) return WN_ERR_MEMORY;
  if (o->origins && !(s->origins = wn_strdup(ctx, o->origins))) return WN_ERR_MEMORY;
  const char *template = wn_tokenizer_chat_template(tok);
  const bool readable = template && wn_template_check(ctx, template) == WN_OK;
  if (!readable && !(s->no_chat = wn_strdup(ctx, template ? wn_context_error(ctx) : "the model has no chat template")))
    return WN_ERR_MEMORY;
  const int32_t vocabulary = wn_tokenizer_vocab_size(tok);
  s->worker.model = (struct wn_serve_model){.ctx = ctx,
                                            .model = model,
                                            .tok = tok,
                                            .chat = readable ? wn_chat_template_find("own") : NULL,
                                            .no_chat = s->no_chat,
                                            .name = s->name,
                                            .context = o->context ? o->context : c->context,
                                            .entries = vocabulary < c->vocab_size ? vocabulary : (int32_t)c->vocab_size,
                                            .budgets = &s->budgets,
                                            .draft = o->draft_model,
                                            .pin_system = o->pin_system,
                                            .cache = o->cache,
                                            .idle = &s->idle};
  if (!wn_mul_size((size_t)s->worker.model.context, server_longest_token(ctx, tok), &s->worker.model.text_bytes))
    s->worker.model.text_bytes = SIZE_MAX;
  for (int i = 0; i < WN_HTTP_THREADS; i++) {
    wn_context *own = s->front[i].ctx;
    s->front[i] = s->worker.model;
    s->front[i].ctx = own;
  }
  s->worker.slots = o->slots ? o->slots : SLOTS;
  s->worker.draft = o->draft;
  s->worker.queue = o->queue ? o->queue : QUEUE;
  s->worker.cache_memory = o->cache_memory;
  s->worker.prefix.limit = o->prefix_memory;
  s->worker.timeout = o->timeout;
  return WN_OK;
}

static void server_close(struct wn_server *s) {
  if (s->http) wn_http_close(s->http); /* no new requests, and streams are cut off */
  wn_serve_worker_stop(&s->worker);
  wn_http_stop(s->http); /* until here handlers may still ask the worker, over kept-alive connections */
  wn_serve_worker_clear(&s->worker);
  wn_access_log_stop(s->log); /* all requests are done */
  wn_keys_close(&s->keys);
  wn_kept_close(&s->kept);
  wn_budgets_clear(&s->budgets);
  for (int i = 0; i < WN_HTTP_THREADS; i++) wn_context_destroy(s->front[i].ctx);
  wn_free(s->name);
  wn_free(s->origins);
  wn_free(s->no_chat);
  wn_free(s);
}

wn_status wn_server_start(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const wn_server_options *options,
                          wn_server **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_HANDLE_AS("tok", tok, TOKENIZER), WN_POINTER(options), WN_POINTER(out));
  wn_server_options o;
  void *memory;
  wn_status status;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_server_options, options, &o));
  WN_TRY(wn_alloc(ctx, "a server", sizeof **out, &memory));
  struct wn_server *s = memory;
  s->started = wn_wall_nanoseconds() / 1000000000;
  wn_kept_open(&s->kept);
  wn_keys_open(&s->keys);
  WN_TRY_GOTO(server_describe(ctx, s, model, tok, &o), fail);
  WN_TRY_GOTO(wn_serve_worker_start(ctx, &s->worker), fail);
  const struct wn_http_options http = {.address = o.address,
                                       .port = o.port,
                                       .routes = routes,
                                       .route_count = sizeof routes / sizeof *routes,
                                       .always = "/health",
                                       .user = s,
                                       .admit = server_knows,
                                       .origins = s->origins,
                                       .log = s->log,
                                       .connections = o.connections ? o.connections : CONNECTIONS};
  WN_TRY_GOTO(wn_http_start(s->front[0].ctx, &http, &s->http), listen);
  wn_handle_mark(s, WN_HANDLE_SERVER);
  *out = s;
  return WN_OK;
listen:
  wn_fail(ctx, status, "%s", wn_context_error(s->front[0].ctx));
fail:
  server_close(s);
  return status;
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
