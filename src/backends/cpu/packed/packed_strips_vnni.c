/* Weights in strips: 16 rows side by side, laid out once when a model is loaded. In as many bits as the file has them,
 * but for Q4_K's and Q5_K's scales, which have eight bits instead of six (2 to 3 percent more).
 *
 * A file has row after row, each block with its scale in front: a kernel that reads it spends most of its time on
 * gathering scales and on adding up within rows. A strip has for each block of 32 the 16 rows' weights with one lane
 * per row, so that vpdpbusd adds up 16 rows at once, and the scales of 16 rows in one load. Decoding is then bound by
 * memory.
 *
 * A strip: the blocks' low bits, then their high ones (Q5, Q6), then their scales, and for the K types the numbers of
 * each 256. Vector j of a block's low bits has weights 4 j to 4 j + 3 of each row in its lower four bits, and weights
 * 4 (j + 4) to 4 (j + 4) + 3 in the upper ones; Q8_0 has eight vectors of bytes. Weights are unsigned.
 *
 * The floats are those of the kernels on the file's order (packed_kernels.inc, packed_tiles_vnni.c), in the same order:
 * the same bits. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_rows.inc"

enum { CLASSES_OF = BLOCKS, LANES = 4 * ROWS, AHEAD_OF = 8192 };

V_INLINE bool type_is_k(wn_gguf_type type) {
  return type >= WN_GGUF_Q4_K;
}
V_INLINE bool type_is_five(wn_gguf_type type) {
  return type == WN_GGUF_Q5_0 || type == WN_GGUF_Q5_1 || type == WN_GGUF_Q5_K;
}
/* What stands for zero in the unsigned bytes. */
V_INLINE int type_zero(wn_gguf_type type) {
  switch (type) {
  case WN_GGUF_Q8_0:
    return 128;
  case WN_GGUF_Q6_K:
    return 32;
  case WN_GGUF_Q5_0:
    return 16;
  case WN_GGUF_Q4_0:
    return 8;
  default:
    return 0;
  }
}

/* Bytes of a block of 32: low bits, high bits, scales; of 256: the K types' own numbers. */
V_INLINE int64_t low_bytes(wn_gguf_type type) {
  return type == WN_GGUF_Q8_0 ? 512 : 256;
}
V_INLINE int64_t high_bytes(wn_gguf_type type) {
  return type == WN_GGUF_Q6_K ? 128 : type_is_five(type) ? 64 : 0;
}
V_INLINE int64_t scale_bytes(wn_gguf_type type) {
  return type_is_k(type) || tile_kind(type) == WITHOUT ? 32 : 64;
}
V_INLINE int64_t head_bytes(wn_gguf_type type) {
  return type == WN_GGUF_Q6_K ? 32 : type_is_k(type) ? 64 : 0;
}

V_INLINE int64_t strip_bytes_of(wn_gguf_type type, int64_t K) {
  const int64_t blocks = K / 32;
  const int64_t all = blocks * (low_bytes(type) + high_bytes(type) + scale_bytes(type)) + K / 256 * head_bytes(type);
  return (all + LANES - 1) / LANES * LANES;
}

/* Where the parts of block b are. */
struct place {
  char *low, *high, *scale, *head;
};
V_INLINE struct place place_of(wn_gguf_type type, char *strip, int64_t blocks, int64_t b) {
  char *high = strip + blocks * low_bytes(type), *scale = high + blocks * high_bytes(type);
  return (struct place){.low = strip + b * low_bytes(type),
                        .high = high + b * high_bytes(type),
                        .scale = scale + b * scale_bytes(type),
                        .head = scale + blocks * scale_bytes(type) + b / 8 * head_bytes(type)};
}

/* ---- making one ---- */

/* Low and high half floats of 16 words. */
V_INLINE void put_halves(char *to, __m512i words) {
  _mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16(words));
}
V_INLINE void put_bytes(char *to, __m512i words) {
  _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(words));
}

V_INLINE void make_scales(wn_gguf_type type, const struct rows *r, int64_t b, const struct place *to) {
  const int64_t at = (type_is_k(type) ? b / 8 : b) * block_bytes(type);
  const int in = (int)(b % 8);
  if (type == WN_GGUF_Q6_K) {
    const __m512i two = rows_words(r, at + 192 + 2 * in);
    put_bytes(to->scale, two);
    put_bytes(to->scale + ROWS, _mm512_srli_epi32(two, 8));
    put_halves(to->head, _mm512_srli_epi32(rows_words(r, at + 206), 16));
    return;
  }
  const __m512i dm = rows_words(r, at);
  char *halves = type_is_k(type) ? to->head : to->scale;
  put_halves(halves, dm);
  if (tile_kind(type) == WITH_MIN) put_halves(halves + 2 * ROWS, _mm512_srli_epi32(dm, 16));
  if (!type_is_k(type)) return;
  __m512i scale, min;
  rows_six_bits(r, at, in, &scale, &min);
  put_bytes(to->scale, scale);
  put_bytes(to->scale + ROWS, min);
}

V_INLINE void make_of(wn_gguf_type type, const struct rows *r, int64_t blocks, char *strip) {
  const __m512i zero = _mm512_set1_epi8((char)type_zero(type)), one = _mm512_set1_epi8(1), three = _mm512_set1_epi8(3);
  for (int64_t b = 0; b < blocks; b++) {
    const struct place to = place_of(type, strip, blocks, b);
    __m512i q[8], high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    rows_block(type, r, b, q);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      q[j] = _mm512_add_epi8(q[j], zero);
      const __m512i above = _mm512_srli_epi16(q[j], 4);
      if (type == WN_GGUF_Q6_K)
        high[j / 4] = _mm512_or_si512(high[j / 4],
                                      _mm512_sll_epi16(_mm512_and_si512(above, three), _mm_cvtsi32_si128(2 * (j % 4))));
      else if (type_is_five(type))
        high[0] = _mm512_or_si512(high[0], _mm512_sll_epi16(_mm512_and_si512(above, one), _mm_cvtsi32_si128(j)));
    }
    if (type == WN_GGUF_Q8_0) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) _mm512_storeu_si512(to.low + LANES * j, q[j]);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++)
        _mm512_storeu_si512(to.low + LANES * j,
                            _mm512_or_si512(b_and(q[j], 15), _mm512_slli_epi16(b_and(q[j + 4], 15), 4)));
    }
    for (int64_t i = 0; i < high_bytes(type) / LANES; i++) _mm512_storeu_si512(to.high + LANES * i, high[i]);
    make_scales(type, r, b, &to);
  }
}

/* ---- reading one ---- */

V_INLINE void strip_weights(wn_gguf_type type, const struct place *at, __m512i q[8]) {
  if (type == WN_GGUF_Q8_0) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) q[j] = _mm512_load_si512(at->low + LANES * j);
    return;
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const __m512i both = _mm512_load_si512(at->low + LANES * j);
    q[j] = b_and(both, 15), q[j + 4] = b_and(b_down4(both), 15);
  }
  if (type_is_five(type)) {
    const __m512i high = _mm512_load_si512(at->high);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      q[j] = _mm512_or_si512(
          q[j],
          b_and(j < 4 ? _mm512_slli_epi16(high, (unsigned)(4 - j)) : _mm512_srli_epi16(high, (unsigned)(j - 4)), 16));
  }
  if (type == WN_GGUF_Q6_K) {
    const __m512i high[2] = {_mm512_load_si512(at->high), _mm512_load_si512(at->high + LANES)};
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      q[j] = _mm512_or_si512(q[j], b_and(j % 4 < 2 ? _mm512_slli_epi16(high[j / 4], (unsigned)(4 - 2 * (j % 4)))
                                                   : _mm512_srli_epi16(high[j / 4], (unsigned)(2 * (j % 4) - 4)),
                                         48));
  }
}

V_INLINE vf halves_at(const char *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
/* Scale and minimum; Q6_K: the scales of its halves as whole numbers. */
struct scales {
  vf scale, min;
  __m512i six[2];
};
V_INLINE struct scales strip_scales(wn_gguf_type type, const struct place *at) {
  struct scales s = {.min = v_zero()};
  if (type == WN_GGUF_Q6_K) {
    s.scale = halves_at(at->head);
    for (int i = 0; i < 2; i++) s.six[i] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(at->scale + ROWS * i)));
  } else if (type_is_k(type)) {
    const vf f = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)at->scale)));
    const vf g = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(at->scale + ROWS))));
    s.scale = v_mul(f, halves_at(at->head));
    s.min = v_sub(v_zero(), v_mul(g, halves_at(at->head + 2 * ROWS)));
  } else {
    s.scale = halves_at(at->scale);
    if (tile_kind(type) == WITH_MIN) s.min = halves_at(at->scale + 2 * ROWS);
  }
  return s;
}

V_INLINE void panel_from(wn_gguf_type type, char *strip, int64_t blocks, char *panel) {
  const enum kind kind = tile_kind(type);
  const __m512i zero = _mm512_set1_epi8((char)type_zero(type));
  for (int c = 0; c < CLASSES_OF; c++) {
    for (int64_t b = c; b < blocks; b += CLASSES_OF, panel += panel_block(kind)) {
      const struct place at = place_of(type, strip, blocks, b);
      __m512i q[8];
      strip_weights(type, &at, q);
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) q[j] = _mm512_sub_epi8(q[j], zero);
      panel_put(kind, q, panel);
      const struct scales s = strip_scales(type, &at);
      float *to = (float *)(void *)(panel + BYTES_OF_Q);
      v_store(to + ROWS * SCALE, s.scale);
      if (kind == WITH_MIN) v_store(to + ROWS * MIN, s.min);
      if (kind == SIX) {
        v_store(to + ROWS * SIXTEEN, _mm512_cvtepi32_ps(s.six[0]));
        v_store(to + ROWS * SIXTEEN_2, _mm512_cvtepi32_ps(s.six[1]));
      }
    }
  }
}

/* ---- products ---- */

/* One block with row m of x: four weights and four of x at a time. */
V_INLINE __m512i block_sums(wn_gguf_type type, const __m512i q[8], const int8_t *x, int32_t n, const struct scales *s) {
  int32_t four[8];
  memcpy(four, x, 16);
  memcpy(four + 4, x + BYTES, 16);
  __m512i a = b_zero(), b = b_zero(), za = b_zero(), zb = b_zero();
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const __m512i x0 = _mm512_set1_epi32(four[j]), x1 = _mm512_set1_epi32(four[j + 4]);
    a = _mm512_dpbusd_epi32(a, q[j], x0);
    b = _mm512_dpbusd_epi32(b, q[j + 4], x1);
    if (type != WN_GGUF_Q6_K) continue;
    za = _mm512_dpbusd_epi32(za, b_bytes(32), x0);
    zb = _mm512_dpbusd_epi32(zb, b_bytes(32), x1);
  }
  if (type == WN_GGUF_Q6_K) return b_add32(b_mul32(b_sub32(a, za), s->six[0]), b_mul32(b_sub32(b, zb), s->six[1]));
  a = b_add32(a, b);
  return type_zero(type) ? b_sub32(a, _mm512_set1_epi32(n * type_zero(type))) : a;
}

V_INLINE void strip_of(wn_gguf_type type, int M, const char *strip, const struct wn_cpu_packed_x *x, int64_t first,
                       vf *all) {
  const int64_t blocks = x->K / 32, bytes = strip_bytes_of(type, x->K), each = bytes / blocks / LANES * LANES + LANES;
  const char *ahead = strip + (AHEAD_OF + bytes - 1) / bytes * bytes;
  for (int c = 0; c < CLASSES_OF; c++) {
    vf sum[WN_CPU_PACKED_TILE];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) sum[m] = v_zero();
    for (int64_t b = c; b < blocks; b += CLASSES_OF, ahead += each) {
      for (int64_t i = 0; i < each; i += LANES) _mm_prefetch(ahead + i, _MM_HINT_T0);
      const struct place at = place_of(type, (char *)(uintptr_t)strip, blocks, b);
      __m512i q[8];
      strip_weights(type, &at, q);
      const struct scales s = strip_scales(type, &at);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const int64_t row = first + m, k = row * x->ldd + b;
        const int8_t *bytes_of_x = x->q + row * x->ld + (b - c) * 32 + 16 * c;
        const vf f = b_float(block_sums(type, q, bytes_of_x, x->n[k], &s));
        sum[m] = v_fma(f, v_mul(s.scale, v_set1(x->d[k])), sum[m]);
        if (tile_kind(type) == WITH_MIN) sum[m] = v_fma(s.min, v_set1(x->s[k]), sum[m]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) all[m] = c == 0 ? sum[m] : v_add(all[m], sum[m]);
  }
}

#define STRIP_TYPES(EACH)                                                                                              \
  EACH(WN_GGUF_Q8_0);                                                                                                  \
  EACH(WN_GGUF_Q4_0);                                                                                                  \
  EACH(WN_GGUF_Q4_1);                                                                                                  \
  EACH(WN_GGUF_Q5_0);                                                                                                  \
  EACH(WN_GGUF_Q5_1);                                                                                                  \
  EACH(WN_GGUF_Q4_K);                                                                                                  \
  EACH(WN_GGUF_Q5_K);                                                                                                  \
  EACH(WN_GGUF_Q6_K)

int64_t wn_cpu_packed_strip_bytes(wn_gguf_type type, int64_t K) {
  return type < WN_GGUF_Q8_0 ? 0 : strip_bytes_of(type, K);
}

void wn_cpu_packed_strip_make(wn_gguf_type type, const char *w, int64_t rows, int64_t K, char *strip) {
  struct rows r;
  rows_open(type, w, rows, K, &r);
  switch (type) {
#define MAKE(type)                                                                                                     \
  case type:                                                                                                           \
    make_of(type, &r, K / 32, strip);                                                                                  \
    break
    STRIP_TYPES(MAKE);
#undef MAKE
  default:
    break; /* not reached: single weights have no strips */
  }
}

void wn_cpu_packed_strip_panel(wn_gguf_type type, const char *strip, int64_t K, char *panel) {
  char *from = (char *)(uintptr_t)strip;
  switch (type) {
#define FROM(type)                                                                                                     \
  case type:                                                                                                           \
    panel_from(type, from, K / 32, panel);                                                                             \
    break
    STRIP_TYPES(FROM);
#undef FROM
  default:
    break; /* likewise */
  }
}

void wn_cpu_packed_strip(wn_gguf_type type, const char *strip, const struct wn_cpu_packed_x *x, int64_t first, int M,
                         const struct wn_cpu_packed_out *out) {
  vf all[WN_CPU_PACKED_TILE];
  switch (type) {
#define STRIP(type)                                                                                                    \
  case type:                                                                                                           \
    if (M == 1)                                                                                                        \
      strip_of(type, 1, strip, x, first, all);                                                                         \
    else if (M == 2)                                                                                                   \
      strip_of(type, 2, strip, x, first, all);                                                                         \
    else if (M <= 4)                                                                                                   \
      strip_of(type, 4, strip, x, first, all);                                                                         \
    else                                                                                                               \
      strip_of(type, 8, strip, x, first, all);                                                                         \
    break
    STRIP_TYPES(STRIP);
#undef STRIP
  default:
    return; /* likewise */
  }
  rows_out(all, M, out);
}
