/* Sampling on the device draws the same tokens as the CPU: every rule alone and all together, with many ties, few
 * tokens and many. Rows that are drawn in one launch have the bits of each alone. */
#include "support.h"

#include <math.h>

#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "ops/sample.h"
#include "winnow/model.h"

static const struct {
  double temperature, top_p, min_p;
  int top_k;
} rules[] = {{0, 1, 0, 0},     {1, 1, 0, 0},        {0.8, 0.95, 0, 0},   {1.3, 1, 0, 5},       {1, 1, 0.1, 0},
             {0.7, 0.5, 0, 7}, {1.5, 0.9, 0.02, 9}, {1, 0.3, 0, 100000}, {1e-3, 0.95, 0.5, 3}, {2, 1e-9, 0, 0}};
enum { RULES = sizeof rules / sizeof *rules, LARGEST = 1000 };
static const int64_t sizes[] = {1, 31, LARGEST};

/* With ties: few values, some -inf. */
static void fill(float *logits, int64_t V, uint64_t s, uint64_t step, bool ties) {
  for (int64_t v = 0; v < V; v++) {
    const double x = wn_random_normal(step, WN_STREAM_TEST, s, (uint64_t)v) * 2;
    logits[v] = (float)(ties ? floor(x) : x);
    if (ties && v % 7 == 3) logits[v] = -INFINITY;
  }
}
static struct wn_sample_row row_by(size_t r, const float *logits, int64_t V, uint64_t step) {
  return (struct wn_sample_row){.V = V,
                                .top_k = rules[r].top_k,
                                .logits = logits,
                                .temperature = rules[r].temperature,
                                .top_p = rules[r].top_p,
                                .min_p = rules[r].min_p,
                                .seed = 77 + r,
                                .step = step,
                                .log_probability = true};
}

static void test_equal_to_the_host(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  const struct wn_exec host = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  float *logits = malloc(LARGEST * sizeof *logits);
  struct wn_drawn *got = malloc(sizeof *got);
  assert_true(logits && got);
  int differ = 0, drawn = 0;
  bool seen[LARGEST] = {false};
  for (size_t r = 0; r < RULES; r++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (uint64_t step = 0; step < 2; step++) {
        const int64_t V = sizes[s];
        fill(logits, V, s, step, step % 2);
        struct wn_drawn want;
        *got = (struct wn_drawn){-2, 9, 0};
        struct wn_sample a = {.rows = 1, .row = {row_by(r, logits, V, step)}, .drawn = &want};
        assert_ok(ctx, wn_op_sample_forward(&host, &a));
        a.drawn = got;
        wn_emulate_seed(step);
        assert_ok(ctx, wn_op_sample_forward(&e, &a));
        assert_null(wn_emulate_error());
        assert_int_equal(got->bad, 0);
        assert_true(fabs(got->log_probability - want.log_probability) < 1e-12 || got->token != want.token);
        differ += got->token != want.token;
        drawn++;
        if (V == LARGEST) seen[got->token] = true;
      }
  assert_int_equal(differ, 0);
  assert_true(drawn == 60);
  int kinds = 0;
  for (int i = 0; i < LARGEST; i++) kinds += seen[i];
  assert_true(kinds > 5);
  free(logits), free(got);
  wn_context_destroy(ctx);
}

/* The most rows of a call, of other sizes and rules, one with a bad logit: one launch, and the bits of each row alone.
 */
static void test_rows(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  float *logits = malloc(WN_SAMPLE_ROWS * LARGEST * sizeof *logits);
  struct wn_drawn *together = calloc(WN_SAMPLE_ROWS, sizeof *together), *alone = calloc(1, sizeof *alone);
  assert_true(logits && together && alone);
  struct wn_sample a = {.rows = WN_SAMPLE_ROWS, .drawn = together};
  for (int64_t r = 0; r < a.rows; r++) {
    a.row[r] = row_by((size_t)r % RULES, logits + r * LARGEST, sizes[r % 3], (uint64_t)r);
    fill(logits + r * LARGEST, a.row[r].V, (uint64_t)r, 1, r % 2);
  }
  logits[5 * LARGEST + 7] = NAN;
  const uint64_t before = wn_emulate_launches();
  assert_ok(ctx, wn_op_sample_forward(&e, &a));
  if (wn_emulated()) assert_int_equal(wn_emulate_launches() - before, 1);
  for (int64_t r = 0; r < WN_SAMPLE_ROWS; r++) {
    const struct wn_sample one = {.rows = 1, .row = {a.row[r]}, .drawn = alone};
    wn_emulate_seed((uint64_t)r);
    assert_ok(ctx, wn_op_sample_forward(&e, &one));
    assert_null(wn_emulate_error());
    assert_int_equal(alone->bad, r == 5);
    assert_memory_equal(alone, &together[r], sizeof *alone);
  }
  assert_int_equal(together[5].token, 7);
  a.rows = WN_SAMPLE_ROWS + 1;
  assert_int_equal(wn_op_sample_forward(&e, &a), WN_ERR_ARGUMENT);
  free(logits), free(together), free(alone);
  wn_context_destroy(ctx);
}

static void test_bad_logits(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  static const float rows[3][2] = {{1, NAN}, {INFINITY, 1}, {-INFINITY, -INFINITY}};
  float *logits = malloc(sizeof *rows);
  struct wn_drawn *drawn = malloc(sizeof *drawn);
  assert_true(logits && drawn);
  for (int i = 0; i < 3; i++) {
    memcpy(logits, rows[i], sizeof *rows);
    *drawn = (struct wn_drawn){0};
    const struct wn_sample a = {
        .rows = 1, .row = {{.logits = logits, .V = 2, .temperature = 1, .top_p = 1}}, .drawn = drawn};
    assert_ok(ctx, wn_op_sample_forward(&e, &a));
    assert_int_equal(drawn->bad, i == 2 ? 2 : 1);
    assert_int_equal(drawn->token, i == 0);
  }
  free(logits), free(drawn);
  wn_context_destroy(ctx);
}

/* Changes of logits before sampling give the same bits as on the CPU. */
static void test_adjust(void **state) {
  (void)state;
  enum { V = 700, N = 690 };
  wn_context *ctx = make_context();
  const struct wn_exec host = {.ctx = ctx, .backend = wn_backend_ref(), .threads = 1, .dtype = WN_F32};
  struct wn_exec e = host;
  e.backend = wn_backend_cuda_table();
  struct adjusted {
    float x[V], want[V], got[V], bias[5];
    int32_t times[N], ids[5];
    uint8_t allowed[N], seen[N];
  } *m = malloc(sizeof *m);
  assert_non_null(m);
  static const int32_t ids[] = {5, 699, 5, 0, 5};
  static const float bias[] = {1e-3f, 2, 1e7f, -INFINITY, -1e7f};
  memcpy(m->ids, ids, sizeof ids), memcpy(m->bias, bias, sizeof bias);
  for (int v = 0; v < V; v++) m->x[v] = (float)wn_random_normal(1, WN_STREAM_TEST, 0, (uint64_t)v);
  for (int v = 0; v < N; v++) m->allowed[v] = v % 3 != 0, m->seen[v] = v % 4 == 1, m->times[v] = v % 5;
  for (int rule = 0; rule < 16; rule++) {
    struct wn_adjust a = {.V = V,
                          .n = N,
                          .x = m->x,
                          .y = m->want,
                          .allowed = rule & 1 ? m->allowed : NULL,
                          .allowed_count = N - 20,
                          .seen = rule & 2 ? m->seen : NULL,
                          .repeat = 1.3,
                          .times = rule & 4 ? m->times : NULL,
                          .presence = 0.25,
                          .frequency = 0.1,
                          .biases = rule & 8 ? 5 : 0,
                          .bias_ids = m->ids,
                          .bias = m->bias};
    assert_ok(ctx, wn_op_adjust_forward(&host, &a));
    a.y = m->got;
    assert_ok(ctx, wn_op_adjust_forward(&e, &a));
    assert_null(wn_emulate_error());
    assert_memory_equal(m->got, m->want, sizeof m->want);
    assert_true((memcmp(m->got, m->x, sizeof m->x) == 0) == (rule == 0));
  }
  free(m);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_equal_to_the_host),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_bad_logits),
      cmocka_unit_test(test_adjust),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
