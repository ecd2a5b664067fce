/* Strides of an array of heads. */
#ifndef WN_OPS_STRIDE_H
#define WN_OPS_STRIDE_H

#include <stdint.h>

/* Strides of batch, token and head, in elements; a head's D values are contiguous. */
struct wn_stride {
  int64_t b, t, h;
};

#endif
