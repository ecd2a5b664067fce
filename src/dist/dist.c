/* Groups of processes: messages, and collective calls made of messages (join.c: joining and leaving).
 *
 * A transport does not sum, since MPI does not promise an order of additions. Terms are exchanged as messages and added
 * in a fixed tree (wn_dist_branch), which one process alone can add with the same bits. */
#include "dist/dist.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/context.h"
#include "base/misuse.h"
#include "dist/group.h"

static struct wn_dist *dist_of(const wn_context *ctx) {
  return ctx->dist;
}

int wn_dist_rank(const wn_context *ctx) {
  return wn_handle_is(ctx, WN_HANDLE_CONTEXT) && ctx->dist ? ctx->dist->rank : 0;
}

int wn_dist_size(const wn_context *ctx) {
  return wn_handle_is(ctx, WN_HANDLE_CONTEXT) && ctx->dist ? ctx->dist->size : 1;
}

/* --- messages --- */

/* WN_ERR_IO with the watch's line once a process is lost. */
static wn_status dist_check_watch(wn_context *ctx, struct wn_dist *d) {
  return atomic_load_explicit(&d->watch.state, memory_order_acquire) == 2 ? wn_fail(ctx, WN_ERR_IO, "%s", d->watch.line)
                                                                          : WN_OK;
}

/* A message of a device has failed. If that is because a process died, the watch soon knows which. */
static wn_status dist_check_death(wn_context *ctx, struct wn_dist *d, wn_status failed) {
  for (int i = 0; i < 100 && atomic_load(&d->watch.state) != 2; i++)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  const wn_status lost = dist_check_watch(ctx, d);
  return lost != WN_OK ? lost : failed;
}

/* Refuses messages to a process that does not exist; a context that has not joined has no other. */
static wn_status dist_check_other(wn_context *ctx, const char *what, int other) {
  const struct wn_dist *d = dist_of(ctx);
  if (d && other >= 0 && other < d->size && other != d->rank) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "a message %s process %d: this is process %d of %d", what, other,
                 wn_dist_rank(ctx), wn_dist_size(ctx));
}

/* Requests of a device are numbered from here on. */
enum { DIST_OF_DEVICE = 1 << 30 };

static wn_status dist_post_array(wn_context *ctx, const void *data, size_t bytes, int other, bool sends, int *request) {
  const struct wn_dist *d = dist_of(ctx);
  if (!d->device) return wn_fail(ctx, WN_ERR_ARGUMENT, "a message between devices that were not connected");
  WN_TRY(d->device->post(ctx, (void *)(uintptr_t)data, bytes, other, sends, request));
  *request += DIST_OF_DEVICE;
  return WN_OK;
}

wn_status wn_dist_send(wn_context *ctx, const struct wn_memory *memory, const void *data, size_t bytes, int to,
                       int *request) {
  struct wn_dist *d = dist_of(ctx);
  *request = -1;
  WN_TRY(dist_check_other(ctx, "to", to));
  if (!memory->host) return dist_post_array(ctx, data, bytes, to, true, request);
  *request = d->transport->send(data, bytes, to);
  return *request >= 0 ? WN_OK : wn_fail(ctx, WN_ERR_IO, "%s could not send %zu bytes", d->transport->name, bytes);
}

wn_status wn_dist_receive(wn_context *ctx, const struct wn_memory *memory, void *data, size_t bytes, int from,
                          int *request) {
  struct wn_dist *d = dist_of(ctx);
  *request = -1;
  WN_TRY(dist_check_other(ctx, "from", from));
  if (!memory->host) return dist_post_array(ctx, data, bytes, from, false, request);
  *request = d->transport->receive(data, bytes, from);
  return *request >= 0 ? WN_OK : wn_fail(ctx, WN_ERR_IO, "%s could not receive %zu bytes", d->transport->name, bytes);
}

wn_status wn_dist_advance(wn_context *ctx, int *requests, size_t count) {
  struct wn_dist *d = dist_of(ctx);
  if (!d) return WN_OK;
  WN_TRY(dist_check_watch(ctx, d));
  for (size_t i = 0; i < count; i++) {
    if (requests[i] < 0) continue;
    if (requests[i] >= DIST_OF_DEVICE) {
      bool over;
      const wn_status status = d->device->test(ctx, requests[i] - DIST_OF_DEVICE, &over);
      if (status != WN_OK) return dist_check_death(ctx, d, status);
      if (over) requests[i] = -1;
      continue;
    }
    const int done = d->transport->test(requests[i]);
    if (done < 0) return wn_fail(ctx, WN_ERR_IO, "a message between processes failed (%s)", d->transport->name);
    if (done) requests[i] = -1;
  }
  return WN_OK;
}

/* Spins for a moment, then yields the CPU to the process that it waits for. */
wn_status wn_dist_wait(wn_context *ctx, int *requests, size_t count) {
  size_t left = 0;
  for (uint64_t turn = 0;; turn++) {
    while (left < count && requests[left] < 0) left++;
    if (left == count) return WN_OK;
    WN_TRY(wn_dist_advance(ctx, requests + left, count - left));
    if (turn > 20000)
      nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    else if (turn > 64)
      sched_yield();
  }
}

static wn_status dist_whole(wn_context *ctx, char *at, size_t bytes, int other, bool sends) {
  do {
    const size_t now = bytes < WN_DIST_MESSAGE ? bytes : WN_DIST_MESSAGE;
    int request;
    WN_TRY(sends ? wn_dist_send(ctx, &wn_host_memory, at, now, other, &request)
                 : wn_dist_receive(ctx, &wn_host_memory, at, now, other, &request));
    WN_TRY(wn_dist_wait(ctx, &request, 1));
    at += now, bytes -= now;
  } while (bytes > 0);
  return WN_OK;
}

wn_status wn_dist_send_whole(wn_context *ctx, const void *data, size_t bytes, int to) {
  return dist_whole(ctx, (char *)(uintptr_t)data, bytes, to, true);
}

wn_status wn_dist_receive_whole(wn_context *ctx, void *data, size_t bytes, int from) {
  return dist_whole(ctx, data, bytes, from, false);
}

wn_status wn_dist_send_array(wn_context *ctx, const struct wn_memory *memory, const void *data, size_t bytes, int to) {
  void *opened;
  WN_TRY(wn_memory_open(ctx, memory, "what another process gets", data, bytes, &opened));
  const wn_status sent = wn_dist_send_whole(ctx, opened, bytes, to);
  const wn_status closed = wn_memory_close(ctx, memory, (void *)(uintptr_t)data, bytes, opened, false);
  return sent == WN_OK ? closed : sent;
}

/* --- collective calls --- */

/* A binomial tree with its root at `from`: log2(size) messages one after another. */
wn_status wn_dist_broadcast(wn_context *ctx, void *data, size_t bytes, int from) {
  const struct wn_dist *d = dist_of(ctx);
  if (!d) return WN_OK;
  const int me = (d->rank - from + d->size) % d->size;
  int bit = 1;
  while (bit < d->size) {
    if (me & bit) {
      WN_TRY(wn_dist_receive_whole(ctx, data, bytes, (me - bit + from) % d->size));
      break;
    }
    bit *= 2;
  }
  for (bit /= 2; bit > 0; bit /= 2)
    if (me + bit < d->size) WN_TRY(wn_dist_send_whole(ctx, data, bytes, (me + bit + from) % d->size));
  return WN_OK;
}

/* Sums along the same tree to rank 0, then broadcasts. */
static wn_status dist_merge_some(wn_context *ctx, struct wn_dist *d, double *x, size_t count) {
  const size_t bytes = count * sizeof *x;
  for (int bit = 1; bit < d->size; bit *= 2) {
    if (d->rank & bit) {
      WN_TRY(wn_dist_send_whole(ctx, x, bytes, d->rank - bit));
      break;
    }
    if (d->rank + bit >= d->size) continue;
    WN_TRY(wn_dist_receive_whole(ctx, d->room, bytes, d->rank + bit));
    for (size_t i = 0; i < count; i++) x[i] += d->room[i];
  }
  return wn_dist_broadcast(ctx, x, bytes, 0);
}

wn_status wn_dist_merge(wn_context *ctx, double *x, size_t count) {
  struct wn_dist *d = dist_of(ctx);
  if (!d) return WN_OK;
  for (size_t at = 0; at < count; at += WN_DIST_ROOM)
    WN_TRY(dist_merge_some(ctx, d, x + at, count - at < WN_DIST_ROOM ? count - at : WN_DIST_ROOM));
  return WN_OK;
}

wn_status wn_dist_barrier(wn_context *ctx) {
  double nothing = 0;
  return wn_dist_merge(ctx, &nothing, 1);
}

wn_status wn_dist_same(wn_context *ctx, const char *what, const char *value) {
  char first[256];
  if (!dist_of(ctx)) return WN_OK;
  snprintf(first, sizeof first, "%s", value);
  WN_TRY(wn_dist_broadcast(ctx, first, sizeof first, 0));
  if (!strncmp(first, value, sizeof first - 1)) return WN_OK;
  return wn_fail(ctx, WN_ERR_CONFIG, "%s: process 0 has %s, process %d has %s; all must have the same", what, first,
                 ctx->dist->rank, value);
}

wn_status wn_dist_alike(wn_context *ctx) {
  char threads[32];
  snprintf(threads, sizeof threads, "%d", ctx->threads);
  /* All three are compared even if the first differs, because every process must make the same calls. */
  const wn_status backend = wn_dist_same(ctx, "backend", ctx->backend);
  const wn_status isa = wn_dist_same(ctx, "instruction set", wn_isa_name(ctx->isa));
  WN_TRY(wn_dist_same(ctx, "threads", threads));
  return isa == WN_OK ? backend : isa;
}

int64_t wn_dist_left(int64_t n) {
  int64_t left = 1;
  while (2 * left < n) left *= 2;
  return left;
}

/* Divides the processes between the two branches in proportion to their leaves. Each branch gets at least one process
 * and at most as many as it has leaves. */
void wn_dist_branch(int64_t leaves, int rank, int size, int64_t *first, int64_t *count) {
  *first = 0;
  *count = leaves;
  while (size > 1) {
    const int64_t left = wn_dist_left(*count), right = *count - left;
    int64_t of_left = ((int64_t)size * left + *count / 2) / *count;
    if (of_left > size - 1) of_left = size - 1;
    if (of_left < size - right) of_left = size - right;
    if (of_left > left) of_left = left;
    if (of_left < 1) of_left = 1;
    if (rank < of_left) {
      *count = left;
      size = (int)of_left;
    } else {
      *first += left;
      *count = right;
      rank -= (int)of_left;
      size -= (int)of_left;
    }
  }
}
