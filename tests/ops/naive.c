/* The measure of the tolerance law (naive.h): the reference backend's own source with its double accumulators, and by a
 * flag of the compiler its literals, read as float. */
#include "ops/naive.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include "backends/ref/ref.h"
#include "base/rng.h"
#include "ops/terms.h"

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
#define wn_ref_add_forward wn_naive_add_forward
#define wn_ref_softcap_forward wn_naive_softcap_forward
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

/* Compiled without OpenMP: one thread. */
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

const struct wn_backend *wn_backend_naive(void) {
  static struct wn_backend table = {
      .name = "naive",
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
      .add_forward = wn_naive_add_forward,
      .softcap_forward = wn_naive_softcap_forward,
      .cross_entropy_forward = wn_naive_cross_entropy_forward,
      .attention_sums_forward = wn_naive_attention_sums_forward,
      .adamw_forward = wn_naive_adamw_forward,
      .adagrad_forward = wn_naive_adagrad_forward,
      .sumsq_forward = wn_naive_sumsq_forward,
      .attention_forward = wn_naive_attention_forward,
      .attention_backward = wn_naive_attention_backward,
      .attention_scratch = wn_naive_attention_scratch,
  };
  table.attention_served = wn_backend_ref()->attention_served;
  return &table;
}
