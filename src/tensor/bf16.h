/* bf16 as a storage type: the upper half of a float, rounded to nearest even. */
#ifndef WN_TENSOR_BF16_H
#define WN_TENSOR_BF16_H

#include <stdint.h>

void wn_bf16_from_f32(int threads, int64_t n, const float *x, uint16_t *y); /* [n] each */
void wn_bf16_to_f32(int threads, int64_t n, const uint16_t *x, float *y);

#endif
