/* wn_gguf_encode's types with a search: the error is no larger than that of rounding to nearest in each group's range
 * with float scales, which the file does not even have. Also blocks of zeros, constants, subnormals and outliers; NaN
 * stays NaN; every instruction set and number of threads gives the same bits. */
#include "isa.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "winnow/gguf.h"

enum { N = 256 * 64, MOST_BYTES = N * 4 };

static wn_context *ctx;

static int set_up(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int tear_down(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

/* group: weights that share a scale; steps: from the smallest to the largest; signed: one scale and no minimum. */
static const struct {
  wn_gguf_type type;
  int group, steps;
  bool is_signed;
} types[] = {{WN_GGUF_Q4_0, 32, 15, true},  {WN_GGUF_Q4_1, 32, 15, false}, {WN_GGUF_Q5_0, 32, 31, true},
             {WN_GGUF_Q5_1, 32, 31, false}, {WN_GGUF_Q4_K, 32, 15, false}, {WN_GGUF_Q5_K, 32, 31, false},
             {WN_GGUF_Q6_K, 16, 63, true}};
#define TYPES ((int)(sizeof types / sizeof *types))

enum { NORMAL, HEAVY, POSITIVE, SHIFTED, UNEQUAL, KINDS };
static const char *const kind_names[] = {"normal", "heavy tails", "positive", "shifted", "groups of unequal size"};

static void fill(int kind, uint64_t seed, float *x) {
  for (int64_t i = 0; i < N; i++) {
    const double r = wn_random_normal(seed, WN_STREAM_TEST, 7, (uint64_t)i);
    const double size = 0.02 * exp(wn_random_normal(seed, WN_STREAM_TEST, 8, (uint64_t)(i / 32)));
    x[i] = (float)(kind == HEAVY      ? 0.02 * r * fabs(r)
                   : kind == POSITIVE ? 0.02 * fabs(r)
                   : kind == SHIFTED  ? 0.02 * r - 0.05
                   : kind == UNEQUAL  ? size * r
                                      : 0.02 * r);
  }
}

static void round_trip(wn_context *c, wn_gguf_type type, const float *x, int64_t n, float *y) {
  static _Alignas(64) uint8_t data[MOST_BYTES];
  const size_t bytes = (size_t)(n / wn_gguf_block_weights(type)) * wn_gguf_block_bytes(type);
  assert_ok(c, wn_gguf_encode(c, type, x, n, data));
  const wn_gguf_tensor t = {.name = "x", .type = type, .ndim = 1, .shape = {n}, .data = data, .bytes = bytes};
  assert_ok(c, wn_gguf_dequantize(c, &t, 0, 1, y));
}

/* The squared error of dividing each group's range into equal steps, in float. */
static double error_of_ranges(int type, const float *x) {
  double error = 0;
  for (int64_t i = 0; i < N; i += types[type].group) {
    double low = 0, high = 0; /* some types cannot store a minimum above zero */
    for (int k = 0; k < types[type].group; k++) low = fmin(low, (double)x[i + k]), high = fmax(high, (double)x[i + k]);
    if (types[type].is_signed) high = fmax(high, -low), low = -high;
    const double step = (high - low) / types[type].steps;
    for (int k = 0; k < types[type].group; k++) {
      const double q = step > 0 ? nearbyint(((double)x[i + k] - low) / step) : 0, e = low + q * step - (double)x[i + k];
      error += e * e;
    }
  }
  return error;
}

static void searched(void **state) {
  (void)state;
  static float x[N], y[N];
  for (int kind = 0; kind < KINDS; kind++) {
    fill(kind, 3, x);
    for (int t = 0; t < TYPES; t++) {
      double error = 0;
      round_trip(ctx, types[t].type, x, N, y);
      for (int64_t i = 0; i < N; i++) error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
      const double plain = error_of_ranges(t, x);
      if (!(error < plain))
        fail_msg("%s, %s weights: squared error %g, ranges rounded to nearest have %g",
                 wn_gguf_type_name(types[t].type), kind_names[kind], error, plain);
    }
  }
}

/* Weights that a block can hold exactly, and extreme numbers. */
static void edges(void **state) {
  (void)state;
  float x[256], y[256];
  for (int t = 0; t < TYPES; t++) {
    const wn_gguf_type type = types[t].type;
    memset(x, 0, sizeof x);
    round_trip(ctx, type, x, 256, y);
    for (int i = 0; i < 256; i++) assert_true(y[i] == 0);
    for (int sign = -1; sign <= 1; sign += 2) {
      for (int i = 0; i < 256; i++) x[i] = (float)sign * 0.75f;
      round_trip(ctx, type, x, 256, y);
      for (int i = 0; i < 256; i++) assert_true(fabsf(y[i] - x[i]) < 0.75f * 0.04f);
    }
    for (int i = 0; i < 256; i++) x[i] = i % 3 ? 0x1p-130f : -0x1p-140f; /* below any half float */
    round_trip(ctx, type, x, 256, y);
    for (int i = 0; i < 256; i++) assert_true(fabsf(y[i]) < 0x1p-24f);
    memset(x, 0, sizeof x);
    x[77] = -30;
    round_trip(ctx, type, x, 256, y);
    for (int i = 0; i < 256; i++) assert_true(fabsf(y[i] - x[i]) <= 30 * 0.04f);
    x[5] = 3e8f;
    uint8_t data[256 * 4];
    assert_refused(ctx, wn_gguf_encode(ctx, type, x, 256, data), WN_ERR_ARGUMENT, "too large");
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
      memset(x, 0, sizeof x);
      x[200] = bad[k];
      round_trip(ctx, type, x, 256, y);
      assert_true(isnan(y[200]));
    }
    assert_refused(ctx, wn_gguf_encode(ctx, type, x, 255, data), WN_ERR_ARGUMENT, "whole blocks");
  }
}

/* Types that are only rounded: values that are not finite stay so, and finite ones do not become infinite. */
static void edges_of_rounding(void **state) {
  (void)state;
  const float bad[] = {NAN, INFINITY, -INFINITY};
  float x[32], y[32];
  uint8_t data[32 * 4];
  for (int i = 0; i < 32; i++) x[i] = 0.01f * (float)i;
  for (int k = 0; k < 3; k++) {
    x[20] = bad[k];
    round_trip(ctx, WN_GGUF_Q8_0, x, 32, y);
    assert_true(isnan(y[20]));
    round_trip(ctx, WN_GGUF_BF16, x, 32, y);
    assert_true(k == 0 ? isnan(y[20]) : y[20] == bad[k]);
    round_trip(ctx, WN_GGUF_F16, x, 32, y);
    assert_true(k == 0 ? isnan(y[20]) : y[20] == bad[k]);
  }
  for (int sign = -1; sign <= 1; sign += 2) {
    x[20] = (float)sign * 0x1.fep127f; /* BF16's largest number */
    round_trip(ctx, WN_GGUF_BF16, x, 32, y);
    assert_true(y[20] == x[20]);
    x[20] = (float)sign * 0x1.fffp127f;
    assert_refused(ctx, wn_gguf_encode(ctx, WN_GGUF_BF16, x, 32, data), WN_ERR_ARGUMENT, "too large for BF16");
    assert_refused(ctx, wn_gguf_encode(ctx, WN_GGUF_Q8_0, x, 32, data), WN_ERR_ARGUMENT, "too large for Q8_0");
  }
}

static void same_everywhere(void **state) {
  (void)state;
  static float x[N];
  static uint8_t first[MOST_BYTES], other[MOST_BYTES];
  static const char *const sets[] = {"ref", ISA_OF_EIGHT, "avx512"};
  fill(UNEQUAL, 5, x);
  for (int t = 0; t < TYPES; t++) {
    const wn_gguf_type type = types[t].type;
    const size_t bytes = (size_t)(N / wn_gguf_block_weights(type)) * wn_gguf_block_bytes(type);
    assert_ok(ctx, wn_gguf_encode(ctx, type, x, N, first));
    for (int i = 0; i < 3; i++) {
      wn_context *c = NULL;
      if (!context_with_isa(NULL, sets[i], 1 + i, &c)) continue;
      assert_ok(c, wn_gguf_encode(c, type, x, N, other));
      if (memcmp(first, other, bytes) != 0) fail_msg("%s differs by %s", wn_gguf_type_name(type), sets[i]);
      wn_context_destroy(c);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(searched), cmocka_unit_test(edges),
                                     cmocka_unit_test(edges_of_rounding), cmocka_unit_test(same_everywhere)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
