/* Replaces packed_avx512bf16.c on processors of other families. Never called: bfloat16 weights are multiplied as floats
 * there. */
#include "backends/cpu/packed/packed.h"

int64_t wn_cpu_packed_bf16_ld(int64_t K) {
  return K;
}
void wn_cpu_packed_bf16_round(const float *x, int64_t K, uint16_t *to) {
  (void)x, (void)K, (void)to;
}
void wn_cpu_packed_bf16_rows(const char *w, int64_t rows, int64_t K, const uint16_t *x, int64_t M,
                             const struct wn_cpu_packed_out *out) {
  (void)w, (void)rows, (void)K, (void)x, (void)M, (void)out;
}
