#include "serve/worker.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "decode/drafts.h"
#include "decode/session.h"
#include "serve/choice.h"

/* UNREAD: a choice pauses while its client has so many bytes unread. PASSES: so many choices may get a slot before one
 * that arrived earlier and waits for memory. OLDEST_FIRST: in every so many rounds the oldest prompt is read, in others
 * the one that has the fewest tokens left. */
enum { FLUSH_MILLISECONDS = 5, UNREAD = 256 << 10, PASSES = 32, OLDEST_FIRST = 4 };

struct running {
  struct wn_serve_worker *w;
  struct wn_serve_job *first, *last; /* jobs in the order of their arrival */
  unsigned round;
};

static bool running_fits(const struct wn_serve_worker *w, const struct wn_serve_choice *c) {
  return w->cache_memory == 0 || w->counts.cache_bytes + c->cache_bytes + c->draft_bytes <= w->cache_memory;
}

static wn_session_options choice_options(const struct wn_serve_worker *w, const struct wn_serve_choice *c) {
  const struct wn_serve_request *r = &c->job->request;
  return (wn_session_options){.size = sizeof(wn_session_options),
                              .sequences = 1,
                              .capacity = c->prompt->count + wn_choice_tokens(w, c),
                              .budgets = wn_serve_budgets(&w->model, r),
                              .cache = w->model.cache,
                              .tau = r->tau,
                              .group = w->group};
}

/* Sets what the draft model's cache takes; under budgets there are no drafts. */
static wn_status choice_plan_drafts(const struct wn_serve_worker *w, wn_context *ctx, const wn_session_options *options,
                                    struct wn_serve_choice *c) {
  size_t bytes = 0;
  if (w->model.draft && w->draft > 0 && options->budgets->layers == 0)
    WN_TRY(wn_drafts_plan_bytes(ctx, w->model.draft, options->capacity, &bytes));
  c->draft_bytes = bytes;
  return WN_OK;
}

bool wn_serve_worker_fits(const struct wn_serve_worker *w, wn_context *ctx, struct wn_serve_job *job,
                          struct wn_serve_error *error) {
  for (int i = 0; i < job->count && w->cache_memory > 0; i++) {
    struct wn_serve_choice *c = &job->choices[i];
    const wn_session_options options = choice_options(w, c);
    size_t bytes;
    if (wn_session_plan_bytes(ctx, w->model.model, &options, options.capacity, &bytes) != WN_OK ||
        choice_plan_drafts(w, ctx, &options, c) != WN_OK)
      return wn_serve_refuse(error, 400, "", "%s", wn_context_error(ctx));
    c->cache_bytes = bytes;
    if (bytes + c->draft_bytes > w->cache_memory)
      return wn_serve_refuse(error, 400, "", "the request's cache needs %llu bytes, the server has %llu",
                             (unsigned long long)(bytes + c->draft_bytes), (unsigned long long)w->cache_memory);
  }
  return true;
}

/* Gives a choice a slot, if its cache fits. False: it waits, or `status` says what failed. */
static bool running_admit(struct running *x, struct wn_serve_choice *c, wn_status *status) {
  struct wn_serve_worker *w = x->w;
  const wn_session_options options = choice_options(w, c);
  *status = WN_OK;
  if (!running_fits(w, c)) return false;
  if ((*status = choice_plan_drafts(w, w->model.ctx, &options, c)) != WN_OK) return false;
  *status = wn_session_create(w->model.ctx, w->model.model, &options, &c->session);
  if (*status == WN_ERR_MEMORY && w->prefix.counts.bytes > 0) { /* kept states of prompts give way */
    wn_prefix_shrink(&w->prefix, 0);
    *status = wn_session_create(w->model.ctx, w->model.model, &options, &c->session);
  }
  for (int i = 0; *status == WN_OK && i < c->prompt->pins.count; i++) {
    const struct wn_pin *pin = &c->prompt->pins.of[i];
    *status = wn_session_pin(w->model.ctx, c->session, pin->first, pin->end - pin->first);
  }
  if (*status != WN_OK) {
    wn_session_destroy(c->session);
    c->session = NULL;
    return false;
  }
  size_t planned; /* a cache that will be compressed grows to this first */
  c->cache_bytes = wn_session_kv_bytes(c->session);
  if (wn_session_plan_bytes(w->model.ctx, w->model.model, &options, options.capacity, &planned) == WN_OK &&
      planned > c->cache_bytes)
    c->cache_bytes = planned;
  c->job->running++;
  c->model = &w->model;
  pthread_mutex_lock(&w->lock);
  w->counts.running++;
  w->counts.waiting--;
  w->counts.cache_bytes += c->cache_bytes + c->draft_bytes;
  if (!c->job->admitted) wn_histogram_add(&w->counts.times[WN_TIME_QUEUE], wn_seconds_now() - c->job->arrived);
  c->job->admitted = true;
  pthread_mutex_unlock(&w->lock);
  wn_prefix_shrink(&w->prefix, wn_worker_prefix_room(w));
  wn_worker_prefix_publish(w);
  *status = wn_choice_begin(w, c);
  return true;
}

/* Gives up the unfinished choices of a job. */
static void running_drop(struct running *x, struct wn_serve_job *job) {
  for (int i = 0; i < job->count; i++) {
    struct wn_serve_choice *c = &job->choices[i];
    if (c->session) wn_choice_leave(x->w, c);
    if (c->state == WN_CHOICE_WAITS) {
      pthread_mutex_lock(&x->w->lock);
      x->w->counts.waiting--;
      pthread_mutex_unlock(&x->w->lock);
    }
    c->state = WN_CHOICE_DONE;
  }
}

/* The HTTP status for an error: a bad request, a lack of memory, a timeout, ... */
static int running_http_status(wn_status status) {
  return status == WN_ERR_ARGUMENT || status == WN_ERR_UNSUPPORTED || status == WN_ERR_CONFIG ? 400
         : status == WN_ERR_MEMORY                                                            ? 503
         : status == WN_ERR_CANCELLED                                                         ? 504
                                                                                              : 500;
}

static void running_fail(struct running *x, struct wn_serve_job *job, wn_status status) {
  running_drop(x, job);
  job->failed = status == WN_ERR_CANCELLED ? "timeout" : "error";
  wn_job_fail(job, running_http_status(status), wn_context_error(x->w->model.ctx));
  pthread_mutex_lock(&x->w->lock);
  x->w->counts.failed++;
  pthread_mutex_unlock(&x->w->lock);
}

/* May the job go on? It pauses while its client does not read, since unread text is in memory. */
static bool running_may_step(struct running *x, struct wn_serve_job *job) {
  const double timeout = x->w->timeout;
  if (job->finished || job->gone) return false;
  if (timeout > 0 && wn_seconds_now() - job->arrived > timeout) {
    const wn_status status =
        wn_fail(x->w->model.ctx, WN_ERR_CANCELLED, "the request was not answered within %g seconds", timeout);
    running_fail(x, job, status);
    return false;
  }
  return !job->request.stream || job->out.bytes - job->sent < UNREAD;
}

/* Handles the result of a choice's part in a round. */
static void running_settle(struct running *x, struct wn_serve_choice *c, wn_status status, bool more) {
  if (status != WN_OK) {
    running_fail(x, c->job, status);
  } else if (!more) {
    wn_choice_leave(x->w, c);
    wn_job_finish_choice(&x->w->model, c);
  }
}

/* The choice that gets the next slot: of the jobs that have the fewest, the oldest's. NULL: none waits. */
static struct wn_serve_choice *running_next(struct running *x) {
  struct wn_serve_choice *next = NULL;
  for (struct wn_serve_job *job = x->first; job; job = job->next) {
    if (job->blocked || (next && job->running >= next->job->running) || !running_may_step(x, job)) continue;
    for (int i = 0; i < job->count; i++)
      if (job->choices[i].state == WN_CHOICE_WAITS) {
        next = &job->choices[i];
        break;
      }
  }
  return next;
}

/* Gives free slots to waiting choices. */
static void running_admit_all(struct running *x) {
  struct wn_serve_worker *w = x->w;
  struct wn_serve_job *first = NULL; /* that waits for memory */
  for (struct wn_serve_job *job = x->first; job; job = job->next) job->blocked = false;
  while (w->counts.running < w->slots && !(first && first->passed >= PASSES)) {
    struct wn_serve_choice *c = running_next(x);
    wn_status status;
    if (!c) return;
    const bool admitted = running_admit(x, c, &status);
    if (status != WN_OK) {
      running_fail(x, c->job, status);
    } else if (admitted) {
      c->job->passed = 0;
      if (first) first->passed++;
    } else {
      c->job->blocked = true;
      if (!first) first = c->job;
    }
  }
}

/* Whose prompt is read a piece further in this round: answers being written wait for one piece and no more. NULL: all
 * prompts have been read. */
static struct wn_serve_choice *running_reader(struct running *x) {
  const bool oldest = x->round++ % OLDEST_FIRST == 0;
  struct wn_serve_choice *reader = NULL;
  int64_t least = INT64_MAX;
  for (struct wn_serve_job *job = x->first; job; job = job->next) {
    if (!running_may_step(x, job)) continue;
    for (int i = 0; i < job->count; i++) {
      struct wn_serve_choice *c = &job->choices[i];
      if (!c->session || !wn_choice_reads(c)) continue;
      const int64_t left = c->prompt->count - wn_session_position(c->session);
      if (left < least) reader = c, least = left;
      if (oldest) return reader;
    }
  }
  return reader;
}

/* The first half of a round. Gives slots to waiting choices; lets one unread prompt have its turn; puts choices that
 * write into w->turns. Returns how many these are. */
static int64_t running_gather(struct running *x, bool *any) {
  struct wn_serve_worker *w = x->w;
  int64_t n = 0;
  running_admit_all(x);
  const struct wn_serve_choice *reader = running_reader(x);
  for (struct wn_serve_job *job = x->first; job; job = job->next) {
    if (!running_may_step(x, job)) continue;
    for (int i = 0; i < job->count && !job->finished && !job->gone; i++) {
      struct wn_serve_choice *c = &job->choices[i];
      wn_status status = WN_OK;
      bool more = true;
      if (!c->session) continue;
      *any = true;
      if (c == reader)
        status = wn_choice_before(w, c, &more);
      else if (wn_choice_reads(c))
        continue;
      running_settle(x, c, status, more);
      while (status != WN_OK && n > 0 && w->writing[n - 1]->job == job) n--; /* they ended with the job */
      if (status != WN_OK || !more || c->state != WN_CHOICE_WRITES) continue;
      w->turns[n].generation = c->generation;
      w->writing[n++] = c;
    }
  }
  return n;
}

/* Runs a round. False: there was nothing to do. */
static bool running_step(struct running *x) {
  struct wn_serve_worker *w = x->w;
  bool any = false;
  const int64_t n = running_gather(x, &any);
  if (n > 0) (void)wn_generation_step_together(w->model.ctx, w->group, w->turns, n, 0);
  for (int64_t i = 0; i < n; i++) {
    struct wn_serve_choice *c = w->writing[i];
    if (!c->session) continue; /* its job has failed because of another choice */
    wn_status status = w->turns[i].status;
    if (status == WN_OK) status = wn_choice_after(w, c, w->turns[i].more);
    running_settle(x, c, status, w->turns[i].more);
  }
  return any;
}

/* Sends what there is to send, and frees the slots of clients that have left. False: nothing was sent. */
static bool running_send(struct running *x, struct wn_serve_job *job) {
  for (int i = 0; i < job->count; i++) wn_trace_step(&x->w->model, &job->choices[i]);
  if (job->out.failed && !job->finished)
    running_fail(x, job, wn_fail(x->w->model.ctx, WN_ERR_MEMORY, "out of memory: an answer"));
  const size_t left = job->out.data ? job->out.bytes - job->sent : 0;
  const size_t n = wn_http_stream_offer(job->stream, left ? job->out.data + job->sent : "", left);
  if (n == SIZE_MAX) {
    if (!job->finished) running_drop(x, job);
    job->gone = true;
    return true;
  }
  job->sent += n;
  if (job->sent == job->out.bytes) job->sent = job->out.bytes = 0;
  return n > 0;
}

static void running_remove(struct running *x, struct wn_serve_job *job, struct wn_serve_job *before) {
  struct wn_serve_worker *w = x->w;
  pthread_mutex_lock(&w->lock);
  w->counts.jobs--;
  if (job->gone && !job->finished) w->counts.cancelled++;
  if (job->done == job->count) wn_histogram_add(&w->counts.times[WN_TIME_REQUEST], wn_seconds_now() - job->arrived);
  pthread_mutex_unlock(&w->lock);
  if (before)
    before->next = job->next;
  else
    x->first = job->next;
  if (x->last == job) x->last = before;
  wn_http_stream_end(job->stream);
  wn_job_destroy(job);
}

static bool running_flush(struct running *x) {
  bool any = false;
  for (struct wn_serve_job *job = x->first, *before = NULL, *next; job; job = next) {
    next = job->next;
    any = running_send(x, job) || any;
    if (job->gone || (job->finished && job->out.bytes == 0))
      running_remove(x, job, before);
    else
      before = job;
  }
  return any;
}

/* Counts what the caches hold now, by policy. */
static void running_count(struct running *x) {
  struct wn_serve_worker *w = x->w;
  const wn_model_config *config = wn_model_config_get(w->model.model);
  struct wn_serve_caches caches[WN_SERVE_POLICIES] = {{0}};
  for (const struct wn_serve_job *job = x->first; job; job = job->next)
    for (int i = 0; i < job->count; i++) {
      const struct wn_serve_choice *c = &job->choices[i];
      int64_t held = 0;
      if (!c->session) continue;
      const wn_budgets *budgets = wn_serve_budgets(&w->model, &job->request);
      struct wn_serve_caches *to = &caches[budgets->layers > 0 ? budgets->policy : WN_SERVE_POLICIES - 1];
      for (int64_t l = 0; l < config->layers; l++) held += wn_session_held_tokens(c->session, l);
      to->bytes += c->cache_bytes;
      to->tokens += (uint64_t)held / (uint64_t)(config->layers * config->kv_heads);
    }
  pthread_mutex_lock(&w->lock);
  memcpy(w->counts.caches, caches, sizeof caches);
  pthread_mutex_unlock(&w->lock);
}

/* Takes new jobs from the queue. False: the worker is to stop. */
static bool running_take(struct running *x, bool idle) {
  struct wn_serve_worker *w = x->w;
  pthread_mutex_lock(&w->lock);
  while (!w->added && !w->stop && idle) {
    if (!x->first) {
      pthread_cond_wait(&w->news, &w->lock);
      continue;
    }
    /* a client is slow: look again soon */
    wn_cond_wait_until(&w->news, &w->lock, wn_seconds_now() + 1e-3 * FLUSH_MILLISECONDS);
    break;
  }
  struct wn_serve_job *added = NULL;
  while (w->added) { /* oldest first */
    struct wn_serve_job *job = w->added;
    w->added = job->next;
    job->next = added;
    added = job;
  }
  const bool stop = w->stop;
  pthread_mutex_unlock(&w->lock);
  if (added && x->last)
    x->last->next = added;
  else if (added)
    x->first = added;
  for (; added; added = added->next) x->last = added;
  return !stop;
}

static void *worker_run(void *user) {
  struct running x = {.w = user};
  bool idle = true;
  while (running_take(&x, idle)) {
    const bool stepped = running_step(&x), sent = running_flush(&x);
    idle = !stepped && !sent;
    running_count(&x);
  }
  for (struct wn_serve_job *job = x.first, *next; job; job = next) {
    next = job->next;
    running_drop(&x, job);
    wn_http_stream_end(job->stream);
    wn_job_destroy(job);
  }
  wn_prefix_shrink(&x.w->prefix, 0);
  wn_worker_prefix_publish(x.w);
  return NULL;
}

/* Allocates the arrays of a round. */
static wn_status worker_room(wn_context *ctx, struct wn_serve_worker *w) {
  WN_TRY(wn_session_group_create(ctx, w->model.model, w->slots + w->draft, &w->group));
  WN_TRY(WN_ALLOC(ctx, "turns of answers", w->slots, &w->turns));
  return WN_ALLOC(ctx, "answers of a round", w->slots, &w->writing);
}

static void worker_room_clear(struct wn_serve_worker *w) {
  wn_session_group_destroy(w->group);
  wn_free(w->turns);
  wn_free(w->writing);
  w->group = NULL, w->turns = NULL, w->writing = NULL;
}

void wn_serve_worker_open(struct wn_serve_worker *w) {
  pthread_mutex_init(&w->lock, NULL);
  wn_cond_init(&w->news);
}

void wn_serve_worker_close(struct wn_serve_worker *w) {
  pthread_cond_destroy(&w->news);
  pthread_mutex_destroy(&w->lock);
}

wn_status wn_serve_worker_start(wn_context *ctx, struct wn_serve_worker *w) {
  WN_TRY(worker_room(ctx, w));
  w->stop = false;
  w->started = wn_thread_start(&w->thread, worker_run, w);
  return w->started ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "cannot start the thread that runs the model");
}

void wn_serve_worker_stop(struct wn_serve_worker *w) {
  if (!w->started) return;
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_cond_signal(&w->news);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  w->started = false;
}

void wn_serve_worker_clear(struct wn_serve_worker *w) {
  worker_room_clear(w);
}

bool wn_serve_worker_add(struct wn_serve_worker *w, struct wn_serve_job *job) {
  pthread_mutex_lock(&w->lock);
  const bool room = w->counts.jobs < w->queue && !w->stop;
  if (room) {
    w->counts.jobs++;
    w->counts.requests++;
    w->counts.waiting += job->count;
    w->counts.prompt_tokens += (uint64_t)job->prompt_tokens;
    job->next = w->added;
    w->added = job;
    pthread_cond_signal(&w->news);
  } else {
    w->counts.refused++;
  }
  pthread_mutex_unlock(&w->lock);
  return room;
}

void wn_serve_worker_counts(struct wn_serve_worker *w, struct wn_serve_counts *out) {
  pthread_mutex_lock(&w->lock);
  *out = w->counts;
  pthread_mutex_unlock(&w->lock);
}
