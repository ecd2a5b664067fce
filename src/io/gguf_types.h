/* Blocks of GGUF's storage types as floats, without a file around them. */
#ifndef WN_IO_GGUF_TYPES_H
#define WN_IO_GGUF_TYPES_H

#include "winnow/gguf.h"

/* Weights first..first+count-1 of data, which begins with a block and needs no alignment: out [count], no more and no
 * less, wherever the blocks begin and end. */
void wn_gguf_decode(wn_gguf_type type, const void *data, int64_t first, int64_t count, float *out);

#endif
