/* Limits on connections to an HTTP server, so that slow and idle clients cannot keep others out. Private to src/serve.
 *
 * Each phase of a request has a time limit, counted from the beginning of the phase and not from the last byte, so that
 * a head or body that trickles in gains nothing. Time in which the server is late does not count. If there are more
 * connections than the limit, the newest replaces the one that has waited longest without a complete request; complete
 * requests are never cut. No address except this machine's own may have more than half of the connections. */
#ifndef WN_SERVE_CONNECTIONS_H
#define WN_SERVE_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include "winnow/context.h"

struct sockaddr;

enum wn_connection_phase {
  WN_CONNECTION_HEAD,   /* no request yet: a new connection, or one whose last answer has been sent */
  WN_CONNECTION_BODY,   /* the head has arrived */
  WN_CONNECTION_ANSWER, /* the answer is being sent */
  WN_CONNECTION_STREAM, /* the answer is still being written; its writer decides how long that may take */
  WN_CONNECTION_PHASES
};

struct wn_connection;
struct wn_connections {
  double seconds[WN_CONNECTION_PHASES]; /* time limit of each phase; 0: none */
  int limit;
  pthread_mutex_t lock; /* protects the fields below */
  pthread_cond_t news;
  pthread_t watch;
  bool watched, stop;
  struct wn_connection *first; /* newest first */
  int count;
};

/* seconds and limit are set before. */
wn_status wn_connections_start(wn_context *ctx, struct wn_connections *all);
void wn_connections_stop(struct wn_connections *all); /* only when no connection is open; a zeroed struct is allowed */

/* Adds a new connection; NULL: out of memory, it is cut. May cut another connection, or this one. */
struct wn_connection *wn_connections_open(struct wn_connections *all, int socket, const struct sockaddr *address);
void wn_connections_close(struct wn_connections *all, struct wn_connection *c);
void wn_connections_enter(struct wn_connections *all, struct wn_connection *c, enum wn_connection_phase phase);
/* Are as many requests being answered as the limit of connections? The reserve beyond it is for small answers. */
bool wn_connections_busy(struct wn_connections *all);

#endif
