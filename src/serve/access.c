#include "serve/access.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "text/normalize.h"

enum { SECRET = 5 + 16 /* "resp_" and half of a response's id */ };

struct wn_access {
  struct wn_access_log *log;
  atomic_int holders;
  int64_t began; /* wn_wall_nanoseconds */
  double arrived;
  char method[WN_ACCESS_METHOD], path[WN_ACCESS_PATH], key[WN_KEY_LABEL];
  int status;
  bool left, worked; /* left: the connection was closed before its end; worked: there was a job */
  char *model;
  struct wn_access_job job;
};

/* --- lines --- */

/* Text of a client's, for JSON. A response's id lets who knows it read the response: half of it is left out. */
static json_t *access_text(const char *text) {
  const char *secret = strstr(text, "resp_");
  const size_t all = strlen(text), n = secret ? (size_t)(secret - text) + SECRET : all;
  struct wn_bytes clean = {0};
  json_t *out = NULL;
  if (wn_utf8_replace_bad(text, n < all ? n : all, &clean) == WN_OK)
    out = json_stringn(clean.data ? clean.data : "", clean.count);
  wn_bytes_clear(&clean);
  return out;
}

static json_t *access_time(int64_t nanoseconds) {
  const time_t seconds = (time_t)(nanoseconds / 1000000000);
  struct tm t;
  char text[40];
  gmtime_r(&seconds, &t);
  const size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
  snprintf(text + n, sizeof text - n, ".%03dZ", (int)(nanoseconds / 1000000 % 1000));
  return json_string(text);
}

static json_t *access_number(bool known, json_int_t value) {
  return known ? json_integer(value) : json_null();
}

static json_t *access_seconds(bool known, double seconds) {
  return known ? json_real(seconds) : json_null();
}

/* Gives a line, released, to the log's thread. */
static void access_add(struct wn_access_log *log, json_t *line) {
  /* ASCII alone: no character that a terminal or a reader of lines takes for a control. */
  char *text = line ? json_dumps(line, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6)) : NULL;
  const size_t n = text ? strlen(text) + 1 : 0;
  json_decref(line);
  pthread_mutex_lock(&log->lock);
  if (text && n < WN_ACCESS_BUFFER - log->bytes) {
    memcpy(log->next + log->bytes, text, n);
    log->next[(log->bytes += n) - 1] = '\n';
    pthread_cond_signal(&log->news);
  } else {
    log->dropped++;
  }
  pthread_mutex_unlock(&log->lock);
  free(text);
}

static void access_release(struct wn_access *a) {
  if (atomic_fetch_sub(&a->holders, 1) > 1) return;
  const struct wn_access_job *j = &a->job;
  access_add(a->log,
             json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:b}", "time",
                       access_time(a->began), "id", a->worked ? access_text(j->id) : json_null(), "method",
                       access_text(a->method), "path", access_text(a->path), "status",
                       access_number(a->status > 0, a->status), "key", a->key[0] ? access_text(a->key) : json_null(),
                       "model", a->model ? json_string(a->model) : json_null(), "prompt_tokens",
                       access_number(a->worked, j->prompt), "cached_tokens", access_number(a->worked, j->cached),
                       "completion_tokens", access_number(a->worked, j->written), "first_token_seconds",
                       access_seconds(j->first > 0, j->first), "seconds",
                       access_seconds(true, wn_seconds_now() - a->arrived), "finish_reason", j->end, "client_gone",
                       a->left || j->gone));
  wn_free(a->model);
  wn_free(a);
}

/* --- requests --- */

struct wn_access *wn_access_open(struct wn_access_log *log, const char *method, const char *path) {
  struct wn_access *a;
  if (!log || WN_ALLOC(NULL, "a line of the access log", 1, &a) != WN_OK) return NULL;
  a->log = log;
  atomic_init(&a->holders, 1);
  a->began = wn_wall_nanoseconds();
  snprintf(a->method, sizeof a->method, "%s", method);
  snprintf(a->path, sizeof a->path, "%s", path);
  return a;
}

void wn_access_key(struct wn_access *a, const char *label) {
  if (a) snprintf(a->key, sizeof a->key, "%s", label);
}

void wn_access_close(struct wn_access *a, int status, double arrived, bool gone) {
  if (!a) return;
  a->status = status;
  a->arrived = arrived;
  a->left = gone;
  access_release(a);
}

struct wn_access *wn_access_hold(struct wn_access *a) {
  if (a) atomic_fetch_add(&a->holders, 1);
  return a;
}

void wn_access_job(struct wn_access *a, const struct wn_access_job *job) {
  if (!a) return;
  a->worked = true;
  a->job = *job;
  a->model = wn_strdup(NULL, job->model);
  access_release(a);
}

/* --- the thread --- */

static void *access_run(void *user) {
  struct wn_access_log *log = user;
  pthread_mutex_lock(&log->lock);
  for (;;) {
    while (log->bytes == 0 && log->dropped == 0 && !log->stop) pthread_cond_wait(&log->news, &log->lock);
    if (log->bytes == 0 && log->dropped == 0) break;
    char *lines = log->next, note[100];
    const size_t bytes = log->bytes;
    const unsigned long long dropped = log->dropped;
    log->next = log->now;
    log->now = lines;
    log->bytes = 0;
    log->dropped = 0;
    pthread_mutex_unlock(&log->lock);
    lines[bytes] = 0;
    if (bytes > 0) log->write(log->user, lines, bytes);
    const int n = snprintf(note, sizeof note, "{\"dropped\":%llu}\n", dropped);
    if (dropped > 0) log->write(log->user, note, (size_t)n);
    pthread_mutex_lock(&log->lock);
  }
  pthread_mutex_unlock(&log->lock);
  return NULL;
}

static void access_log_clear(struct wn_access_log *log) {
  pthread_cond_destroy(&log->news);
  pthread_mutex_destroy(&log->lock);
  wn_free(log->next);
  wn_free(log->now);
  wn_free(log);
}

wn_status wn_access_log_start(wn_context *ctx, wn_access_write *write, void *user, struct wn_access_log **out) {
  struct wn_access_log *log;
  wn_status status;
  WN_TRY(WN_ALLOC(ctx, "an access log", 1, &log));
  log->write = write;
  log->user = user;
  pthread_mutex_init(&log->lock, NULL);
  wn_cond_init(&log->news);
  WN_TRY_GOTO(WN_ALLOC(ctx, "lines of an access log", WN_ACCESS_BUFFER + 1, &log->next), fail);
  WN_TRY_GOTO(WN_ALLOC(ctx, "lines of an access log", WN_ACCESS_BUFFER + 1, &log->now), fail);
  const bool started = wn_thread_start(&log->thread, access_run, log);
  WN_TRY_GOTO(started ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "cannot start the thread of the access log"), fail);
  *out = log;
  return WN_OK;
fail:
  access_log_clear(log);
  return status;
}

void wn_access_log_stop(struct wn_access_log *log) {
  if (!log) return;
  pthread_mutex_lock(&log->lock);
  log->stop = true;
  pthread_cond_signal(&log->news);
  pthread_mutex_unlock(&log->lock);
  pthread_join(log->thread, NULL);
  access_log_clear(log);
}
