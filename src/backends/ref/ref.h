/* The reference backend: every operation, forward and backward, plain C, sums and intermediate values in double for
 * float and double storage alike. The fast backends are tested against it, so it is written to be easy to read.
 *
 * One source serves both storage types. A file foo.c looks like this:
 *     #ifndef REAL
 *     #include "backends/ref/ref.h"
 *     #define REAL_FILE "backends/ref/foo.c"
 *     #include "backends/ref/twice.h"       includes foo.c again, with REAL float and NAME(f) f_f32, then double
 *     WN_REF_SLOT(foo_forward, struct wn_foo)
 *     WN_REF_ROWS(foo_backward, struct wn_foo, a->n, 1)
 *     #else
 *     static wn_status NAME(foo_forward)(const struct wn_exec *exec, const struct wn_foo *a) { ... }
 *     static void NAME(foo_backward)(const struct wn_foo *a, int64_t from, int64_t to) { ... }
 *     #endif
 * WN_REF_ROWS has the threads divide the rows of n. Operations whose arrays may have several types use wn_number and
 * wn_number_set instead. */
#ifndef WN_BACKENDS_REF_REF_H
#define WN_BACKENDS_REF_REF_H

#include <math.h>
#include "backends/backends.h"

/* Columns summed together in double accumulators on the stack. */
#define WN_REF_BLOCK 64
/* Quantised weights are decoded this many at a time: whole blocks of any type. */
#define WN_REF_BLOCKS 256

/* The precision of operands of products (weights, gradients of logits) and of a row's sum of W dW: here, full. The
 * tests' naive computation in bf16 (tests/ops/naive.c) compiles this source with rounding in this place. */
#ifndef WN_REF_OPERAND
#define WN_REF_OPERAND(x) (x)
#define WN_REF_DELTA(a, b, h, r, dy, sum) (sum)
#endif

#define WN_REF_SLOT(name, args)                                                                                        \
  wn_status wn_ref_##name(const struct wn_exec *exec, const args *a) {                                                 \
    return exec->dtype == WN_F64 ? name##_f64(exec, a) : name##_f32(exec, a);                                          \
  }
#define WN_REF_ROWS(name, args, n, block)                                                                              \
  WN_ROWS(wn_ref_##name, args, exec->threads, n, block,                                                                \
          exec->dtype == WN_F64 ? name##_f64(a, from, to) : name##_f32(a, from, to))

#define WN_REF_DECLARE(name, args, has_backward)                                                                       \
  wn_status wn_ref_##name##_forward(const struct wn_exec *, const args *);                                             \
  wn_status wn_ref_##name##_backward(const struct wn_exec *, const args *);                                            \
  size_t wn_ref_##name##_scratch(const struct wn_exec *, const args *, bool backward);
WN_OPS(WN_REF_DECLARE)

/* linear_bf16.c: linear with precision WN_BF16. */
wn_status wn_ref_linear_bf16_forward(const struct wn_exec *exec, const struct wn_linear *a);
wn_status wn_ref_linear_bf16_backward(const struct wn_exec *exec, const struct wn_linear *a);

/* Scratch per thread for backward of attention (attention_backward.c), in doubles. */
size_t wn_ref_attention_backward_doubles(const struct wn_attention *a);

static inline int64_t wn_ref_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

#endif
