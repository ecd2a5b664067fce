/* The models of a server. One that is given is there all the time. Several are loaded by a thread when a request names
 * them, and the least recently used leaves where --memory would not hold all, never while it serves a request: a model
 * that is to leave and is busy gets no new requests, which wait like those for a model that is being loaded.
 *
 * Each model has a worker of its own (worker.h): rounds of one do not wait for another's, and a load for neither.
 * Private to src/serve. */
#ifndef WN_SERVE_MODELS_H
#define WN_SERVE_MODELS_H

#include "serve/http.h"
#include "serve/worker.h"
#include "winnow/serve.h"

enum { WN_MODELS = 256 };

enum wn_served_state {
  WN_SERVED_OUT,     /* not loaded */
  WN_SERVED_WANTED,  /* to be loaded */
  WN_SERVED_LOADING, /* by the thread */
  WN_SERVED_READY,
  WN_SERVED_LEAVING /* loaded, and takes no new requests */
};

struct wn_models;
struct wn_served {
  struct wn_models *all;
  char *name;
  wn_context *ctx;    /* its own; these three are NULL where the caller of wn_server_start has them */
  wn_model *model;    /* its own */
  wn_tokenizer *tok;  /* its own */
  wn_budgets budgets; /* of requests without their own */
  char *no_chat;      /* why the chat template cannot be read; NULL: it can */
  struct wn_serve_model front[WN_HTTP_THREADS]; /* for the handlers, each thread's with a context of its own */
  struct wn_serve_worker worker;
  /* protected by the models' lock: */
  enum wn_served_state state;
  int users;                            /* requests and jobs that it must stay for */
  uint64_t bytes;                       /* of its weights; before the first load as the caller says */
  int64_t context;                      /* 0: not known yet */
  uint64_t wanted, used;                /* when it was wanted and used last, on models' tick */
  bool failed;                          /* the last load failed, */
  double failed_at;                     /* then */
  struct wn_http_request *first, *last; /* requests that wait for it */
  int waiting;
};

struct wn_models {
  struct wn_served *list; /* [count] */
  int count;
  wn_server_options options; /* texts in it are not used */
  wn_server_models given;    /* count 0: one model, which is there */
  wn_context *fronts[WN_HTTP_THREADS];
  _Atomic uint64_t idle; /* fields that have been named in the log */
  pthread_mutex_t lock;  /* protects the fields below */
  pthread_cond_t news;
  pthread_t thread;
  bool started, stop;
  uint64_t tick;
};

/* Makes the list and what is common to all; options are kept. Call wn_models_clear also after an error. */
wn_status wn_models_open(wn_context *ctx, struct wn_models *all, const wn_server_options *options,
                         const char *const *names, int count);
/* Makes a model that is loaded ready: its description for handlers, and its worker. */
wn_status wn_served_open(wn_context *ctx, struct wn_served *served, wn_model *model, const wn_tokenizer *tok,
                         const wn_budgets *budgets);
wn_status wn_models_start(wn_context *ctx, struct wn_models *all); /* starts the thread that loads */
void wn_models_stop(struct wn_models *all);  /* requests that wait are refused, workers end; after wn_http_close */
void wn_models_clear(struct wn_models *all); /* after wn_http_stop */

/* NULL: there is none of this name. */
struct wn_served *wn_models_find(struct wn_models *all, const char *name);
/* As wn_http_options.enter, for a model that the request names; a request that goes on holds it. */
enum wn_http_entry wn_served_enter(struct wn_served *served, struct wn_http_request *request,
                                   struct wn_serve_error *error);
void wn_served_hold(struct wn_served *served);
void wn_served_release(struct wn_served *served);
/* With the lock: "loaded", "loading" or "unloaded". */
const char *wn_served_status(const struct wn_served *served);

#endif
