/* The emulation of sm_90's own instructions (emulate_sm90.h): products through tensor copies, mbarriers and descriptors
 * are correct in every order, and each omission or mistake that a kernel must not make is detected. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "cuda/sm90_kernels.h"
#include "tensor/bf16.h"

enum { SEEDS = 4, STEPS = 4, K = 64 * STEPS, ROWS = 100 };

static float number(uint64_t which, int i) {
  return (float)wn_random_below(7, WN_STREAM_TEST, which, (uint64_t)i, 9) - 4;
}

/* Counts wrong numbers over all seeds. `error` gets the message of the last launch that failed. */
static int products_wrong(struct sm90_product p, char error[512]) {
  uint16_t a[ROWS * K], b[128 * K];
  float d[64 * 128];
  static float na[ROWS * K], nb[128 * K], want[64 * 128];
  int wrong = 0;
  error[0] = 0;
  for (int i = 0; i < ROWS * K; i++) a[i] = wn_bf16_round(na[i] = number(1, i));
  for (int i = 0; i < 128 * K; i++) b[i] = wn_bf16_round(nb[i] = number(2, i));
  for (int r = 0; r < 64; r++)
    for (int c = 0; c < p.n; c++) {
      float sum = 3;
      for (int k = 0; k < K && p.row0 + r < ROWS; k++)
        sum += na[(p.row0 + r) * K + k] * nb[p.turned ? k * p.n + c : c * K + k];
      want[r * p.n + c] = sum;
    }
  p.a = a, p.b = b, p.d = d, p.steps = STEPS, p.rows = ROWS, p.start = 3;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    memset(d, 0xff, sizeof d);
    wn_emulate_seed(seed);
    kernel_sm90_product(&p);
    const char *text = wn_emulate_error();
    if (text) snprintf(error, 512, "%s", text);
    if (text) continue;
    for (int i = 0; i < 64 * p.n; i++) wrong += !(d[i] == want[i]);
  }
  return wrong;
}

static void test_products(void **state) {
  (void)state;
  for (int form = 0; form < 16; form++) {
    const struct sm90_product p = {.n = form & 1 ? 128 : 64,
                                   .turned = form & 2,
                                   .from_registers = form & 4,
                                   .copied = form & 8,
                                   .row0 = form & 1 ? 64 : 8};
    char error[512];
    const int wrong = products_wrong(p, error);
    if (wrong || error[0]) fail_msg("form %d: %d wrong numbers, %s", form, wrong, error);
  }
}

/* With the fault, numbers are wrong in some order, or the launch reports an error. */
static void expect_fault(struct sm90_product p, enum sm90_fault fault, const char *text) {
  char error[512];
  p.fault = fault;
  const int wrong = products_wrong(p, error);
  if (text ? !strstr(error, text) : !wrong)
    fail_msg("fault %d: %d wrong numbers, \"%s\" lacks \"%s\"", (int)fault, wrong, error, text ? text : "");
}
static void test_faults(void **state) {
  (void)state;
  const struct sm90_product p = {.n = 64, .copied = true}, wide = {.n = 128, .turned = true, .copied = true},
                            written = {.n = 64, .from_registers = false};
  expect_fault(p, SM90_NO_COPY_WAIT, "more arrivals"); /* its stage is refilled too early */
  expect_fault(p, SM90_WRONG_PHASE, "more arrivals");
  expect_fault(p, SM90_NO_EMPTY_WAIT, "more arrivals");
  expect_fault(p, SM90_EARLY_RELEASE, NULL);
  expect_fault(p, SM90_NO_PRODUCT_WAIT, NULL);
  expect_fault(p, SM90_NO_WGMMA_FENCE, "without wgmma.fence");
  expect_fault(written, SM90_NO_PROXY_FENCE, NULL);
  expect_fault(p, SM90_NO_INIT_FENCE, "was not fenced");
  expect_fault(p, SM90_WRONG_STRIDE, NULL);
  expect_fault(p, SM90_WRONG_SWIZZLE, "without the 128-byte swizzle");
  expect_fault(wide, SM90_WRONG_LEAD, NULL);
  expect_fault(p, SM90_MISSING_BYTES, "wait for ever");
  expect_fault(p, SM90_MORE_ARRIVALS, "more arrivals");
  expect_fault(p, SM90_HALF_GROUP, "products");
}

static void test_bulk_and_registers(void **state) {
  (void)state;
  float *x = aligned_alloc(16, 64 * sizeof *x), y[64];
  assert_non_null(x);
  for (int i = 0; i < 64; i++) x[i] = number(3, i);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    kernel_sm90_bulk(x, y, 64, 0);
    assert_null(wn_emulate_error());
    assert_memory_equal(x, y, sizeof y);
  }
  kernel_sm90_bulk(x, y, 60, 4);
  assert_non_null(strstr(wn_emulate_error(), "not aligned"));
  kernel_sm90_bulk(x, y, 64, 16);
  assert_non_null(strstr(wn_emulate_error(), "outside of dynamic shared memory"));
  kernel_sm90_registers(false);
  assert_null(wn_emulate_error());
  kernel_sm90_registers(true);
  assert_non_null(strstr(wn_emulate_error(), "registers"));
  free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_products),
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_bulk_and_registers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
