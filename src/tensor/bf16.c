/* Conversion of whole arrays: bound by memory, 6 bytes an element. */
#include "tensor/bf16.h"

void wn_bf16_from_f32(int threads, int64_t n, const float *x, uint16_t *y) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++) y[i] = wn_bf16_round(x[i]);
}

void wn_bf16_to_f32(int threads, int64_t n, const uint16_t *x, float *y) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; i++) y[i] = wn_bf16_value(x[i]);
}
