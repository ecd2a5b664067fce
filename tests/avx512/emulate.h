/* Emulates AVX-512 (F, BW, DQ, VL), VNNI, BF16 and AMX on a processor with AVX2: each intrinsic that the kernels use,
 * written after Intel's definitions. A vector is two halves. Where AVX2 has an instruction for a half, that does the
 * work; the rest goes lane by lane.
 *
 * The build compiles kernel sources behind this header (CMakeLists.txt), without the compiler's AVX-512 flags. An
 * intrinsic that is missing here does not compile. What a cast leaves undefined is filled with NaN. An unaligned
 * address where the instruction needs alignment ends the program, as does a tile whose shape does not fit. */
#ifndef WN_TESTS_AVX512_EMULATE_H
#define WN_TESTS_AVX512_EMULATE_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The compiler defines some of these names itself, as macros. */
#pragma GCC system_header

/* The compiler decides which of the kernels' functions (vec.h) to inline. Forcing all of them takes minutes. */
#define V_INLINE static inline __attribute__((unused))

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1

union wide {
  __m512 ps;
  __m512d pd;
  __m512i i;
  __m512bh bh;
  __m256 ps2[2];
  __m256d pd2[2];
  __m256i i2[2];
  __m128 ps4[4];
  __m128i i4[4];
  float f[16];
  double d[8];
  int8_t i8[64];
  uint8_t u8[64];
  int16_t i16[32];
  uint16_t u16[32];
  int32_t i32[16];
  uint32_t u32[16];
  int64_t i64[8];
  uint64_t u64[8];
};

/* Both halves of A_ and B_ by an AVX2 instruction. ps, pd, i: the kinds of the operands and of the result. */
#define WIDE_1(to, f, from, a)                                                                                         \
  __extension__({                                                                                                      \
    const union wide A_ = {.from = (a)};                                                                               \
    ((union wide){.to##2 = {f(A_.from##2 [0]), f(A_.from##2 [1])}}).to;                                                \
  })
#define WIDE_1_BY(to, f, from, a, by)                                                                                  \
  __extension__({                                                                                                      \
    const union wide A_ = {.from = (a)};                                                                               \
    ((union wide){.to##2 = {f(A_.from##2 [0], by), f(A_.from##2 [1], by)}}).to;                                        \
  })
#define WIDE_2(kind, f, a, b)                                                                                          \
  __extension__({                                                                                                      \
    const union wide A_ = {.kind = (a)}, B_ = {.kind = (b)};                                                           \
    ((union wide){.kind##2 = {f(A_.kind##2 [0], B_.kind##2 [0]), f(A_.kind##2 [1], B_.kind##2 [1])}}).kind;            \
  })
#define WIDE_3(kind, f, a, b, c)                                                                                       \
  __extension__({                                                                                                      \
    const union wide A_ = {.kind = (a)}, B_ = {.kind = (b)}, C_ = {.kind = (c)};                                       \
    ((union wide){.kind##2 = {f(A_.kind##2 [0], B_.kind##2 [0], C_.kind##2 [0]),                                       \
                              f(A_.kind##2 [1], B_.kind##2 [1], C_.kind##2 [1])}})                                     \
        .kind;                                                                                                         \
  })
/* A result of n lanes. `value` says what lane k is, from A_, from A_ and B_, or from A_, B_ and C_. */
#define LANES_1(to, lanes, n, from_a, a, value)                                                                        \
  __extension__({                                                                                                      \
    const union wide A_ = {.from_a = (a)};                                                                             \
    union wide R_;                                                                                                     \
    for (int k = 0; k < (n); k++) R_.lanes[k] = value;                                                                 \
    R_.to;                                                                                                             \
  })
#define LANES_2(to, lanes, n, from_a, a, from_b, b, value)                                                             \
  __extension__({                                                                                                      \
    const union wide A_ = {.from_a = (a)}, B_ = {.from_b = (b)};                                                       \
    union wide R_;                                                                                                     \
    for (int k = 0; k < (n); k++) R_.lanes[k] = value;                                                                 \
    R_.to;                                                                                                             \
  })
#define LANES_3(to, lanes, n, from_a, a, from_b, b, from_c, c, value)                                                  \
  __extension__({                                                                                                      \
    const union wide A_ = {.from_a = (a)}, B_ = {.from_b = (b)}, C_ = {.from_c = (c)};                                 \
    union wide R_;                                                                                                     \
    for (int k = 0; k < (n); k++) R_.lanes[k] = value;                                                                 \
    R_.to;                                                                                                             \
  })

#include "avx512/memory.h"
#include "avx512/arithmetic.h"
#include "avx512/moves.h"
#include "avx512/bfloat16.h"
#include "avx512/tiles.h"
#include "avx512/processor.h"

#endif
