/* The worker: one thread that runs the model for all requests. In a round all answers that are being written get a
 * token together (wn_generation_step_together), and one prompt is read a piece further: answers join and leave at any
 * round and none waits for another's end. Each has a session of its own, and what it is answered does not depend, to
 * the bit, on what else is being answered. */
#ifndef WN_SERVE_WORKER_H
#define WN_SERVE_WORKER_H

#include <pthread.h>
#include "serve/job.h"

struct wn_serve_counts {
  uint64_t requests, refused, cancelled, failed, prompt_tokens, completion_tokens;
  uint64_t cache_bytes; /* of all sessions now */
  struct wn_prefix_counts prefix;
  int running, waiting; /* answers that have a slot; that have none */
  int jobs;
};

struct wn_serve_worker {
  struct wn_serve_model model;      /* with the worker's own context */
  int slots, queue;                 /* answers at a time; requests that may be here at once */
  uint64_t cache_memory;            /* bytes of all caches together, with the states of prompts; 0: no limit */
  struct wn_prefix prefix;          /* the thread's own */
  double timeout;                   /* seconds of a request from its arrival to its end; 0: for ever */
  wn_session_group *group;          /* for `slots` */
  wn_generation_turn *turns;        /* [slots] of a round */
  struct wn_serve_choice **writing; /* [slots] whose they are */
  pthread_t thread;
  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t news;
  struct wn_serve_job *added; /* newest first */
  struct wn_serve_counts counts;
  bool stop;
  bool started;
};

/* slots, queue, cache_memory, prefix.limit and model are set. */
wn_status wn_serve_worker_start(wn_context *ctx, struct wn_serve_worker *worker);
/* What is running is cut off, and nothing is taken any more; zeroed is allowed, here and below. */
void wn_serve_worker_stop(struct wn_serve_worker *worker);
void wn_serve_worker_clear(struct wn_serve_worker *worker); /* after it, once no handler asks any more */
/* The job is the worker's now. False: the queue is full, and it is still the caller's. */
bool wn_serve_worker_add(struct wn_serve_worker *worker, struct wn_serve_job *job);
void wn_serve_worker_counts(struct wn_serve_worker *worker, struct wn_serve_counts *out);

#endif
