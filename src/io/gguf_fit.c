/* Quantisers for blocks (gguf_types.c has their layouts).
 *
 * Q8_0: 32 weights, d = max |x| / 127 (stored as F16), q = round(x / d). The others by a search for the best scales:
 *
 * A group x[n] becomes s q + m (affine, q in 0..Q) or s q (symmetric, q in -Q..Q-1) so that the sum of v (s q + m -
 * x)^2 is small. v = |x| / r + 1, with r the root mean square of the group: large weights matter more, small ones still
 * count. For given q the best s and m have a closed form (least squares); for given s and m the best q is the nearest.
 * So a series of scales around range / Q is tried, each with its best q and then the best m and s for these. The best
 * result is improved by alternating the two until nothing changes.
 *
 * A K type has 256 weights a block and stores the groups' scales (and minima) as whole numbers of 6 or 8 bits times one
 * half float d (and one m). First these are rounded to nearest. Then each group takes the best of the neighbouring
 * scales, with the best q for each, and d and m are solved for with all scales and q fixed; this repeats while the
 * error falls. Cost: about 40 passes over each group, which has at most 32 weights and stays in registers and the L1
 * cache. */
#include "io/gguf_fit.h"

#include <math.h>
#include <string.h>

#include "base/context.h"
#include "io/stored.h"
#include "tensor/f16.h"

#define INLINE static inline __attribute__((always_inline))

enum { GROUP = 32, BLOCK = 256, LANES = 8, ROUNDS = 8, BLOCK_ROUNDS = 3 };
enum { AFFINE_STEPS = 20, SYMMETRIC_STEPS = 9 };

bool wn_gguf_half(float x, uint16_t *out) {
  *out = wn_f16_round(x);
  return (*out & 0x7fff) != 0x7c00 || isinf(x);
}

/* Sums over a group in a fixed order, so that the compiler can vectorise them. */
struct sums {
  float v, vx, vq, vqq, vqx;
};

INLINE float add_lanes(const float *lane) {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* Rounds to the nearest whole number, for |x| below 2^22. */
INLINE float whole(float x) {
  return (x + 12582912.0f) - 12582912.0f;
}

INLINE float clamped(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

/* q = x * inverse + shift, rounded and clamped; returns its sums. */
INLINE struct sums quantize(const float *x, const float *v, int n, float inverse, float shift, float low, float high,
                            float *q) {
  float vq[LANES] = {0}, vqq[LANES] = {0}, vqx[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) {
      const float k = whole(clamped(x[i + l] * inverse + shift, low, high)), kv = k * v[i + l];
      q[i + l] = k;
      vq[l] += kv;
      vqq[l] += kv * k;
      vqx[l] += kv * x[i + l];
    }
  return (struct sums){.vq = add_lanes(vq), .vqq = add_lanes(vqq), .vqx = add_lanes(vqx)};
}

/* Sets the importance v of each weight; returns the sums that do not depend on q. */
INLINE struct sums weigh(const float *x, int n, float *v) {
  float square[LANES] = {0}, sv[LANES] = {0}, svx[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) square[l] += x[i + l] * x[i + l];
  const float mean = add_lanes(square) / (float)n, scale = mean > 0x1p-100f ? 1 / sqrtf(mean) : 0;
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) {
      v[i + l] = fabsf(x[i + l]) * scale + 1;
      sv[l] += v[i + l];
      svx[l] += v[i + l] * x[i + l];
    }
  return (struct sums){.v = add_lanes(sv), .vx = add_lanes(svx)};
}

/* s q + m. error: the weighted sum of squares without its constant part, the sum of v x^2. */
struct fit {
  float s, m;
  double error;
};

/* The best s and m for the q of these sums. at_most_zero: m must not exceed 0. False if the sums do not determine
 * them. */
INLINE bool solve(struct sums g, bool at_most_zero, struct fit *out) {
  const double v = (double)g.v, vx = (double)g.vx, vq = (double)g.vq, vqq = (double)g.vqq, vqx = (double)g.vqx;
  const double D = v * vqq - vq * vq;
  if (!(D > 0)) return false;
  double s = (v * vqx - vx * vq) / D, m = (vqq * vx - vq * vqx) / D;
  if (at_most_zero && m > 0) m = 0, s = vqx / vqq;
  if (!(s > 0)) return false;
  *out = (struct fit){.s = (float)s, .m = (float)m};
  out->error = s * s * vqq + 2 * s * m * vq + m * m * v - 2 * s * vqx - 2 * m * vx;
  return true;
}

INLINE struct fit fit_affine(const float *x, const float *v, struct sums of_x, int n, float Q, bool at_most_zero) {
  float low = x[0], high = x[0], q[GROUP];
  for (int i = 1; i < n; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
  if (at_most_zero && low > 0) low = 0;
  struct fit best = {.s = (high - low) / Q, .m = low, .error = INFINITY}, f;
  if (!(best.s > 0x1p-100f)) return (struct fit){.s = 0, .m = low};
  for (int step = 0; step <= AFFINE_STEPS; step++) {
    const float inverse = (Q - 1 + 0.1f * (float)step) / (high - low);
    struct sums g = quantize(x, v, n, inverse, -low * inverse, 0, Q, q);
    g.v = of_x.v, g.vx = of_x.vx;
    if (solve(g, at_most_zero, &f) && f.error < best.error) best = f;
  }
  for (int round = 0; round < ROUNDS; round++) {
    struct sums g = quantize(x, v, n, 1 / best.s, -best.m / best.s, 0, Q, q);
    g.v = of_x.v, g.vx = of_x.vx;
    if (!solve(g, at_most_zero, &f) || !(f.error < best.error)) break;
    best = f;
  }
  return best;
}

/* The best fit with m = 0; s may have either sign. */
INLINE struct fit fit_symmetric(const float *x, const float *v, int n, float Q) {
  float most = x[0], q[GROUP];
  for (int i = 1; i < n; i++) most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
  struct fit best = {.s = -most / Q, .error = INFINITY};
  if (!(fabsf(best.s) > 0x1p-100f)) return (struct fit){.s = 0};
  for (int side = 0; side < 2; side++)
    for (int step = -SYMMETRIC_STEPS; step <= SYMMETRIC_STEPS; step++) {
      const float inverse = (side ? Q - 1 : -Q) * (1 + 0.1f * (float)step / Q) / most;
      const struct sums g = quantize(x, v, n, inverse, 0, -Q, Q - 1, q);
      const double error = -(double)g.vqx * (double)g.vqx / (double)g.vqq;
      if (error < best.error) best = (struct fit){.s = g.vqx / g.vqq, .error = error};
    }
  for (int round = 0; round < ROUNDS && best.s != 0; round++) {
    const struct sums g = quantize(x, v, n, 1 / best.s, 0, -Q, Q - 1, q);
    const double error = -(double)g.vqx * (double)g.vqx / (double)g.vqq;
    if (!(error < best.error)) break;
    best = (struct fit){.s = g.vqx / g.vqq, .error = error};
  }
  return best;
}

/* The weighted error of s q + m with the best q, as the decoder will compute it. */
INLINE float error_with(const float *x, const float *v, int n, float s, float m, float low, float high, float *q) {
  float error[LANES] = {0};
  const float inverse = s != 0 ? 1 / s : 0, shift = -m * inverse;
  const bool none = s == 0 || !isfinite(inverse) || !isfinite(shift);
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) {
      const float k = none ? clamped(0, low, high) : whole(clamped(x[i + l] * inverse + shift, low, high));
      const float e = s * k + m - x[i + l];
      q[i + l] = k;
      error[l] += v[i + l] * e * e;
    }
  return add_lanes(error);
}

/* A half float and its value. */
struct half {
  uint16_t bits;
  float value;
};
INLINE bool half_of(float x, struct half *out) {
  if (!wn_gguf_half(x, &out->bits)) return false;
  out->value = wn_stored_half(out->bits);
  return true;
}

/* Bits 0 to 3 of q[i] and q[i + 16] go to one byte; bit 4 of all goes to one word. */
INLINE void put_nibbles(const float *q, int zero, bool fifth, uint8_t *out) {
  uint32_t high = 0;
  uint8_t *at = fifth ? out + 4 : out;
  for (int i = 0; i < 16; i++) {
    const unsigned a = (unsigned)((int)q[i] + zero), b = (unsigned)((int)q[i + 16] + zero);
    at[i] = (uint8_t)((a & 15) | (b & 15) << 4);
    high |= (a >> 4) << i | (b >> 4) << (i + 16);
  }
  if (fifth) memcpy(out, &high, sizeof high);
}

INLINE bool encode_32_symmetric(const float *x, uint8_t *out, bool fifth) {
  float v[GROUP], q[GROUP];
  const float Q = fifth ? 16 : 8;
  struct half d;
  weigh(x, GROUP, v);
  if (!half_of(fit_symmetric(x, v, GROUP, Q).s, &d)) return false;
  error_with(x, v, GROUP, d.value, 0, -Q, Q - 1, q);
  memcpy(out, &d.bits, 2);
  put_nibbles(q, (int)Q, fifth, out + 2);
  return true;
}

INLINE bool encode_32_affine(const float *x, uint8_t *out, bool fifth) {
  float v[GROUP], q[GROUP];
  const float Q = fifth ? 31 : 15;
  struct half d, m;
  const struct sums of_x = weigh(x, GROUP, v);
  const struct fit f = fit_affine(x, v, of_x, GROUP, Q, false);
  if (!half_of(f.s, &d) || !half_of(f.m, &m)) return false;
  error_with(x, v, GROUP, d.value, m.value, 0, Q, q);
  memcpy(out, &d.bits, 2);
  memcpy(out + 2, &m.bits, 2);
  put_nibbles(q, 0, fifth, out + 4);
  return true;
}

/* ---- blocks of 256 ---- */

/* Each group's w = d s q - m n: the whole numbers, and the total error. */
struct block {
  struct half d, m;
  float s[16], n[16]; /* one per group */
  float q[BLOCK];
  float error;
};

/* The constants of a block type. */
struct kind {
  int groups, group; /* how many groups, of how many weights */
  float q_low, q_high, s_low, s_high;
  bool minimum;
};

/* Replaces each group's scale and minimum by the best of their neighbours. */
INLINE void settle_groups(const float *x, const float *v, struct kind k, struct block *b) {
  const int reach = k.minimum ? 1 : 0;
  b->error = 0;
  for (int g = 0; g < k.groups; g++) {
    const float *at = x + g * k.group, *weight = v + g * k.group, s0 = b->s[g], n0 = b->n[g];
    float q[GROUP], least = INFINITY;
    for (int i = -1; i <= 1; i++)
      for (int j = -reach; j <= reach; j++) {
        const float s = s0 + (float)i, n = n0 + (float)j;
        if (s < k.s_low || s > k.s_high || n < 0 || n > 63) continue;
        /* as the decoder computes it: d and m are rounded */
        const float e = error_with(at, weight, k.group, b->d.value * s, -(b->m.value * n), k.q_low, k.q_high, q);
        if (!(e < least)) continue;
        least = e, b->s[g] = s, b->n[g] = n;
        memcpy(b->q + g * k.group, q, (size_t)k.group * sizeof *q);
      }
    b->error += least;
  }
}

/* The best d and m for all whole numbers of a block. */
INLINE bool solve_block(const float *x, const float *v, struct kind k, const struct block *b, float *d, float *m) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int g = 0; g < k.groups; g++) {
    float va[LANES] = {0}, vaa[LANES] = {0}, vax[LANES] = {0}, vv[LANES] = {0}, vx[LANES] = {0};
    for (int i = g * k.group; i < (g + 1) * k.group; i += LANES)
      for (int l = 0; l < LANES; l++) {
        const float a = b->q[i + l], w = v[i + l];
        va[l] += w * a;
        vaa[l] += w * a * a;
        vax[l] += w * a * x[i + l];
        vv[l] += w;
        vx[l] += w * x[i + l];
      }
    const double s = (double)b->s[g], n = -(double)b->n[g];
    aa += s * s * (double)add_lanes(vaa);
    ab += s * n * (double)add_lanes(va);
    bb += n * n * (double)add_lanes(vv);
    ax += s * (double)add_lanes(vax);
    bx += n * (double)add_lanes(vx);
  }
  const double D = aa * bb - ab * ab;
  if (!(aa > 0)) return false;
  if (!k.minimum || !(D > 1e-9 * aa * bb)) {
    *d = (float)((ax - (double)*m * ab) / aa);
    return true;
  }
  *d = (float)((bb * ax - ab * bx) / D);
  *m = (float)((aa * bx - ab * ax) / D);
  return true;
}

INLINE bool encode_256(const float *x, struct kind k, struct block *b) {
  float v[BLOCK], s[16], n[16], most_s = 0, most_n = 0;
  for (int g = 0; g < k.groups; g++) {
    const float *at = x + g * k.group;
    const struct sums of_x = weigh(at, k.group, v + g * k.group);
    const struct fit f = k.minimum ? fit_affine(at, v + g * k.group, of_x, k.group, k.q_high, true)
                                   : fit_symmetric(at, v + g * k.group, k.group, -k.q_low);
    s[g] = f.s, n[g] = -f.m;
    most_s = fabsf(s[g]) > fabsf(most_s) ? s[g] : most_s;
    most_n = n[g] > most_n ? n[g] : most_n;
  }
  const float whole_s = k.minimum ? k.s_high : k.s_low; /* signed scales: the largest is -128 d */
  if (!half_of(most_s / whole_s, &b->d) || !half_of(most_n / 63, &b->m)) return false;
  for (int g = 0; g < k.groups; g++) {
    b->s[g] = b->d.value != 0 ? clamped(rintf(s[g] / b->d.value), k.s_low, k.s_high) : 0;
    b->n[g] = b->m.value != 0 ? clamped(rintf(n[g] / b->m.value), 0, 63) : 0;
  }
  settle_groups(x, v, k, b);
  for (int round = 0; round < BLOCK_ROUNDS; round++) {
    struct block next = *b;
    float d = b->d.value, m = b->m.value;
    if (!solve_block(x, v, k, b, &d, &m) || !half_of(d, &next.d) || !half_of(m, &next.m)) break;
    settle_groups(x, v, k, &next);
    if (!(next.error < b->error)) break;
    *b = next;
  }
  return true;
}

INLINE bool encode_4_or_5_k(const float *x, uint8_t *out, bool fifth) {
  struct block b;
  const struct kind k = {.groups = 8, .group = 32, .q_high = fifth ? 31 : 15, .s_high = 63, .minimum = true};
  if (!encode_256(x, k, &b)) return false;
  uint8_t *scales = out + 4, *high = out + 16, *low = fifth ? out + 48 : out + 16;
  memset(out, 0, fifth ? 176 : 144);
  memcpy(out, &b.d.bits, 2);
  memcpy(out + 2, &b.m.bits, 2);
  for (int g = 0; g < 8; g++) {
    const unsigned s = (unsigned)b.s[g], n = (unsigned)b.n[g];
    if (g < 4) {
      scales[g] |= (uint8_t)s, scales[g + 4] |= (uint8_t)n;
    } else {
      scales[g + 4] = (uint8_t)((s & 15) | (n & 15) << 4);
      scales[g - 4] |= (uint8_t)(s >> 4 << 6);
      scales[g] |= (uint8_t)(n >> 4 << 6);
    }
    for (int i = 0; i < 32; i++) {
      const unsigned q = (unsigned)b.q[g * 32 + i];
      low[g / 2 * 32 + i] |= (uint8_t)((q & 15) << (g % 2 * 4));
      if (fifth) high[i] |= (uint8_t)(q >> 4 << g);
    }
  }
  return true;
}

INLINE bool encode_6_k(const float *x, uint8_t *out) {
  struct block b;
  const struct kind k = {.groups = 16, .group = 16, .q_low = -32, .q_high = 31, .s_low = -128, .s_high = 127};
  if (!encode_256(x, k, &b)) return false;
  memset(out, 0, 210);
  for (int i = 0; i < BLOCK; i++) {
    const int part = i / 128, run = i / 32 % 4, at = i % 32;
    const unsigned q = (unsigned)((int)b.q[i] + 32);
    out[part * 64 + run % 2 * 32 + at] |= (uint8_t)((q & 15) << (run / 2 * 4));
    out[128 + part * 32 + at] |= (uint8_t)(q >> 4 << (run * 2));
  }
  for (int g = 0; g < 16; g++) out[192 + g] = (uint8_t)(int8_t)b.s[g];
  memcpy(out + 208, &b.d.bits, 2);
  return true;
}

/* ---- one copy of each for every instruction set ---- */

#define FOR_plain
#if defined(__x86_64__) && defined(__GNUC__)
#define FOR_avx2 __attribute__((target("avx2")))
#define FOR_avx512 __attribute__((target("avx512f,avx512vl,avx512dq")))
#else
#define FOR_avx2
#define FOR_avx512
#endif
/* q is rounded away from zero at ties, in steps that compilers vectorise. */
INLINE bool encode_32_bytes(const float *x, uint8_t *out) {
  float largest = 0;
  uint16_t half;
  for (int i = 0; i < GROUP; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
  const float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
  if (!wn_gguf_half(d, &half)) return false;
  memcpy(out, &half, sizeof half);
  /* If d is below the smallest normal float, 1/d is infinite; d rounds to zero in F16 anyway. */
  const float factor = isfinite(inverse) ? inverse : 0;
  for (int i = 0; i < GROUP; i++) {
    const float y = clamped(x[i] * factor, -127, 127);
    const int32_t q = (int32_t)y;
    const float rest = y - (float)q;
    out[2 + i] = (uint8_t)(q + (rest >= 0.5f) - (rest <= -0.5f));
  }
  return true;
}

#define BLOCKS(ROW, isa)                                                                                               \
  ROW(isa, Q8_0, encode_32_bytes(x, out))                                                                              \
  ROW(isa, Q4_0, encode_32_symmetric(x, out, false))                                                                   \
  ROW(isa, Q5_0, encode_32_symmetric(x, out, true))                                                                    \
  ROW(isa, Q4_1, encode_32_affine(x, out, false))                                                                      \
  ROW(isa, Q5_1, encode_32_affine(x, out, true))                                                                       \
  ROW(isa, Q4_K, encode_4_or_5_k(x, out, false))                                                                       \
  ROW(isa, Q5_K, encode_4_or_5_k(x, out, true))                                                                        \
  ROW(isa, Q6_K, encode_6_k(x, out))
#define ENCODER(isa, type, call)                                                                                       \
  FOR_##isa static bool encode_##type##_##isa(const float *x, uint8_t *out) {                                          \
    return call;                                                                                                       \
  }
#define ENCODER_ROW(isa, type, call) [WN_GGUF_##type] = encode_##type##_##isa,
#define ENCODERS(isa)                                                                                                  \
  BLOCKS(ENCODER, isa)                                                                                                 \
  static const wn_gguf_encode_block_fn encoders_##isa[WN_GGUF_TYPE_COUNT] = {BLOCKS(ENCODER_ROW, isa)};
ENCODERS(plain)
ENCODERS(avx2)
ENCODERS(avx512)

wn_gguf_encode_block_fn wn_gguf_block_encoder(const wn_context *ctx, wn_gguf_type type) {
  if (ctx->isa >= WN_ISA_AVX512) return encoders_avx512[type];
  return ctx->isa >= WN_ISA_AVX2 ? encoders_avx2[type] : encoders_plain[type];
}
