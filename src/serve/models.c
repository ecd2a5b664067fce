#include "serve/models.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/error.h"
#include "base/thread.h"
#include "kv/budgets.h"
#include "text/template/template.h"

enum { SLOTS = 8, QUEUE = 64, RETRY_SECONDS = 5 /* after a load that failed */ };

/* --- one model --- */

/* The bytes of the longest token, with the space that a tokenizer may leave out at a text's beginning. */
static size_t served_longest_token(wn_context *ctx, const wn_tokenizer *tok) {
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

/* What the weights take. */
static uint64_t served_bytes(const wn_model *model) {
  uint64_t bytes = 0;
  wn_tensor_info info;
  for (int i = 0; i < wn_model_tensor_count(model); i++)
    if (wn_model_tensor_info(model, i, &info) == WN_OK) bytes += info.bytes;
  return bytes;
}

wn_status wn_served_open(wn_context *ctx, struct wn_served *served, wn_model *model, const wn_tokenizer *tok,
                         const wn_budgets *budgets) {
  struct wn_models *all = served->all;
  const wn_server_options *o = &all->options;
  const wn_model_config *c = wn_model_config_get(model);
  struct wn_serve_worker *w = &served->worker;
  if (c->encoder.layers > 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "server: the model has an encoder, requests are for decoders");
  if (c->position == WN_POS_LEARNED && o->context > c->context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "server: context %lld: expected 1 to %lld", (long long)o->context,
                   (long long)c->context);
  if (budgets && budgets->layers > 0) {
    WN_TRY(wn_budgets_check(ctx, budgets, c));
    WN_TRY(wn_budgets_copy(ctx, budgets, &served->budgets));
  }
  const char *template = wn_tokenizer_chat_template(tok);
  const bool readable = template && wn_template_check(ctx, template) == WN_OK;
  if (!readable &&
      !(served->no_chat = wn_strdup(ctx, template ? wn_context_error(ctx) : "the model has no chat template")))
    return WN_ERR_MEMORY;
  const int32_t vocabulary = wn_tokenizer_vocab_size(tok);
  w->model = (struct wn_serve_model){.ctx = ctx,
                                     .model = model,
                                     .tok = tok,
                                     .chat = readable ? wn_chat_template_find("own") : NULL,
                                     .no_chat = served->no_chat,
                                     .name = served->name,
                                     .context = o->context ? o->context : c->context,
                                     .entries = vocabulary < c->vocab_size ? vocabulary : (int32_t)c->vocab_size,
                                     .budgets = &served->budgets,
                                     .draft = all->given.count > 0 ? NULL : o->draft_model,
                                     .pin_system = o->pin_system,
                                     .cache = all->given.count > 0 ? budgets->cache : o->cache,
                                     .idle = &all->idle};
  if (!wn_mul_size((size_t)w->model.context, served_longest_token(ctx, tok), &w->model.text_bytes))
    w->model.text_bytes = SIZE_MAX;
  for (int i = 0; i < WN_HTTP_THREADS; i++) {
    served->front[i] = w->model;
    served->front[i].ctx = all->fronts[i];
  }
  WN_TRY(wn_serve_worker_start(ctx, w));
  pthread_mutex_lock(&all->lock);
  served->context = w->model.context;
  served->bytes = served_bytes(model);
  pthread_mutex_unlock(&all->lock);
  return WN_OK;
}

/* Frees what a loaded model has. Nobody uses it. */
static void served_unload(struct wn_served *served) {
  wn_serve_worker_stop(&served->worker);
  wn_serve_worker_clear(&served->worker);
  wn_budgets_clear(&served->budgets);
  wn_free(served->no_chat);
  served->no_chat = NULL;
  wn_tokenizer_destroy(served->tok);
  wn_model_destroy(served->model);
  wn_context_destroy(served->ctx);
  served->tok = NULL, served->model = NULL, served->ctx = NULL;
}

/* --- all models, with the lock --- */

/* What a model counts for: its weights, and what its caches or kept states may take. */
static uint64_t served_share(const struct wn_served *served) {
  const wn_server_options *o = &served->all->options;
  return served->bytes + (o->cache_memory ? o->cache_memory : o->prefix_memory);
}

/* Does it take more than there is for all? */
static bool served_is_large(const struct wn_served *served) {
  return served->all->given.memory > 0 && served_share(served) > served->all->given.memory;
}

/* Does `next` fit beside the models that are ready, and those that leave if `leaving`? */
static bool models_fit(const struct wn_models *all, const struct wn_served *next, bool leaving) {
  uint64_t bytes = served_share(next);
  for (const struct wn_served *m = all->list; m < all->list + all->count; m++)
    if (m != next && (m->state == WN_SERVED_READY || (leaving && m->state == WN_SERVED_LEAVING)))
      bytes += served_share(m);
  return all->given.memory == 0 || bytes <= all->given.memory;
}

/* Makes models leave until `next` will fit: those without requests first, and of them the least recently used. */
static void models_make_room(struct wn_models *all, const struct wn_served *next) {
  while (!models_fit(all, next, false)) {
    struct wn_served *leaves = NULL;
    for (struct wn_served *m = all->list; m < all->list + all->count; m++) {
      if (m == next || m->state != WN_SERVED_READY) continue;
      const bool idle = m->users == 0;
      if (!leaves || (idle == (leaves->users == 0) ? m->used < leaves->used : idle)) leaves = m;
    }
    if (!leaves) return;
    leaves->state = WN_SERVED_LEAVING;
  }
}

/* The requests that wait for a model go on; `held`: with it. Releases the lock meanwhile. */
static void models_call(struct wn_models *all, struct wn_served *served, bool held) {
  struct wn_http_request *first = served->first, *next;
  served->first = served->last = NULL;
  if (held) served->users += served->waiting;
  served->waiting = 0;
  pthread_mutex_unlock(&all->lock);
  for (struct wn_http_request *r = first; r; r = next) {
    next = r->next;
    r->held = held ? served : NULL;
    wn_http_again(r);
  }
  pthread_mutex_lock(&all->lock);
}

static void models_load(struct wn_models *all, struct wn_served *next) {
  const wn_server_models *g = &all->given;
  const int number = (int)(next - all->list);
  wn_budgets budgets;
  wn_status status = WN_OK;
  if (served_is_large(next)) status = WN_ERR_MEMORY;
  next->state = WN_SERVED_LOADING;
  pthread_mutex_unlock(&all->lock);
  wn_budgets_init(&budgets, NULL);
  if (status == WN_OK) status = g->load(g->user, number, &next->ctx, &next->model, &next->tok, &budgets);
  if (status == WN_OK) status = wn_served_open(next->ctx, next, next->model, next->tok, &budgets);
  wn_budgets_clear(&budgets);
  if (status == WN_OK && served_is_large(next)) status = WN_ERR_MEMORY;
  if (status != WN_OK) {
    wn_log(all->fronts[0], WN_LOG_WARNING, "server: the model \"%s\" cannot be loaded: %s", next->name,
           status == WN_ERR_MEMORY ? "it takes more than the memory for models, or than there is"
           : next->ctx             ? wn_context_error(next->ctx)
                                   : wn_status_name(status));
    served_unload(next);
  }
  pthread_mutex_lock(&all->lock);
  next->failed = status != WN_OK;
  next->failed_at = wn_seconds_now();
  next->state = next->failed ? WN_SERVED_OUT : WN_SERVED_READY;
  if (!next->failed) models_make_room(all, next); /* it may take more than was said */
  models_call(all, next, !next->failed);
}

static void *models_run(void *user) {
  struct wn_models *all = user;
  pthread_mutex_lock(&all->lock);
  while (!all->stop) {
    struct wn_served *next = NULL, *leaves = NULL;
    for (struct wn_served *m = all->list; m < all->list + all->count; m++) {
      if (m->state == WN_SERVED_WANTED && (!next || m->wanted < next->wanted)) next = m;
      if (m->state == WN_SERVED_LEAVING && m->users == 0) leaves = m;
    }
    if (leaves) {
      pthread_mutex_unlock(&all->lock);
      served_unload(leaves);
      pthread_mutex_lock(&all->lock);
      leaves->state = leaves->first ? WN_SERVED_WANTED : WN_SERVED_OUT;
      leaves->wanted = ++all->tick; /* after those that it left for */
      continue;
    }
    if (next && !served_is_large(next) && !models_fit(all, next, true)) {
      models_make_room(all, next);
      bool idle = false, any = false;
      for (const struct wn_served *m = all->list; m < all->list + all->count; m++) {
        any = any || m->state == WN_SERVED_LEAVING;
        idle = idle || (m->state == WN_SERVED_LEAVING && m->users == 0);
      }
      if (idle) continue;
      if (any) next = NULL; /* waits until a busy model has left */
    }
    if (next)
      models_load(all, next);
    else
      pthread_cond_wait(&all->news, &all->lock);
  }
  pthread_mutex_unlock(&all->lock);
  return NULL;
}

/* --- start and stop --- */

wn_status wn_models_open(wn_context *ctx, struct wn_models *all, const wn_server_options *o, const char *const *names,
                         int count) {
  const wn_context_options front = {.size = sizeof front,
                                    .threads = 1,
                                    .backend = wn_context_backend(ctx),
                                    .log = ctx->log,
                                    .log_user = ctx->log_user};
  pthread_mutex_init(&all->lock, NULL);
  wn_cond_init(&all->news);
  all->options = *o;
  WN_TRY(WN_ALLOC(ctx, "models", count, &all->list));
  all->count = count;
  for (int i = 0; i < count; i++) {
    struct wn_serve_worker *w = &all->list[i].worker;
    wn_serve_worker_open(w);
    w->slots = o->slots ? o->slots : SLOTS;
    w->draft = o->draft;
    w->queue = o->queue ? o->queue : QUEUE;
    w->cache_memory = o->cache_memory;
    w->prefix.limit = o->prefix_memory;
    w->timeout = o->timeout;
    all->list[i].all = all;
    wn_budgets_init(&all->list[i].budgets, NULL);
  }
  for (int i = 0; i < WN_HTTP_THREADS; i++) WN_TRY(wn_context_create(&front, &all->fronts[i]));
  for (int i = 0; i < count; i++) { /* often a file's name, which may be any bytes */
    struct wn_bytes clean = {0};
    WN_TRY(wn_utf8_replace_bad(names[i], strlen(names[i]), &clean));
    all->list[i].name = clean.data ? clean.data : wn_strdup(ctx, "");
    if (!all->list[i].name) return WN_ERR_MEMORY;
    if (wn_models_find(all, all->list[i].name) != &all->list[i])
      return wn_fail(ctx, WN_ERR_ARGUMENT, "server: two models have the name \"%s\"", all->list[i].name);
  }
  return WN_OK;
}

wn_status wn_models_start(wn_context *ctx, struct wn_models *all) {
  all->started = wn_thread_start(&all->thread, models_run, all);
  return all->started ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "cannot start the thread that loads models");
}

void wn_models_stop(struct wn_models *all) {
  if (!all->list) return;
  pthread_mutex_lock(&all->lock);
  all->stop = true;
  pthread_cond_signal(&all->news);
  for (int i = 0; i < all->count; i++) models_call(all, &all->list[i], false);
  pthread_mutex_unlock(&all->lock);
  if (all->started) pthread_join(all->thread, NULL);
  for (int i = 0; i < all->count; i++) wn_serve_worker_stop(&all->list[i].worker);
}

void wn_models_clear(struct wn_models *all) {
  for (int i = 0; i < all->count; i++) {
    served_unload(&all->list[i]);
    wn_serve_worker_close(&all->list[i].worker);
    wn_free(all->list[i].name);
  }
  for (int i = 0; i < WN_HTTP_THREADS; i++) wn_context_destroy(all->fronts[i]);
  wn_free(all->list);
  pthread_cond_destroy(&all->news);
  pthread_mutex_destroy(&all->lock);
}

/* --- requests --- */

struct wn_served *wn_models_find(struct wn_models *all, const char *name) {
  for (int i = 0; i < all->count; i++)
    if (all->list[i].name && !strcmp(all->list[i].name, name)) return &all->list[i];
  return NULL;
}

enum wn_http_entry wn_served_enter(struct wn_served *served, struct wn_http_request *request,
                                   struct wn_serve_error *error) {
  struct wn_models *all = served->all;
  enum wn_http_entry entry = WN_HTTP_ANSWERED;
  pthread_mutex_lock(&all->lock);
  served->used = ++all->tick;
  if (all->stop) {
    wn_serve_refuse(error, 503, "", "the server ends");
  } else if (served->state == WN_SERVED_READY) {
    served->users++;
    request->held = served;
    entry = WN_HTTP_GOES_ON;
  } else if (served->state == WN_SERVED_OUT && served->failed && wn_seconds_now() - served->failed_at < RETRY_SECONDS) {
    wn_serve_refuse(error, 500, "model", "the model \"%s\" cannot be loaded; the server's log says why", served->name);
  } else if (served->waiting >= served->worker.queue) {
    wn_serve_refuse(error, 429, "model", "the model \"%s\" is not loaded, and %d requests wait for it", served->name,
                    served->waiting);
  } else {
    request->next = NULL;
    *(served->first ? &served->last->next : &served->first) = request;
    served->last = request;
    served->waiting++;
    if (served->state == WN_SERVED_OUT) {
      served->state = WN_SERVED_WANTED;
      served->wanted = all->tick;
      pthread_cond_signal(&all->news);
    }
    entry = WN_HTTP_WAITS;
  }
  pthread_mutex_unlock(&all->lock);
  return entry;
}
