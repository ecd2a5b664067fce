/* Memory that behaves like a device's: an array has two addresses. The one given out is in pages that can never be
 * accessed; the data are at another address, which only operations and copies look up. Copies out arrive only when they
 * are waited for; until then the destination holds garbage. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/guard/guard.h"
#include "base/alloc.h"

enum { PAGE = 4096 };

struct block {
  char *shown, *real;
  size_t bytes, mapped;
};

struct pending { /* a copy out */
  wn_context *ctx;
  uint64_t mark;
  void *to;
  size_t bytes;
  struct pending *next;
  char data[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* [count], sorted by address */
static size_t count, room;
static struct pending *first_pending;
static uint64_t marks;

/* The last block that begins at or before p; NULL: none. The lock is held. */
static struct block *block_before(const void *p) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (blocks[middle].shown <= (const char *)p)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 0 ? &blocks[low - 1] : NULL;
}

static bool blocks_grow(void) {
  if (count < room) return true;
  const size_t more = room ? 2 * room : 64;
  struct block *grown = realloc(blocks, more * sizeof *grown);
  if (!grown) return false;
  blocks = grown;
  room = more;
  return true;
}

static wn_status guard_allocate(wn_context *ctx, const char *what, size_t bytes, void **out) {
  void *real;
  *out = NULL;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_alloc(ctx, what, bytes, &real));
  struct block b = {.real = real, .bytes = bytes, .mapped = (bytes / PAGE + 2) * PAGE};
  b.shown = mmap(NULL, b.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pthread_mutex_lock(&lock);
  const bool fits = b.shown != MAP_FAILED && blocks_grow();
  if (fits) {
    const struct block *before = block_before(b.shown);
    const size_t at = before ? (size_t)(before - blocks) + 1 : 0;
    memmove(blocks + at + 1, blocks + at, (count - at) * sizeof *blocks);
    blocks[at] = b;
    count++;
  }
  pthread_mutex_unlock(&lock);
  if (fits) {
    *out = b.shown;
    return WN_OK;
  }
  if (b.shown != MAP_FAILED) munmap(b.shown, b.mapped);
  wn_free(real);
  return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s needs %zu bytes", what, bytes);
}

static void guard_release(void *p) {
  if (!p) return;
  pthread_mutex_lock(&lock);
  struct block *at = block_before(p);
  const struct block b = at && at->shown == p ? *at : (struct block){0};
  if (b.shown) {
    memmove(at, at + 1, (size_t)(blocks + count - (at + 1)) * sizeof *blocks);
    count--;
  }
  pthread_mutex_unlock(&lock);
  if (!b.shown) return;
  munmap(b.shown, b.mapped);
  wn_free(b.real);
}

wn_status wn_guard_find(wn_context *ctx, const char *of, const char *what, const void *shown, size_t bytes,
                        void **real) {
  *real = NULL;
  if (!shown) return WN_OK;
  pthread_mutex_lock(&lock);
  const struct block *b = block_before(shown);
  const size_t at = b ? (size_t)((const char *)shown - b->shown) : 0;
  if (b && at <= b->bytes && bytes <= b->bytes - at) *real = b->real + at;
  pthread_mutex_unlock(&lock);
  if (*real) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %s is no array of backend guard", of, what);
}

static wn_status guard_copy_in(wn_context *ctx, void *to, const void *from, size_t bytes) {
  void *real;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_guard_find(ctx, "a copy in", "where it goes", to, bytes, &real));
  memcpy(real, from, bytes);
  return WN_OK;
}

static wn_status guard_copy_out(wn_context *ctx, void *to, const void *from, size_t bytes) {
  void *real;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_guard_find(ctx, "a copy out", "where it comes from", from, bytes, &real));
  struct pending *p = malloc(sizeof *p + bytes);
  if (!p) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a copy of %zu bytes", bytes);
  p->ctx = ctx, p->to = to, p->bytes = bytes;
  memcpy(p->data, real, bytes);
  memset(to, 0xff, bytes);
  pthread_mutex_lock(&lock);
  p->mark = ++marks;
  struct pending **last = &first_pending;
  while (*last) last = &(*last)->next;
  p->next = NULL;
  *last = p;
  pthread_mutex_unlock(&lock);
  return WN_OK;
}

static wn_status guard_copy(wn_context *ctx, void *to, const void *from, size_t bytes) {
  void *real_to, *real_from;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_guard_find(ctx, "a copy", "where it goes", to, bytes, &real_to));
  WN_TRY(wn_guard_find(ctx, "a copy", "where it comes from", from, bytes, &real_from));
  memmove(real_to, real_from, bytes);
  return WN_OK;
}

static wn_status guard_zero(wn_context *ctx, void *to, size_t bytes) {
  void *real;
  if (bytes == 0) return WN_OK;
  WN_TRY(wn_guard_find(ctx, "zeros", "where they go", to, bytes, &real));
  memset(real, 0, bytes);
  return WN_OK;
}

static uint64_t guard_record(wn_context *ctx) {
  (void)ctx;
  pthread_mutex_lock(&lock);
  const uint64_t mark = ++marks;
  pthread_mutex_unlock(&lock);
  return mark;
}

static wn_status guard_wait(wn_context *ctx, uint64_t mark) {
  pthread_mutex_lock(&lock);
  for (struct pending **at = &first_pending; *at;) {
    struct pending *p = *at;
    if (p->ctx != ctx || p->mark > mark) {
      at = &p->next;
      continue;
    }
    memcpy(p->to, p->data, p->bytes);
    *at = p->next;
    free(p);
  }
  pthread_mutex_unlock(&lock);
  return WN_OK;
}

const struct wn_memory wn_guard_memory = {.host = false,
                                          .allocate = guard_allocate,
                                          .release = guard_release,
                                          .copy_in = guard_copy_in,
                                          .copy_out = guard_copy_out,
                                          .copy = guard_copy,
                                          .zero = guard_zero,
                                          .record = guard_record,
                                          .wait = guard_wait};
