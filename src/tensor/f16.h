/* IEEE half floats as a storage type, rounded to nearest even; values beyond 65504 become infinite. */
#ifndef WN_TENSOR_F16_H
#define WN_TENSOR_F16_H

#include <stdint.h>

void wn_f16_from_f32(int64_t n, const float *x, uint16_t *y); /* [n] each, one thread */
uint16_t wn_f16_round(float x);                               /* one number, without the instruction */

#endif
