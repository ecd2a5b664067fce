/* Conversion with the CPU's instruction (F16C) if there is one, else bit by bit; both round alike. */
#include "tensor/f16.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx,f16c"))) static void with_f16c(int64_t n, const float *x, uint16_t *y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; i++) y[i] = (uint16_t)_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}
#endif

uint16_t wn_f16_round(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  const uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00 | (uint16_t)(size >> 13 & 0x3ff);
  if (size >= 0x477ff000) return sign | 0x7c00; /* from 65520 on, a float rounds to infinity */
  if (size < 0x38800000) {                      /* below 2^-14: units of 2^-24 */
    if (size < 0x33000000) return sign;
    const uint32_t fraction = (size & 0x7fffff) | 0x800000, down = 126 - (size >> 23);
    const uint32_t kept = fraction >> down, rest = fraction & ((1u << down) - 1), half = 1u << (down - 1);
    return sign | (uint16_t)(kept + (rest > half || (rest == half && (kept & 1))));
  }
  const uint32_t rounded = size - 0x38000000 + 0xfff + (size >> 13 & 1);
  return sign | (uint16_t)(rounded >> 13);
}

void wn_f16_from_f32(int64_t n, const float *x, uint16_t *y) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) { /* processors with AVX2 have F16C, a name that clang 14 does not know */
    with_f16c(n, x, y);
    return;
  }
#endif
  for (int64_t i = 0; i < n; i++) y[i] = wn_f16_round(x[i]);
}
