/* Sums that steps report, and elementwise operations that mix, limit and convert: against plain sums, and backward
 * passes against finite differences. On every backend, in both types. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "backends/backends.h"
#include "base/rng.h"
#include "tensor/bf16.h"
#include "tensor/f16.h"

enum { N = 77 };

/* Every backend with every type that it computes in. */
static bool exec_next(int *at, struct wn_exec *exec) {
  const struct wn_backend *const backends[] = {wn_backend_ref(), wn_backend_ref(), wn_backend_cpu(WN_ISA_REF)};
  if (*at == 3) return false;
  *exec = (struct wn_exec){.backend = backends[*at], .threads = 2, .dtype = *at == 0 ? WN_F64 : WN_F32};
  (*at)++;
  return true;
}

static double draw(uint64_t i) {
  return wn_random_normal(5, WN_STREAM_TEST, 1, i);
}

static void fill(const struct wn_exec *exec, void *x, int64_t n, uint64_t from) {
  for (int64_t i = 0; i < n; i++) wn_number_set(x, i, exec->dtype, draw(from + (uint64_t)i));
}

static void near_to(const struct wn_exec *exec, double found, double expected) {
  const double limit = (exec->dtype == WN_F64 ? 1e-12 : 1e-6) * fmax(1, fabs(expected));
  if (!(fabs(found - expected) <= limit)) fail_msg("%.17g, expected %.17g", found, expected);
}

static void test_mix(void **state) {
  (void)state;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[N], y[N], before[N], sum = 4;
    fill(&e, x, N, 0), fill(&e, y, N, N);
    for (int i = 0; i < N; i++) before[i] = wn_number(y, i, e.dtype);
    assert_int_equal(wn_op_mix_forward(&e, &(struct wn_mix){.n = N, .f = 1.5, .h = -0.25, .x = x, .y = y}), WN_OK);
    for (int i = 0; i < N; i++)
      near_to(&e, wn_number(y, i, e.dtype), 1.5 * wn_number(x, i, e.dtype) - 0.25 * before[i]);
    for (int i = 0; i < N; i++) wn_number_set(y, i, e.dtype, NAN); /* not read */
    assert_int_equal(wn_op_mix_forward(&e, &(struct wn_mix){.n = N, .f = 3, .sumsq = &sum, .x = x, .y = y}), WN_OK);
    for (int i = 0; i < N; i++) near_to(&e, wn_number(y, i, e.dtype), 3 / (2 + 1e-7) * wn_number(x, i, e.dtype));
    assert_int_equal(wn_op_mix_forward(&e, &(struct wn_mix){.n = N, .f = NAN, .x = x, .y = y}), WN_ERR_ARGUMENT);
  }
}

static void test_clamp_convert(void **state) {
  (void)state;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[N], before[N];
    fill(&e, x, N, 0);
    for (int i = 0; i < N; i++) before[i] = wn_number(x, i, e.dtype);
    assert_int_equal(wn_op_clamp_forward(&e, &(struct wn_clamp){.n = N, .low = -0.5, .high = INFINITY, .x = x}), WN_OK);
    for (int i = 0; i < N; i++) assert_true(wn_number(x, i, e.dtype) == fmax(before[i], -0.5));
    assert_int_equal(wn_op_clamp_forward(&e, &(struct wn_clamp){.n = N, .low = 1, .high = 0, .x = x}), WN_ERR_ARGUMENT);
    float back[N];
    uint16_t y[N];
    const struct wn_convert to = {.n = N, .y_type = WN_BF16, .x = x, .y = y},
                            from = {.n = N, .x_type = WN_BF16, .x = y, .y = back}, none = {.n = N, .x = x, .y = back};
    assert_int_equal(wn_op_convert_forward(&e, &none), WN_ERR_UNSUPPORTED);
    if (e.dtype == WN_F64) {
      assert_int_equal(wn_op_convert_forward(&e, &to), WN_ERR_UNSUPPORTED);
      continue;
    }
    assert_int_equal(wn_op_convert_forward(&e, &to), WN_OK);
    assert_int_equal(wn_op_convert_forward(&e, &from), WN_OK);
    for (int i = 0; i < N; i++) {
      const uint16_t rounded = wn_bf16_round((float)wn_number(x, i, e.dtype));
      assert_int_equal(y[i], rounded);
      assert_true(back[i] == wn_bf16_value(rounded));
    }
  }
}

static void test_sigmoid(void **state) {
  (void)state;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[N], dx[N], before[N], gradient[N];
    fill(&e, x, N, 0), fill(&e, dx, N, N);
    for (int i = 0; i < N; i++) before[i] = wn_number(x, i, e.dtype), gradient[i] = wn_number(dx, i, e.dtype);
    assert_int_equal(wn_op_sigmoid_forward(&e, &(struct wn_sigmoid){.n = N, .x = x}), WN_OK);
    assert_int_equal(wn_op_sigmoid_backward(&e, &(struct wn_sigmoid){.n = N, .x = x, .dx = dx}), WN_OK);
    for (int i = 0; i < N; i++) {
      const double h = 1e-6, up = 1 / (1 + exp(-(before[i] + h))), down = 1 / (1 + exp(-(before[i] - h)));
      near_to(&e, wn_number(x, i, e.dtype), 1 / (1 + exp(-before[i])));
      assert_true(fabs(wn_number(dx, i, e.dtype) - gradient[i] * (up - down) / (2 * h)) < 1e-6);
    }
  }
}

/* The log of a gate that a floor holds is the floor's, and has no slope. */
static void test_floor(void **state) {
  (void)state;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[N], dx[N], before[N];
    int held = 0;
    fill(&e, x, N, 0), fill(&e, dx, N, N);
    for (int i = 0; i < N; i++) before[i] = wn_number(x, i, e.dtype);
    const struct wn_sigmoid a = {.kind = WN_SIGMOID_LOG, .floor = 0.4, .n = N, .x = x, .dx = dx};
    assert_int_equal(wn_op_sigmoid_forward(&e, &a), WN_OK);
    assert_int_equal(wn_op_sigmoid_backward(&e, &a), WN_OK);
    for (int i = 0; i < N; i++) {
      const double s = 1 / (1 + exp(-before[i]));
      near_to(&e, wn_number(x, i, e.dtype), log(fmax(s, 0.4)));
      if (s < 0.4) held++;
      assert_true((wn_number(dx, i, e.dtype) == 0) == (s < 0.4));
    }
    assert_true(held > 0 && held < N);
  }
}

static void test_silu(void **state) {
  (void)state;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[N], y[N], dx[N], gradient[N];
    fill(&e, x, N, 0), fill(&e, dx, N, N);
    for (int i = 0; i < N; i++) gradient[i] = wn_number(dx, i, e.dtype);
    assert_int_equal(wn_op_silu_forward(&e, &(struct wn_silu){.n = N, .x = x, .y = y}), WN_OK);
    assert_int_equal(wn_op_silu_backward(&e, &(struct wn_silu){.n = N, .x = x, .dy = dx, .dx = dx}), WN_OK);
    for (int i = 0; i < N; i++) {
      const double v = wn_number(x, i, e.dtype), h = 1e-6;
      const double up = (v + h) / (1 + exp(-(v + h))), down = (v - h) / (1 + exp(-(v - h)));
      near_to(&e, wn_number(y, i, e.dtype), v / (1 + exp(-v)));
      assert_true(fabs(wn_number(dx, i, e.dtype) - gradient[i] * (up - down) / (2 * h)) < 1e-6);
    }
  }
}

static void test_loss_sums(void **state) {
  (void)state;
  const double loss[] = {0.5, 100, 0.25, 2}; /* the second one is no target */
  const uint8_t hit[] = {1, 1, 0, 1};
  const int32_t targets[] = {0, -1, 3, 1};
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double sums[2] = {1, 2};
    const struct wn_loss_sums a = {.M = 4, .loss = loss, .hit = hit, .targets = targets, .sums = sums};
    assert_int_equal(wn_op_loss_sums_forward(&e, &a), WN_OK);
    assert_true(sums[0] == 3.75 && sums[1] == 4);
  }
}

static void test_span_sum(void **state) {
  (void)state;
  enum { ROWS = 12, H = 3, T = 4 };
  const int32_t count[] = {4, 0, 2};
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double z[ROWS * H], dz[ROWS * H] = {0}, sum = 0, expected = 0;
    fill(&e, z, ROWS * H, 0);
    struct wn_span_sum a = {.rows = ROWS, .heads = H, .T = T, .row_count = count, .tokens = 6, .scale = 3};
    a.z = z, a.dz = dz, a.sum = &sum;
    assert_int_equal(wn_op_span_sum_forward(&e, &a), WN_OK);
    assert_int_equal(wn_op_span_sum_backward(&e, &a), WN_OK);
    for (int i = 0; i < ROWS * H; i++) {
      const bool counts = i / H % T < count[i / H / T];
      if (counts) expected += wn_number(z, i, e.dtype) / 6;
      assert_true(wn_number(dz, i, e.dtype) == (counts ? 0.5 : 0));
    }
    assert_true(fabs(sum - expected) < 1e-12);
    a.row_count = NULL, a.rows = 1, a.tokens = 1;
    assert_int_equal(wn_op_span_sum_forward(&e, &a), WN_OK);
    assert_true(fabs(sum - wn_number(z, 0, e.dtype) - wn_number(z, 1, e.dtype) - wn_number(z, 2, e.dtype)) < 1e-12);
  }
}

/* Two sequences of two documents and of one, the second with padding, in two selections: by hand and by finite
 * differences. */
static void test_memory_loss(void **state) {
  (void)state;
  enum { B = 2, G = 2, T = 5 };
  const int32_t doc_start[B * T] = {0, 0, 2, 2, 2, 0, 0, 0, 0, 0}, count[B] = {5, 3};
  const double values[B * G * T] = {1, 4, 2, 2, 1, /**/ 0, 0, 3, 5, 6, /**/ 7, 1, 8, 9, 9, /**/ 2, 2, 1, 9, 9};
  const double expected = 4. / 2 + 2. / 3 + 0. / 2 + 6. / 3 + 8. / 3 + 2. / 3;
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double M[B * G * T], d[B * G * T], sum;
    struct wn_memory_loss a = {.B = B, .G = G, .T = T, .doc_start = doc_start, .count = count, .sum = &sum, .scale = 3};
    for (int i = 0; i < B * G * T; i++)
      wn_number_set(M, i, e.dtype, values[i]), wn_number_set(d, i, e.dtype, values[i]);
    a.M = M;
    assert_int_equal(wn_op_memory_loss_forward(&e, &a), WN_OK);
    assert_true(fabs(sum - expected) < 1e-12);
    a.M = d;
    assert_int_equal(wn_op_memory_loss_backward(&e, &a), WN_OK);
    a.M = M;
    for (int i = 0; i < B * G * T; i++) { /* upwards, so that only the first of several longest rows counts */
      const double h = 0x1p-10, before = sum, now = wn_number(M, i, e.dtype);
      bool first = true; /* of equal rows in a document only the first has the gradient */
      for (int j = i - i % T; j < i; j++)
        first = first && (doc_start[i / (G * T) * T + j % T] != doc_start[i / (G * T) * T + i % T] ||
                          wn_number(M, j, e.dtype) != now);
      wn_number_set(M, i, e.dtype, now + h);
      assert_int_equal(wn_op_memory_loss_forward(&e, &a), WN_OK);
      const double slope = first ? 3 * (sum - before) / h : 0;
      if (fabs(wn_number(d, i, e.dtype) - slope) > 1e-4) fail_msg("%d: %g, %g", i, wn_number(d, i, e.dtype), slope);
      wn_number_set(M, i, e.dtype, now);
      sum = before;
    }
  }
}

/* What gates keep, by the definition's sums over every pair of a row and a key it sees, and by finite differences: two
 * documents and one, the last with padding; logs from 0 to where nothing is left. */
static void test_gate_share(void **state) {
  (void)state;
  enum { B = 2, T = 5, H = 2, N = B * T * H };
  const int32_t doc_start[B * T] = {0, 0, 2, 2, 2, 0, 0, 0, 0, 0}, count[B] = {5, 3};
  const double logs[N] = {0,  -1e-9, -1e-5, -3e-5, -1e-3, -0.01, -0.1, -0.5, -1,   -2,
                          -4, -0.3,  -0.2,  -30,   -700,  -0.7,  -1,   -1,   -0.1, -0.1};
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);)
    for (int ages = 0; ages < 2; ages++) {
      double c[N], dc[N], sum, expected = 0, all = 0;
      for (int i = 0; i < N; i++) wn_number_set(c, i, e.dtype, logs[i]), wn_number_set(dc, i, e.dtype, 1);
      for (int row = 0; row < B * T; row++)
        for (int key = row - row % T + doc_start[row]; key <= row && row % T < count[row / T]; key++)
          for (int h = 0; h < H && (ages || key == row); h++, all++)
            expected += exp((ages ? row - key : 1) * wn_number(c, key * H + h, e.dtype));
      struct wn_gate_share a = {.B = B, .T = T, .heads = H, .doc_start = doc_start, .count = count, .ages = ages};
      a.c = c, a.dc = dc, a.sum = &sum, a.scale = 3;
      assert_int_equal(wn_op_gate_share_forward(&e, &a), WN_OK);
      if (fabs(sum - expected / all) > 1e-14) fail_msg("ages %d: %.17g, %.17g", ages, sum, expected / all);
      assert_int_equal(wn_op_gate_share_backward(&e, &a), WN_OK);
      for (int i = 0; i < N; i++) {
        const double now = wn_number(c, i, e.dtype), h = 0x1p-14;
        double high, low;
        wn_number_set(c, i, e.dtype, now + h);
        assert_int_equal(wn_op_gate_share_forward(&e, &a), WN_OK), high = sum;
        wn_number_set(c, i, e.dtype, now - h);
        assert_int_equal(wn_op_gate_share_forward(&e, &a), WN_OK), low = sum;
        const double width = wn_number(c, i, e.dtype) < now ? 2 * h : 0; /* floats of -700 do not move so little */
        const double slope = width > 0 ? 3 * (high - low) / width : 0;
        if (fabs(wn_number(dc, i, e.dtype) - 1 - slope) > (e.dtype == WN_F64 ? 1e-7 : 1e-4))
          fail_msg("ages %d, %d: %g, %g", ages, i, wn_number(dc, i, e.dtype) - 1, slope);
        wn_number_set(c, i, e.dtype, now);
      }
      /* One-sided about the mean of the layers' sums. */
      const double sums[2] = {0.25, 0.5};
      a.sums = sums, a.layers = 2;
      for (int above = 0; above < 2; above++) {
        double one[N];
        for (int i = 0; i < N; i++) wn_number_set(one, i, e.dtype, 1);
        a.dc = one, a.most = above ? 0.374 : 0.375;
        assert_int_equal(wn_op_gate_share_backward(&e, &a), WN_OK);
        for (int i = 0; i < N; i++) assert_true(wn_number(one, i, e.dtype) == (above ? wn_number(dc, i, e.dtype) : 1));
      }
    }
}

/* Copies rows of some heads of one array to heads of another: in order, by an index for each group, as half floats, and
 * zeros. */
static void test_gather(void **state) {
  (void)state;
  enum { B = 2, H = 4, P = 2, T = 3, D = 5, FROM = 6, TO = 4, X = B * FROM * H * D, Y = B * H * TO * D };
  static const int32_t index[B * P * T] = {5, 0, 3, /**/ 2, 2, 1, /**/ 0, 1, 2, /**/ 4, 5, 0};
  const struct wn_stride s_x = {FROM * H * D, H * D, D}, s_y = {H * TO * D, D, TO * D};
  struct wn_exec e;
  for (int at = 0; exec_next(&at, &e);) {
    double x[X], y[Y];
    uint16_t half[Y], moved[Y];
    for (int i = 0; i < X; i++) wn_number_set(x, i, e.dtype, draw((uint64_t)i));
    struct wn_gather a = {.B = B, .H = H, .T = T, .D = D, .x = x, .s_x = s_x, .groups = P, .s_y = s_y};
    for (int form = 0; form < 6; form++) { /* in order or by index; floats, half floats, zeros */
      const bool indexed = form % 2, halves = form / 2 == 1, zeros = form / 2 == 2;
      for (int i = 0; i < Y; i++) wn_number_set(y, i, e.dtype, 7), half[i] = moved[i] = 7;
      a.index = indexed ? index : NULL;
      a.y_type = halves ? WN_GGUF_F16 : WN_GGUF_F32, a.x = zeros ? NULL : x;
      a.y = halves ? (void *)(half + D) : wn_element(y, D, e.dtype); /* from row 1 on */
      const wn_status status = wn_op_gather_forward(&e, &a);
      assert_int_equal(status, halves && e.dtype == WN_F64 ? WN_ERR_UNSUPPORTED : WN_OK);
      if (status != WN_OK) continue;
      for (int i = 0; i < Y; i++) {
        const int d = i % D, t = i / D % TO - 1, h = i / D / TO % H, b = i / D / TO / H;
        const int from = indexed && t >= 0 ? index[(b * P + h / (H / P)) * T + t] : t;
        const double value = t < 0 || zeros ? 0 : wn_number(x, ((b * FROM + from) * H + h) * D + d, e.dtype);
        if (halves)
          assert_int_equal(half[i], t < 0 ? 7 : wn_f16_round((float)value));
        else
          assert_true(wn_number(y, i, e.dtype) == (t < 0 ? 7 : value));
      }
      if (!halves) continue;
      struct wn_gather move = a; /* moves the last row to the first place, like an eviction */
      move.x = half + T * D, move.s_x = s_y, move.x_type = WN_GGUF_F16, move.index = NULL, move.T = 1, move.y = moved;
      assert_int_equal(wn_op_gather_forward(&e, &move), WN_OK);
      for (int i = 0; i < Y; i++) assert_int_equal(moved[i], i / D % TO == 0 ? half[i + T * D] : 7);
      move.y_type = WN_GGUF_F32;
      assert_int_equal(wn_op_gather_forward(&e, &move), WN_ERR_UNSUPPORTED);
    }
    a.y_type = WN_GGUF_F32, a.y = y, a.groups = 3;
    assert_int_equal(wn_op_gather_forward(&e, &a), WN_ERR_ARGUMENT);
    assert_int_equal(wn_op_gather_backward(&e, &a), WN_ERR_UNSUPPORTED);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mix),        cmocka_unit_test(test_clamp_convert),
                                     cmocka_unit_test(test_silu),       cmocka_unit_test(test_sigmoid),
                                     cmocka_unit_test(test_floor),      cmocka_unit_test(test_loss_sums),
                                     cmocka_unit_test(test_span_sum),   cmocka_unit_test(test_memory_loss),
                                     cmocka_unit_test(test_gate_share), cmocka_unit_test(test_gather)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
