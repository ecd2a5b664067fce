/* The worker: one thread that runs the model for all requests. In a round all answers that are being written get one
 * token together (wn_generation_step_together), and one prompt is read a piece further. Answers join and leave at any
 * round, and none waits for another to end. No request keeps out the others: slots go to the requests that have the
 * fewest, one that waits for memory lets some of those behind it pass, and short prompts are read before long ones.
 * Each has a session of its own; no bit of an answer depends on the other answers. */
#ifndef WN_SERVE_WORKER_H
#define WN_SERVE_WORKER_H

#include <pthread.h>
#include "serve/job.h"
#include "serve/metrics.h"

struct wn_serve_worker {
  struct wn_serve_model model;      /* with the worker's own context */
  int slots, queue;                 /* the most answers at a time; the most requests at a time */
  int draft;                        /* the most drafts of a round; 0: none */
  uint64_t cache_memory;            /* the most bytes of all caches and kept states of prompts; 0: no limit */
  struct wn_prefix prefix;          /* only the thread uses it */
  double timeout;                   /* seconds from a request's arrival to its end; 0: no limit */
  wn_session_group *group;          /* for `slots`, and `draft` rows more */
  wn_generation_turn *turns;        /* [slots] of a round */
  struct wn_serve_choice **writing; /* [slots] the choices of `turns` */
  pthread_t thread;
  pthread_mutex_t lock; /* protects the fields below */
  pthread_cond_t news;
  struct wn_serve_job *added; /* newest first */
  struct wn_serve_counts counts;
  bool stop;
  bool started;
};

void wn_serve_worker_open(struct wn_serve_worker *worker); /* from now on others may ask for its counts */
void wn_serve_worker_close(struct wn_serve_worker *worker);
/* slots, queue, cache_memory, prefix.limit and model are set before. May be started again after a clear. */
wn_status wn_serve_worker_start(wn_context *ctx, struct wn_serve_worker *worker);
/* Cuts off what is running and takes no more jobs. A zeroed struct is allowed, here and below. */
void wn_serve_worker_stop(struct wn_serve_worker *worker);
/* after wn_serve_worker_stop, when no handler runs any more */
void wn_serve_worker_clear(struct wn_serve_worker *worker);
/* Can the caches of the job's choices ever fit? False: `error` says what is missing. Called before wn_serve_worker_add,
 * with the caller's own context. */
bool wn_serve_worker_fits(const struct wn_serve_worker *worker, wn_context *ctx, struct wn_serve_job *job,
                          struct wn_serve_error *error);
/* Gives the job to the worker. False: the queue is full, and the job still belongs to the caller. */
bool wn_serve_worker_add(struct wn_serve_worker *worker, struct wn_serve_job *job);
void wn_serve_worker_counts(struct wn_serve_worker *worker, struct wn_serve_counts *out);

#endif
