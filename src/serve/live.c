/* The live view of a run: libmicrohttpd answers, a lock lies between its threads and the trainer's. The page is built
 * once, at the start; what grows is asked for as JSON, from the place where the page's last answer ended. A place is
 * "generation.index": when older points were thinned out the generation changes, and an answer begins anew. */
#include "winnow/serve.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <math.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "winnow/report.h"

enum { MOST = 65536 };

struct point {
  int64_t step;
  double tokens, seconds, loss, val_loss; /* val_loss NAN: not measured */
};

struct wn_live {
  struct MHD_Daemon *daemon;
  char *page;
  size_t page_bytes;
  bool loopback;
  int port;
  pthread_mutex_t lock; /* for what follows */
  struct point *points; /* [MOST] */
  int64_t count, generation, step, steps;
  double seconds_before; /* of earlier parts of the run */
  bool done, told;       /* told: a page has heard that it is */
  double asked;          /* when a page last asked */
  pthread_cond_t heard;
};

/* ---- answers ---- */

static void add_number(struct wn_text *t, const char *name, double v) {
  if (isfinite(v)) wn_text_add(t, ",\"%s\":%.9g", name, v);
}

/* The points after number generation.index. True: the run has ended with them. */
static bool log_json(wn_live *live, int64_t generation, int64_t index, struct wn_text *t) {
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
    add_number(t, "tokens", p->tokens);
    add_number(t, "seconds", p->seconds);
    add_number(t, "loss", p->loss);
    add_number(t, "val_loss", p->val_loss);
    wn_text_add(t, "}");
  }
  wn_text_add(t, "]}");
  live->asked = wn_seconds_now();
  pthread_mutex_unlock(&live->lock);
  return done;
}

/* An answer has left: if it told the end, the server may go. */
static void on_completed(void *user, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode how) {
  wn_live *live = user;
  (void)c;
  if (*state != live || how != MHD_REQUEST_TERMINATED_COMPLETED_OK) return;
  pthread_mutex_lock(&live->lock);
  live->told = true;
  pthread_cond_signal(&live->heard);
  pthread_mutex_unlock(&live->lock);
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *type, const char *text,
                              size_t bytes) {
  struct MHD_Response *r = MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
  if (!r) return MHD_NO;
  MHD_add_response_header(r, "Content-Type", type);
  MHD_add_response_header(r, "Cache-Control", "no-store");
  MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(r, "Allow", "GET, HEAD");
  const enum MHD_Result result = MHD_queue_response(c, code, r);
  MHD_destroy_response(r);
  return result;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned code, const char *text) {
  return answer(c, code, "text/plain; charset=utf-8", text, strlen(text));
}

/* Does the request name this machine, with any port? */
static bool names_loopback(const char *host) {
  static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
  for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
    const size_t n = strlen(names[i]);
    if (!strncmp(host, names[i], n) && (host[n] == 0 || host[n] == ':')) return true;
  }
  return false;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state) {
  wn_live *live = user;
  (void)version;
  (void)upload;
  if (*upload_bytes > 0) { /* not looked at */
    *upload_bytes = 0;
    return MHD_YES;
  }
  if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
    return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
  if (live->loopback && !names_loopback(MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST)))
    return say(c, MHD_HTTP_FORBIDDEN, "ask for localhost\n");
  if (!strcmp(url, "/")) return answer(c, MHD_HTTP_OK, "text/html; charset=utf-8", live->page, live->page_bytes);
  if (strcmp(url, "/log") != 0) return say(c, MHD_HTTP_NOT_FOUND, "not here\n");
  const char *after = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "after");
  int64_t generation = -1, index = -1;
  if (after && sscanf(after, "%19" SCNd64 ".%19" SCNd64, &generation, &index) != 2) generation = -1;
  struct wn_text t = {0};
  if (log_json(live, generation, index, &t)) *state = live;
  const enum MHD_Result result = t.failed ? say(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n")
                                          : answer(c, MHD_HTTP_OK, "application/json", t.data, t.bytes);
  wn_free(t.data);
  return result;
}

/* ---- the run's side ---- */

/* Older points, every second of them, but for validations. Called with the lock. */
static void thin(wn_live *live) {
  int64_t kept = 0;
  for (int64_t i = 0; i < live->count; i++)
    if (i % 2 == 1 || isfinite(live->points[i].val_loss)) live->points[kept++] = live->points[i];
  if (kept > MOST * 3 / 4) { /* validations everywhere */
    for (int64_t i = 0; i < kept / 2; i++) live->points[i] = live->points[2 * i + 1];
    kept /= 2;
  }
  live->count = kept;
  live->generation++;
}

static void add(wn_live *live, const struct point *p) {
  pthread_mutex_lock(&live->lock);
  if (live->count == MOST) thin(live);
  live->points[live->count++] = *p;
  live->step = p->step;
  pthread_mutex_unlock(&live->lock);
}

void wn_live_add(wn_live *live, const wn_train_progress *p) {
  const struct point point = {.step = p->step,
                              .tokens = (double)p->tokens,
                              .seconds = live->seconds_before + p->seconds,
                              .loss = p->loss,
                              .val_loss = p->evaluated ? p->val_loss : NAN};
  pthread_mutex_lock(&live->lock);
  live->steps = p->steps;
  pthread_mutex_unlock(&live->lock);
  add(live, &point);
}

void wn_live_add_log(wn_live *live, const wn_train_log *log) {
  for (int64_t i = 0; i < log->count; i++) {
    const struct point point = {.step = (int64_t)log->step[i],
                                .tokens = log->tokens[i],
                                .seconds = log->seconds[i],
                                .loss = log->loss[i],
                                .val_loss = log->val_loss[i]};
    add(live, &point);
    if (isfinite(log->seconds[i])) live->seconds_before = log->seconds[i];
  }
}

void wn_live_finish(wn_live *live) {
  pthread_mutex_lock(&live->lock);
  live->done = true;
  /* Pages ask every second: one that is open gets the end, on a busy machine too. */
  if (live->asked > 0 && wn_seconds_now() - live->asked < 5) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    while (!live->told && pthread_cond_timedwait(&live->heard, &live->lock, &until) == 0) continue;
  }
  pthread_mutex_unlock(&live->lock);
}

int wn_live_port(const wn_live *live) {
  return live->port;
}

/* ---- start and stop ---- */

static wn_status build_page(wn_context *ctx, const wn_live_options *o, wn_live *live) {
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
                            .about = "Nats a token: the training batch of each step, and the validation set.",
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

static wn_status listen_at(wn_context *ctx, const wn_live_options *o, wn_live *live) {
  const char *address = o->address ? o->address : "127.0.0.1";
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port)};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)o->port)};
  const bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
  if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "\"%s\" is not an IP address to listen on", address);
  if (o->port < 0 || o->port > 65535) return wn_fail(ctx, WN_ERR_ARGUMENT, "port %d; expected 0 to 65535", o->port);
  live->loopback = is_four ? ntohl(four.sin_addr.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
  const struct sockaddr *at =
      is_four ? (const struct sockaddr *)(const void *)&four : (const struct sockaddr *)(const void *)&six;
  /* Signals belong to the program's own threads. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  live->daemon =
      MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | (is_four ? 0 : MHD_USE_IPv6), 0, NULL, NULL, on_request, live,
                       MHD_OPTION_SOCK_ADDR, at, MHD_OPTION_CONNECTION_LIMIT, 64u, MHD_OPTION_CONNECTION_TIMEOUT, 30u,
                       MHD_OPTION_NOTIFY_COMPLETED, on_completed, live, MHD_OPTION_END);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!live->daemon)
    return wn_fail(ctx, WN_ERR_IO, "cannot listen on %s port %d: taken, or not allowed", address, o->port);
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(live->daemon, MHD_DAEMON_INFO_BIND_PORT);
  live->port = info ? info->port : o->port;
  return WN_OK;
}

wn_status wn_live_start(wn_context *ctx, const wn_live_options *options, wn_live **out) {
  void *memory, *points;
  wn_live_options own;
  *out = NULL;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_live_options, options, &own));
  options = &own;
  WN_TRY(wn_alloc(ctx, "live view", sizeof **out, &memory));
  wn_live *live = memory;
  pthread_mutex_init(&live->lock, NULL);
  pthread_cond_init(&live->heard, NULL);
  wn_status status = wn_alloc(ctx, "points of the live view", MOST * sizeof(struct point), &points);
  if (status == WN_OK) {
    live->points = points;
    status = build_page(ctx, options, live);
  }
  if (status == WN_OK) status = listen_at(ctx, options, live);
  if (status != WN_OK) {
    wn_live_stop(live);
    return status;
  }
  *out = live;
  return WN_OK;
}

void wn_live_stop(wn_live *live) {
  if (!live) return;
  if (live->daemon) MHD_stop_daemon(live->daemon);
  pthread_cond_destroy(&live->heard);
  pthread_mutex_destroy(&live->lock);
  wn_text_free(live->page);
  wn_free(live->points);
  wn_free(live);
}
