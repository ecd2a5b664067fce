/* Where the rows of a sequence's heads lie. */
#ifndef WN_OPS_STRIDE_H
#define WN_OPS_STRIDE_H

#include <stdint.h>

/* Strides in elements of batch, token and head; the head's D values are contiguous. */
struct wn_stride {
  int64_t b, t, h;
};

#endif
