/* Weights in strips (packed_strips.inc) for AVX-512 with VNNI. */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_rows.inc"

/* Multiplies four weights with four of x at a time. */
V_INLINE vb block_sums(wn_gguf_type type, const vb q[8], const int8_t *x, int32_t n, const struct scales *s) {
  int32_t four[8];
  memcpy(four, x, 16);
  memcpy(four + 4, x + BYTES, 16);
  vb a = b_zero(), b = b_zero(), za = b_zero(), zb = b_zero();
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const vb x0 = w_set(four[j]), x1 = w_set(four[j + 4]);
    a = b_dot(a, q[j], x0);
    b = b_dot(b, q[j + 4], x1);
    if (type != WN_GGUF_Q6_K) continue;
    za = b_dot(za, b_bytes(32), x0);
    zb = b_dot(zb, b_bytes(32), x1);
  }
  if (type == WN_GGUF_Q6_K) return b_add32(b_mul32(b_sub32(a, za), s->six[0]), b_mul32(b_sub32(b, zb), s->six[1]));
  a = b_add32(a, b);
  return type_zero(type) ? b_sub32(a, w_set(n * type_zero(type))) : a;
}

#include "backends/cpu/packed/packed_strips.inc"
