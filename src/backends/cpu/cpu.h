/* Internals of the cpu backend: what its files provide for its table. Single precision only (the dispatch refuses
 * F64). */
#ifndef WN_BACKENDS_CPU_CPU_H
#define WN_BACKENDS_CPU_CPU_H

#include "backends/backends.h"
#include "backends/cpu/product.h"

/* linear.c: products through oneDNN's sgemm, or our own. */
wn_status wn_cpu_linear_forward(const struct wn_exec *exec, const struct wn_linear *a);
wn_status wn_cpu_linear_backward(const struct wn_exec *exec, const struct wn_linear *a);
size_t wn_cpu_linear_scratch(const struct wn_exec *exec, const struct wn_linear *a, bool backward);

extern struct wn_backend wn_cpu_tables[3]; /* indexed by enum wn_isa */
/* Our own products for the instruction set of this backend table. */
const struct wn_product_ops *wn_cpu_product_ops(const struct wn_backend *backend);

/* linear_bf16.c: products of bf16 arrays, summed in float, by oneDNN's matmul. Does this processor have AVX512_BF16,
 * and may oneDNN use it? */
bool wn_cpu_has_bf16(void);
/* c[M,N] = op(a)[M,K] op(b)[K,N] (+ c, which is float) (+ bias[N] in every row). ta: a is stored as [K,M]; tb: b as
 * [N,K]. */
struct wn_cpu_product {
  int64_t M, N, K;
  bool ta, tb, add;
  const uint16_t *a, *b;
  int64_t lda, ldb, ldc;
  const float *bias;
  void *c;
  wn_dtype c_type; /* WN_F32 or WN_BF16 */
};
wn_status wn_cpu_product_bf16(const struct wn_exec *exec, const struct wn_cpu_product *x);

/* tiles_amx.c: does the processor have AMX tiles for products of bf16 and of bytes, and may this process use them? */
bool wn_cpu_has_amx(void);
bool wn_cpu_has_amx_int8(void);
/* For tests: acts as if there were none. */
void wn_cpu_deny_amx(bool denied);
/* Configures the calling thread's tiles with these shapes, until the end. */
#define WN_CPU_AMX_TILES 8
struct wn_cpu_amx_shape {
  uint8_t rows;
  uint16_t bytes; /* of a row */
};
void wn_cpu_amx_begin(const struct wn_cpu_amx_shape *tiles);
void wn_cpu_amx_end(void);

/* product_amx.c: the same in AMX tiles, for floats (rounded on loading) or bf16. */
/* A factor of a product. [M,K] or [N,K]: `along`, the reduced dimension K runs along its rows, whose stride is ld.
 * [K,M] or [K,N]: K runs across them. */
struct wn_cpu_operand {
  const void *x;
  int64_t ld;
  bool bf16, along;
};
/* c[M,N] = a b (+ c, which is float) (+ bias[N] in every row). Scratch: wn_cpu_amx_scratch. */
struct wn_cpu_amx_product {
  int64_t M, N, K;
  struct wn_cpu_operand a, b;
  bool add, c_bf16;
  const float *bias;
  void *c;
  int64_t ldc;
};
/* Suffices for any M, and with floats for any K. */
size_t wn_cpu_amx_scratch(int threads, int64_t N, int64_t K, bool c_bf16);
void wn_cpu_product_amx(const struct wn_exec *exec, const struct wn_cpu_amx_product *x);

/* experts.c: uses the table's own linear and act. */
wn_status wn_cpu_experts_forward(const struct wn_exec *exec, const struct wn_experts *a);
wn_status wn_cpu_experts_backward(const struct wn_exec *exec, const struct wn_experts *a);
size_t wn_cpu_experts_scratch(const struct wn_exec *exec, const struct wn_experts *a, bool backward);

/* Up to this many rows of x (decoding) the forward product is limited by reading the weights, and has its own
 * kernel. */
#define WN_CPU_GEMV_ROWS 8

/* kernels.inc: all slots except attention's. Called only if the CPU has the instruction set. */
void wn_cpu_fill_avx2(struct wn_backend *table);
void wn_cpu_fill_avx512(struct wn_backend *table);

#endif
