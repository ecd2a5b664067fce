/* The internals of a group of processes. */
#ifndef WN_DIST_GROUP_H
#define WN_DIST_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "dist/device.h"
#include "dist/dist.h"
#include "dist/transport.h"

enum { WN_DIST_LINE = 512, WN_DIST_ROOM = 4096 };

/* The watch over the other processes (watch.c): a thread and sockets beside the transport, which does not report who
 * has died. */
struct wn_dist_watch {
  bool running;
  pthread_t thread;
  int listener, wake[2];
  uint64_t secret;            /* identifies connections of this group */
  struct pollfd *polls;       /* [1 + peer_count] */
  struct wn_dist_peer *peers; /* on rank 0: [size]; on others: [1], rank 0 */
  int peer_count;
  wn_dist_lost_fn lost;
  void *user;
  _Atomic(const char *) kept; /* the end of the line about a lost process (wn_dist_kept), or NULL */
  atomic_int state;           /* 0: all is well; 1: `line` is being written; 2: `line` is complete */
  char line[WN_DIST_LINE];
};

struct wn_dist {
  const struct wn_dist_transport *transport;
  void *module;
  int rank, size;
  const struct wn_dist_device *device; /* between arrays of a device; NULL: not joined (wn_dist_connect) */
  struct wn_dist_watch watch;
  double room[WN_DIST_ROOM]; /* for wn_dist_merge */
};

wn_status wn_dist_watch_begin(wn_context *ctx, struct wn_dist *d, wn_dist_lost_fn lost, void *user);
/* failure: the line that the others are told; NULL: an orderly end. */
void wn_dist_watch_end(struct wn_dist *d, const char *failure);

/* The transport of this build, if processes were started together; NULL with WN_OK: started alone. */
wn_status wn_dist_transport_open(wn_context *ctx, const struct wn_dist_transport **out, void **module);

#endif
