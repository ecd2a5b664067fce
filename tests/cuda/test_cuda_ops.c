/* The CUDA backend's operations on emulated kernels, under the tolerance rule: the error against the double reference
 * is at most twice that of a naive computation in float, plus a few units in the last place. The same cases as for the
 * other backends, in float and with every set of arrays in bf16. The bits do not depend on the order of threads and
 * blocks. Quantised weights equal the floats that their blocks stand for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "ops/op_law.h"

#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"
#include "ops/naive.h"
#include "packed_weights.h"

static wn_context *ctx;

static int setup(void **state) {
  (void)state;
  return wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref", .threads = 2},
                           &ctx) == WN_OK
             ? 0
             : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

/* Attention has its own tests. */
static bool products_alone;
static bool served(enum op op) {
  return op != ATTENTION && (!products_alone || op == LINEAR);
}

static void run_case(struct bench *b, const struct wn_backend *backend) {
  law_run(b, ctx, backend, 1);
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s: %s", case_name(b->c), error);
}

static void check_set(const struct op_case *c, wn_dtype precision, unsigned set) {
  struct bench want, naive, got[3];
  bench_make_mixed(&want, c, WN_F64, precision, 0);
  bench_make_mixed(&naive, c, WN_F32, precision, 0);
  run_case(&want, wn_backend_ref());
  run_case(&naive, wn_backend_naive());
  for (uint64_t seed = 0; seed < 3; seed++) {
    wn_emulate_seed(seed);
    bench_make_mixed(&got[seed], c, WN_F32, precision, set);
    run_case(&got[seed], wn_backend_cuda_table());
    law_compare(&got[seed], &want, &naive, "cuda");
    for (int i = 0; i < got[0].count; i++)
      if (!law_same_bits(&got[0], &got[seed], i))
        fail_msg("%s: %s depends on the order of threads", case_name(c), got[0].a[i].name);
  }
  for (int i = 0; i < 3; i++) bench_clear(&got[i]);
  bench_clear(&want);
  bench_clear(&naive);
}

static void test_floats(void **state) {
  (void)state;
  int checked = 0;
  for (int i = 0; i < OP_CASE_COUNT; i++)
    if (served(op_cases[i].op)) check_set(&op_cases[i], WN_F32, 0), checked++;
  assert_true(checked > (products_alone ? 3 : 60));
}

static void test_bf16(void **state) {
  (void)state;
  int checked = 0;
  for (int i = 0; i < OP_CASE_COUNT; i++) {
    const unsigned all = law_bf16_arrays(&op_cases[i]);
    for (unsigned set = 0; set <= all; set++)
      if (served(op_cases[i].op) && law_serves(&op_cases[i], set, all))
        check_set(&op_cases[i], WN_BF16, set), checked++;
  }
  assert_true(checked > (products_alone ? 10 : 100));
}

/* Vectors longer than a warp handles, more values than a block handles. */
static void test_long(void **state) {
  (void)state;
  static const struct op_case longer[] = {
      {NORM, {3, 1, 1031, 1}, LAYER | BIAS | ACC}, {NORM, {1100, 1, 33, 0}, WITH_ADD},
      {NORM, {1100, 1, 40, 0}, WITH_ADD},          {NORM, {3, 1, 1032, 0}, LAYER | BIAS},
      {NORM, {3, 1, 2056, 8}, LAYER | BIAS | ACC}, {NORM, {2, 1, 4096, 0}, WITH_ADD},
      {NORM, {2, 2, 4104, 0}, LAYER | BIAS},       {NORM, {1, 1, 16384, 0}, ALIAS},
      {NORM, {1, 1, 16392, 0}, WITH_ADD | LAYER},  {SUMSQ, {40001}, 0},
      {LINEAR, {130, 70, 97, 1}, BIAS | ACC},      {EMBEDDING, {600, 9, 7, 11}, BIAS},
      {EMBEDDING, {270, 1031, 5, 0}, 0},           {EMBEDDING, {1300, 3, 9000, 4097}, BIAS},
      {CROSS_ENTROPY, {2, 5003, 3}, CAPPED},       {CROSS_ENTROPY, {2, 5000, 8}, CAPPED | ALIAS},
  };
  for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
    /* The values depend on the case's number. */
    struct op_case c = longer[i];
    struct bench want, naive, got;
    bench_make(&want, &c, WN_F64), bench_make(&naive, &c, WN_F32), bench_make(&got, &c, WN_F32);
    wn_emulate_seed(i);
    run_case(&want, wn_backend_ref()), run_case(&naive, wn_backend_naive()), run_case(&got, wn_backend_cuda_table());
    law_compare(&got, &want, &naive, "cuda");
    bench_clear(&want), bench_clear(&naive), bench_clear(&got);
  }
}

/* PAD: elements after a row of x; rows and blocks that are not aligned are read in another way. */
static void check_packed(wn_gguf_type first, wn_gguf_type second, int64_t M, int64_t PAD, bool apart, bool accumulate) {
  enum { N = 37, K = 512 };
  const wn_gguf_type types[] = {first, second};
  struct packed_weights w;
  packed_weights_make(&w, N, K, 2, types, (uint64_t)first);
  if (PAD % 4 == 0) packed_weights_align(&w, K);
  float *x = malloc((size_t)(M * (K + PAD)) * sizeof *x), *b = malloc(N * sizeof *b);
  float *y[3], *dx[3]; /* the backend's, a naive one; the double reference below */
  double *want = calloc((size_t)(M * N), sizeof *want), *want_dx = calloc((size_t)(M * K), sizeof *want_dx);
  for (int64_t i = 0; i < M * (K + PAD); i++) x[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int64_t i = 0; i < N; i++) b[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 2, (uint64_t)i);
  for (int i = 0; i < 3; i++) {
    y[i] = malloc((size_t)(M * N) * sizeof(float));
    dx[i] = malloc((size_t)(M * K) * sizeof(float));
    for (int64_t k = 0; k < M * N; k++) y[i][k] = (float)k / 64;
    for (int64_t k = 0; k < M * K; k++) dx[i][k] = 1;
    struct wn_linear a = {.M = M, .N = N, .K = K, .x = x, .ldx = K + PAD, .b = b, .y = y[i], .ldy = N};
    a.accumulate = a.accumulate_dx = accumulate, a.rows_apart = apart;
    a.dy = y[0], a.lddy = N, a.dx = dx[i], a.lddx = K; /* any numbers will do */
    struct wn_exec e = {.ctx = ctx, .threads = 1, .dtype = WN_F32};
    if (i < 2) e.backend = wn_backend_cuda_table(), a.packed = &w.packed;
    if (i == 2) e.backend = wn_backend_naive(), a.w = w.dense;
    wn_emulate_seed((uint64_t)i * 5);
    /* Many rows of quantised weights: the naive computation too multiplies in bf16. */
    if (i == 2 && M > 8 && !apart && first > WN_GGUF_F16 && second > WN_GGUF_F16) e.precision = WN_BF16;
    wn_status status = run_linear(e, &a, false);
    e.precision = WN_F32;
    if (status == WN_OK) status = run_linear(e, &a, true);
    if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
    const char *error = wn_emulate_error();
    if (error) fail_msg("%s", error);
  }
  assert_memory_equal(y[0], y[1], (size_t)(M * N) * sizeof(float));
  assert_memory_equal(dx[0], dx[1], (size_t)(M * K) * sizeof(float));
  double error[2] = {0}, allowed[2] = {0}, largest[2] = {0};
  for (int64_t m = 0; m < M; m++)
    for (int64_t n = 0; n < N; n++) {
      double sum = (double)b[n] + (accumulate ? (double)((float)(m * N + n) / 64) : 0);
      for (int64_t k = 0; k < K; k++) {
        sum += (double)x[m * (K + PAD) + k] * (double)w.dense[n * K + k];
        want_dx[m * K + k] += (double)y[0][m * N + n] * (double)w.dense[n * K + k];
      }
      error[0] = fmax(error[0], fabs((double)y[0][m * N + n] - sum));
      allowed[0] = fmax(allowed[0], fabs((double)y[2][m * N + n] - sum));
      largest[0] = fmax(largest[0], fabs(sum));
    }
  for (int64_t i = 0; i < M * K; i++) {
    const double value = want_dx[i] + (accumulate ? 1 : 0);
    error[1] = fmax(error[1], fabs((double)dx[0][i] - value));
    allowed[1] = fmax(allowed[1], fabs((double)dx[2][i] - value));
    largest[1] = fmax(largest[1], fabs(value));
  }
  for (int i = 0; i < 2; i++)
    if (!(error[i] <= law_limit(allowed[i], largest[i])))
      fail_msg("%s, M %lld: %s: error %.3g, naive %.3g, largest %.3g", wn_gguf_type_name(first), (long long)M,
               i ? "dx" : "y", error[i], allowed[i], largest[i]);
  for (int i = 0; i < 3; i++) free(y[i]), free(dx[i]);
  free(want), free(want_dx), free(x), free(b);
  packed_weights_clear(&w);
}
/* Many rows: aligned blocks are unpacked by units, others weight by weight, to the same bits; rows alone or among
 * others; and without rounding where the caller wants none. */
static void test_unpacked(void **state) {
  (void)state;
  enum { N = 37, K = 512, M = 70 };
  float *x = malloc(sizeof(float[M * K])), *y[3];
  for (int64_t i = 0; i < (int64_t)M * K; i++) x[i] = (float)wn_random_normal(1, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int i = 0; i < 3; i++) y[i] = calloc((size_t)M * N, sizeof(float));
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const wn_gguf_type types[] = {(wn_gguf_type)type, (wn_gguf_type)((type + 1) % WN_GGUF_TYPE_COUNT)};
    struct packed_weights w;
    packed_weights_make(&w, N, K, 2, types, 3);
    double error[2] = {0};
    for (int i = 0; i < 3; i++) {
      if (i == 1) packed_weights_align(&w, K);
      struct wn_linear a = {.M = M, .N = N, .K = K, .x = x, .ldx = K, .y = y[i], .ldy = N, .packed = &w.packed};
      const struct wn_exec e = {
          .ctx = ctx, .threads = 1, .dtype = WN_F32, .exact_rows = i == 2, .backend = wn_backend_cuda_table()};
      wn_emulate_seed((uint64_t)i * 5);
      if (run_linear(e, &a, false) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    }
    if (memcmp(y[0], y[1], sizeof(float[M * N])) != 0) fail_msg("%s: other bits", wn_gguf_type_name(types[0]));
    for (int64_t i = 0; i < M * N; i++) {
      double sum = 0;
      for (int64_t k = 0; k < K; k++) sum += (double)x[i / N * K + k] * (double)w.dense[i % N * K + k];
      for (int r = 0; r < 2; r++) error[r] = fmax(error[r], fabs((double)y[1 + r][i] - sum));
    }
    const bool rounds = types[0] > WN_GGUF_F16 && types[1] > WN_GGUF_F16;
    if (rounds != (error[0] > 4 * error[1]))
      fail_msg("%s: errors %g and %g", wn_gguf_type_name(types[0]), error[0], error[1]);
    packed_weights_clear(&w);
  }
  for (int i = 0; i < 3; i++) free(y[i]);
  free(x);
}

static void test_packed(void **state) {
  (void)state;
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    const wn_gguf_type second = (wn_gguf_type)((type + 3) % WN_GGUF_TYPE_COUNT);
    for (int64_t M = 1; M <= 8; M += M < 2 ? 1 : 5) check_packed((wn_gguf_type)type, second, M, 4, false, type % 2);
    check_packed((wn_gguf_type)type, second, 15, 4, true, false);
    check_packed((wn_gguf_type)type, second, 11, 3, type % 2, false);
    check_packed((wn_gguf_type)type, second, 70, type % 2 ? 4 : 8, false, type % 2);
  }
}

/* A row of x has the same bits alone and among others, with weights of every type and dense. K is more than what the
 * lanes of a warp have at a time, and no multiple of it. */
static void check_rows_apart(struct wn_linear a, const float *x, float *y, float *one) {
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  static const int64_t counts[] = {2, 7, 27};
  const bool counted = wn_emulated() && (!a.packed || a.packed->part[0].type == WN_GGUF_Q4_K);
  a.rows_apart = true, a.ldx = a.K, a.ldy = a.N;
  for (int i = 0; i < 3; i++) {
    a.M = counts[i], a.x = x, a.y = y;
    const uint64_t before = wn_emulate_launches();
    assert_int_equal(run_linear(e, &a, false), WN_OK);
    if (counted) assert_int_equal(wn_emulate_launches() - before, i == 2 ? 2 : 1);
    for (int64_t m = 0; m < counts[i]; m += i < 2 ? 1 : 13) {
      a.M = 1, a.x = x + m * a.K, a.y = one;
      wn_emulate_seed((uint64_t)m);
      assert_int_equal(run_linear(e, &a, false), WN_OK);
      assert_memory_equal(one, y + m * a.N, (size_t)a.N * sizeof *one);
    }
  }
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
}
static void test_rows_apart(void **state) {
  (void)state;
  enum { M = 27, N = 37, K = 1024 + 256 };
  float *x = malloc(M * K * sizeof *x), *y = malloc(M * N * sizeof *y), *one = malloc(N * sizeof *one);
  for (int i = 0; i < M * K; i++) x[i] = (float)wn_random_normal(2, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    struct packed_weights w;
    packed_weights_make(&w, N, K, 1, (const wn_gguf_type[]){(wn_gguf_type)type}, 3);
    packed_weights_align(&w, K);
    check_rows_apart((struct wn_linear){.N = N, .K = K, .packed = &w.packed}, x, y, one);
    if (type == 0) check_rows_apart((struct wn_linear){.N = N, .K = K, .w = w.dense}, x, y, one);
    packed_weights_clear(&w);
  }
  free(x), free(y), free(one);
}

/* A norm's gradients computed one by one have the same bits as together: vectors held in registers, and longer ones. */
static void test_norm_parts(void **state) {
  (void)state;
  enum { ROWS = 131, MOST = 3 * 64, ALL = ROWS * MOST };
  float *x = malloc(ALL * sizeof *x), *dy = malloc(ALL * sizeof *dy), *y = malloc(ALL * sizeof *y);
  float *gain = malloc(MOST * sizeof *gain), *rstd = malloc(ROWS * 3 * sizeof *rstd);
  float *dx[2], *dgain[2];
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  for (int i = 0; i < 2; i++) dx[i] = calloc(ALL, sizeof **dx), dgain[i] = calloc(MOST, sizeof **dgain);
  for (int i = 0; i < ALL; i++) {
    x[i] = (float)wn_random_normal(2, WN_STREAM_TEST, 5, (uint64_t)i);
    dy[i] = (float)wn_random_normal(2, WN_STREAM_TEST, 6, (uint64_t)i);
  }
  for (int i = 0; i < MOST; i++) gain[i] = 1 + 0.01f * (float)i;
  for (int walked = 0; walked < 2; walked++) {
    const int64_t width = walked ? 63 : 64, ld = 3 * width;
    struct wn_norm a = {.rows = ROWS, .groups = 3, .width = width, .eps = 1e-5, .x = x, .ldx = ld, .gain = gain};
    a.y = y, a.ldy = ld, a.rstd = rstd, a.dy = dy, a.lddy = a.lddx = ld;
    assert_int_equal(run_norm(e, &a, false), WN_OK);
    for (int i = 0; i < 2; i++) memset(dgain[i], 0, MOST * sizeof **dgain);
    a.dx = dx[0], a.dgain = dgain[0];
    assert_int_equal(run_norm(e, &a, true), WN_OK);
    a.dx = dx[1], a.dgain = NULL;
    assert_int_equal(run_norm(e, &a, true), WN_OK);
    a.dx = NULL, a.dgain = dgain[1];
    assert_int_equal(run_norm(e, &a, true), WN_OK);
    assert_memory_equal(dx[0], dx[1], (size_t)(ROWS * ld) * sizeof **dx);
    assert_memory_equal(dgain[0], dgain[1], (size_t)width * sizeof **dgain);
    assert_true(dx[0][7] != 0 && dgain[0][7] != 0);
  }
  for (int i = 0; i < 2; i++) free(dx[i]), free(dgain[i]);
  free(x), free(dy), free(y), free(gain), free(rstd);
}

/* A quantised embedding table equals the floats that it stands for, to the bit. */
static void test_packed_embedding(void **state) {
  (void)state;
  enum { V = 9, C = 256, M = 5 };
  int32_t *ids = malloc(M * sizeof *ids);
  float *y = malloc(M * C * sizeof *y);
  memcpy(ids, (const int32_t[M]){8, 0, 3, 3, 7}, M * sizeof *ids);
  for (int type = 0; type < WN_GGUF_TYPE_COUNT; type++) {
    struct packed_weights w;
    packed_weights_make(&w, V, C, 1, (const wn_gguf_type[]){(wn_gguf_type)type}, 9);
    const struct wn_embedding a = {.M = M, .C = C, .V = V, .ids = ids, .packed = &w.packed, .y = y};
    const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
    assert_int_equal(run_embedding(e, &a, false), WN_OK);
    for (int m = 0; m < M; m++) assert_memory_equal(y + m * C, w.dense + ids[m] * C, C * sizeof(float));
    packed_weights_clear(&w);
  }
  free(ids), free(y);
}

/* Products use cuBLASLt, which is asked for an algorithm once for each shape of a call. Others use winnow's own
 * kernels. */
static void test_algorithms(void **state) {
  (void)state;
  enum { M = 24, N = 40, K = 200 };
  uint64_t asked, again;
  float *x = calloc(M * (K + 3), sizeof *x), *w = calloc(N * K, sizeof *w), *y = calloc(M * N, sizeof *y);
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  struct wn_linear a = {.M = M, .N = N, .K = K, .x = x, .ldx = K, .w = w, .y = y, .ldy = N};
  assert_int_equal(run_linear(e, &a, false), WN_OK);
  const uint64_t one = wn_emulated(); /* a device counts nothing */
  uint64_t made = wn_emulate_products(&asked);
  for (int i = 0; i < 3; i++) assert_int_equal(run_linear(e, &a, false), WN_OK);
  assert_int_equal(wn_emulate_products(&again), made + 3 * one);
  assert_int_equal(again, asked);
  a.ldx = K + 3; /* another shape */
  assert_int_equal(run_linear(e, &a, false), WN_OK);
  assert_int_equal(wn_emulate_products(&again), made + 4 * one);
  assert_int_equal(again, asked + one);
  a.rows_apart = true; /* never cuBLASLt */
  assert_int_equal(run_linear(e, &a, false), WN_OK);
  assert_int_equal(wn_emulate_products(&again), made + 4 * one);
  a.rows_apart = false; /* more shapes than are kept; all must be correct */
  for (int i = 0; i < M * (K + 3); i++) x[i] = (float)(i % 7);
  for (int i = 0; i < N * K; i++) w[i] = (float)(i % 5);
  for (a.K = 1; a.K <= K; a.K++)
    for (a.N = 1; a.N <= N; a.N += 9) {
      assert_int_equal(run_linear(e, &a, false), WN_OK);
      double sum = 0;
      for (int64_t k = 0; k < a.K; k++) sum += (double)x[(M - 1) * a.ldx + k] * (double)w[(a.N - 1) * a.K + k];
      assert_true((double)y[(M - 1) * N + a.N - 1] == sum);
    }
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
  free(x), free(w), free(y);
}

/* The tests after this one use winnow's own kernels for products. */
static void test_without_blas(void **state) {
  (void)state;
  uint64_t asked;
  wn_cuda_blas_off(true);
  products_alone = true;
  const uint64_t made = wn_emulate_products(&asked);
  test_floats(state);
  test_bf16(state);
  test_long(state);
  test_packed(state);
  assert_int_equal(wn_emulate_products(&asked), made);
  products_alone = false;
  wn_cuda_blas_off(false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_floats),           cmocka_unit_test(test_bf16),       cmocka_unit_test(test_long),
      cmocka_unit_test(test_packed),           cmocka_unit_test(test_unpacked),   cmocka_unit_test(test_rows_apart),
      cmocka_unit_test(test_packed_embedding), cmocka_unit_test(test_algorithms), cmocka_unit_test(test_without_blas),
      cmocka_unit_test(test_norm_parts),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
