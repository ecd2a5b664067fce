/* Several arrays in one block of memory. A table lists the arrays and their sizes. The planner adds up the sizes with
 * overflow checks, names an array that does not fit, and sets each pointer into the block.
 *
 * The same function counts and places, so that the two cannot differ:
 *
 *   static void batch_lay(struct batch *b, int64_t B, int64_t T, struct wn_arrays *arrays) {
 *     const struct wn_array rows[] = {
 *         WN_ARRAY_FOR(b->tokens, "tokens", true, WN_DIMS(B, T)),
 *         WN_ARRAY_FOR(b->targets, "targets", b->trains, WN_DIMS(B, T)),
 *     };
 *     WN_ARRAYS_LAY(arrays, rows);
 *   }
 *
 *   struct wn_arrays arrays = {0};
 *   batch_lay(b, B, T, &arrays); counts: sets every pointer to NULL, arrays.bytes to the size
 *
 *   WN_TRY(wn_arrays_allocate(ctx, &arrays, "a batch")); fails if something does not fit
 *
 *   batch_lay(b, B, T, &arrays); places
 *   ...
 *   wn_arrays_clear(&arrays);
 *
 * One copy per thread in the caller's memory: count once, then place each copy in wn_arrays_copy(&counted, scratch,
 * thread). n copies take n * counted.bytes. */
#ifndef WN_BASE_ARRAYS_H
#define WN_BASE_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/alloc.h"
#include "base/memory.h"

#define WN_ARRAY_DIMS 4

/* One array. If it is not wanted, or a dimension is 0, its pointer becomes NULL and it takes no memory. */
struct wn_array {
  const char *name; /* for the message when it does not fit; borrowed */
  bool wanted;
  struct {
    int n;
    int64_t size[WN_ARRAY_DIMS];
  } dims;         /* WN_DIMS(B, T, C), in elements; none negative; the product is checked for overflow */
  size_t element; /* bytes */
  void *where;    /* address of the pointer to set; it may point to any object type */
};
#define WN_DIMS(...)                                                                                                   \
  {                                                                                                                    \
    .n = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .size = { __VA_ARGS__ }                            \
  }
/* NOLINTBEGIN(bugprone-macro-parentheses): `shape` is a list in braces */
/* A struct wn_array for `pointer`. _SIZED: with elements of `bytes`, for pointers to void. */
#define WN_ARRAY_FOR(pointer, title, condition, shape)                                                                 \
  { .name = (title), .wanted = (condition), .dims = shape, .element = sizeof *(pointer), .where = &(pointer) }
#define WN_ARRAY_SIZED(pointer, bytes, title, condition, shape)                                                        \
  { .name = (title), .wanted = (condition), .dims = shape, .element = (bytes), .where = &(pointer) }
/* NOLINTEND(bugprone-macro-parentheses) */

/* All zeros: counts. With a base: places. */
struct wn_arrays {
  char *base;                     /* aligned to WN_ALIGN, or NULL */
  size_t bytes;                   /* of the arrays so far, a multiple of WN_ALIGN */
  const char *failed;             /* the first array that does not fit; NULL: all fit */
  const struct wn_memory *memory; /* where the arrays live; NULL: host memory */
};

/* Counts or places these arrays after the ones so far. Each begins at a multiple of WN_ALIGN. The total stays below a
 * quarter of the address space, so that adding up a few totals cannot overflow. */
void wn_arrays_lay(struct wn_arrays *arrays, const struct wn_array *rows, size_t count);
#define WN_ARRAYS_LAY(arrays, rows) wn_arrays_lay(arrays, rows, sizeof(rows) / sizeof *(rows))

/* If an array does not fit: WN_ERR_ARGUMENT "<format...>: array <name> does not fit in memory". */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
wn_status
wn_arrays_check(wn_context *ctx, const struct wn_arrays *arrays, const char *format, ...);

/* Allocates zero-filled memory for what was counted; lay the same entries again to place them. WN_ERR_MEMORY names
 * `what` and the array that does not fit. */
wn_status wn_arrays_allocate(wn_context *ctx, struct wn_arrays *arrays, const char *what);
/* Counts, allocates and places the arrays of one table. */
wn_status wn_arrays_create(wn_context *ctx, struct wn_arrays *arrays, const char *what, const struct wn_array *rows,
                           size_t count);
#define WN_ARRAYS_CREATE(ctx, arrays, what, rows)                                                                      \
  wn_arrays_create(ctx, arrays, what, rows, sizeof(rows) / sizeof *(rows))
/* The same in a backend's memory. */
wn_status wn_arrays_create_in(wn_context *ctx, const struct wn_memory *memory, struct wn_arrays *arrays,
                              const char *what, const struct wn_array *rows, size_t count);
#define WN_ARRAYS_CREATE_IN(ctx, memory, arrays, what, rows)                                                           \
  wn_arrays_create_in(ctx, memory, arrays, what, rows, sizeof(rows) / sizeof *(rows))
void wn_arrays_clear(struct wn_arrays *arrays); /* after _allocate or _create; an all-zero struct is allowed */

/* Copy `i` of a counted set, in the caller's memory (aligned to WN_ALIGN): lay the same entries in the result. */
struct wn_arrays wn_arrays_copy(const struct wn_arrays *counted, void *memory, int64_t i);
/* Counts or places room for n copies of a counted set among other arrays. Returns the address of the first copy, NULL
 * while counting. */
void *wn_arrays_lay_copies(struct wn_arrays *arrays, const struct wn_arrays *counted, int64_t n);
/* Bytes to allocate: the counted total, or more than any machine has if an array does not fit. */
size_t wn_arrays_bytes(const struct wn_arrays *counted);

#endif
