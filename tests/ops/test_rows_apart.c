/* Products with rows_apart (wn_linear): every row has the same bits as alone. Dense weights and every storage type,
 * shapes that end inside a vector and inside a block of rows, 1 to 70 rows, both instruction sets and the reference,
 * any number of threads. Infinities and NaN in other rows change nothing. */
#include "support.h"

#include <math.h>

#include "backends/backends.h"
#include "base/rng.h"
#include "packed_weights.h"

enum { ROWS = 70 };

struct apart {
  int64_t N, K, ldx, ldy;
  bool bias, accumulate;
  const struct packed_weights *w;
  bool packed;
  float *x, *b, *before; /* [ROWS,ldx], [N], [ROWS,ldy] */
  float *alone, *y;      /* [ROWS,ldy] */
  void *scratch;
};

static float *apart_room(int64_t n, uint64_t stream) {
  float *p = aligned_alloc(64, ((size_t)n * sizeof *p + 127) / 64 * 64);
  assert_non_null(p);
  for (int64_t i = 0; i < n; i++) p[i] = (float)wn_random_normal(3, WN_STREAM_TEST, stream, (uint64_t)i);
  return p;
}

static void apart_make(struct apart *t, int64_t N, int64_t K, const struct packed_weights *w, bool packed, int n) {
  *t = (struct apart){
      .N = N, .K = K, .ldx = K + 3, .ldy = N + 5, .bias = n & 1, .accumulate = n & 2, .w = w, .packed = packed};
  t->x = apart_room(ROWS * t->ldx, 1);
  t->b = apart_room(N, 2);
  t->before = apart_room(ROWS * t->ldy, 3);
  t->alone = apart_room(ROWS * t->ldy, 4);
  t->y = apart_room(ROWS * t->ldy, 5);
}
static void apart_clear(struct apart *t) {
  free(t->x), free(t->b), free(t->before), free(t->alone), free(t->y), free(t->scratch);
}

/* Computes the rows from `first` on into y. */
static void apart_run(struct wn_exec e, struct apart *t, int64_t first, int64_t rows, bool apart, float *y) {
  const struct wn_linear a = {.M = rows,
                              .N = t->N,
                              .K = t->K,
                              .rows_apart = apart,
                              .x = t->x + first * t->ldx,
                              .ldx = t->ldx,
                              .w = t->packed ? NULL : t->w->dense,
                              .packed = t->packed ? &t->w->packed : NULL,
                              .b = t->bias ? t->b : NULL,
                              .y = y + first * t->ldy,
                              .ldy = t->ldy,
                              .accumulate = t->accumulate};
  const size_t need = wn_op_linear_scratch(&e, &a, false);
  free(t->scratch);
  t->scratch = need ? apart_room((int64_t)need / 4 + 1, 6) : NULL;
  e.scratch = t->scratch, e.scratch_bytes = need;
  assert_ok(e.ctx, wn_op_linear_forward(&e, &a));
}

static void apart_compare(struct wn_exec e, struct apart *t, const char *what) {
  const size_t all = (size_t)(ROWS * t->ldy) * sizeof *t->y;
  memcpy(t->alone, t->before, all);
  e.threads = 1;
  for (int64_t m = 0; m < ROWS; m++) apart_run(e, t, m, 1, false, t->alone); /* as a single session computes it */
  for (int64_t rows = 1; rows <= ROWS; rows += rows < 36 ? 1 : 17) {
    e.threads = 1 + (int)(rows % 3);
    memcpy(t->y, t->before, all);
    apart_run(e, t, ROWS - rows, rows, true, t->y);
    for (int64_t m = 0; m < ROWS; m++) {
      const float *expected = m < ROWS - rows ? t->before : t->alone;
      if (memcmp(t->y + m * t->ldy, expected + m * t->ldy, (size_t)t->ldy * sizeof *t->y))
        fail_msg("%s, N %lld, K %lld: row %lld of %lld differs from the row alone", what, (long long)t->N,
                 (long long)t->K, (long long)(m - (ROWS - rows)), (long long)rows);
    }
  }
}

/* Other rows are NaN or infinite. */
static void apart_poison(struct wn_exec e, struct apart *t, const char *what) {
  const int64_t keep[] = {0, 9, 33, ROWS - 1};
  for (int64_t m = 0; m < ROWS; m++) {
    bool kept = false;
    for (int i = 0; i < 4; i++) kept = kept || m == keep[i];
    for (int64_t k = 0; !kept && k < t->K; k++) t->x[m * t->ldx + k] = m % 2 ? NAN : INFINITY;
  }
  memcpy(t->y, t->before, (size_t)(ROWS * t->ldy) * sizeof *t->y);
  e.threads = 2;
  apart_run(e, t, 0, ROWS, true, t->y);
  for (int i = 0; i < 4; i++)
    if (memcmp(t->y + keep[i] * t->ldy, t->alone + keep[i] * t->ldy, (size_t)t->N * sizeof *t->y))
      fail_msg("%s, N %lld, K %lld: row %lld depends on rows that are no numbers", what, (long long)t->N,
               (long long)t->K, (long long)keep[i]);
}

static void apart_shapes(const struct wn_backend *backend, const wn_gguf_type *types, int parts, bool packed,
                         const char *what) {
  static const int64_t shapes[][2] = {{1, 32}, {3, 96}, {17, 160}, {61, 416}, {131, 608}};
  static const int64_t large[][2] = {{1, 256}, {3, 512}, {17, 256}, {61, 768}, {131, 256}};
  static const int64_t dense[][2] = {{1, 1}, {2, 7}, {5, 16}, {17, 31}, {33, 48}, {70, 129}, {131, 65}, {300, 577}};
  int64_t most = 1;
  for (int p = 0; packed && p < parts; p++)
    most = wn_gguf_block_weights(types[p]) > most ? wn_gguf_block_weights(types[p]) : most;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = 1, .dtype = WN_F32};
  for (int i = 0; i < (packed ? 5 : 8); i++) {
    const int64_t *shape = !packed ? dense[i] : most > 32 ? large[i] : shapes[i], N = shape[0], K = shape[1];
    if (N < parts) continue;
    struct packed_weights w;
    struct apart t;
    packed_weights_make(&w, N, K, packed ? parts : 1, packed ? types : (const wn_gguf_type[]){WN_GGUF_F32}, 7);
    apart_make(&t, N, K, &w, packed, i);
    apart_compare(e, &t, what);
    apart_poison(e, &t, what);
    apart_clear(&t);
    packed_weights_clear(&w);
  }
  wn_context_destroy(ctx);
}

/* This machine's instruction sets, and the reference. */
static const struct wn_backend *backends[3];
static int backend_count;

static int backends_find(void **state) {
  wn_context *ctx = make_context();
  enum wn_isa best;
  (void)state;
  assert_ok(ctx, wn_cpu_select_isa(ctx, &best));
  for (int isa = WN_ISA_AVX2; isa <= (int)best; isa++) backends[backend_count++] = wn_backend_cpu((enum wn_isa)isa);
  backends[backend_count++] = wn_backend_ref();
  wn_context_destroy(ctx);
  return 0;
}

static void test_dense(void **state) {
  (void)state;
  for (int i = 0; i < backend_count; i++) apart_shapes(backends[i], NULL, 1, false, "dense");
}

static void test_packed(void **state) {
  static const wn_gguf_type types[] = {WN_GGUF_F32,  WN_GGUF_F16,  WN_GGUF_BF16, WN_GGUF_Q8_0,
                                       WN_GGUF_Q4_0, WN_GGUF_Q4_1, WN_GGUF_Q5_0, WN_GGUF_Q5_1,
                                       WN_GGUF_Q4_K, WN_GGUF_Q5_K, WN_GGUF_Q6_K};
  (void)state;
  for (int i = 0; i < backend_count; i++)
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
      apart_shapes(backends[i], types + k, 1, true, wn_gguf_type_name(types[k]));
}

/* Blocks that end inside a step, and runs of different types in one matrix. */
static void test_mixed(void **state) {
  static const wn_gguf_type types[] = {WN_GGUF_Q4_1, WN_GGUF_Q8_0, WN_GGUF_F16};
  static const wn_gguf_type others[] = {WN_GGUF_Q6_K, WN_GGUF_BF16, WN_GGUF_Q5_1};
  (void)state;
  for (int i = 0; i < backend_count; i++) {
    apart_shapes(backends[i], types, 3, true, "Q4_1, Q8_0, F16");
    apart_shapes(backends[i], others, 3, true, "Q6_K, BF16, Q5_1");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_packed),
                                     cmocka_unit_test(test_mixed)};
  return cmocka_run_group_tests(tests, backends_find, NULL);
}
