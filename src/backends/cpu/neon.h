/* The AVX2 intrinsics of our kernels, implemented with NEON, so that both are compiled from the same sources: a 256-bit
 * vector is a pair of NEON vectors. Only what the kernels use. Each function does what Intel's manual says of the
 * intrinsic, except for conversions of numbers outside int32_t; no kernel depends on those. */
#ifndef WN_BACKENDS_CPU_NEON_H
#define WN_BACKENDS_CPU_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define NEON static inline __attribute__((always_inline, unused))

typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef double __m128d __attribute__((vector_size(16), may_alias));
typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef float __m256 __attribute__((vector_size(32), may_alias));
typedef double __m256d __attribute__((vector_size(32), may_alias));
typedef long long __m256i __attribute__((vector_size(32), may_alias));
/* The same as vectors of lanes. */
typedef int8_t neon_b32 __attribute__((vector_size(32)));
typedef uint16_t neon_h16 __attribute__((vector_size(32)));
typedef int32_t neon_s8 __attribute__((vector_size(32)));
typedef uint32_t neon_u8 __attribute__((vector_size(32)));
typedef uint64_t neon_u4 __attribute__((vector_size(32)));
typedef int32_t neon_s4 __attribute__((vector_size(16)));

/* ---- halves ---- */

NEON __m128i neon_low(__m256i a) {
  return __builtin_shufflevector(a, a, 0, 1);
}
NEON __m128i neon_high(__m256i a) {
  return __builtin_shufflevector(a, a, 2, 3);
}
NEON __m256i neon_join(__m128i low, __m128i high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
/* Applies a NEON function to both halves, as vectors of TYPE. */
#define NEON_ONE(type, f, a)                                                                                           \
  neon_join((__m128i)f((type)neon_low((__m256i)(a))), (__m128i)f((type)neon_high((__m256i)(a))))
#define NEON_TWO(type, f, a, b)                                                                                        \
  neon_join((__m128i)f((type)neon_low((__m256i)(a)), (type)neon_low((__m256i)(b))),                                    \
            (__m128i)f((type)neon_high((__m256i)(a)), (type)neon_high((__m256i)(b))))
#define NEON_THREE(type, f, a, b, c)                                                                                   \
  neon_join((__m128i)f((type)neon_low((__m256i)(a)), (type)neon_low((__m256i)(b)), (type)neon_low((__m256i)(c))),      \
            (__m128i)f((type)neon_high((__m256i)(a)), (type)neon_high((__m256i)(b)), (type)neon_high((__m256i)(c))))

#define NEON_CAST(name, from, to)                                                                                      \
  NEON to name(from a) {                                                                                               \
    return (to)a;                                                                                                      \
  }
NEON_CAST(_mm256_castps_si256, __m256, __m256i)
NEON_CAST(_mm256_castsi256_ps, __m256i, __m256)
NEON_CAST(_mm_castsi128_ps, __m128i, __m128)
#define NEON_LOW(name, from, to)                                                                                       \
  NEON to name(from a) {                                                                                               \
    return (to)neon_low((__m256i)a);                                                                                   \
  }
NEON_LOW(_mm256_castps256_ps128, __m256, __m128)
NEON_LOW(_mm256_castpd256_pd128, __m256d, __m128d)
NEON_LOW(_mm256_castsi256_si128, __m256i, __m128i)
NEON __m256 _mm256_castps128_ps256(__m128 a) {
  return (__m256)neon_join((__m128i)a, (__m128i)a);
}
NEON __m256i _mm256_castsi128_si256(__m128i a) {
  return neon_join(a, a);
}
NEON __m256i _mm256_broadcastsi128_si256(__m128i a) {
  return neon_join(a, a);
}
#define _mm256_extractf128_ps(a, i) ((__m128)((i) ? neon_high((__m256i)(a)) : neon_low((__m256i)(a))))
#define _mm256_extractf128_pd(a, i) ((__m128d)((i) ? neon_high((__m256i)(a)) : neon_low((__m256i)(a))))
#define _mm256_extracti128_si256(a, i) ((i) ? neon_high(a) : neon_low(a))
NEON __m256i _mm256_inserti128_si256(__m256i a, __m128i b, int high) {
  return high ? neon_join(neon_low(a), b) : neon_join(b, neon_high(a));
}
NEON __m256 _mm256_insertf128_ps(__m256 a, __m128 b, int high) {
  return (__m256)_mm256_inserti128_si256((__m256i)a, (__m128i)b, high);
}
/* Chooses halves: 0x20 both low ones, 0x31 both high ones. */
NEON __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int which) {
  return which == 0x20 ? neon_join(neon_low(a), neon_low(b)) : neon_join(neon_high(a), neon_high(b));
}
NEON __m256 _mm256_permute2f128_ps(__m256 a, __m256 b, int which) {
  return (__m256)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, which);
}

/* ---- memory ---- */

#define NEON_LOAD(name, type, pointer)                                                                                 \
  NEON type name(const pointer *p) {                                                                                   \
    type a;                                                                                                            \
    memcpy(&a, p, sizeof a);                                                                                           \
    return a;                                                                                                          \
  }
#define NEON_STORE(name, type, pointer)                                                                                \
  NEON void name(pointer *p, type a) {                                                                                 \
    memcpy(p, &a, sizeof a);                                                                                           \
  }
NEON_LOAD(_mm256_loadu_ps, __m256, float)
NEON_LOAD(_mm_loadu_ps, __m128, float)
NEON_LOAD(_mm256_loadu_si256, __m256i, void)
NEON_LOAD(_mm_loadu_si128, __m128i, void)
NEON_LOAD(_mm_load_si128, __m128i, void)
NEON_STORE(_mm256_storeu_ps, __m256, float)
NEON_STORE(_mm256_stream_ps, __m256, float)
NEON_STORE(_mm_storeu_ps, __m128, float)
NEON_STORE(_mm256_storeu_si256, __m256i, void)
NEON_STORE(_mm_storeu_si128, __m128i, void)
NEON __m128i _mm_loadl_epi64(const void *p) {
  __m128i a = {0, 0};
  memcpy(&a, p, 8);
  return a;
}
NEON void _mm_storel_pi(void *p, __m128 a) {
  memcpy(p, &a, 8);
}
NEON __m256 _mm256_maskload_ps(const float *p, __m256i mask) {
  __m256 a = {0};
  for (int i = 0; i < 8; i++)
    if (((neon_s8)mask)[i]) a[i] = p[i];
  return a;
}
NEON void _mm256_maskstore_ps(float *p, __m256i mask, __m256 a) {
  for (int i = 0; i < 8; i++)
    if (((neon_s8)mask)[i]) p[i] = a[i];
}
#define _MM_HINT_T0 3
#define _mm_prefetch(p, hint) __builtin_prefetch(p, 0, hint)

/* ---- constants ---- */

NEON __m256 _mm256_set1_ps(float a) {
  return (__m256){a, a, a, a, a, a, a, a};
}
NEON __m128 _mm_set1_ps(float a) {
  return (__m128){a, a, a, a};
}
NEON __m256d _mm256_set1_pd(double a) {
  return (__m256d){a, a, a, a};
}
NEON __m256i _mm256_set1_epi32(int a) {
  return (__m256i)(neon_s8){a, a, a, a, a, a, a, a};
}
NEON __m256i _mm256_set1_epi8(char a) {
  const __m128i half = (__m128i)vdupq_n_s8((int8_t)a);
  return neon_join(half, half);
}
NEON __m256i _mm256_set1_epi64x(long long a) {
  return (__m256i){a, a, a, a};
}
NEON __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h) {
  return (__m256i)(neon_s8){a, b, c, d, e, f, g, h};
}
NEON __m256i _mm256_setr_epi64x(long long a, long long b, long long c, long long d) {
  return (__m256i){a, b, c, d};
}
#define _mm256_setr_epi8(...) ((__m256i)(neon_b32){__VA_ARGS__})
#define _mm256_setzero_ps() ((__m256){0})
#define _mm256_setzero_pd() ((__m256d){0})
#define _mm256_setzero_si256() ((__m256i){0})
#define _mm_setzero_ps() ((__m128){0})
#define _mm_setzero_si128() ((__m128i){0})

/* ---- floats ---- */

#define NEON_ARITHMETIC(name, type, lanes, operator)                                                                   \
  NEON type name(type a, type b) {                                                                                     \
    return (type)((lanes)a operator(lanes) b);                                                                         \
  }
NEON_ARITHMETIC(_mm256_add_ps, __m256, __m256, +)
NEON_ARITHMETIC(_mm256_sub_ps, __m256, __m256, -)
NEON_ARITHMETIC(_mm256_mul_ps, __m256, __m256, *)
NEON_ARITHMETIC(_mm256_div_ps, __m256, __m256, /)
NEON_ARITHMETIC(_mm256_add_pd, __m256d, __m256d, +)
NEON_ARITHMETIC(_mm_add_ps, __m128, __m128, +)
NEON_ARITHMETIC(_mm_sub_ps, __m128, __m128, -)
NEON_ARITHMETIC(_mm_mul_ps, __m128, __m128, *)
NEON_ARITHMETIC(_mm_div_ps, __m128, __m128, /)
NEON_ARITHMETIC(_mm_add_pd, __m128d, __m128d, +)
NEON __m128 _mm_add_ss(__m128 a, __m128 b) {
  a[0] += b[0];
  return a;
}
NEON __m128d _mm_add_sd(__m128d a, __m128d b) {
  a[0] += b[0];
  return a;
}
NEON __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
  return (__m256)NEON_THREE(float32x4_t, vfmaq_f32, c, a, b);
}
NEON __m256 _mm256_fnmadd_ps(__m256 a, __m256 b, __m256 c) {
  return (__m256)NEON_THREE(float32x4_t, vfmsq_f32, c, a, b);
}
NEON __m256d _mm256_fmadd_pd(__m256d a, __m256d b, __m256d c) {
  return (__m256d)NEON_THREE(float64x2_t, vfmaq_f64, c, a, b);
}
/* b if either is NaN. */
NEON float32x4_t neon_max(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
NEON float32x4_t neon_min(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
NEON __m256 _mm256_max_ps(__m256 a, __m256 b) {
  return (__m256)NEON_TWO(float32x4_t, neon_max, a, b);
}
NEON __m256 _mm256_min_ps(__m256 a, __m256 b) {
  return (__m256)NEON_TWO(float32x4_t, neon_min, a, b);
}
NEON __m128 _mm_max_ps(__m128 a, __m128 b) {
  return (__m128)neon_max((float32x4_t)a, (float32x4_t)b);
}
NEON __m128 _mm_max_ss(__m128 a, __m128 b) {
  a[0] = a[0] > b[0] ? a[0] : b[0];
  return a;
}
NEON __m256 _mm256_sqrt_ps(__m256 a) {
  return (__m256)NEON_ONE(float32x4_t, vsqrtq_f32, a);
}
#define _MM_FROUND_TO_NEAREST_INT 0
#define _MM_FROUND_NO_EXC 8
NEON __m256 _mm256_round_ps(__m256 a, int how) {
  (void)how; /* always rounds to nearest */
  return (__m256)NEON_ONE(float32x4_t, vrndnq_f32, a);
}
enum { _CMP_UNORD_Q = 3, _CMP_NLT_UQ = 21, _CMP_GT_OQ = 30 };
NEON uint32x4_t neon_not_less(float32x4_t a, float32x4_t b) {
  return vmvnq_u32(vcltq_f32(a, b));
}
NEON uint32x4_t neon_unordered(float32x4_t a, float32x4_t b) {
  return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)));
}
NEON __m256 _mm256_cmp_ps(__m256 a, __m256 b, int how) {
  return (__m256)(how == _CMP_GT_OQ    ? NEON_TWO(float32x4_t, vcgtq_f32, a, b)
                  : how == _CMP_NLT_UQ ? NEON_TWO(float32x4_t, neon_not_less, a, b)
                                       : NEON_TWO(float32x4_t, neon_unordered, a, b));
}
NEON __m256 _mm256_and_ps(__m256 a, __m256 b) {
  return (__m256)((__m256i)a & (__m256i)b);
}
/* b in lanes where the mask is set; a lane of the mask has all bits set or none. */
NEON __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 mask) {
  return (__m256)(((__m256i)b & (__m256i)mask) | ((__m256i)a & ~(__m256i)mask));
}
NEON int neon_signs(__m128i a) {
  const int32_t by[4] = {0, 1, 2, 3};
  return (int)vaddvq_u32(vshlq_u32(vshrq_n_u32((uint32x4_t)a, 31), vld1q_s32(by)));
}
NEON int _mm256_movemask_ps(__m256 a) {
  return neon_signs(neon_low((__m256i)a)) | neon_signs(neon_high((__m256i)a)) << 4;
}
NEON float _mm_cvtss_f32(__m128 a) {
  return a[0];
}
NEON double _mm_cvtsd_f64(__m128d a) {
  return a[0];
}

/* ---- permutations ---- */

NEON __m128 _mm_shuffle_ps(__m128 a, __m128 b, int by) {
  return (__m128){a[by & 3], a[by >> 2 & 3], b[by >> 4 & 3], b[by >> 6 & 3]};
}
#define NEON_HALVES(name, f, type)                                                                                     \
  NEON __m256 name(__m256 a, __m256 b) {                                                                               \
    return (__m256)NEON_TWO(type, f, a, b);                                                                            \
  }
#define NEON_HALVES_I(name, f, type)                                                                                   \
  NEON __m256i name(__m256i a, __m256i b) {                                                                            \
    return NEON_TWO(type, f, a, b);                                                                                    \
  }
NEON_HALVES(_mm256_unpacklo_ps, vzip1q_f32, float32x4_t)
NEON_HALVES(_mm256_unpackhi_ps, vzip2q_f32, float32x4_t)
NEON_HALVES_I(_mm256_unpacklo_epi32, vzip1q_s32, int32x4_t)
NEON_HALVES_I(_mm256_unpackhi_epi32, vzip2q_s32, int32x4_t)
NEON_HALVES_I(_mm256_unpacklo_epi64, vzip1q_s64, int64x2_t)
NEON_HALVES_I(_mm256_unpackhi_epi64, vzip2q_s64, int64x2_t)
NEON __m256 _mm256_shuffle_ps(__m256 a, __m256 b, int by) {
  return (__m256)neon_join((__m128i)_mm_shuffle_ps(_mm256_castps256_ps128(a), _mm256_castps256_ps128(b), by),
                           (__m128i)_mm_shuffle_ps(_mm256_extractf128_ps(a, 1), _mm256_extractf128_ps(b, 1), by));
}
NEON __m128 _mm_unpacklo_ps(__m128 a, __m128 b) {
  return (__m128)vzip1q_f32((float32x4_t)a, (float32x4_t)b);
}
NEON __m128i _mm_unpacklo_epi32(__m128i a, __m128i b) {
  return (__m128i)vzip1q_s32((int32x4_t)a, (int32x4_t)b);
}
NEON __m128i _mm_unpackhi_epi32(__m128i a, __m128i b) {
  return (__m128i)vzip2q_s32((int32x4_t)a, (int32x4_t)b);
}
NEON __m128d _mm_unpackhi_pd(__m128d a, __m128d b) {
  return __builtin_shufflevector(a, b, 1, 3);
}
NEON __m128 _mm_movelh_ps(__m128 a, __m128 b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5);
}
NEON __m128 _mm_movehl_ps(__m128 a, __m128 b) {
  return __builtin_shufflevector(b, a, 2, 3, 6, 7);
}
NEON __m128i _mm_shuffle_epi32(__m128i a, int by) { /* 0x4e: swaps the halves; 0xb1: swaps neighbours */
  const neon_s4 x = (neon_s4)a;
  return by == 0x4e ? (__m128i)__builtin_shufflevector(x, x, 2, 3, 0, 1)
                    : (__m128i)__builtin_shufflevector(x, x, 1, 0, 3, 2);
}
NEON __m256i _mm256_permutevar8x32_epi32(__m256i a, __m256i at) {
  neon_s8 out;
  for (int i = 0; i < 8; i++) out[i] = ((neon_s8)a)[((neon_s8)at)[i] & 7];
  return (__m256i)out;
}
NEON __m256 _mm256_permutevar8x32_ps(__m256 a, __m256i at) {
  return (__m256)_mm256_permutevar8x32_epi32((__m256i)a, at);
}
NEON __m256i _mm256_permute4x64_epi64(__m256i a, int by) {
  return (__m256i){a[by & 3], a[by >> 2 & 3], a[by >> 4 & 3], a[by >> 6 & 3]};
}
NEON uint8x16_t neon_bytes_at(uint8x16_t a, uint8x16_t at) {
  return vqtbl1q_u8(a, vandq_u8(at, vdupq_n_u8(0x8f)));
}
NEON __m256i _mm256_shuffle_epi8(__m256i a, __m256i at) {
  return NEON_TWO(uint8x16_t, neon_bytes_at, a, at);
}
#define _mm_srli_si128(a, bytes) ((__m128i)vextq_u8((uint8x16_t)(a), vdupq_n_u8(0), bytes))
NEON __m256i _mm256_blend_epi32(__m256i a, __m256i b, int which) {
  neon_s8 out = (neon_s8)a;
  for (int i = 0; i < 8; i++)
    if (which >> i & 1) out[i] = ((neon_s8)b)[i];
  return (__m256i)out;
}

/* ---- integers ---- */

NEON_ARITHMETIC(_mm256_add_epi32, __m256i, neon_u8, +)
NEON_ARITHMETIC(_mm256_sub_epi32, __m256i, neon_u8, -)
NEON_ARITHMETIC(_mm256_mullo_epi32, __m256i, neon_u8, *)
NEON_ARITHMETIC(_mm256_add_epi64, __m256i, neon_u4, +)
NEON_ARITHMETIC(_mm256_and_si256, __m256i, __m256i, &)
NEON_ARITHMETIC(_mm256_or_si256, __m256i, __m256i, |)
NEON_ARITHMETIC(_mm256_xor_si256, __m256i, __m256i, ^)
NEON_ARITHMETIC(_mm256_cmpeq_epi32, __m256i, neon_s8, ==)
NEON_ARITHMETIC(_mm256_cmpeq_epi8, __m256i, neon_b32, ==)
NEON __m128i _mm_add_epi32(__m128i a, __m128i b) {
  return (__m128i)vaddq_s32((int32x4_t)a, (int32x4_t)b);
}
NEON_HALVES_I(_mm256_max_epi32, vmaxq_s32, int32x4_t)
NEON_HALVES_I(_mm256_max_epu32, vmaxq_u32, uint32x4_t)
NEON __m128i _mm_max_epi32(__m128i a, __m128i b) {
  return (__m128i)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}
/* 64-bit products of the low halves of 64-bit lanes. */
NEON uint64x2_t neon_mul_low(uint64x2_t a, uint64x2_t b) {
  return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}
NEON_HALVES_I(_mm256_mul_epu32, neon_mul_low, uint64x2_t)
NEON __m256i _mm256_slli_epi32(__m256i a, int by) {
  return (__m256i)((neon_u8)a << (uint32_t)by);
}
NEON __m256i _mm256_srli_epi32(__m256i a, int by) {
  return (__m256i)((neon_u8)a >> (uint32_t)by);
}
NEON __m256i _mm256_srai_epi32(__m256i a, int by) {
  return (__m256i)((neon_s8)a >> by);
}
NEON __m256i _mm256_slli_epi64(__m256i a, int by) {
  return (__m256i)((neon_u4)a << (uint64_t)by);
}
NEON __m256i _mm256_srli_epi64(__m256i a, int by) {
  return (__m256i)((neon_u4)a >> (uint64_t)by);
}
NEON __m256i _mm256_srli_epi16(__m256i a, int by) {
  return (__m256i)((neon_h16)a >> (uint16_t)by);
}
NEON __m256i _mm256_srlv_epi32(__m256i a, __m256i by) {
  return (__m256i)((neon_u8)a >> (neon_u8)by);
}
/* Adds the sums of four neighbouring products of signed bytes; a sum of two must fit an int16_t. */
NEON int32x4_t neon_dot(int32x4_t sum, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, a, b);
#else
  return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}
NEON __m256i neon_dot_256(__m256i sum, __m256i a, __m256i b) {
  return neon_join((__m128i)neon_dot((int32x4_t)neon_low(sum), (int8x16_t)neon_low(a), (int8x16_t)neon_low(b)),
                   (__m128i)neon_dot((int32x4_t)neon_high(sum), (int8x16_t)neon_high(a), (int8x16_t)neon_high(b)));
}

/* ---- conversions ---- */

NEON __m256 _mm256_cvtepi32_ps(__m256i a) {
  return (__m256)NEON_ONE(int32x4_t, vcvtq_f32_s32, a);
}
NEON __m128 _mm_cvtepi32_ps(__m128i a) {
  return (__m128)vcvtq_f32_s32((int32x4_t)a);
}
NEON __m256i _mm256_cvtps_epi32(__m256 a) {
  return NEON_ONE(float32x4_t, vcvtnq_s32_f32, a);
}
NEON __m256d _mm256_cvtps_pd(__m128 a) {
  return (__m256d)neon_join((__m128i)vcvt_f64_f32(vget_low_f32((float32x4_t)a)),
                            (__m128i)vcvt_high_f64_f32((float32x4_t)a));
}
NEON __m128 _mm256_cvtpd_ps(__m256d a) {
  return (__m128)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)neon_low((__m256i)a)), (float64x2_t)neon_high((__m256i)a));
}
NEON __m256 _mm256_cvtph_ps(__m128i a) {
  const float16x8_t h = (float16x8_t)a;
  return (__m256)neon_join((__m128i)vcvt_f32_f16(vget_low_f16(h)), (__m128i)vcvt_high_f32_f16(h));
}
NEON __m128 _mm_cvtph_ps(__m128i a) {
  return (__m128)vcvt_f32_f16(vget_low_f16((float16x8_t)a));
}
NEON __m256i _mm256_cvtepu16_epi32(__m128i a) {
  return neon_join((__m128i)vmovl_u16(vget_low_u16((uint16x8_t)a)), (__m128i)vmovl_high_u16((uint16x8_t)a));
}
NEON __m256i _mm256_cvtepi8_epi32(__m128i a) { /* the first eight */
  const int16x8_t h = vmovl_s8(vget_low_s8((int8x16_t)a));
  return neon_join((__m128i)vmovl_s16(vget_low_s16(h)), (__m128i)vmovl_high_s16(h));
}
NEON __m256i _mm256_cvtepu8_epi32(__m128i a) {
  const uint16x8_t h = vmovl_u8(vget_low_u8((uint8x16_t)a));
  return neon_join((__m128i)vmovl_u16(vget_low_u16(h)), (__m128i)vmovl_high_u16(h));
}
NEON __m128i _mm_cvtepi8_epi32(__m128i a) { /* the first four */
  return neon_low(_mm256_cvtepi8_epi32(a));
}
NEON __m128i _mm_cvtepu8_epi32(__m128i a) {
  return neon_low(_mm256_cvtepu8_epi32(a));
}
NEON __m128i _mm_cvtsi32_si128(int a) {
  return (__m128i)(neon_s4){a, 0, 0, 0};
}
#define _mm_insert_epi16(a, value, at) ((__m128i)vsetq_lane_u16((uint16_t)(value), (uint16x8_t)(a), at))
#define _mm_insert_epi32(a, value, at) ((__m128i)vsetq_lane_s32(value, (int32x4_t)(a), at))
NEON __m128i _mm_packs_epi32(__m128i a, __m128i b) {
  return (__m128i)vcombine_s16(vqmovn_s32((int32x4_t)a), vqmovn_s32((int32x4_t)b));
}
NEON __m128i _mm_packs_epi16(__m128i a, __m128i b) {
  return (__m128i)vcombine_s8(vqmovn_s16((int16x8_t)a), vqmovn_s16((int16x8_t)b));
}
NEON uint16x8_t neon_packus(int32x4_t a, int32x4_t b) {
  return vcombine_u16(vqmovun_s32(a), vqmovun_s32(b));
}
NEON_HALVES_I(_mm256_packus_epi32, neon_packus, int32x4_t)

#endif
