/* Blocks of GGUF's storage types as floats, without a file around them. */
#ifndef WN_IO_GGUF_TYPES_H
#define WN_IO_GGUF_TYPES_H

#include "winnow/gguf.h"

/* out [weights] of whole blocks (weights: a multiple of wn_gguf_block_weights); data needs no alignment. */
void wn_gguf_decode(wn_gguf_type type, const void *data, int64_t weights, float *out);

#endif
