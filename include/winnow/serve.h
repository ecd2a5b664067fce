/* winnow: HTTP. A page that shows a run's curves while it trains; a server that answers for a model. */
#ifndef WINNOW_SERVE_H
#define WINNOW_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/train.h"

WN_EXPERIMENTAL_BEGIN

/* The address and the page of a live view. */
typedef struct wn_live_options {
  size_t size;         /* sizeof the struct (context.h) */
  const char *address; /* an IPv4 or IPv6 address to listen on; NULL: 127.0.0.1, reachable only from this machine */
  int port;            /* 0: any free port */
  const char *title;   /* of the page; borrowed for the call */
  const char *command; /* the run's command line, shown on the page; borrowed for the call */
} wn_live_options;
typedef struct wn_live wn_live;

/* Answers requests in a thread of its own until wn_live_stop. For GET and HEAD / is the page, and /log?after=PLACE has
 * the points after that place as JSON. Every other request gets one line: 404, 405 for another method, 413 for a body.
 * On a loopback address a request must name this machine (Host: localhost, 127.0.0.1, [::1], or the address itself),
 * else it gets 403: no foreign page can send requests under another name. Nor can one whose Origin is another. At most
 * 64 connections; a further one replaces the connection that has waited longest without a request. A request's head may
 * take 10 seconds and 32 KiB. There is no encryption and there are no users: on any other address everyone who reaches
 * it can read the curves. WN_ERR_IO: cannot listen on the address. */
wn_status wn_live_start(wn_context *ctx, const wn_live_options *options, wn_live **out);
int wn_live_port(const wn_live *live);
/* Adds the numbers of a step, from the training thread; wn_live_add_log adds the earlier steps of a resumed run. At
 * most 65,536 points are kept: beyond that every second older one is dropped, except those with a validation. */
void wn_live_add(wn_live *live, const wn_train_progress *progress);
void wn_live_add_log(wn_live *live, const wn_train_log *log);
/* Seconds for which a page that has asked counts as open, and for which wn_live_finish waits for it. */
#define WN_LIVE_WAIT 5
/* The run has ended. If a page is open, waits at most WN_LIVE_WAIT seconds until it has the last points. */
void wn_live_finish(wn_live *live);
void wn_live_stop(wn_live *live); /* NULL is allowed */

WN_API_END
WN_STABLE_BEGIN

/* A server in the shapes of the OpenAI API: docs/serve.md has its paths and fields. */
typedef struct wn_server_options {
  size_t size;         /* sizeof the struct (context.h) */
  const char *address; /* an IPv4 or IPv6 address to listen on; NULL: 127.0.0.1, reachable only from this machine */
  int port;            /* 0: any free port */
  const char *name;    /* the model's name in answers; bytes that are not UTF-8 become U+FFFD; NULL: "winnow" */
  const char *api_key; /* keys, one on each line; a request for any path but / and /health must have one of them. After
                          " #" a line may have a label, which stands for the key in the access log; lines that begin
                          with "#" are left out. NULL: none is needed */
  int64_t context;     /* tokens of a prompt and its answer; 0: the model's context */
  int slots;           /* how many answers are written at the same time; 0: 8 */
  int queue;           /* how many requests may be running or waiting at the same time, further ones get 429; 0: 64 */
  uint64_t cache_memory; /* bytes that the caches of all answers may take together; an answer whose cache does not fit
                            waits; 0: no limit */
  const wn_budgets *budgets; /* budgets of requests that do not state their own; copied; NULL: nothing is evicted */
  wn_cache_format cache;     /* default WN_CACHE_FLOAT */
  uint64_t prefix_memory; /* bytes for kept states of prompts: a prompt with the same beginning does not read it again.
                             They count within cache_memory and give way to answers; 0: none are kept */
  int connections;        /* at the same time; 0: 512. A further one replaces a slow or idle one */
  double timeout;         /* seconds for a request, from its arrival to its end; 0: no limit */
  const char *origins; /* origins whose web pages may send requests beside the server's own, separated by commas, such
                          as "https://chat.example"; "*": all; NULL: none */
  int draft; /* wn_generate_options.draft_tokens of answers; 0: none. Those that are written at the same time share
                them */
  wn_model *draft_model; /* wn_generate_options.draft_model; its caches count in cache_memory; NULL: none */
  bool pin_system;       /* system messages are pinned (wn_session_pin) in requests that do not say what is */
  /* The access log: called by a thread of the server with whole lines of JSON, one for each request that has ended, and
   * a NUL after them. NULL: there is none. */
  void (*access)(void *user, const char *lines, size_t bytes);
  void *access_user;
} wn_server_options;
typedef struct wn_server wn_server;

/* Answers in threads of its own until wn_server_stop. Until then ctx and model belong to the server; tok is only read.
 * No bit of an answer depends on what else is being answered. On a loopback address only requests that name this
 * machine are answered, and on any address none that another origin's page sends, as by the live view. The log of ctx
 * names, once each, the fields of requests that change nothing here; any thread of the server may call it. WN_ERR_IO:
 * cannot listen on the address. */
wn_status wn_server_start(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const wn_server_options *options,
                          wn_server **out);

/* Models that a server loads when requests name them. */
typedef struct wn_server_models {
  size_t size;              /* sizeof the struct (context.h) */
  int count;                /* 1 to 256 */
  const char *const *names; /* [count] borrowed for the call */
  const uint64_t *bytes; /* [count] what the weights of each will take, where that is known (0: not), until it has been
                            loaded once; borrowed for the call; NULL: nothing is known */
  /* Loads a model with its tokenizer into a context of its own, which then belong to the server, also after an error;
   * and sets budgets of requests without their own, if there are any, and the caches' format (budgets->cache). Called
   * by one thread of the server. */
  wn_status (*load)(void *user, int model, wn_context **ctx, wn_model **out, wn_tokenizer **tok, wn_budgets *budgets);
  void *user;
  uint64_t memory; /* bytes that weights together with each model's cache_memory (else prefix_memory) may take: the
                      least recently used model leaves when it has no requests; 0: no limit */
} wn_server_models;
/* The same server with several models; name, budgets and draft_model of the options are not used. A request waits while
 * its model is loaded. ctx stays the caller's, and its log says what cannot be loaded. */
wn_status wn_server_start_models(wn_context *ctx, const wn_server_models *models, const wn_server_options *options,
                                 wn_server **out);
int wn_server_port(const wn_server *server);
/* Replaces the keys, as in wn_server_options.api_key; requests that have been admitted go on. On error the old ones
 * stay. ctx is the caller's, not the server's; any thread may call it. */
wn_status wn_server_set_keys(wn_context *ctx, wn_server *server, const char *keys);
void wn_server_stop(wn_server *server); /* answers that are being written are cut off; NULL is allowed */

WN_API_END
#endif
