/* Threads that read requests' bodies, so that the server's own thread is free for every connection. Private to
 * src/serve.
 *
 * One thread serves small bodies and one large bodies, each in the order of their arrival: a small request never waits
 * for a large one. The thread for large bodies gives way to the threads that run the model. */
#ifndef WN_SERVE_READERS_H
#define WN_SERVE_READERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

enum { WN_READERS = 2, WN_READER_SMALL = 64 << 10 /* the most bytes of a small body */ };

/* A body that waits for its thread. The caller owns it; it is not touched after `read` has been called. */
struct wn_reading {
  struct wn_reading *next;
  void (*read)(struct wn_reading *reading, int reader, bool stop); /* stop: only to be answered, the server ends */
};

struct wn_reader {
  pthread_t thread;
  pthread_mutex_t lock; /* protects the fields below */
  pthread_cond_t news;
  struct wn_reading *first, *last;
  bool started, stop;
  int number; /* from 1 */
};
struct wn_readers {
  struct wn_reader reader[WN_READERS];
};

wn_status wn_readers_start(wn_context *ctx, struct wn_readers *readers);
/* Hands over a body of so many bytes. False: the server ends, and nobody will read it. */
bool wn_readers_add(struct wn_readers *readers, struct wn_reading *reading, size_t bytes);
/* From now on bodies are only answered: the first half of wn_readers_stop. A zeroed struct is allowed. */
void wn_readers_close(struct wn_readers *readers);
/* Waits until all have been answered. */
void wn_readers_stop(struct wn_readers *readers);

#endif
