/* Conversion of whole arrays: bound by memory, 6 bytes an element. */
#include "tensor/bf16.h"

#include "base/parallel.h"

struct bf16_arrays {
  float *wide;
  uint16_t *narrow;
};

static void bf16_from_f32(void *arrays, int64_t from, int64_t to) {
  const struct bf16_arrays a = *(const struct bf16_arrays *)arrays;
#pragma omp simd
  for (int64_t i = from; i < to; i++) a.narrow[i] = wn_bf16_round(a.wide[i]);
}
void wn_bf16_from_f32(int threads, int64_t n, const float *x, uint16_t *y) {
  wn_parallel_blocks(threads, n, 1, bf16_from_f32, &(struct bf16_arrays){(float *)(uintptr_t)x, y});
}

static void bf16_to_f32(void *arrays, int64_t from, int64_t to) {
  const struct bf16_arrays a = *(const struct bf16_arrays *)arrays;
#pragma omp simd
  for (int64_t i = from; i < to; i++) a.wide[i] = wn_bf16_value(a.narrow[i]);
}
void wn_bf16_to_f32(int threads, int64_t n, const uint16_t *x, float *y) {
  wn_parallel_blocks(threads, n, 1, bf16_to_f32, &(struct bf16_arrays){y, (uint16_t *)(uintptr_t)x});
}
