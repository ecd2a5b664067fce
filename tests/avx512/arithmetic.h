/* Sums, products, comparisons, bits and conversions of vectors, lane by lane (emulate.h). */

#define _mm512_add_ps(a, b) WIDE_2(ps, _mm256_add_ps, a, b)
#define _mm512_sub_ps(a, b) WIDE_2(ps, _mm256_sub_ps, a, b)
#define _mm512_mul_ps(a, b) WIDE_2(ps, _mm256_mul_ps, a, b)
#define _mm512_div_ps(a, b) WIDE_2(ps, _mm256_div_ps, a, b)
#define _mm512_max_ps(a, b) WIDE_2(ps, _mm256_max_ps, a, b)
#define _mm512_min_ps(a, b) WIDE_2(ps, _mm256_min_ps, a, b)
#define _mm512_sqrt_ps(a) WIDE_1(ps, _mm256_sqrt_ps, ps, a)
#define _mm512_fmadd_ps(a, b, c) WIDE_3(ps, _mm256_fmadd_ps, a, b, c)
#define _mm512_fnmadd_ps(a, b, c) WIDE_3(ps, _mm256_fnmadd_ps, a, b, c)
#define _mm512_add_pd(a, b) WIDE_2(pd, _mm256_add_pd, a, b)
#define _mm512_fmadd_pd(a, b, c) WIDE_3(pd, _mm256_fmadd_pd, a, b, c)
/* Rounding to an integer. Only the lower four bits of `how`, the mode, go to AVX2. */
#define _mm512_roundscale_ps(a, how) WIDE_1_BY(ps, _mm256_round_ps, ps, a, how)

#define _mm512_add_epi8(a, b) WIDE_2(i, _mm256_add_epi8, a, b)
#define _mm512_add_epi32(a, b) WIDE_2(i, _mm256_add_epi32, a, b)
#define _mm512_add_epi64(a, b) WIDE_2(i, _mm256_add_epi64, a, b)
#define _mm512_sub_epi8(a, b) WIDE_2(i, _mm256_sub_epi8, a, b)
#define _mm512_sub_epi32(a, b) WIDE_2(i, _mm256_sub_epi32, a, b)
#define _mm512_max_epi32(a, b) WIDE_2(i, _mm256_max_epi32, a, b)
#define _mm512_abs_epi8(a) WIDE_1(i, _mm256_abs_epi8, i, a)
#define _mm512_madd_epi16(a, b) WIDE_2(i, _mm256_madd_epi16, a, b)
#define _mm512_maddubs_epi16(a, b) WIDE_2(i, _mm256_maddubs_epi16, a, b)
#define _mm512_mullo_epi32(a, b) WIDE_2(i, _mm256_mullo_epi32, a, b)
#define _mm512_mul_epu32(a, b) WIDE_2(i, _mm256_mul_epu32, a, b)
#define _mm512_mask_sub_epi8(from, m, a, b)                                                                            \
  LANES_3(i, u8, 64, i, from, i, a, i, b, (uint64_t)(m) >> k & 1 ? (uint8_t)(B_.u8[k] - C_.u8[k]) : A_.u8[k])

#define _mm512_and_si512(a, b) WIDE_2(i, _mm256_and_si256, a, b)
#define _mm512_or_si512(a, b) WIDE_2(i, _mm256_or_si256, a, b)
#define _mm512_xor_si512(a, b) WIDE_2(i, _mm256_xor_si256, a, b)
#define _mm512_slli_epi16(a, by) WIDE_1_BY(i, _mm256_slli_epi16, i, a, (int)(by))
#define _mm512_srli_epi16(a, by) WIDE_1_BY(i, _mm256_srli_epi16, i, a, (int)(by))
#define _mm512_slli_epi32(a, by) WIDE_1_BY(i, _mm256_slli_epi32, i, a, (int)(by))
#define _mm512_srli_epi32(a, by) WIDE_1_BY(i, _mm256_srli_epi32, i, a, (int)(by))
#define _mm512_srai_epi32(a, by) WIDE_1_BY(i, _mm256_srai_epi32, i, a, (int)(by))
#define _mm512_srli_epi64(a, by) WIDE_1_BY(i, _mm256_srli_epi64, i, a, (int)(by))
#define _mm512_srl_epi32(a, by) WIDE_1_BY(i, _mm256_srl_epi32, i, a, by)
#define _mm512_srlv_epi32(a, by) WIDE_2(i, _mm256_srlv_epi32, a, by)
/* Bit by bit: bits a, b and c form an index into `table`. */
static inline uint64_t wide_ternary(uint64_t a, uint64_t b, uint64_t c, int table) {
  uint64_t r = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
#define _mm512_ternarylogic_epi64(a, b, c, table)                                                                      \
  LANES_3(i, u64, 8, i, a, i, b, i, c, wide_ternary(A_.u64[k], B_.u64[k], C_.u64[k], table))

/* Masks. */
#define _mm512_cmp_ps_mask(a, b, how)                                                                                  \
  __extension__({                                                                                                      \
    const union wide A_ = {.ps = (a)}, B_ = {.ps = (b)};                                                               \
    (__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps(A_.ps2[0], B_.ps2[0], how)) |                                         \
                _mm256_movemask_ps(_mm256_cmp_ps(A_.ps2[1], B_.ps2[1], how)) << 8);                                    \
  })
#define _mm512_mask_cmp_ps_mask(m, a, b, how) ((__mmask16)((m)&_mm512_cmp_ps_mask(a, b, how)))
#define _mm_cmp_ps_mask(a, b, how) ((__mmask8)_mm_movemask_ps(_mm_cmp_ps(a, b, how)))
static inline __mmask16 wide_not_below(union wide a, union wide b) {
  unsigned r = 0;
  for (int k = 0; k < 16; k++) r |= (unsigned)(a.u32[k] >= b.u32[k]) << k;
  return (__mmask16)r;
}
#define _mm512_cmpge_epu32_mask(a, b) wide_not_below((union wide){.i = (a)}, (union wide){.i = (b)})
#define _mm512_movepi8_mask(a)                                                                                         \
  __extension__({                                                                                                      \
    const union wide A_ = {.i = (a)};                                                                                  \
    (__mmask64)((uint64_t)(uint32_t)_mm256_movemask_epi8(A_.i2[1]) << 32 | (uint32_t)_mm256_movemask_epi8(A_.i2[0]));  \
  })

/* Conversions to wider and narrower numbers. */
#define WIDER(f, a, half) ((union wide){.i2 = {f(a), f(half)}}.i)
#define _mm512_cvtepi8_epi32(a) WIDER(_mm256_cvtepi8_epi32, a, _mm_srli_si128(a, 8))
#define _mm512_cvtepu8_epi32(a) WIDER(_mm256_cvtepu8_epi32, a, _mm_srli_si128(a, 8))
#define _mm512_cvtepu16_epi32(a)                                                                                       \
  __extension__({                                                                                                      \
    const __m256i H_ = (a);                                                                                            \
    ((union wide){.i2 = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(H_)),                                            \
                         _mm256_cvtepu16_epi32(_mm256_extracti128_si256(H_, 1))}})                                     \
        .i;                                                                                                            \
  })
#define _mm512_cvtepi32_epi16(a) LANES_1(i2[0], u16, 16, i, a, (uint16_t)A_.u32[k])
#define _mm512_cvtepi32_epi8(a) LANES_1(i4[0], u8, 16, i, a, (uint8_t)A_.u32[k])
#define _mm512_cvtsepi32_epi8(a)                                                                                       \
  LANES_1(i4[0], i8, 16, i, a, (int8_t)(A_.i32[k] < -128 ? -128 : A_.i32[k] > 127 ? 127 : A_.i32[k]))
#define _mm512_cvtepi32_ps(a) WIDE_1(ps, _mm256_cvtepi32_ps, i, a)
#define _mm512_cvtps_epi32(a) WIDE_1(i, _mm256_cvtps_epi32, ps, a)
#define _mm512_cvtps_pd(a)                                                                                             \
  __extension__({                                                                                                      \
    const __m256 H_ = (a);                                                                                             \
    ((union wide){                                                                                                     \
         .pd2 = {_mm256_cvtps_pd(_mm256_castps256_ps128(H_)), _mm256_cvtps_pd(_mm256_extractf128_ps(H_, 1))}})         \
        .pd;                                                                                                           \
  })
#define _mm512_cvtpd_ps(a)                                                                                             \
  __extension__({                                                                                                      \
    const union wide A_ = {.pd = (a)};                                                                                 \
    _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(A_.pd2[0])), _mm256_cvtpd_ps(A_.pd2[1]), 1);           \
  })
#define _mm512_cvtph_ps(a)                                                                                             \
  __extension__({                                                                                                      \
    const __m256i H_ = (a);                                                                                            \
    ((union wide){                                                                                                     \
         .ps2 = {_mm256_cvtph_ps(_mm256_castsi256_si128(H_)), _mm256_cvtph_ps(_mm256_extracti128_si256(H_, 1))}})      \
        .ps;                                                                                                           \
  })

/* a 2^floor(b), rounded once; b is not infinite. */
static inline float wide_scale(float a, float b) {
  if (a != a || b != b) return a + b;
  return ldexpf(a, (int)fmaxf(fminf(floorf(b), 1000), -1000));
}
#define _mm512_scalef_ps(a, b) LANES_2(ps, f, 16, ps, a, ps, b, wide_scale(A_.f[k], B_.f[k]))
#define _mm512_maskz_scalef_ps(m, a, b)                                                                                \
  LANES_2(ps, f, 16, ps, a, ps, b, (m) >> k & 1 ? wide_scale(A_.f[k], B_.f[k]) : 0)
#define _mm_maskz_div_ps(m, a, b) LANES_2(ps4[0], f, 4, ps4[0], a, ps4[0], b, (m) >> k & 1 ? A_.f[k] / B_.f[k] : 0)

/* Summed in the compilers' order: halves, quarters, lanes 2 apart, neighbours. */
static inline float wide_sum(union wide a) {
  const __m256 half = _mm256_add_ps(a.ps2[1], a.ps2[0]);
  __m128 x = _mm_add_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline float wide_max(union wide a) {
  const __m256 half = _mm256_max_ps(a.ps2[1], a.ps2[0]);
  __m128 x = _mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline double wide_sum_doubles(union wide a) {
  const __m256d half = _mm256_add_pd(a.pd2[1], a.pd2[0]);
  const __m128d x = _mm_add_pd(_mm256_extractf128_pd(half, 1), _mm256_castpd256_pd128(half));
  return _mm_cvtsd_f64(x) + _mm_cvtsd_f64(_mm_unpackhi_pd(x, x));
}
#define _mm512_reduce_add_ps(a) wide_sum((union wide){.ps = (a)})
#define _mm512_reduce_max_ps(a) wide_max((union wide){.ps = (a)})
#define _mm512_reduce_add_pd(a) wide_sum_doubles((union wide){.pd = (a)})

/* VNNI: four products u8 x s8 are added to a 32-bit sum, which wraps. */
#define _mm512_dpbusd_epi32(sum, a, b)                                                                                 \
  LANES_3(i, u32, 16, i, sum, i, a, i, b,                                                                              \
          A_.u32[k] + (uint32_t)(B_.u8[4 * k] * C_.i8[4 * k] + B_.u8[4 * k + 1] * C_.i8[4 * k + 1] +                   \
                                 B_.u8[4 * k + 2] * C_.i8[4 * k + 2] + B_.u8[4 * k + 3] * C_.i8[4 * k + 3]))
