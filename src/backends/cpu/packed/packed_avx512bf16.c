/* bfloat16 weights, read in place, times rows of x rounded to bfloat16. vdpbf16ps computes two products per lane and
 * adds them in float32.
 *
 * The product of a row of w and a row of x is summed in 16 lanes over k, in steps of 32; then the lanes are added in a
 * fixed order. It depends on nothing else, so a row of y has the same bits alone, in a prompt and in any batch.
 *
 * Cost of 4 rows of w, 6 of x and 32 of k: 24 vdpbf16ps and 10 loads. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"

enum { STEP_OF = 32, W_ROWS = 4, X_ROWS = 6, AHEAD_OF_W = 8192 };

int64_t wn_cpu_packed_bf16_ld(int64_t K) {
  return (K + STEP_OF - 1) / STEP_OF * STEP_OF;
}

void wn_cpu_packed_bf16_round(const float *x, int64_t K, uint16_t *to) {
  int64_t k = 0;
  for (; k + VL <= K; k += VL) _mm256_storeu_si256((void *)(to + k), (__m256i)_mm512_cvtneps_pbh(v_load(x + k)));
  if (k < K) {
    _mm256_storeu_si256((void *)(to + k), (__m256i)_mm512_cvtneps_pbh(v_loadn(x + k, (int)(K - k))));
    k += VL;
  }
  for (; k < wn_cpu_packed_bf16_ld(K); k++) to[k] = 0;
}

/* The sums of four vectors: lanes two apart are added first, then lanes one apart, then the quarters. */
V_INLINE __m128 bf16_sums(const vf a[W_ROWS]) {
  const vf s01 = v_add(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
  const vf s23 = v_add(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
  const __m512d p = _mm512_castps_pd(s01), q = _mm512_castps_pd(s23);
  const vf all = v_add(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* One step; `have`: a mask of its weights. */
V_INLINE void bf16_step(int M, const char *const w[W_ROWS], const uint16_t *x, int64_t ld, int64_t k, __mmask32 have,
                        vf sum[][W_ROWS]) {
  __m512bh a[W_ROWS];
#pragma GCC unroll 4
  for (int r = 0; r < W_ROWS; r++) a[r] = (__m512bh)_mm512_maskz_loadu_epi16(have, w[r] + 2 * k);
#pragma GCC unroll 6
  for (int m = 0; m < M; m++) {
    const __m512bh b = (__m512bh)_mm512_loadu_si512(x + m * ld + k);
#pragma GCC unroll 4
    for (int r = 0; r < W_ROWS; r++) sum[m][r] = _mm512_dpbf16_ps(sum[m][r], a[r], b);
  }
}

/* Up to four rows of w times M rows of x. */
V_INLINE void bf16_tile(int M, const char *const w[W_ROWS], int64_t K, const uint16_t *x, bool ahead,
                        const struct wn_cpu_packed_out *out) {
  const int64_t ld = wn_cpu_packed_bf16_ld(K);
  vf sum[X_ROWS][W_ROWS];
#pragma GCC unroll 6
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int r = 0; r < W_ROWS; r++) sum[m][r] = v_zero();
  int64_t k = 0;
  for (; k + STEP_OF <= K; k += STEP_OF) {
    if (ahead)
#pragma GCC unroll 4
      for (int r = 0; r < W_ROWS; r++) _mm_prefetch(w[0] + AHEAD_OF_W + 8 * k + 64 * r, _MM_HINT_T0);
    bf16_step(M, w, x, ld, k, (__mmask32)-1, sum);
  }
  if (k < K) bf16_step(M, w, x, ld, k, (__mmask32)((1u << (K - k)) - 1), sum);
  const __mmask8 here = (__mmask8)((1u << out->rows) - 1);
  const __m128 b = out->b ? _mm_maskz_loadu_ps(here, out->b) : _mm_setzero_ps();
#pragma GCC unroll 6
  for (int m = 0; m < M; m++) {
    float *y = out->y + m * out->ldy;
    const __m128 v = _mm_add_ps(bf16_sums(sum[m]), b);
    _mm_mask_storeu_ps(y, here, out->accumulate ? _mm_add_ps(_mm_maskz_loadu_ps(here, y), v) : v);
  }
}

void wn_cpu_packed_bf16_rows(const char *w, int64_t rows, int64_t K, const uint16_t *x, int64_t M,
                             const struct wn_cpu_packed_out *out) {
  const int64_t ld = wn_cpu_packed_bf16_ld(K);
  for (int64_t n = 0; n < rows; n += W_ROWS) {
    const char *at[W_ROWS];
    for (int r = 0; r < W_ROWS; r++) at[r] = w + (n + r < rows ? n + r : rows - 1) * K * 2;
    struct wn_cpu_packed_out to = *out;
    to.rows = (int)(rows - n < W_ROWS ? rows - n : W_ROWS);
    to.b = out->b ? out->b + n : NULL;
    for (int64_t m = 0; m < M; m += X_ROWS) {
      to.y = out->y + m * out->ldy + n;
      const uint16_t *from = x + m * ld;
      switch (M - m) {
#define TILE(count)                                                                                                    \
  case count:                                                                                                          \
    bf16_tile(count, at, K, from, m == 0, &to);                                                                        \
    break
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
#undef TILE
      default:
        bf16_tile(X_ROWS, at, K, from, m == 0, &to);
      }
    }
  }
}
