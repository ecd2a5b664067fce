/* Counted, aligned memory, and arenas laid out from named tables. */
#ifndef WN_BASE_ALLOC_H
#define WN_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_ALIGN 64 /* a cache line and an AVX-512 register */

/* Zero-filled, WN_ALIGN-aligned, counted by wn_memory_info. Large blocks are mapped, so that freeing returns
 * them to the system. WN_ERR_MEMORY names `what` and the bytes. bytes 0 gives NULL. */
wn_status wn_alloc(wn_context *ctx, const char *what, size_t bytes, void **out);
void wn_free(void *p);                           /* NULL is allowed */
char *wn_strdup(wn_context *ctx, const char *s); /* NULL on failure, detail recorded; freed with wn_free */

/* a*b and a+b without overflow: false when it would overflow. */
bool wn_mul_size(size_t a, size_t b, size_t *out);
bool wn_add_size(size_t a, size_t b, size_t *out);

/* An arena is planned (every piece registered with the place its pointer goes to), allocated at once, then bound.
 *   struct wn_arena a = {0};
 *   wn_arena_plan(&a, "x", bytes, (void **)&ptr); ...
 *   wn_arena_allocate(ctx, &a, "activations");   all pointers are set now
 *   wn_arena_clear(&a);                           all freed                      */
struct wn_arena {
  char *base;
  size_t bytes;
  struct wn_arena_piece {
    const char *name;
    size_t offset, bytes;
    void **where;
  } * pieces; /* names are borrowed */
  int count, capacity;
  bool failed; /* a plan overflowed or ran out of memory: allocate reports it */
};
void wn_arena_plan(struct wn_arena *arena, const char *name, size_t bytes, void **where);
wn_status wn_arena_allocate(wn_context *ctx, struct wn_arena *arena, const char *what);
void wn_arena_clear(struct wn_arena *arena);

#endif
