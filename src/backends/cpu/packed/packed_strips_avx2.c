/* Weights in strips (packed_strips.inc) for AVX2. vpmaddubsw adds two products in 16 bits; as many of these sums as fit
 * are added before vpmaddwd widens them (packed_pairs.inc). */
#include <string.h>
#include "backends/cpu/packed/packed.h"
#include "backends/cpu/vec.h"
#include "backends/cpu/packed/packed_vectors.inc"
#include "backends/cpu/packed/packed_rows.inc"
#include "backends/cpu/packed/packed_pairs.inc"

V_INLINE vb block_sums(wn_gguf_type type, const vb q[8], const int8_t *x, int32_t n, const struct scales *s) {
  if (type == WN_GGUF_Q6_K) {
    const vb zero[4] = {b_bytes(32), b_bytes(32), b_bytes(32), b_bytes(32)};
    const vb a = b_sub32(pairs_half(type, q, x), pairs_half(type, zero, x));
    const vb b = b_sub32(pairs_half(type, q + 4, x + BYTES), pairs_half(type, zero, x + BYTES));
    return b_add32(b_mul32(a, s->six[0]), b_mul32(b, s->six[1]));
  }
  const vb a = pairs_block(type, q, x, x + BYTES);
  return type_zero(type) ? b_sub32(a, w_set(n * type_zero(type))) : a;
}

#include "backends/cpu/packed/packed_strips.inc"
