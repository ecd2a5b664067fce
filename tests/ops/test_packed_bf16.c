/* bfloat16 weights, with rows of x rounded to bfloat16 (AVX512_BF16). Products of the rounded numbers are exact, so the
 * error against sums in double is at most twice that of a plain float sum. A row has the same bits alone, in a prompt
 * and next to rows of NaN, with any number of threads. Nothing outside y is written. Awkward shapes: rows and columns
 * that are not multiples of a tile, rows of one weight, several parts. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "backends/backends.h"
#include "base/rng.h"
#include "packed_weights.h"
#include "tensor/bf16.h"

enum { ROWS = 67, GAP = 5 };

static wn_context *ctx;
static const struct wn_backend *cpu;

static void *bf16_room(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
  assert_non_null(p);
  return p;
}

struct matrix {
  int64_t N, K;
  struct packed_weights w;
  float *x, *rounded, *b; /* [ROWS,K+GAP], [ROWS,K+GAP], [N] */
};

static void matrix_make(struct matrix *t, int64_t N, int64_t K, int parts) {
  static const wn_gguf_type types[3] = {WN_GGUF_BF16, WN_GGUF_BF16, WN_GGUF_BF16};
  *t = (struct matrix){.N = N, .K = K};
  packed_weights_make(&t->w, N, K, parts, types, (uint64_t)(N + K));
  const int64_t n = ROWS * (K + GAP);
  t->x = bf16_room((size_t)n * sizeof *t->x), t->rounded = bf16_room((size_t)n * sizeof *t->x);
  t->b = bf16_room((size_t)N * sizeof *t->b);
  uint16_t *bits = bf16_room((size_t)n * sizeof *bits);
  for (int64_t i = 0; i < n; i++) t->x[i] = (float)wn_random_normal(3, WN_STREAM_TEST, 1, (uint64_t)i);
  for (int64_t i = 0; i < N; i++) t->b[i] = (float)wn_random_normal(3, WN_STREAM_TEST, 2, (uint64_t)i);
  wn_bf16_from_f32(1, n, t->x, bits);
  wn_bf16_to_f32(1, n, bits, t->rounded);
  free(bits);
}
static void matrix_clear(struct matrix *t) {
  packed_weights_clear(&t->w);
  free(t->x), free(t->rounded), free(t->b);
}

/* y [M,N+GAP], filled with sevens first. */
static void multiply(const struct matrix *t, int64_t first, int64_t M, int threads, bool plain, float *y) {
  const int64_t ldy = t->N + GAP;
  for (int64_t i = 0; i < M * ldy; i++) y[i] = 7;
  const struct wn_linear a = {.M = M,
                              .N = t->N,
                              .K = t->K,
                              .rows_apart = M & 1,
                              .x = t->x + first * (t->K + GAP),
                              .ldx = t->K + GAP,
                              .packed = &t->w.packed,
                              .b = plain ? NULL : t->b,
                              .y = y,
                              .ldy = ldy,
                              .accumulate = !plain};
  struct wn_exec e = {.ctx = ctx, .backend = cpu, .threads = threads, .dtype = WN_F32};
  e.scratch_bytes = wn_op_linear_scratch(&e, &a, false);
  void *scratch = bf16_room(e.scratch_bytes);
  memset(scratch, 0xff, e.scratch_bytes); /* need not be cleared */
  e.scratch = scratch;
  assert_ok(ctx, wn_op_linear_forward(&e, &a));
  free(scratch);
}

static void check_error(const struct matrix *t, const float *y) {
  double worst = 0, naive = 0, largest = 0;
  for (int64_t m = 0; m < ROWS; m++) {
    for (int64_t n = 0; n < t->N; n++) {
      const float *x = t->rounded + m * (t->K + GAP), *w = t->w.dense + n * t->K;
      double exact = 0;
      float plain = 0;
      for (int64_t k = 0; k < t->K; k++) exact += (double)x[k] * (double)w[k], plain += x[k] * w[k];
      worst = fmax(worst, fabs((double)y[m * (t->N + GAP) + n] - exact));
      naive = fmax(naive, fabs((double)plain - exact));
      largest = fmax(largest, fabs(exact));
    }
    for (int64_t n = t->N; n < t->N + GAP; n++) assert_true(y[m * (t->N + GAP) + n] == 7);
  }
  if (!(worst <= 2 * naive + largest * FLT_EPSILON))
    fail_msg("N %lld K %lld: the largest error is %g, a plain sum's %g", (long long)t->N, (long long)t->K, worst,
             naive);
}

static void check_rows(struct matrix *t, bool plain) {
  static const int64_t rows[] = {1, 2, 3, 5, 6, 7, 12, 13, 33, ROWS};
  const int64_t ldy = t->N + GAP;
  float *alone = bf16_room((size_t)(ROWS * ldy) * sizeof *alone), *y = bf16_room((size_t)(ROWS * ldy) * sizeof *y);
  for (int64_t m = 0; m < ROWS; m++) multiply(t, m, 1, 1, plain, alone + m * ldy);
  if (plain) check_error(t, alone);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const int64_t first = rows[i] < 40 ? 4 : 0;
    multiply(t, first, rows[i], 1 + (int)i % 3, plain, y);
    assert_memory_equal(y, alone + first * ldy, (size_t)(rows[i] * ldy) * sizeof *y);
  }
  for (int64_t k = 0; k < t->K; k++) t->x[5 * (t->K + GAP) + k] = k & 1 ? INFINITY : NAN;
  multiply(t, 4, 9, 2, plain, y);
  for (int64_t m = 0; m < 9; m++)
    if (m != 1) assert_memory_equal(y + m * ldy, alone + (4 + m) * ldy, (size_t)ldy * sizeof *y);
  free(alone), free(y);
}

static void test_rows(void **state) {
  (void)state;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) skip();
#else
  skip();
#endif
  assert_int_equal(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 3}, &ctx),
                   WN_OK);
  assert_ok(ctx, wn_backend_of(ctx, &cpu));
  static const struct {
    int64_t N, K;
    int parts;
  } shapes[] = {{1, 1, 1}, {3, 31, 1}, {4, 32, 1}, {37, 33, 2}, {50, 75, 3}, {40, 576, 2}, {33, 200, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (int plain = 0; plain < 2; plain++) {
      struct matrix t;
      matrix_make(&t, shapes[i].N, shapes[i].K, shapes[i].parts);
      check_rows(&t, plain);
      matrix_clear(&t);
    }
  }
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
