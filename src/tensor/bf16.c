/* Conversion of whole arrays: bound by memory, 6 bytes an element. */
#include "tensor/bf16.h"

#include "base/parallel.h"

struct bf16_arrays {
  const void *x;
  void *y;
};
#define BF16_CONVERSION(name, from_type, to_type, convert)                                                             \
  static void name##_range(void *arrays, int64_t from, int64_t to) {                                                   \
    const from_type *x = ((const struct bf16_arrays *)arrays)->x;                                                      \
    to_type *y = ((const struct bf16_arrays *)arrays)->y;                                                              \
    _Pragma("omp simd") for (int64_t i = from; i < to; i++) y[i] = convert(x[i]);                                      \
  }                                                                                                                    \
  void name(int threads, int64_t n, const from_type *x, to_type *y) {                                                  \
    wn_parallel_blocks(threads, n, 1, name##_range, &(struct bf16_arrays){x, y});                                      \
  }
BF16_CONVERSION(wn_bf16_from_f32, float, uint16_t, wn_bf16_round)
BF16_CONVERSION(wn_bf16_to_f32, uint16_t, float, wn_bf16_value)
