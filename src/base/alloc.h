/* Counted, aligned memory. Several arrays in one block: base/arrays.h. */
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
/* Under a limit of address space (ulimit -v): is there still room for what the libraries that winnow computes with take
 * beside its own memory? They end the process where there is none, so whatever is about to use them asks before.
 * WN_ERR_MEMORY says how much is wanted. */
wn_status wn_alloc_reserve(wn_context *ctx);
void wn_free(void *p); /* NULL is allowed */
/* The eight bytes in front of a block, which say what it is: 0; a handle of a kind, by which the API knows its own
 * (misuse.h); freed, as long as the memory is not used again. */
#define WN_BLOCK_HANDLE UINT64_C(0x77696e6e6f770000)
#define WN_BLOCK_FREED UINT64_C(0x6672656564000000)
static inline uint64_t *wn_block_word(void *block) {
  return (uint64_t *)block - 1;
}
char *wn_strdup(wn_context *ctx, const char *s); /* NULL on failure, detail recorded; freed with wn_free */

/* a*b and a+b without overflow: false when it would overflow. */
bool wn_mul_size(size_t a, size_t b, size_t *out);
bool wn_add_size(size_t a, size_t b, size_t *out);

#endif
