/* Moves lanes: constants, casts, parts, permutations, and choices by a mask (emulate.h). */

#define _mm512_setzero_ps() ((union wide){.u64 = {0}}.ps)
#define _mm512_setzero_pd() ((union wide){.u64 = {0}}.pd)
#define _mm512_setzero_si512() ((union wide){.u64 = {0}}.i)
#define WIDE_SAME(kind, x)                                                                                             \
  __extension__({                                                                                                      \
    const __typeof__(x) H_ = (x);                                                                                      \
    ((union wide){.kind##2 = {H_, H_}}).kind;                                                                          \
  })
#define _mm512_set1_ps(x) WIDE_SAME(ps, _mm256_set1_ps(x))
#define _mm512_set1_pd(x) WIDE_SAME(pd, _mm256_set1_pd(x))
#define _mm512_set1_epi8(x) WIDE_SAME(i, _mm256_set1_epi8(x))
#define _mm512_set1_epi16(x) WIDE_SAME(i, _mm256_set1_epi16(x))
#define _mm512_set1_epi32(x) WIDE_SAME(i, _mm256_set1_epi32(x))
#define _mm512_set1_epi64(x) WIDE_SAME(i, _mm256_set1_epi64x(x))
#define _mm512_broadcast_i32x4(x) WIDE_SAME(i, _mm256_broadcastsi128_si256(x))
#define _mm512_setr_epi32(...) ((union wide){.i32 = {__VA_ARGS__}}.i)
#define _mm512_setr_epi64(...) ((union wide){.i64 = {__VA_ARGS__}}.i)
#define _mm512_set_epi16(...) LANES_1(i, i16, 32, i, ((union wide){.i16 = {__VA_ARGS__}}.i), A_.i16[31 - k])
#define _mm512_maskz_set1_epi8(m, x)                                                                                   \
  LANES_1(i, i8, 64, i, _mm512_set1_epi8(x), (uint64_t)(m) >> k & 1 ? A_.i8[k] : (int8_t)0)

#define _mm512_castps_si512(a) ((union wide){.ps = (a)}.i)
#define _mm512_castps_pd(a) ((union wide){.ps = (a)}.pd)
#define _mm512_castpd_ps(a) ((union wide){.pd = (a)}.ps)
#define _mm512_castsi512_ps(a) ((union wide){.i = (a)}.ps)
#define _mm512_castps512_ps256(a) ((union wide){.ps = (a)}.ps2[0])
#define _mm512_castps512_ps128(a) ((union wide){.ps = (a)}.ps4[0])
#define _mm512_castsi512_si256(a) ((union wide){.i = (a)}.i2[0])
#define _mm512_castsi512_si128(a) ((union wide){.i = (a)}.i4[0])
/* The undefined upper half: NaN in every format, with odd bytes. */
#define WIDE_UNDEFINED _mm256_set1_epi16((short)0xffdb)
#define _mm512_castsi256_si512(a) ((union wide){.i2 = {(a), WIDE_UNDEFINED}}.i)
#define _mm512_castps256_ps512(a) ((union wide){.ps2 = {(a), _mm256_castsi256_ps(WIDE_UNDEFINED)}}.ps)
#define _mm512_castps128_ps512(a)                                                                                      \
  ((union wide){.ps4 = {(a), _mm_castsi128_ps(_mm256_castsi256_si128(WIDE_UNDEFINED)),                                 \
                        _mm_castsi128_ps(_mm256_castsi256_si128(WIDE_UNDEFINED)),                                      \
                        _mm_castsi128_ps(_mm256_castsi256_si128(WIDE_UNDEFINED))}}                                     \
       .ps)
#define _mm512_zextsi256_si512(a) ((union wide){.i2 = {(a), _mm256_setzero_si256()}}.i)

#define _mm512_extractf32x4_ps(a, at) ((union wide){.ps = (a)}.ps4[at])
#define _mm512_extractf32x8_ps(a, at) ((union wide){.ps = (a)}.ps2[at])
#define _mm512_insertf32x8(a, b, at)                                                                                   \
  __extension__({                                                                                                      \
    union wide A_ = {.ps = (a)};                                                                                       \
    A_.ps2[at] = (b);                                                                                                  \
    A_.ps;                                                                                                             \
  })
#define _mm512_inserti64x4(a, b, at)                                                                                   \
  __extension__({                                                                                                      \
    union wide A_ = {.i = (a)};                                                                                        \
    A_.i2[at] = (b);                                                                                                   \
    A_.i;                                                                                                              \
  })

/* Within each 128-bit quarter. */
#define _mm512_unpacklo_epi32(a, b) WIDE_2(i, _mm256_unpacklo_epi32, a, b)
#define _mm512_unpackhi_epi32(a, b) WIDE_2(i, _mm256_unpackhi_epi32, a, b)
#define _mm512_unpacklo_epi64(a, b) WIDE_2(i, _mm256_unpacklo_epi64, a, b)
#define _mm512_unpackhi_epi64(a, b) WIDE_2(i, _mm256_unpackhi_epi64, a, b)
#define _mm512_unpacklo_ps(a, b) WIDE_2(ps, _mm256_unpacklo_ps, a, b)
#define _mm512_unpackhi_ps(a, b) WIDE_2(ps, _mm256_unpackhi_ps, a, b)
#define _mm512_unpacklo_pd(a, b) WIDE_2(pd, _mm256_unpacklo_pd, a, b)
#define _mm512_unpackhi_pd(a, b) WIDE_2(pd, _mm256_unpackhi_pd, a, b)
#define _mm512_mask_shuffle_epi32(from, m, a, by)                                                                      \
  LANES_2(i, u32, 16, i, from, i, a, (m) >> k & 1 ? B_.u32[(k & ~3) + ((by) >> 2 * (k & 3) & 3)] : A_.u32[k])

/* Whole quarters: two of a, then two of b. */
#define QUARTERS(kind, a, b, by)                                                                                       \
  LANES_2(kind, kind##4, 4, kind, a, kind, b, (k < 2 ? A_.kind##4 : B_.kind##4)[(by) >> 2 * k & 3])
#define _mm512_shuffle_f32x4(a, b, by) QUARTERS(ps, a, b, by)
#define _mm512_shuffle_i64x2(a, b, by) QUARTERS(i, a, b, by)

/* Lanes in any order. */
#define _mm512_permutexvar_epi16(at, a) LANES_2(i, u16, 32, i, at, i, a, B_.u16[A_.u16[k] & 31])
#define _mm512_permutexvar_epi32(at, a) LANES_2(i, u32, 16, i, at, i, a, B_.u32[A_.u32[k] & 15])
#define _mm512_permutexvar_ps(at, a) LANES_2(ps, f, 16, i, at, ps, a, B_.f[A_.u32[k] & 15])
#define _mm512_permutex2var_ps(a, at, b)                                                                               \
  LANES_3(ps, f, 16, ps, a, i, at, ps, b, (B_.u32[k] & 16 ? C_.f : A_.f)[B_.u32[k] & 15])

#define _mm512_mask_blend_ps(m, a, b) LANES_2(ps, f, 16, ps, a, ps, b, (m) >> k & 1 ? B_.f[k] : A_.f[k])
#define _mm512_mask_mov_epi32(from, m, a) LANES_2(i, u32, 16, i, from, i, a, (m) >> k & 1 ? B_.u32[k] : A_.u32[k])
#define _mm512_maskz_mov_ps(m, a) LANES_1(ps, f, 16, ps, a, (m) >> k & 1 ? A_.f[k] : 0)
static inline __m512 wide_compress(unsigned m, union wide a) {
  union wide r;
  memset(&r, 0, sizeof r);
  for (int k = 0, n = 0; k < 16; k++)
    if (m >> k & 1) r.f[n++] = a.f[k];
  return r.ps;
}
#define _mm512_maskz_compress_ps(m, a) wide_compress((__mmask16)(m), (union wide){.ps = (a)})
