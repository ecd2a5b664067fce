#include "serve/readers.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

enum { LARGE_NICE = 5 }; /* a quarter of a processor that another thread wants, all of one that is idle */

static void *reader_run(void *user) {
  struct wn_reader *r = user;
#ifdef __linux__ /* there a thread has a priority of its own */
  if (r->number == WN_READERS) setpriority(PRIO_PROCESS, (id_t)gettid(), LARGE_NICE);
#endif
  pthread_mutex_lock(&r->lock);
  while (!r->stop || r->first) {
    struct wn_reading *now = r->first;
    if (!now) {
      pthread_cond_wait(&r->news, &r->lock);
      continue;
    }
    r->first = now->next;
    const bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    now->read(now, r->number, stop);
    pthread_mutex_lock(&r->lock);
  }
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

wn_status wn_readers_start(wn_context *ctx, struct wn_readers *all) {
  bool good = true;
  for (int i = 0; i < WN_READERS && good; i++) {
    struct wn_reader *r = &all->reader[i];
    r->number = i + 1;
    pthread_mutex_init(&r->lock, NULL);
    wn_cond_init(&r->news);
    r->started = good = wn_thread_start(&r->thread, reader_run, r);
  }
  return good ? WN_OK : wn_fail(ctx, WN_ERR_MEMORY, "cannot start the threads that read requests");
}

bool wn_readers_add(struct wn_readers *all, struct wn_reading *reading, size_t bytes) {
  struct wn_reader *r = &all->reader[bytes > WN_READER_SMALL];
  reading->next = NULL;
  pthread_mutex_lock(&r->lock);
  const bool taken = !r->stop;
  if (taken && r->first)
    r->last->next = reading;
  else if (taken)
    r->first = reading;
  if (taken) r->last = reading;
  pthread_cond_signal(&r->news);
  pthread_mutex_unlock(&r->lock);
  return taken;
}

void wn_readers_close(struct wn_readers *all) {
  for (struct wn_reader *r = all->reader; r < all->reader + WN_READERS && r->started; r++) {
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->news);
    pthread_mutex_unlock(&r->lock);
  }
}

void wn_readers_stop(struct wn_readers *all) {
  wn_readers_close(all);
  for (struct wn_reader *r = all->reader; r < all->reader + WN_READERS && r->started; r++) {
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->news);
    pthread_mutex_destroy(&r->lock);
    r->started = false;
  }
}
