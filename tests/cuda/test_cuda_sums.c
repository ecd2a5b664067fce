/* Sums that a step reports, and elementwise operations, on emulated kernels. Sums of doubles have the reference's bits,
 * and so do their gradients; the rest is within float rounding. Arrays of operations come from malloc (cuda/arrays.h).
 */
#include "support.h"

#include <float.h>
#include <math.h>

#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "base/rng.h"
#include "cuda/emulate_api.h"

static wn_context *ctx;
static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

/* The reference, then the kernels in two orders of threads. */
enum { WAYS = 3 };
static struct wn_exec way(int i) {
  wn_emulate_seed((uint64_t)i);
  return (struct wn_exec){
      .ctx = ctx, .backend = i == 0 ? wn_backend_ref() : wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
}
static double number(uint64_t salt, int64_t i) {
  return wn_random_normal(4, WN_STREAM_TEST, salt, (uint64_t)i);
}

static void test_losses(void **state) {
  (void)state;
  enum { M = 2500 };
  double *loss = malloc(M * sizeof *loss), (*sums)[2] = malloc(WAYS * sizeof *sums);
  uint8_t *hit = malloc(M * sizeof *hit);
  int32_t *targets = malloc(M * sizeof *targets);
  for (int m = 0; m < M; m++) {
    loss[m] = exp(number(1, m)), hit[m] = m % 3 == 0;
    targets[m] = m % 7 == 2 ? -1 : m;
    if (m % 7 == 2) loss[m] = NAN; /* never read */
  }
  for (int n = 0; n <= M; n += n ? n : 1) {
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      const struct wn_loss_sums a = {.M = n, .loss = loss, .hit = hit, .targets = targets, .sums = sums[i]};
      sums[i][0] = 0.1, sums[i][1] = 3;
      assert_ok(ctx, wn_op_loss_sums_forward(&e, &a));
      assert_null(wn_emulate_error());
      assert_memory_equal(sums[i], sums[0], sizeof sums[0]);
    }
  }
  free(loss), free(sums), free(hit), free(targets);
}

static void test_spans(void **state) {
  (void)state;
  enum { B = 3, T = 701, H = 2 };
  int32_t *counts = malloc(B * sizeof *counts);
  float *z = malloc(B * T * H * sizeof *z), (*dz)[B * T * H] = malloc(WAYS * sizeof *dz);
  double *sum = malloc(WAYS * sizeof *sum);
  counts[0] = T, counts[1] = 0, counts[2] = 400;
  for (int i = 0; i < B * T * H; i++) z[i] = (float)number(2, i);
  for (int padded = 0; padded < 2; padded++) {
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      for (int k = 0; k < B * T * H; k++) dz[i][k] = z[k];
      const struct wn_span_sum a = {.rows = B * T,
                                    .heads = H,
                                    .T = T,
                                    .row_count = padded ? counts : NULL,
                                    .tokens = 123,
                                    .z = z,
                                    .sum = &sum[i],
                                    .scale = 0.3,
                                    .dz = dz[i]};
      assert_ok(ctx, wn_op_span_sum_forward(&e, &a));
      assert_ok(ctx, wn_op_span_sum_backward(&e, &a));
      assert_null(wn_emulate_error());
      assert_true(sum[i] == sum[0]);
      assert_memory_equal(dz[i], dz[0], sizeof dz[0]);
    }
  }
  free(counts), free(z), free(dz), free(sum);
}

static void close_to(const float *x, const float *want, int n) {
  for (int i = 0; i < n; i++)
    if (!(fabsf(x[i] - want[i]) <= 4 * FLT_EPSILON * fmaxf(1, fabsf(want[i]))))
      fail_msg("element %d: %.9g, expected %.9g", i, (double)x[i], (double)want[i]);
}

enum { B = 3, G = 2, T = 331 };
/* Documents of random lengths in the sequences, and how many rows of each are tokens. */
static int32_t *make_starts(void) {
  int32_t *starts = malloc(B * T * sizeof *starts);
  for (int b = 0; b < B; b++)
    for (int t = 0, first = 0; t < T; t++) {
      if (wn_random_below(6, WN_STREAM_TEST, (uint64_t)b, (uint64_t)t, 40) == 0) first = t;
      starts[b * T + t] = first;
    }
  return starts;
}
static int32_t *make_counts(void) {
  int32_t *counts = malloc(B * sizeof *counts);
  counts[0] = T, counts[1] = 1, counts[2] = 290;
  return counts;
}

static void test_memory_loss(void **state) {
  (void)state;
  int32_t *counts = make_counts(), *starts = make_starts();
  float(*M)[B * G * T] = malloc(WAYS * sizeof *M);
  double *sum = malloc(WAYS * sizeof *sum);
  for (int form = 0; form < 4; form++) {
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      for (int k = 0; k < B * G * T; k++) M[i][k] = (float)floor(number(3, k) * 4); /* ties */
      const struct wn_memory_loss a = {.B = B,
                                       .G = G,
                                       .T = T,
                                       .doc_start = form & 1 ? starts : NULL,
                                       .count = form & 2 ? counts : NULL,
                                       .M = M[i],
                                       .sum = &sum[i],
                                       .scale = 0.7};
      assert_ok(ctx, wn_op_memory_loss_forward(&e, &a));
      assert_ok(ctx, wn_op_memory_loss_backward(&e, &a));
      assert_null(wn_emulate_error());
      assert_true(sum[i] == sum[0]);
      assert_memory_equal(M[i], M[0], sizeof M[0]);
    }
  }
  free(counts), free(starts), free(M), free(sum);
}

/* Running sums in two pieces, by column, have the bits of the whole. */
static void test_sums_in_pieces(void **state) {
  (void)state;
  enum { N = B * T * G, CUT = 100 };
  float *whole = malloc(N * sizeof *whole), *x = malloc(N * sizeof *x);
  double *sums[2] = {malloc(B * G * sizeof(double)), malloc(B * G * sizeof(double))};
  for (int i = 0; i < WAYS; i++) {
    const struct wn_exec e = way(i);
    for (int k = 0; k < N; k++) whole[k] = (float)ldexp(floor(ldexp(number(11, k), 26)), -26); /* as ops.h has logs */
    for (int k = 0; k < N; k++) x[(k / (T * G) * G + k % G) * T + k / G % T] = whole[k];
    struct wn_sigmoid a = {.kind = WN_SIGMOID_SUMS, .n = N, .T = T, .W = G, .x = whole};
    assert_ok(ctx, wn_op_sigmoid_forward(&e, &a));
    a = (struct wn_sigmoid){.kind = a.kind, .n = B * G * CUT, .T = CUT, .W = G, .x = x, .s_x = {G * T, 1, T}};
    a.to = sums[0];
    assert_ok(ctx, wn_op_sigmoid_forward(&e, &a));
    a.n = B * G * (T - CUT), a.T = T - CUT, a.x = x + CUT, a.from = sums[0], a.to = sums[1];
    assert_ok(ctx, wn_op_sigmoid_forward(&e, &a));
    assert_null(wn_emulate_error());
    for (int k = 0; k < N; k++) assert_true(x[(k / (T * G) * G + k % G) * T + k / G % T] == whole[k]);
    for (int k = 0; k < B * G; k++) assert_true((float)sums[1][k] == x[(k + 1) * T - 1]);
  }
  free(whole), free(x), free(sums[0]), free(sums[1]);
}

/* What gates keep, without sums of layers, above their limit, and below it, where nothing is added. */
static void test_gate_share(void **state) {
  (void)state;
  int32_t *counts = make_counts(), *starts = make_starts();
  float *c = malloc(B * T * G * sizeof *c), (*dc)[B * T * G] = malloc(WAYS * sizeof *dc);
  double *sum = malloc(WAYS * sizeof *sum), *sums = malloc(2 * sizeof *sums);
  sums[0] = 0.25, sums[1] = 0.5;
  for (int i = 0; i < B * T * G; i++)
    c[i] = -(float)exp(4 * number(7, i) - 4); /* most near 0, some where none is left */
  for (int form = 0; form < 24; form++) {
    const int limit = form / 8;
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      for (int k = 0; k < B * T * G; k++) dc[i][k] = (float)number(8, k);
      const struct wn_gate_share a = {.B = B,
                                      .T = T,
                                      .heads = G,
                                      .doc_start = form & 1 ? starts : NULL,
                                      .count = form & 2 ? counts : NULL,
                                      .ages = form & 4,
                                      .c = c,
                                      .sum = &sum[i],
                                      .scale = 0.7,
                                      .most = limit == 1 ? 0.374 : 0.375,
                                      .sums = limit ? sums : NULL,
                                      .layers = 2,
                                      .dc = dc[i]};
      assert_ok(ctx, wn_op_gate_share_forward(&e, &a));
      assert_ok(ctx, wn_op_gate_share_backward(&e, &a));
      assert_null(wn_emulate_error());
      assert_true(fabs(sum[i] - sum[0]) <= 1e-14 && sum[0] > 0.01 && sum[0] < 1);
      close_to(dc[i], dc[0], B * T * G);
      for (int k = 0, added = 0; k < B * T * G; k++) {
        added += dc[i][k] != (float)number(8, k);
        if (k == B * T * G - 1) assert_true(limit == 2 ? added == 0 : added > 50);
      }
    }
  }
  free(counts), free(starts), free(c), free(dc), free(sum), free(sums);
}

/* Logs of gates, and their running sums, which are exact; gradients through both. */
static void test_log_sigmoid(void **state) {
  (void)state;
  enum { N = B * T * G };
  float *log = malloc(N * sizeof *log), (*x)[N] = malloc(WAYS * sizeof *x), (*dx)[N] = malloc(WAYS * sizeof *dx);
  for (int kind = WN_SIGMOID_LOG; kind <= WN_SIGMOID_SUMS; kind++) {
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      struct wn_sigmoid a = {.kind = kind, .floor = 1e-3, .n = N, .T = T, .W = G, .x = x[i], .dx = dx[i]};
      for (int k = 0; k < N; k++) x[i][k] = kind == WN_SIGMOID_LOG ? (float)number(9, k) * 20 : log[k];
      for (int k = 0; k < N; k++) dx[i][k] = (float)number(10, k);
      assert_ok(ctx, wn_op_sigmoid_forward(&e, &a));
      if (kind == WN_SIGMOID_LOG) close_to(x[i], x[0], N);
      if (kind == WN_SIGMOID_SUMS) assert_memory_equal(x[i], x[0], sizeof x[0]);
      memcpy(x[i], x[0], sizeof x[0]);
      assert_ok(ctx, wn_op_sigmoid_backward(&e, &a));
      assert_null(wn_emulate_error());
      close_to(dx[i], dx[0], N);
    }
    memcpy(log, x[0], sizeof x[0]);
  }
  free(log), free(x), free(dx);
}

static void test_elements(void **state) {
  (void)state;
  enum { N = 1031 };
  float *x = malloc(N * sizeof *x), (*y)[N] = malloc(WAYS * sizeof *y), (*sigmoid)[N] = malloc(WAYS * sizeof *y),
        (*slope)[N] = malloc(WAYS * sizeof *y), (*clamped)[N] = malloc(WAYS * sizeof *y),
        (*back)[N] = malloc(WAYS * sizeof *y);
  uint16_t(*half)[N] = malloc(WAYS * sizeof *half);
  double *sumsq = malloc(sizeof *sumsq);
  *sumsq = 7.5;
  for (int i = 0; i < N; i++) x[i] = (float)number(5, i) * 3;
  for (int form = 0; form < 4; form++) /* with and without h, with and without a norm */
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      for (int k = 0; k < N; k++) y[i][k] = form & 1 ? (float)k : NAN;
      const struct wn_mix a = {
          .n = N, .f = 0.3, .h = form & 1 ? -0.9 : 0, .sumsq = form & 2 ? sumsq : NULL, .x = x, .y = y[i]};
      assert_ok(ctx, wn_op_mix_forward(&e, &a));
      close_to(y[i], y[0], N);
    }
  for (int i = 0; i < WAYS; i++) {
    const struct wn_exec e = way(i);
    for (int k = 0; k < N; k++) sigmoid[i][k] = clamped[i][k] = x[k], slope[i][k] = 2 - x[k];
    assert_ok(ctx, wn_op_sigmoid_forward(&e, &(struct wn_sigmoid){.n = N, .x = sigmoid[i]}));
    assert_ok(ctx, wn_op_sigmoid_backward(&e, &(struct wn_sigmoid){.n = N, .x = sigmoid[i], .dx = slope[i]}));
    assert_ok(ctx, wn_op_clamp_forward(&e, &(struct wn_clamp){.n = N, .low = -0.5, .high = 2, .x = clamped[i]}));
    const struct wn_convert to = {.n = N, .y_type = WN_BF16, .x = x, .y = half[i]};
    const struct wn_convert from = {.n = N, .x_type = WN_BF16, .x = half[i], .y = back[i]};
    assert_ok(ctx, wn_op_convert_forward(&e, &to));
    assert_ok(ctx, wn_op_convert_forward(&e, &from));
    assert_null(wn_emulate_error());
    close_to(sigmoid[i], sigmoid[0], N);
    close_to(slope[i], slope[0], N);
    assert_memory_equal(clamped[i], clamped[0], sizeof clamped[0]);
    assert_memory_equal(half[i], half[0], sizeof half[0]);
    assert_memory_equal(back[i], back[0], sizeof back[0]);
  }
  for (int i = 0; i < WAYS; i++) {
    const struct wn_exec e = way(i);
    for (int k = 0; k < N; k++) back[i][k] = x[k], slope[i][k] = 2 - x[k];
    const struct wn_silu silu = {.n = N, .x = x, .y = y[i], .dy = slope[i], .dx = slope[i]};
    assert_ok(ctx, wn_op_silu_forward(&e, &silu));
    assert_ok(ctx, wn_op_silu_backward(&e, &silu));
    assert_ok(ctx, wn_op_noise_forward(&e, &(struct wn_noise){.n = N, .seed = 5, .stream = 9, .x = back[i]}));
    assert_null(wn_emulate_error());
    close_to(y[i], y[0], N);
    close_to(slope[i], slope[0], N);
    close_to(back[i], back[0], N);
  }
  free(x), free(y), free(sigmoid), free(slope), free(clamped), free(back), free(half), free(sumsq);
}

/* Copies have the reference's bits, also in half floats. */
static void test_gather(void **state) {
  (void)state;
  enum { B = 2, H = 6, P = 3, T = 5, D = 7, FROM = 9, TO = 11 };
  float *x = malloc(B * FROM * H * D * sizeof *x), (*y)[B * H * TO * D] = calloc(WAYS, sizeof *y);
  uint16_t(*half)[B * H * TO * D] = calloc(WAYS, sizeof *half), (*moved)[B * H * TO * D] = calloc(WAYS, sizeof *moved);
  int32_t *index = malloc(B * P * T * sizeof *index);
  for (int i = 0; i < B * FROM * H * D; i++) x[i] = (float)number(6, i) * 3;
  for (int i = 0; i < B * P * T; i++) index[i] = i * 4 % FROM;
  const struct wn_stride s_x = {FROM * H * D, H * D, D}, s_y = {H * TO * D, D, TO * D};
  for (int indexed = 0; indexed < 2; indexed++)
    for (int i = 0; i < WAYS; i++) {
      const struct wn_exec e = way(i);
      struct wn_gather a = {.B = B, .H = H, .T = T, .D = D, .x = x, .s_x = s_x, .s_y = s_y, .y = y[i] + 3 * D};
      if (indexed) a.index = index, a.groups = P;
      assert_ok(ctx, wn_op_gather_forward(&e, &a));
      a.y = half[i] + 2 * D, a.y_type = WN_GGUF_F16;
      assert_ok(ctx, wn_op_gather_forward(&e, &a));
      a.x = half[i], a.s_x = s_y, a.x_type = WN_GGUF_F16, a.y = moved[i];
      assert_ok(ctx, wn_op_gather_forward(&e, &a));
      a.x = NULL, a.T = 1, a.y = moved[i] + D;
      assert_ok(ctx, wn_op_gather_forward(&e, &a));
      assert_null(wn_emulate_error());
      assert_memory_equal(y[i], y[0], sizeof y[0]);
      assert_memory_equal(half[i], half[0], sizeof half[0]);
      assert_memory_equal(moved[i], moved[0], sizeof moved[0]);
    }
  free(x), free(y), free(half), free(moved), free(index);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_losses),      cmocka_unit_test(test_spans),          cmocka_unit_test(test_memory_loss),
      cmocka_unit_test(test_elements),    cmocka_unit_test(test_gather),         cmocka_unit_test(test_gate_share),
      cmocka_unit_test(test_log_sigmoid), cmocka_unit_test(test_sums_in_pieces),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
