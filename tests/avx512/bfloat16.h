/* AVX512_BF16 (emulate.h). Subnormal inputs and results count as zero. */

static inline float wide_normal(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t wide_bf16(float x) {
  uint32_t bits;
  x = wide_normal(x);
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float wide_float(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float r;
  memcpy(&r, &bits, sizeof r);
  return wide_normal(r);
}
static inline float wide_add_product(float sum, uint16_t a, uint16_t b) {
  return wide_normal(fmaf(wide_float(a), wide_float(b), wide_normal(sum)));
}

#define _mm512_cvtneps_pbh(a) ((__m256bh)LANES_1(i2[0], u16, 16, ps, a, wide_bf16(A_.f[k])))
/* b goes to the lower half. */
#define _mm512_cvtne2ps_pbh(a, b) LANES_2(bh, u16, 32, ps, a, ps, b, wide_bf16(k < 16 ? B_.f[k] : A_.f[k - 16]))
/* The odd product is added first. */
#define _mm512_dpbf16_ps(sum, a, b)                                                                                    \
  LANES_3(                                                                                                             \
      ps, f, 16, ps, sum, bh, a, bh, b,                                                                                \
      wide_add_product(wide_add_product(A_.f[k], B_.u16[2 * k + 1], C_.u16[2 * k + 1]), B_.u16[2 * k], C_.u16[2 * k]))
