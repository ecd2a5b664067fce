/* The measure for the tolerance rule (naive.h): the reference backend's own source, with float in place of its double
 * accumulators, and with its literals read as float through a compiler flag. */
#include "ops/naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include "base/parallel.h"
#include "base/rng.h"
#include "ops/attention.h"
#include "ops/terms.h"
#include "tensor/bf16.h"

/* Everything runs on the caller's thread. */
#define wn_parallel(threads, ...) wn_parallel(1, __VA_ARGS__)
#define wn_parallel_for(threads, ...) wn_parallel_for(1, __VA_ARGS__)
#define wn_parallel_blocks(threads, ...) wn_parallel_blocks(1, __VA_ARGS__)

/* For bf16 rows, attention weights and logit gradients are rounded to bf16 before a product uses them, and a row's sum
 * of W dW is dy.y with the stored y, as in every fused kernel. */
static bool naive_bf16;
static float naive_factor = 1;
void wn_naive_shake(float factor) {
  naive_factor = factor;
}
static float naive_operand(float x) {
  return naive_bf16 ? wn_bf16_value(wn_bf16_round(x * naive_factor)) / naive_factor : x;
}
static float naive_delta(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const float *dy, float sum) {
  const float *y = (const float *)a->y + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
  const float *v = (const float *)a->v + b * a->s_v.b + (r + a->Tk - a->Tq) * a->s_v.t + h / (a->H / a->Hkv) * a->s_v.h;
  float lost = 0, size = 0; /* what exclusive attention removed from y */
  if (!naive_bf16) return sum;
  for (int64_t d = 0; a->exclusive.on && d < a->D; d++) size += v[d] * v[d];
  if (a->exclusive.on) lost = ((const float *)a->exclusive.dot)[(b * a->H + h) * a->Tq + r] / fmaxf(size, 1e-30f);
  if (a->exclusive.on && a->exclusive.gate) lost *= ((const float *)a->exclusive.gate)[h];
  sum = 0;
  if (a->gate.on) y = (const float *)a->gate.ungated + ((b * a->Tq + r) * a->H + h) * a->D;
  for (int64_t d = 0; d < a->D; d++) sum += dy[d] * (lost == 0 ? y[d] : y[d] + lost * v[d]);
  return sum;
}
#define WN_REF_OPERAND(x) naive_operand(x)
#define WN_REF_DELTA(a, b, h, r, dy, sum) naive_delta(a, b, h, r, dy, sum)
#include "backends/ref/ref.h"

#define wn_ref_linear_forward wn_naive_linear_forward
#define wn_ref_linear_backward wn_naive_linear_backward
#define wn_ref_linear_bf16_forward wn_naive_linear_bf16_forward
#define wn_ref_linear_bf16_backward wn_naive_linear_bf16_backward
#define wn_ref_embedding_forward wn_naive_embedding_forward
#define wn_ref_embedding_backward wn_naive_embedding_backward
#define wn_ref_embedding_scratch wn_naive_embedding_scratch
#define wn_ref_norm_forward wn_naive_norm_forward
#define wn_ref_norm_backward wn_naive_norm_backward
#define wn_ref_rope_forward wn_naive_rope_forward
#define wn_ref_rope_backward wn_naive_rope_backward
#define wn_ref_act_forward wn_naive_act_forward
#define wn_ref_act_backward wn_naive_act_backward
#define wn_ref_dropout_forward wn_naive_dropout_forward
#define wn_ref_noise_forward wn_naive_noise_forward
#define wn_ref_add_forward wn_naive_add_forward
#define wn_ref_softcap_forward wn_naive_softcap_forward
#define wn_ref_scale_forward wn_naive_scale_forward
#define wn_ref_sumsq_forward wn_naive_sumsq_forward
#define wn_ref_cross_entropy_forward wn_naive_cross_entropy_forward
#define wn_ref_attention_sums_forward wn_naive_attention_sums_forward
#define wn_ref_adamw_forward wn_naive_adamw_forward
#define wn_ref_adagrad_forward wn_naive_adagrad_forward
#define wn_ref_attention_forward wn_naive_attention_forward
#define wn_ref_attention_backward wn_naive_attention_backward
#define wn_ref_attention_scratch wn_naive_attention_scratch
#define wn_ref_attention_backward_doubles wn_naive_attention_backward_doubles
#define WN_NAIVE_DECLARE(name, args, has_backward)                                                                     \
  wn_status wn_naive_##name##_forward(const struct wn_exec *, const args *);                                           \
  wn_status wn_naive_##name##_backward(const struct wn_exec *, const args *);                                          \
  size_t wn_naive_##name##_scratch(const struct wn_exec *, const args *, bool backward);
WN_OPS(WN_NAIVE_DECLARE)
size_t wn_naive_attention_backward_doubles(const struct wn_attention *a);
wn_status wn_naive_linear_bf16_forward(const struct wn_exec *exec, const struct wn_linear *a);
wn_status wn_naive_linear_bf16_backward(const struct wn_exec *exec, const struct wn_linear *a);

_Static_assert(sizeof(0.5) == sizeof(float), "literals must be read as float: see CMakeLists.txt, winnow_naive");

/* Its loops for vectors need -fopenmp-simd, which this is compiled without. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#define double float
#define wn_number(x, n, dtype) ((float)wn_number(x, n, dtype))
#include "backends/ref/act.c"
#include "backends/ref/attention.c"
#undef REAL_FILE
#include "backends/ref/attention_backward.c"
#undef REAL_FILE
#include "backends/ref/attention_sums.c"
#undef REAL_FILE
#include "backends/ref/cross_entropy.c"
#undef REAL_FILE
#include "backends/ref/dropout.c"
#include "backends/ref/elementwise.c"
#undef REAL_FILE
#include "backends/ref/embedding.c"
#undef REAL_FILE
#include "backends/ref/linear.c"
#undef REAL_FILE
#include "backends/ref/linear_bf16.c"
#include "backends/ref/norm.c"
#include "backends/ref/optim.c"
#undef REAL_FILE
#include "backends/ref/rope.c"
#undef wn_number
#undef double
#pragma GCC diagnostic pop

static wn_status naive_forward(const struct wn_exec *exec, const struct wn_attention *a) {
  naive_bf16 = a->row_type == WN_BF16;
  return wn_naive_attention_forward(exec, a);
}
static wn_status naive_backward(const struct wn_exec *exec, const struct wn_attention *a) {
  naive_bf16 = a->row_type == WN_BF16;
  return wn_naive_attention_backward(exec, a);
}

const struct wn_backend *wn_backend_naive(void) {
  static struct wn_backend table = {
      .name = "naive",
      .memory = &wn_host_memory,
      .linear_forward = wn_naive_linear_forward,
      .linear_backward = wn_naive_linear_backward,
      .embedding_forward = wn_naive_embedding_forward,
      .embedding_backward = wn_naive_embedding_backward,
      .embedding_scratch = wn_naive_embedding_scratch,
      .norm_forward = wn_naive_norm_forward,
      .norm_backward = wn_naive_norm_backward,
      .rope_forward = wn_naive_rope_forward,
      .rope_backward = wn_naive_rope_backward,
      .act_forward = wn_naive_act_forward,
      .act_backward = wn_naive_act_backward,
      .dropout_forward = wn_naive_dropout_forward,
      .noise_forward = wn_naive_noise_forward,
      .add_forward = wn_naive_add_forward,
      .softcap_forward = wn_naive_softcap_forward,
      .scale_forward = wn_naive_scale_forward,
      .cross_entropy_forward = wn_naive_cross_entropy_forward,
      .attention_sums_forward = wn_naive_attention_sums_forward,
      .adamw_forward = wn_naive_adamw_forward,
      .adagrad_forward = wn_naive_adagrad_forward,
      .sumsq_forward = wn_naive_sumsq_forward,
      .attention_forward = naive_forward,
      .attention_backward = naive_backward,
      .attention_scratch = wn_naive_attention_scratch,
  };
  table.attention_served = wn_backend_ref()->attention_served;
  return &table;
}
