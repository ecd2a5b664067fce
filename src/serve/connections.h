/* Who may stay connected to an HTTP server, so that slow and idle clients cannot keep others out. Private to src/serve.
 *
 * Each phase of a request has its time, counted from where the phase began and not from the last byte: a head or body
 * that trickles in gains nothing. Where there are more connections than the limit, the one that has taken longest to
 * say what it wants gives way to the newest; a request that has been heard never does. No address but this machine's
 * own has more than half of the connections. */
#ifndef WN_SERVE_CONNECTIONS_H
#define WN_SERVE_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include "winnow/context.h"

struct sockaddr;

enum wn_connection_phase {
  WN_CONNECTION_HEAD,   /* nothing is wanted yet: a new connection, or one whose last answer has left */
  WN_CONNECTION_BODY,   /* the head is there */
  WN_CONNECTION_ANSWER, /* the answer is being sent */
  WN_CONNECTION_STREAM, /* it is still being written: its writer decides how long it may take */
  WN_CONNECTION_PHASES
};

struct wn_connection;
struct wn_connections {
  double seconds[WN_CONNECTION_PHASES]; /* each phase at most; 0: for ever */
  int limit;
  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t news;
  pthread_t watch;
  bool watched, stop;
  struct wn_connection *first; /* newest first */
  int count;
};

/* seconds and limit are set. */
wn_status wn_connections_start(wn_context *ctx, struct wn_connections *all);
void wn_connections_stop(struct wn_connections *all); /* once none is open; zeroed is allowed */

/* A new connection; NULL: out of memory, it is cut. May cut another one, or this. */
struct wn_connection *wn_connections_open(struct wn_connections *all, int socket, const struct sockaddr *address);
void wn_connections_close(struct wn_connections *all, struct wn_connection *c);
void wn_connections_enter(struct wn_connections *all, struct wn_connection *c, enum wn_connection_phase phase);
/* Are as many requests being answered as there may be connections? The reserve beyond them is for small answers. */
bool wn_connections_busy(struct wn_connections *all);

#endif
