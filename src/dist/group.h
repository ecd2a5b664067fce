/* The inside of a group of processes. */
#ifndef WN_DIST_GROUP_H
#define WN_DIST_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dist/dist.h"
#include "dist/transport.h"

enum { WN_DIST_LINE = 512, WN_DIST_ROOM = 4096 };

/* The watch over the others (watch.c): a thread and sockets beside the transport, which does not say who has died. */
struct wn_dist_watch {
  bool running;
  pthread_t thread;
  int listener, wake[2];
  uint64_t secret;            /* of this group's connections */
  struct pollfd *polls;       /* [1 + peer_count] */
  struct wn_dist_peer *peers; /* [size] of rank 0; of others one, rank 0 */
  int peer_count;
  wn_dist_lost_fn lost;
  void *user;
  _Atomic(const char *) kept; /* what is true once somebody is lost, or NULL */
  atomic_int state;           /* 0: all is well; 1: line is being written; 2: it is there */
  char line[WN_DIST_LINE];
};

struct wn_dist {
  const struct wn_dist_transport *transport;
  void *module;
  int rank, size;
  struct wn_dist_watch watch;
  double room[WN_DIST_ROOM]; /* of sums */
};

wn_status wn_dist_watch_begin(wn_context *ctx, struct wn_dist *d, wn_dist_lost_fn lost, void *user);
/* failure: what the others are told, NULL: an orderly end. */
void wn_dist_watch_end(struct wn_dist *d, const char *failure);
/* WN_ERR_IO with its line once a process is lost. */
wn_status wn_dist_watch_check(wn_context *ctx, struct wn_dist *d);

/* The transport of this build where processes were started together, or NULL with WN_OK: started alone. */
wn_status wn_dist_transport_open(wn_context *ctx, const struct wn_dist_transport **out, void **module);

#endif
