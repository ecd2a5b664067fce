/* One planner of arrays: a table says which arrays there are and how large each is; the planner counts them with
 * checked arithmetic, names the one that does not fit, and places all of them in one block of memory.
 *
 * The same call counts and places, so that the two cannot differ:
 *
 *   static void batch_lay(struct batch *b, int64_t B, int64_t T, struct wn_arrays *arrays) {
 *     const struct wn_array rows[] = {
 *         {"tokens", true, WN_DIMS(B, T), sizeof *b->tokens, &b->tokens},
 *         {"targets", b->trains, WN_DIMS(B, T), sizeof *b->targets, &b->targets},
 *     };
 *     WN_ARRAYS_LAY(arrays, rows);
 *   }
 *
 *   struct wn_arrays arrays = {0};
 *   batch_lay(b, B, T, &arrays); counts: every pointer is NULL, arrays.bytes is the size
 *
 *   WN_TRY(wn_arrays_allocate(ctx, &arrays, "a batch")); says so where it does not fit
 *
 *   batch_lay(b, B, T, &arrays); places
 *   ...
 *   wn_arrays_clear(&arrays);
 *
 * In memory of the caller's, a copy for each thread: count once, then place each copy in wn_arrays_copy(&counted,
 * scratch, thread); n copies take n * counted.bytes. */
#ifndef WN_BASE_ARRAYS_H
#define WN_BASE_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/alloc.h"
#include "base/memory.h"

#define WN_ARRAY_DIMS 4

/* One array. Not wanted, or with a dimension of 0: its pointer is NULL and it takes no memory. */
struct wn_array {
  const char *name; /* for the message when it does not fit; borrowed */
  bool wanted;
  struct {
    int n;
    int64_t size[WN_ARRAY_DIMS];
  } dims;         /* WN_DIMS(B, T, C): none negative; their product, in elements, is checked */
  size_t element; /* bytes */
  void *where;    /* the address of the pointer that is set, of any type of object */
};
#define WN_DIMS(...)                                                                                                   \
  {                                                                                                                    \
    .n = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .size = { __VA_ARGS__ }                            \
  }

/* Zeroed: counts. With a base: places. */
struct wn_arrays {
  char *base;                     /* aligned to WN_ALIGN, or NULL */
  size_t bytes;                   /* of the arrays so far, a multiple of WN_ALIGN */
  const char *failed;             /* the first array that does not fit; NULL: all do */
  const struct wn_memory *memory; /* where they lie; NULL: the host's */
};

/* Counts or places the rows after those so far. Each begins at a multiple of WN_ALIGN. Together they stay below a
 * quarter of what can be addressed, so that sums of a few counts cannot overflow. */
void wn_arrays_lay(struct wn_arrays *arrays, const struct wn_array *rows, size_t count);
#define WN_ARRAYS_LAY(arrays, rows) wn_arrays_lay(arrays, rows, sizeof(rows) / sizeof *(rows))

/* WN_ERR_ARGUMENT "<format...>: array <name> does not fit in memory" where one does not. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
wn_status
wn_arrays_check(wn_context *ctx, const struct wn_arrays *arrays, const char *format, ...);

/* Zero-filled memory for what has been counted; laying the same rows again places them. WN_ERR_MEMORY names `what`, and
 * the array that does not fit. */
wn_status wn_arrays_allocate(wn_context *ctx, struct wn_arrays *arrays, const char *what);
/* Counts, allocates and places the rows of one table. */
wn_status wn_arrays_create(wn_context *ctx, struct wn_arrays *arrays, const char *what, const struct wn_array *rows,
                           size_t count);
#define WN_ARRAYS_CREATE(ctx, arrays, what, rows)                                                                      \
  wn_arrays_create(ctx, arrays, what, rows, sizeof(rows) / sizeof *(rows))
/* The same in a backend's memory. */
wn_status wn_arrays_create_in(wn_context *ctx, const struct wn_memory *memory, struct wn_arrays *arrays,
                              const char *what, const struct wn_array *rows, size_t count);
#define WN_ARRAYS_CREATE_IN(ctx, memory, arrays, what, rows)                                                           \
  wn_arrays_create_in(ctx, memory, arrays, what, rows, sizeof(rows) / sizeof *(rows))
void wn_arrays_clear(struct wn_arrays *arrays); /* of wn_arrays_allocate and _create; zeroed is allowed */

/* Copy `i` of what has been counted, in memory of the caller's that is aligned to WN_ALIGN: lay the same rows in it. */
struct wn_arrays wn_arrays_copy(const struct wn_arrays *counted, void *memory, int64_t i);
/* Counts or places room for n copies among other arrays: where the first is, NULL while counting. */
void *wn_arrays_lay_copies(struct wn_arrays *arrays, const struct wn_arrays *counted, int64_t n);
/* Bytes to ask for: what has been counted, or more than any memory has where it does not fit. */
size_t wn_arrays_bytes(const struct wn_arrays *counted);

#endif
