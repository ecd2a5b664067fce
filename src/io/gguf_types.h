/* Decodes blocks of GGUF's storage types to floats; needs no file. */
#ifndef WN_IO_GGUF_TYPES_H
#define WN_IO_GGUF_TYPES_H

#include "winnow/gguf.h"

/* Decodes weights first..first+count-1 of data to out [count]. data begins with a block and needs no alignment. first
 * and count need not be at the bounds of blocks. */
void wn_gguf_decode(wn_gguf_type type, const void *data, int64_t first, int64_t count, float *out);

#endif
