/* Products with weights in a file's blocks (ops/packed.h). Private to the cpu backend.
 *
 * Few rows of x (decoding): x is rounded to 8 bits in blocks of 32, x ~ d q with d = max|x| / 127, and multiplied as
 * integers with the weights' own; each block's sum is scaled in float. That is llama.cpp's way, with blocks of 32 for
 * the K types as well. |x - d q| <= d/2, so y is off by at most sum over blocks of max|x| / 254 * sum|w|; weights of
 * F32, F16 and BF16 are multiplied with x as it is. Rows that are to be apart (wn_linear) go this way however many they
 * are: a row's sum does not depend on its place in a tile. Many rows (a prompt): rows of w are turned into floats, a
 * panel that stays in the cache at a time, and multiplied by sgemm: nothing is rounded. */
#ifndef WN_BACKENDS_CPU_PACKED_PACKED_H
#define WN_BACKENDS_CPU_PACKED_PACKED_H

#include "backends/cpu/cpu.h"

/* Rows of x that a kernel takes at a time, and up to how many the integer kernels are used. */
#define WN_CPU_PACKED_TILE 8
#define WN_CPU_PACKED_ROWS 32
/* Blocks of x are padded to whole steps of at most this many elements; the rest of the last step is zero. */
#define WN_CPU_PACKED_STEP 128

/* Rows of x in 8 bits. The bytes' order follows the weights': `halves` has the first halves of a step's blocks side by
 * side and then the second ones, as the types of four and five bits have them; `plain` is x's own. */
struct wn_cpu_packed_x {
  int64_t K, ld, ldd;     /* elements per row; the same in whole steps; blocks in whole steps */
  int8_t *halves, *plain; /* [M,ld]; what no type asks for is not written */
  float *d, *s;           /* [M,ldd] a block's scale, and its sum d * sum q */
  const float *x;         /* [M,K], as it was */
  int64_t ldx;
};

struct wn_cpu_packed_kernels {
  /* Row m of x into `out`, in the orders asked for. */
  void (*quantize)(const struct wn_cpu_packed_x *out, int64_t m, bool halves, bool plain);
  /* to[r*ldo + m] = w's row r times x's row first+m, for M <= WN_CPU_PACKED_TILE rows of x. */
  void (*product)(wn_gguf_type type, const char *w, int64_t rows, const struct wn_cpu_packed_x *x, int64_t first, int M,
                  float *to);
  /* K weights of a row as floats. */
  void (*decode)(wn_gguf_type type, const char *w, int64_t K, float *to);
};
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_avx2(void);
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_avx512(void);
const struct wn_cpu_packed_kernels *wn_cpu_packed_kernels_vnni(void); /* AVX-512 with VNNI */

/* linear with packed weights; `wide`: the AVX-512 kernels. */
wn_status wn_cpu_packed_forward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
/* dx alone. */
wn_status wn_cpu_packed_backward(const struct wn_exec *exec, const struct wn_linear *a, bool wide);
size_t wn_cpu_packed_scratch(const struct wn_linear *a, bool backward);

#endif
