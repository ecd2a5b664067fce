/* Counted, aligned memory. A block carries a header in the WN_ALIGN bytes before it. A block of MAP_LIMIT bytes or more
 * has its own mmap, so that freeing it returns its pages to the system at once. */
#include "base/alloc.h"
#include "base/context.h"
#include "base/error.h"
#include "base/misuse.h"
#include "base/options.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MAP_LIMIT ((size_t)1 << 20)
#define HUGE_LIMIT ((size_t)8 << 20)

/* AddressSanitizer detects overruns of malloc's blocks, but not of mmap's. */
#if defined(__SANITIZE_ADDRESS__)
#define USE_MAP 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define USE_MAP 0
#endif
#endif
#ifndef USE_MAP
#define USE_MAP 1
#endif

struct header {
  void *start;   /* what malloc, mmap or the program's allocator gave */
  size_t mapped; /* bytes to unmap, or to give back to the program; 0: malloc */
  size_t bytes;  /* as asked for */
  uint64_t word; /* wn_block_word: says what the block is */
};
_Static_assert(sizeof(struct header) <= WN_ALIGN, "the header must fit before the block");
_Static_assert(offsetof(struct header, word) + sizeof(uint64_t) == sizeof(struct header),
               "the word is next to the block");

static wn_allocator given; /* without functions: none; changes only while there are no blocks */

static _Atomic unsigned long long live_bytes, peak_bytes, live_allocations, total_allocations;

bool wn_mul_size(size_t a, size_t b, size_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}
bool wn_add_size(size_t a, size_t b, size_t *out) {
  return !__builtin_add_overflow(a, b, out);
}

static void count_allocation(size_t bytes) {
  unsigned long long live = atomic_fetch_add(&live_bytes, bytes) + bytes;
  atomic_fetch_add(&live_allocations, 1);
  atomic_fetch_add(&total_allocations, 1);
  unsigned long long peak = atomic_load(&peak_bytes);
  while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live)) {
  }
}

/* What other libraries allocate: oneDNN's kernels and scratch, libxsmm's registry, SentencePiece's tables, thread
 * stacks. 40 MiB were measured in training. glibc's allocator takes as much address space for each further thread, if
 * there is any, and libraries that then get none end the process. */
enum { RESERVE_MIB = 64 };

wn_status wn_alloc_reserve(wn_context *ctx) {
  struct rlimit limit;
  const int mib = RESERVE_MIB * (ctx->threads > 1 ? ctx->threads : 1);
  const size_t bytes = (size_t)mib << 20;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return WN_OK;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return wn_fail(
        ctx, WN_ERR_MEMORY,
        "out of memory: the limit of address space, %llu MiB, leaves less than %d MiB for the libraries in use and %d "
        "threads",
        (unsigned long long)(limit.rlim_cur >> 20), mib, ctx->threads);
  munmap(p, bytes);
  return WN_OK;
}

wn_status wn_alloc(wn_context *ctx, const char *what, size_t bytes, void **out) {
  *out = NULL;
  if (bytes == 0) return WN_OK;
  struct header header = {.bytes = bytes};
  size_t total;
  if (!wn_add_size(bytes, 2 * WN_ALIGN, &total) || total > (size_t)PTRDIFF_MAX) goto refused;
  if (given.allocate) {
    header.start = given.allocate(given.user, total);
    if (!header.start) goto refused;
    header.mapped = total;
    memset(header.start, 0, total);
  } else if (USE_MAP && bytes >= MAP_LIMIT) {
    void *start = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) goto refused;
    if (bytes >= HUGE_LIMIT) madvise(start, total, MADV_HUGEPAGE); /* a hint: fewer page faults and TLB misses */
    header.start = start;
    header.mapped = total;
  } else {
    header.start = calloc(1, total);
    if (!header.start) goto refused;
  }
  uintptr_t at = ((uintptr_t)header.start + WN_ALIGN + WN_ALIGN - 1) & ~(uintptr_t)(WN_ALIGN - 1);
  memcpy((char *)at - sizeof header, &header, sizeof header);
  *out = (void *)at;
  count_allocation(bytes);
  return WN_OK;
refused:
  return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s needs %zu bytes", what, bytes);
}

wn_status wn_alloc_array(wn_context *ctx, const char *what, size_t count, size_t element, void *out) {
  size_t bytes;
  void *p;
  const wn_status status = wn_alloc(ctx, what, wn_mul_size(count, element, &bytes) ? bytes : SIZE_MAX, &p);
  memcpy(out, &p, sizeof p); /* no assignment: *out may point to any type */
  return status;
}

wn_status wn_resize(wn_context *ctx, const char *what, void *data, size_t element, size_t count, size_t room) {
  void *old;
  char *larger;
  memcpy(&old, data, sizeof old);
  WN_TRY(wn_alloc_array(ctx, what, room, element, &larger));
  if (count) memcpy(larger, old, count * element);
  wn_free(old);
  memcpy(data, &larger, sizeof larger);
  return WN_OK;
}

wn_status wn_grow(wn_context *ctx, const char *what, void *data, size_t element, size_t count, size_t more,
                  size_t *room) {
  size_t need;
  if (!wn_add_size(count, more, &need)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", what);
  if (need <= *room) return WN_OK;
  size_t larger = *room > SIZE_MAX / 2 ? need : 2 * *room;
  if (larger < need) larger = need;
  if (larger < 64) larger = 64;
  WN_TRY(wn_resize(ctx, what, data, element, count, larger));
  *room = larger;
  return WN_OK;
}

void wn_free(void *p) {
  if (!p) return;
  struct header header;
  memcpy(&header, (char *)p - sizeof header, sizeof header);
  *(volatile uint64_t *)wn_block_word(p) = WN_BLOCK_FREED; /* volatile: the store must be kept */
  atomic_fetch_sub(&live_bytes, header.bytes);
  atomic_fetch_sub(&live_allocations, 1);
  if (given.release)
    given.release(given.user, header.start, header.mapped);
  else if (header.mapped)
    munmap(header.start, header.mapped);
  else
    free(header.start);
}

wn_status wn_allocator_set(const wn_allocator *allocator) {
  wn_allocator own = {0};
  if (allocator) WN_TRY(WN_OPTIONS_READ(NULL, wn_allocator, allocator, &own));
  if (atomic_load(&live_allocations) > 0 || !own.allocate != !own.release || (allocator && !own.allocate))
    return WN_ERR_ARGUMENT;
  given = own;
  return WN_OK;
}

char *wn_strdup(wn_context *ctx, const char *s) {
  size_t bytes = strlen(s) + 1;
  void *p;
  if (wn_alloc(ctx, "text", bytes, &p) != WN_OK) return NULL;
  memcpy(p, s, bytes);
  return p;
}

void wn_memory_info_get(wn_memory_info *out) {
  WN_CHECK_OR(, WN_POINTER(out));
  out->live_bytes = atomic_load(&live_bytes);
  out->peak_bytes = atomic_load(&peak_bytes);
  out->live_allocations = atomic_load(&live_allocations);
  out->total_allocations = atomic_load(&total_allocations);
}

void wn_memory_peak_reset(void) {
  atomic_store(&peak_bytes, atomic_load(&live_bytes));
}
