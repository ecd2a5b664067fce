// Operations of a warp's lanes (emulate.h, emulate_mma.h), and 16-bit floats.
#include "cuda/emulate.h"

namespace emulate {

void exchange_run(void *const data[32], const void *) {
  for (int l = 0; l < 32; l++) {
    if (!data[l]) continue;
    exchange &x = *static_cast<exchange *>(data[l]);
    const exchange *from = x.from >= 0 && x.from < 32 ? static_cast<const exchange *>(data[x.from]) : nullptr;
    x.taken = from ? from->value : ~0ull; // from an absent lane: undefined
  }
}

void vote_run(void *const data[32], const void *) {
  uint32_t all = 0;
  for (int l = 0; l < 32; l++)
    if (data[l] && static_cast<const vote *>(data[l])->value) all |= 1u << l;
  for (int l = 0; l < 32; l++)
    if (data[l]) static_cast<vote *>(data[l])->ballot = all;
}

void sync_run(void *const[32], const void *) {}

static double number(uint32_t pair, int which, bool half) {
  const uint16_t bits = (uint16_t)(pair >> (16 * which));
  return half ? half_value(bits) : bf16_value(bits);
}

// Lane l, g = l/4, t = l%4. a: register i has row g + 8 (i%2), columns 2t + 8 (i/2) and the next; b: register i has
// column g, rows 2t + 8i and the next; d: element e has row g + 8 (e/2), column 2t + e%2.
void product_run(void *const data[32], const void *what) {
  const product_kind &kind = *static_cast<const product_kind *>(what);
  double a[16][16], b[16][8];
  for (int l = 0; l < 32; l++) {
    const product &p = *static_cast<const product *>(data[l]);
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < kind.k / 4; i++)
      for (int e = 0; e < 2; e++) a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + e] = number(p.a[i], e, kind.half);
    for (int i = 0; i < kind.k / 8; i++)
      for (int e = 0; e < 2; e++) b[2 * t + 8 * i + e][g] = number(p.b[i], e, kind.half);
  }
  for (int l = 0; l < 32; l++) {
    const product &p = *static_cast<const product *>(data[l]);
    for (int e = 0; e < 4; e++) {
      const int row = l / 4 + 8 * (e / 2), column = l % 4 * 2 + e % 2;
      double sum = p.d[e];
      for (int k = 0; k < kind.k; k++) sum += a[row][k] * b[k][column];
      p.d[e] = (float)sum;
    }
  }
}

// Register i of lane l: row l/4 of matrix i, columns 2 (l%4) and the next; transposed: rows for columns.
void load_run(void *const data[32], const void *what) {
  const load_kind &kind = *static_cast<const load_kind *>(what);
  uint16_t m[4][8][8];
  for (int i = 0; i < kind.count; i++)
    for (int r = 0; r < 8; r++) {
      const load &l = *static_cast<const load *>(data[8 * i + r]);
      if ((uintptr_t)l.row % 16) __builtin_trap(); // a matrix row must be aligned to 16 bytes
      memcpy(m[i][r], l.row, 16);
    }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < kind.count; i++) {
      const int r = l / 4, c = l % 4 * 2;
      const uint16_t low = kind.transposed ? m[i][c][r] : m[i][r][c],
                     high = kind.transposed ? m[i][c + 1][r] : m[i][r][c + 1];
      static_cast<const load *>(data[l])->r[i] = low | (uint32_t)high << 16;
    }
}

void move_run(void *const data[32], const void *) {
  uint16_t m[8][8];
  for (int l = 0; l < 32; l++) {
    const uint32_t x = *static_cast<const uint32_t *>(data[l]);
    m[l / 4][l % 4 * 2] = (uint16_t)x, m[l / 4][l % 4 * 2 + 1] = (uint16_t)(x >> 16);
  }
  for (int l = 0; l < 32; l++)
    *static_cast<uint32_t *>(data[l]) = m[l % 4 * 2][l / 4] | (uint32_t)m[l % 4 * 2 + 1][l / 4] << 16;
}

uint16_t half_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  const float a = fabsf(x);
  if (x != x) return 0x7fff;
  if (a >= 65520.0f) return sign | 0x7c00; // rounds to 65536: infinite
  int exponent;
  frexpf(a, &exponent);                                    // a = f 2^exponent, f in [0.5, 1)
  const int unit = (exponent < -13 ? -13 : exponent) - 11; // of the last place: 2^unit; constant below 2^-14
  const float steps = nearbyintf(ldexpf(a, -unit));        // ties to even; at most 2048
  if (steps == 0) return sign;
  // A carry goes into the exponent.
  if (exponent < -13) return (uint16_t)(sign | (uint16_t)steps);
  return (uint16_t)(sign | (((uint32_t)(exponent + 14) << 10) + (uint32_t)steps - 1024));
}

float half_value(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value;
  if (exponent == 0) {
    value = ldexpf((float)fraction, -24);
  } else {
    const uint32_t word = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    memcpy(&value, &word, sizeof value);
  }
  return bits & 0x8000 ? -value : value;
}

} // namespace emulate
