/* The live view of a run: two routes, and a lock between the server's thread and the trainer's. The page is built once,
 * at the start. It asks for new points as JSON, from the place where the last answer ended. A place is
 * "generation.index"; when older points are thinned out the generation changes, and the next answer has all points. */
#include "winnow/serve.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/misuse.h"
#include "base/options.h"
#include "serve/http.h"
#include "winnow/report.h"

enum { LIVE_POINTS = 65536 };

struct point {
  int64_t step;
  double tokens, seconds, loss, val_loss; /* val_loss NAN: not measured */
};

struct wn_live {
  struct wn_http *http;
  char *page;
  size_t page_bytes;
  pthread_mutex_t lock; /* protects the fields below */
  struct point *points; /* [LIVE_POINTS] */
  int64_t count, generation, step, steps;
  double seconds_before; /* seconds of earlier parts of the run */
  bool done, told;       /* done: the run has ended; told: a page has received that */
  double asked;          /* when a page last asked */
  pthread_cond_t heard;
};

/* ---- answers ---- */

static void live_add_number(struct wn_text *t, const char *name, double v) {
  if (isfinite(v)) wn_text_add(t, ",\"%s\":%.9g", name, v);
}

/* Writes the points after place generation.index. True: the run has ended and these are the last. */
static bool live_log_json(wn_live *live, int64_t generation, int64_t index, struct wn_text *t) {
  pthread_mutex_lock(&live->lock);
  const bool done = live->done;
  const bool reset = generation != live->generation || index < 0 || index > live->count;
  wn_text_add(t,
              "{\"reset\":%s,\"next\":\"%" PRId64 ".%" PRId64 "\",\"step\":%" PRId64 ",\"steps\":%" PRId64
              ",\"done\":%s,\"points\":[",
              reset ? "true" : "false", live->generation, live->count, live->step, live->steps,
              done ? "true" : "false");
  for (int64_t i = reset ? 0 : index; i < live->count; i++) {
    const struct point *p = &live->points[i];
    wn_text_add(t, "%s{\"step\":%" PRId64, i > (reset ? 0 : index) ? "," : "", p->step);
    live_add_number(t, "tokens", p->tokens);
    live_add_number(t, "seconds", p->seconds);
    live_add_number(t, "loss", p->loss);
    live_add_number(t, "val_loss", p->val_loss);
    wn_text_add(t, "}");
  }
  wn_text_add(t, "]}");
  live->asked = wn_seconds_now();
  pthread_mutex_unlock(&live->lock);
  return done;
}

/* A page has received the end: the server may stop. */
static void live_on_told(void *user) {
  wn_live *live = user;
  pthread_mutex_lock(&live->lock);
  live->told = true;
  pthread_cond_signal(&live->heard);
  pthread_mutex_unlock(&live->lock);
}

static void live_answer_page(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const wn_live *live = request->user;
  answer->fixed = live->page;
  answer->fixed_bytes = live->page_bytes;
}

static void live_answer_log(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const char *after = wn_http_query(request, "after");
  int64_t generation = -1, index = -1;
  if (after && sscanf(after, "%19" SCNd64 ".%19" SCNd64, &generation, &index) != 2) generation = -1;
  if (live_log_json(request->user, generation, index, &answer->text)) answer->sent = live_on_told;
}

static const struct wn_http_route live_routes[] = {
    {.method = "GET", .path = "/", .type = "text/html; charset=utf-8", .handle = live_answer_page},
    {.method = "GET", .path = "/log", .type = "application/json", .handle = live_answer_log},
};

/* ---- the run's side ---- */

/* Drops every second older point, except those with a validation. Called with the lock held. */
static void live_thin(wn_live *live) {
  int64_t kept = 0;
  for (int64_t i = 0; i < live->count; i++)
    if (i % 2 == 1 || isfinite(live->points[i].val_loss)) live->points[kept++] = live->points[i];
  if (kept > LIVE_POINTS * 3 / 4) { /* nearly all points have a validation */
    for (int64_t i = 0; i < kept / 2; i++) live->points[i] = live->points[2 * i + 1];
    kept /= 2;
  }
  live->count = kept;
  live->generation++;
}

static void live_add_point(wn_live *live, const struct point *p) {
  pthread_mutex_lock(&live->lock);
  if (live->count == LIVE_POINTS) live_thin(live);
  live->points[live->count++] = *p;
  live->step = p->step;
  pthread_mutex_unlock(&live->lock);
}

void wn_live_add(wn_live *live, const wn_train_progress *p) {
  WN_CHECK_OR(, WN_HANDLE(live, LIVE), WN_POINTER(p));
  const struct point point = {.step = p->step,
                              .tokens = (double)p->tokens,
                              .seconds = live->seconds_before + p->seconds,
                              .loss = p->loss,
                              .val_loss = p->evaluated ? p->val_loss : NAN};
  pthread_mutex_lock(&live->lock);
  live->steps = p->steps;
  pthread_mutex_unlock(&live->lock);
  live_add_point(live, &point);
}

void wn_live_add_log(wn_live *live, const wn_train_log *log) {
  WN_CHECK_OR(, WN_HANDLE(live, LIVE), WN_POINTER(log));
  for (int64_t i = 0; i < log->count; i++) {
    const struct point point = {.step = (int64_t)log->step[i],
                                .tokens = log->tokens[i],
                                .seconds = log->seconds[i],
                                .loss = log->loss[i],
                                .val_loss = log->val_loss[i]};
    live_add_point(live, &point);
    if (isfinite(log->seconds[i])) live->seconds_before = log->seconds[i];
  }
}

void wn_live_finish(wn_live *live) {
  WN_CHECK_OR(, WN_HANDLE(live, LIVE));
  pthread_mutex_lock(&live->lock);
  live->done = true;
  /* Pages ask every second, so an open page gets the end, even on a busy machine. */
  if (live->asked > 0 && wn_seconds_now() - live->asked < WN_LIVE_WAIT) {
    const double until = wn_seconds_now() + WN_LIVE_WAIT;
    while (!live->told && wn_seconds_now() < until) wn_cond_wait_until(&live->heard, &live->lock, until);
  }
  pthread_mutex_unlock(&live->lock);
}

int wn_live_port(const wn_live *live) {
  WN_CHECK_OR(0, WN_HANDLE(live, LIVE));
  return wn_http_port(live->http);
}

/* ---- start and stop ---- */

static wn_status live_build_page(wn_context *ctx, const wn_live_options *o, wn_live *live) {
  const wn_page_options options = {.size = sizeof options,
                                   .title = o->title ? o->title : "winnow train",
                                   .lead = "A run while it trains; the curves grow by themselves.",
                                   .live = "loss"};
  const wn_figure_series series[] = {
      {.name = "training", .key = "loss"},
      {.name = "validation", .key = "val_loss", .colour = 1, .dash = 1},
  };
  const wn_figure figure = {.id = "loss",
                            .title = "Loss",
                            .about = "Nats per token: the training batch of each step, and the validation set.",
                            .command = o->command ? o->command : "winnow train --serve",
                            .axes = 3,
                            .x = {{"tokens", false}, {"seconds", false}, {"step", false}},
                            .y = {"loss", false},
                            .smooth = true,
                            .series = series,
                            .series_count = 2};
  wn_page *page;
  WN_TRY(wn_page_create(ctx, &options, &page));
  wn_status status = wn_page_add_section(page, "Training");
  if (status == WN_OK) status = wn_page_add_figure(page, &figure);
  if (status == WN_OK) status = wn_page_html(page, &live->page, &live->page_bytes);
  wn_page_destroy(page);
  return status;
}

wn_status wn_live_start(wn_context *ctx, const wn_live_options *options, wn_live **out) {
  WN_CHECK_WORK(WN_POINTER(out));
  wn_live_options own;
  wn_live *live;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_live_options, options, &own));
  options = &own;
  WN_TRY(WN_ALLOC(ctx, "live view", 1, &live));
  wn_handle_mark(live, WN_HANDLE_LIVE);
  pthread_mutex_init(&live->lock, NULL);
  wn_cond_init(&live->heard);
  wn_status status = WN_ALLOC(ctx, "points of the live view", LIVE_POINTS, &live->points);
  if (status == WN_OK) status = live_build_page(ctx, options, live);
  if (status == WN_OK) {
    const struct wn_http_options http = {.address = options->address,
                                         .port = options->port,
                                         .routes = live_routes,
                                         .route_count = (int)(sizeof live_routes / sizeof *live_routes),
                                         .user = live};
    status = wn_http_start(ctx, &http, &live->http);
  }
  if (status != WN_OK) {
    wn_live_stop(live);
    return status;
  }
  *out = live;
  return WN_OK;
}

void wn_live_stop(wn_live *live) {
  WN_CHECK_OR(, WN_HANDLE(live, LIVE));
  wn_http_stop(live->http);
  pthread_cond_destroy(&live->heard);
  pthread_mutex_destroy(&live->lock);
  wn_text_free(live->page);
  wn_free(live->points);
  wn_free(live);
}
