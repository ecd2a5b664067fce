/* Finding NaN and infinity in tensors of any storage type. */
#ifndef WN_IO_FINITE_H
#define WN_IO_FINITE_H

#include <stdbool.h>
#include "winnow/gguf.h"

/* Index of the first weight that is not finite, or of the first weight of a block whose scales are not; -1: all are
 * finite. */
int64_t wn_finite_scan(wn_gguf_type type, const void *data, size_t bytes);

#endif
