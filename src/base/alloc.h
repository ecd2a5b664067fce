/* Counted, aligned memory. Several arrays in one block: base/arrays.h. */
#ifndef WN_BASE_ALLOC_H
#define WN_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_ALIGN 64 /* a cache line and an AVX-512 register */

/* Zero-filled, aligned to WN_ALIGN, counted by wn_memory_info. Large blocks have their own mmap, so that freeing
 * returns them to the system. On failure: WN_ERR_MEMORY, naming `what` and the bytes. bytes 0 gives NULL. */
wn_status wn_alloc(wn_context *ctx, const char *what, size_t bytes, void **out);
/* The same for `count` elements of *out, a pointer to any type: WN_TRY(WN_ALLOC(ctx, "tokens", n, &ids)). */
#define WN_ALLOC(ctx, what, count, out) wn_alloc_array(ctx, what, (size_t)(count), sizeof **(out), out)
wn_status wn_alloc_array(wn_context *ctx, const char *what, size_t count, size_t element, void *out);
/* Moves the first `count` elements of *data to memory for `room`; after a failure *data is as it was. */
#define WN_RESIZE(ctx, what, data, count, room)                                                                        \
  wn_resize(ctx, what, data, sizeof **(data), (size_t)(count), (size_t)(room))
wn_status wn_resize(wn_context *ctx, const char *what, void *data, size_t element, size_t count, size_t room);
/* Makes room in *data, an array of *room elements, for `more` behind the first `count`. */
#define WN_GROW(ctx, what, data, count, more, room)                                                                    \
  wn_grow(ctx, what, data, sizeof **(data), (size_t)(count), (size_t)(more), room)
wn_status wn_grow(wn_context *ctx, const char *what, void *data, size_t element, size_t count, size_t more,
                  size_t *room);
/* Under a limit of address space (ulimit -v): is there room for what the libraries that winnow computes with will
 * allocate themselves? They end the process when there is none, so call this before using them. WN_ERR_MEMORY says how
 * much is wanted. */
wn_status wn_alloc_reserve(wn_context *ctx);
void wn_free(void *p); /* NULL is allowed */
/* The eight bytes in front of a block say what it is: 0 (plain memory), a handle of some kind (this is how the API
 * recognises its own handles, misuse.h), or freed (as long as the memory is not used again). */
#define WN_BLOCK_HANDLE UINT64_C(0x77696e6e6f770000)
#define WN_BLOCK_FREED UINT64_C(0x6672656564000000)
static inline uint64_t *wn_block_word(void *block) {
  return (uint64_t *)block - 1;
}
char *wn_strdup(wn_context *ctx, const char *s); /* NULL on failure, error recorded; free with wn_free */

/* a*b and a+b; false on overflow. */
bool wn_mul_size(size_t a, size_t b, size_t *out);
bool wn_add_size(size_t a, size_t b, size_t *out);

#endif
