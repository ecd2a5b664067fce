/* The access log: a line of JSON for each request, when it has ended (docs/serve.md has the fields). Private to
 * src/serve.
 *
 * Lines go to a thread of their own, so that a slow disk keeps no request waiting: what does not fit into its buffer is
 * dropped, and counted in a line. Functions take NULL for a log, and for a request of a server without one. */
#ifndef WN_SERVE_ACCESS_H
#define WN_SERVE_ACCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "serve/keys.h"

enum { WN_ACCESS_BUFFER = 256 << 10, WN_ACCESS_ID = 48, WN_ACCESS_METHOD = 16, WN_ACCESS_PATH = 256 };

typedef void wn_access_write(void *user, const char *lines, size_t bytes);

struct wn_access_log {
  wn_access_write *write;
  void *user;
  pthread_t thread;
  pthread_mutex_t lock; /* protects the fields below */
  pthread_cond_t news;
  char *next, *now; /* [WN_ACCESS_BUFFER] lines for the thread; those that it writes */
  size_t bytes;
  uint64_t dropped;
  bool stop;
};
/* write: called by the log's thread, with whole lines and a NUL after them. */
wn_status wn_access_log_start(wn_context *ctx, wn_access_write *write, void *user, struct wn_access_log **out);
void wn_access_log_stop(struct wn_access_log *log); /* writes what there is; when no request is left */

/* What a job knows of its request. */
struct wn_access_job {
  char id[WN_ACCESS_ID];
  const char *model, *end; /* end: why the first answer ended; NULL: it has not */
  int64_t prompt, cached, written;
  double first; /* seconds from the request's arrival to its first token; 0: there was none */
  bool gone;    /* the client left */
};

/* A request, held by its connection and by its job; with the last of them it is written. */
struct wn_access;
/* NULL: there is no log, or no memory. */
struct wn_access *wn_access_open(struct wn_access_log *log, const char *method, const char *path);
void wn_access_key(struct wn_access *access, const char *label); /* by the server's thread */
/* The connection is done with it. status 0: it sent no answer; arrived: wn_seconds_now when the request had come. */
void wn_access_close(struct wn_access *access, int status, double arrived, bool gone);
/* A job holds it, until the job says how it went, with a model's name that is copied. */
struct wn_access *wn_access_hold(struct wn_access *access);
void wn_access_job(struct wn_access *access, const struct wn_access_job *job);

#endif
