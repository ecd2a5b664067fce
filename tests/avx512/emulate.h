/* AVX-512 (F, BW, DQ, VL), its VNNI and BF16, and AMX, for a processor with AVX2: what the intrinsics that the kernels
 * use do, written down after Intel's definitions. A vector is two halves, and what AVX2 has for a half is done by its
 * own instruction; the rest goes lane by lane. A source that is to be emulated is compiled behind this header (the
 * build makes such sources: CMakeLists.txt), without the compiler's flags for AVX-512; an intrinsic that is missing
 * here does not compile. What is undefined after a cast has a pattern that is no number, and an address that is not
 * aligned where the instruction asks for it ends the program, as does a tile whose shape does not fit. */
#ifndef WN_TESTS_AVX512_EMULATE_H
#define WN_TESTS_AVX512_EMULATE_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The compiler has these names as well, as macros now and then. */
#pragma GCC system_header

/* The kernels' own functions (vec.h) are inlined where the compiler finds it right: all of them in one take it minutes.
 */
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

/* Both halves of A_ and B_, by an instruction of AVX2: the kinds (ps, pd, i) of operands and of the result. */
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
/* n lanes of the result, each the value that is given for lane k, of A_, of A_ and B_, of A_, B_ and C_. */
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
