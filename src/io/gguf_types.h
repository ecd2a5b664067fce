/* Decodes blocks of GGUF's storage types to floats; needs no file. */
#ifndef WN_IO_GGUF_TYPES_H
#define WN_IO_GGUF_TYPES_H

#include "winnow/gguf.h"

/* A type's number in a file; the type of a number, false: none. */
uint32_t wn_gguf_type_number(wn_gguf_type type);
bool wn_gguf_type_find(uint32_t number, wn_gguf_type *out);

/* Decodes weights first..first+count-1 of data to out [count]. data begins with a block and needs no alignment. first
 * and count need not be at the bounds of blocks. */
void wn_gguf_decode(wn_gguf_type type, const void *data, int64_t first, int64_t count, float *out);

/* Stores n floats, whole blocks, as F16 or as a type with scales: what is too large becomes infinite, or a block of
 * NaN, as do NaN and infinity. One thread; the bits do not depend on the context. */
void wn_gguf_store(const wn_context *ctx, wn_gguf_type type, const float *x, int64_t n, void *out);

#endif
