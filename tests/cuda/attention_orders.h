/* Shared by the tests of the CUDA backend's attention: the reference, the backend, the backend with F in chunks of a
 * chosen number of rows (window_rows), and one case under the tolerance rule in several orders of threads. */
#ifndef WN_TESTS_CUDA_ATTENTION_ORDERS_H
#define WN_TESTS_CUDA_ATTENTION_ORDERS_H

#include "attention_law.h"

#include "backends/cuda/attention.h"
#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"

static int64_t window_rows; /* rows in a chunk; set before the first such call */

static size_t windows_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  (void)exec;
  return wn_cuda_attend_scratch(a, backward, window_rows);
}
static wn_status windows_forward(const struct wn_exec *exec, const struct wn_attention *a) {
  const char *error = wn_cuda_attend_forward(a, exec->scratch, window_rows, NULL);
  return error ? wn_fail(exec->ctx, WN_ERR_IO, "%s", error) : WN_OK;
}
static wn_status windows_backward(const struct wn_exec *exec, const struct wn_attention *a) {
  const char *error = wn_cuda_attend_backward(a, exec->scratch, window_rows, NULL);
  return error ? wn_fail(exec->ctx, WN_ERR_IO, "%s", error) : WN_OK;
}
static const struct wn_backend windows = {
    .name = "cuda, in windows",
    .attention_served = {WN_CUDA_ATTENTION_FORWARD, WN_CUDA_ATTENTION_FORWARD, WN_CUDA_ATTENTION_SERVED},
    .attention_forward = windows_forward,
    .attention_backward = windows_backward,
    .attention_scratch = windows_scratch,
};

static struct mech_place reference, emulated;
static float *zeros; /* host zeros for softmax off by one; a model has them on the device */

static inline void use_zeros(struct wn_attention *op) {
  if (op->sinks.n && !op->sinks.dk) op->sinks.k = op->sinks.v = zeros;
}

static int setup(void **state) {
  (void)state;
  zeros = calloc(1024, sizeof *zeros);
  if (!mech_open(&reference, "ref", NULL)) return -1;
  emulated = (struct mech_place){.ctx = reference.ctx, .backend = wn_backend_cuda_table(), .threads = 1};
  return 0;
}
static int teardown(void **state) {
  (void)state;
  mech_close(&reference);
  free(zeros);
  return 0;
}

/* Makes m and runs forward and backward of a case in one order of threads. The caller clears m. */
static void once(const struct mech_setup *s, uint64_t order, struct mech_bench *m);

/* The kernels for sm_90 keep F in half floats, except where L_mem sums it. The rounding of F counts times exp(-F). lse
 * includes that error, which the rule for float does not allow. */
static void half_lse(struct mech_bench *m, const struct mech_bench *want) {
  const int lse = mech_find(m, "lse");
  double largest;
  int64_t at = 0;
  if (!m->op.sel.on || m->op.sel.mem || !wn_cuda_attend_sm90(&m->op, false)) return;
  const double error = largest_error(m, want, lse, &largest, &at);
  if (!(error < 0x1p-10))
    fail_msg("%s: lse, element %lld: %.9g, expected %.9g", mech_name(m), (long long)at, mech_get(m, lse, at),
             mech_get(want, lse, at));
  m->a[lse].role = MECH_FIXED;
}

static void check_orders(const struct mech_setup *s, int orders) {
  struct expectation e;
  struct mech_bench first;
  law_expect(&reference, s, &e);
  once(&e.s, 0, &first);
  half_lse(&first, &e.want);
  law_compare(&emulated, &first, &e);
  for (int order = 1; order < orders; order++) {
    struct mech_bench other;
    once(&e.s, (uint64_t)order, &other);
    if (!law_same_bits(&first, &other)) fail_msg("%s: another order of threads gives other bits", mech_name(&first));
    mech_clear(&other);
  }
  mech_clear(&first);
  mech_clear(&e.want);
}

#endif
