/* One vector of floats for the instruction set this file is compiled for: 16 lanes (AVX-512) or 8 (AVX2 with FMA;
 * on ARM, NEON in pairs: neon.h). Included only by the *_avx2.c and *_avx512.c files, which the build compiles with the
 * matching flags. */
#ifndef WN_BACKENDS_CPU_VEC_H
#define WN_BACKENDS_CPU_VEC_H

#if defined(__aarch64__)
#include "backends/cpu/neon.h"
#else
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

/* Always inlined, because types and sizes are constants in the caller. Not if clang adds checks to every access (the
 * build of fuzz targets): then functions with kernels for all types take it minutes to compile. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && defined(__clang__)
#define V_INLINE static inline __attribute__((unused))
#endif
#endif
#ifndef V_INLINE
#define V_INLINE static inline __attribute__((always_inline, unused))
#endif

#if defined(__AVX512F__)

#define VL 16
#define WN_ISA_NAME(name) name##_avx512
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

V_INLINE vf v_load(const float *p) {
  return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, vf a) {
  _mm512_storeu_ps(p, a);
}
/* First n (1..VL-1) lanes; the others load as 0 and are not stored. */
V_INLINE vf v_loadn(const float *p, int n) {
  return _mm512_maskz_loadu_ps((vm)((1u << n) - 1), p);
}
V_INLINE void v_storen(float *p, vf a, int n) {
  _mm512_mask_storeu_ps(p, (vm)((1u << n) - 1), a);
}
/* bf16: the upper half of a float, rounded to nearest even; a NaN stays NaN. */
V_INLINE vf v_load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
V_INLINE vf v_loadn_bf16(const uint16_t *p, int n) {
  const __m256i x = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
V_INLINE __m256i v_round_bf16(vf a) {
  const __m512i x = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const __m512i near = _mm512_add_epi32(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(x, _mm512_set1_epi32(0x400000));
  const __m512i chosen = _mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}
V_INLINE void v_store_bf16(uint16_t *p, vf a) {
  _mm256_storeu_si256((__m256i *)p, v_round_bf16(a));
}
V_INLINE void v_storen_bf16(uint16_t *p, vf a, int n) {
  _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), v_round_bf16(a));
}
V_INLINE vf v_set1(float a) {
  return _mm512_set1_ps(a);
}
V_INLINE vf v_zero(void) {
  return _mm512_setzero_ps();
}
V_INLINE vf v_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
V_INLINE vf v_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
V_INLINE vf v_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
V_INLINE vf v_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
} /* a*b + c */
V_INLINE vf v_fnma(vf a, vf b, vf c) {
  return _mm512_fnmadd_ps(a, b, c);
} /* c - a*b */
V_INLINE vf v_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
} /* b if either is NaN */
V_INLINE vf v_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
V_INLINE vf v_sqrt(vf a) {
  return _mm512_sqrt_ps(a);
}
V_INLINE vm v_gt(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
V_INLINE vf v_keep(vm m, vf a) {
  return _mm512_maskz_mov_ps(m, a);
} /* a where m, else 0 */
V_INLINE float v_hsum(vf a) {
  return _mm512_reduce_add_ps(a);
}
V_INLINE float v_hmax(vf a) {
  return _mm512_reduce_max_ps(a);
}
/* Sum of the lanes in double. */
V_INLINE double v_hsum_double(vf a) {
  __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(a)), hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(lo, hi));
}
#define VD 8
typedef __m512d vd;
V_INLINE vd v_dzero(void) {
  return _mm512_setzero_pd();
}
V_INLINE vd v_dfma(vd a, vd b, vd c) {
  return _mm512_fmadd_pd(a, b, c);
}
V_INLINE vd v_dadd(vd a, vd b) {
  return _mm512_add_pd(a, b);
}
V_INLINE vd v_dload(const float *p) {
  return _mm512_cvtps_pd(_mm256_loadu_ps(p));
} /* VD floats, converted to double */
V_INLINE double v_dhsum(vd a) {
  return _mm512_reduce_add_pd(a);
}
V_INLINE vf v_scale2(vf p, vf n) {
  return _mm512_scalef_ps(p, n);
} /* p * 2^n, n integral; correct for denormals */
V_INLINE vf v_round(vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE void v_stream(float *p, vf a) {
  _mm512_stream_ps(p, a);
} /* p is aligned to 64 bytes */

/* Even and odd elements of p[2*VL]. */
V_INLINE void v_load_pairs(const float *p, vf *even, vf *odd) {
  const vi e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const vf lo = _mm512_loadu_ps(p), hi = _mm512_loadu_ps(p + 16);
  *even = _mm512_permutex2var_ps(lo, e, hi);
  *odd = _mm512_permutex2var_ps(lo, _mm512_add_epi32(e, _mm512_set1_epi32(1)), hi);
}
V_INLINE void v_store_pairs(float *p, vf even, vf odd) {
  const vi lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(even, lo, odd));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), odd));
}

/* 64-bit lanes whose low halves are used, for random numbers. */
V_INLINE vi v_lset1(uint64_t a) {
  return _mm512_set1_epi64((long long)a);
}
V_INLINE vi v_lload(const uint64_t *p) {
  return _mm512_loadu_si512(p);
}
V_INLINE vi v_ladd(vi a, vi b) {
  return _mm512_add_epi64(a, b);
}
/* 64-bit product of the low halves. */
V_INLINE vi v_lmul(vi a, vi b) {
  return _mm512_mul_epu32(a, b);
}
V_INLINE vi v_lhigh(vi a) {
  return _mm512_srli_epi64(a, 32);
}
V_INLINE vi v_ixor3(vi a, vi b, vi c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
/* Interleaves the low halves of a and b. */
V_INLINE vi v_lmerge(vi a, vi b) {
  return _mm512_mask_shuffle_epi32(a, 0xaaaa, b, _MM_PERM_CCAA);
}
V_INLINE vi v_lunpack_low(vi a, vi b) {
  return _mm512_unpacklo_epi64(a, b);
}
V_INLINE vi v_lunpack_high(vi a, vi b) {
  return _mm512_unpackhi_epi64(a, b);
}
V_INLINE vi v_iset1(uint32_t a) {
  return _mm512_set1_epi32((int)a);
}
V_INLINE vm v_ige_u(vi a, vi b) {
  return _mm512_cmpge_epu32_mask(a, b);
}
/* Lane 2 g holds g and lane 2 g + 1 holds g + VL/4: an order that v_philox turns into the natural one. */
V_INLINE vi v_lcounter(void) {
  return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
}

#else /* AVX2 + FMA, or NEON */

#define VL 8
#define WN_ISA_NAME(name) name##_avx2
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

static const int32_t v_tail_mask[16]
    __attribute__((aligned(32), unused)) = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
V_INLINE __m256i v_tail(int n) {
  return _mm256_loadu_si256((const __m256i *)(v_tail_mask + 8 - n));
}
V_INLINE vf v_load(const float *p) {
  return _mm256_loadu_ps(p);
}
V_INLINE void v_store(float *p, vf a) {
  _mm256_storeu_ps(p, a);
}
V_INLINE vf v_loadn(const float *p, int n) {
  return _mm256_maskload_ps(p, v_tail(n));
}
V_INLINE void v_storen(float *p, vf a, int n) {
  _mm256_maskstore_ps(p, v_tail(n), a);
}
V_INLINE vf v_load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
V_INLINE vf v_loadn_bf16(const uint16_t *p, int n) {
  uint16_t part[VL] = {0};
  memcpy(part, p, (size_t)n * sizeof *part);
  return v_load_bf16(part);
}
V_INLINE void v_store_bf16(uint16_t *p, vf a) {
  const __m256i x = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x400000));
  const __m256 chosen =
      _mm256_blendv_ps(_mm256_castsi256_ps(near), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
  _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(pairs));
}
V_INLINE void v_storen_bf16(uint16_t *p, vf a, int n) {
  uint16_t part[VL];
  v_store_bf16(part, a);
  memcpy(p, part, (size_t)n * sizeof *part);
}
V_INLINE vf v_set1(float a) {
  return _mm256_set1_ps(a);
}
V_INLINE vf v_zero(void) {
  return _mm256_setzero_ps();
}
V_INLINE vf v_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
V_INLINE vf v_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
V_INLINE vf v_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
V_INLINE vf v_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
V_INLINE vf v_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
V_INLINE vf v_fnma(vf a, vf b, vf c) {
  return _mm256_fnmadd_ps(a, b, c);
}
V_INLINE vf v_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
V_INLINE vf v_min(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
V_INLINE vf v_sqrt(vf a) {
  return _mm256_sqrt_ps(a);
}
V_INLINE vm v_gt(vf a, vf b) {
  return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
V_INLINE vf v_keep(vm m, vf a) {
  return _mm256_and_ps(m, a);
}
V_INLINE float v_hsum(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
V_INLINE float v_hmax(vf a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
#define VD 4
typedef __m256d vd;
V_INLINE vd v_dzero(void) {
  return _mm256_setzero_pd();
}
V_INLINE vd v_dfma(vd a, vd b, vd c) {
  return _mm256_fmadd_pd(a, b, c);
}
V_INLINE vd v_dadd(vd a, vd b) {
  return _mm256_add_pd(a, b);
}
V_INLINE vd v_dload(const float *p) {
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
V_INLINE double v_dhsum(vd a) {
  __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
V_INLINE double v_hsum_double(vf a) {
  return v_dhsum(
      _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))));
}
/* In two steps, so that both factors are normal numbers for all arguments that v_exp lets through. */
V_INLINE vf v_scale2(vf p, vf n) {
  __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half);
  __m256i bias = _mm256_set1_epi32(127);
  __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
V_INLINE vf v_round(vf a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE void v_stream(float *p, vf a) {
  _mm256_stream_ps(p, a);
}

/* Even and odd elements of p[2*VL]. */
V_INLINE void v_load_pairs(const float *p, vf *even, vf *odd) {
  const vf lo = _mm256_loadu_ps(p), hi = _mm256_loadu_ps(p + 8);
  const vf a = _mm256_permute2f128_ps(lo, hi, 0x20), b = _mm256_permute2f128_ps(lo, hi, 0x31);
  *even = _mm256_shuffle_ps(a, b, 0x88);
  *odd = _mm256_shuffle_ps(a, b, 0xdd);
}
V_INLINE void v_store_pairs(float *p, vf even, vf odd) {
  const vf a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(a, b, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(a, b, 0x31));
}

V_INLINE vi v_lset1(uint64_t a) {
  return _mm256_set1_epi64x((long long)a);
}
V_INLINE vi v_lload(const uint64_t *p) {
  return _mm256_loadu_si256((const __m256i *)p);
}
V_INLINE vi v_ladd(vi a, vi b) {
  return _mm256_add_epi64(a, b);
}
V_INLINE vi v_lmul(vi a, vi b) {
  return _mm256_mul_epu32(a, b);
}
V_INLINE vi v_lhigh(vi a) {
  return _mm256_srli_epi64(a, 32);
}
V_INLINE vi v_ixor3(vi a, vi b, vi c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
V_INLINE vi v_lmerge(vi a, vi b) {
  return _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
}
V_INLINE vi v_lunpack_low(vi a, vi b) {
  return _mm256_unpacklo_epi64(a, b);
}
V_INLINE vi v_lunpack_high(vi a, vi b) {
  return _mm256_unpackhi_epi64(a, b);
}
V_INLINE vi v_iset1(uint32_t a) {
  return _mm256_set1_epi32((int)a);
}
V_INLINE vm v_ige_u(vi a, vi b) {
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}
V_INLINE vi v_lcounter(void) {
  return _mm256_setr_epi64x(0, 2, 1, 3);
}

#endif

/* e^x within about 1 ulp: x = n ln2 + r, |r| <= ln2/2, polynomial of degree 7 in r (Taylor coefficients: the
 * truncation stays under 2^-27). -inf gives 0, overflow +inf, NaN stays. */
V_INLINE vf v_exp(vf x) {
  x = v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x)); /* the second operand is returned if x is NaN */
  vf n = v_round(v_mul(x, v_set1(1.44269504088896341f)));
  vf r = v_fnma(n, v_set1(0.693359375f), x); /* exact, as the constant has few bits */
  r = v_fnma(n, v_set1(-2.12194440e-4f), r);
  vf p = v_set1(1.98412698e-4f);
  p = v_fma(p, r, v_set1(1.38888889e-3f));
  p = v_fma(p, r, v_set1(8.33333333e-3f));
  p = v_fma(p, r, v_set1(4.16666667e-2f));
  p = v_fma(p, r, v_set1(1.66666667e-1f));
  p = v_fma(p, r, v_set1(0.5f));
  p = v_fma(v_mul(r, r), p, r);
  return v_scale2(v_add(p, v_set1(1.0f)), n);
}

/* 1 / (1 + e^-x) */
V_INLINE vf v_sigmoid(vf x) {
  vf one = v_set1(1.0f);
  return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
}

/* tanh(x) within about 2 ulp: an odd polynomial of degree 11 below 0.625 (Cephes' tanhf), 1 - 2/(e^2x + 1) from there
 * on. NaN stays. */
V_INLINE vf v_tanh(vf x) {
  const vf one = v_set1(1.0f), edge = v_set1(0.625f), a = v_max(v_sub(v_zero(), x), x), z = v_min(edge, a);
  const vf s = v_mul(z, z);
  vf p = v_set1(-5.70498872745e-3f);
  p = v_fma(p, s, v_set1(2.06390887954e-2f));
  p = v_fma(p, s, v_set1(-5.37397155531e-2f));
  p = v_fma(p, s, v_set1(1.33314422036e-1f));
  p = v_fma(p, s, v_set1(-3.33332819422e-1f));
  p = v_fma(v_mul(p, s), z, z);
  const vf q = v_sub(one, v_div(v_set1(2.0f), v_add(v_exp(v_add(a, a)), one)));
  const vf t = v_add(p, v_keep(v_gt(a, edge), v_sub(q, p)));
  return v_sub(v_keep(v_gt(x, v_zero()), v_add(t, t)), t);
}

/* wn_philox (base/rng.h) in 64-bit lanes: out[2*c], out[2*c+1] get the 2*VL words for the VL/2 counters of vector c;
 * they are in order if the counters are in v_lcounter's order. n vectors at once, so that multiplications need not wait
 * for each other. About 15 instructions per round and two vectors of words. */
V_INLINE void v_philox(uint64_t seed, uint64_t stream, const vi *counter, const int n, vi *out) {
  const vi m0 = v_lset1(0xD2511F53u), m1 = v_lset1(0xCD9E8D57u);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  vi c0[4], c1[4], c2[4], c3[4];
#pragma GCC unroll 4
  for (int c = 0; c < n; c++) {
    c0[c] = counter[c], c1[c] = v_lhigh(counter[c]);
    c2[c] = v_lset1(stream), c3[c] = v_lset1(stream >> 32);
  }
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const vi key0 = v_lset1(k0), key1 = v_lset1(k1);
#pragma GCC unroll 4
    for (int c = 0; c < n; c++) {
      const vi p0 = v_lmul(c0[c], m0), p1 = v_lmul(c2[c], m1);
      c0[c] = v_ixor3(v_lhigh(p1), c1[c], key0);
      c2[c] = v_ixor3(v_lhigh(p0), c3[c], key1);
      c1[c] = p1, c3[c] = p0;
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < n; c++) {
    const vi a = v_lmerge(c0[c], c1[c]), b = v_lmerge(c2[c], c3[c]);
    out[2 * c] = v_lunpack_low(a, b), out[2 * c + 1] = v_lunpack_high(a, b);
  }
}

#endif
