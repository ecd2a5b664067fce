/* What moves bytes between processes: none, or a module of its own that is opened where processes were started together
 * (src/dist/mpi). It has no order of sums: whoever sums does it in an order of its own. */
#ifndef WN_DIST_TRANSPORT_H
#define WN_DIST_TRANSPORT_H

#include <stddef.h>

/* Calls come from one thread. Messages between two processes arrive in the order in which they were posted. A request
 * is a number from 0 on that is free again once test has said 1; -1: it could not be posted. */
struct wn_dist_transport {
  unsigned long long version; /* WN_DIST_TRANSPORT */
  const char *name;
  int (*begin)(int *rank, int *size); /* 0: done */
  int (*send)(const void *data, size_t bytes, int to);
  int (*receive)(void *data, size_t bytes, int from);
  int (*test)(int request); /* 1: done; 0: not yet, and all requests have come further; -1: failed */
  void (*end)(void);
};
#define WN_DIST_TRANSPORT 1ULL
/* The one symbol of a module. */
#define WN_DIST_SYMBOL "wn_dist_module"
typedef const struct wn_dist_transport *(*wn_dist_module_fn)(void);

#endif
