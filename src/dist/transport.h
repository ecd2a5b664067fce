/* A transport moves bytes between processes. It is a module (src/dist/mpi) that is opened only if processes were
 * started together. It does not sum: the caller does, in an order of its own. */
#ifndef WN_DIST_TRANSPORT_H
#define WN_DIST_TRANSPORT_H

#include <stddef.h>

/* Calls come from one thread. Messages between two processes arrive in the order in which they were posted. A request
 * is a number from 0, free again once `test` has returned 1; -1: it could not be posted. */
struct wn_dist_transport {
  unsigned long long version; /* WN_DIST_TRANSPORT */
  const char *name;
  int (*begin)(int *rank, int *size); /* 0: done */
  int (*send)(const void *data, size_t bytes, int to);
  int (*receive)(void *data, size_t bytes, int from);
  int (*test)(int request); /* 1: done; 0: not yet (all requests have made progress); -1: failed */
  void (*end)(void);
};
#define WN_DIST_TRANSPORT 1ULL
/* The one symbol that a module exports. */
#define WN_DIST_SYMBOL "wn_dist_module"
typedef const struct wn_dist_transport *(*wn_dist_module_fn)(void);

#endif
