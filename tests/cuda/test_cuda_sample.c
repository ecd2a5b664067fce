/* Tokens drawn on the device are those that the CPU draws: every rule alone and together, many ties, few and many. */
#include "support.h"

#include <math.h>

#include "backends/cuda/cuda.h"
#include "base/rng.h"
#include "cuda/emulate_api.h"
#include "winnow/model.h"

static void test_equal_to_the_host(void **state) {
  (void)state;
  static const struct {
    double temperature, top_p, min_p;
    int top_k;
  } rules[] = {{0, 1, 0, 0},     {1, 1, 0, 0},        {0.8, 0.95, 0, 0},   {1.3, 1, 0, 5},       {1, 1, 0.1, 0},
               {0.7, 0.5, 0, 7}, {1.5, 0.9, 0.02, 9}, {1, 0.3, 0, 100000}, {1e-3, 0.95, 0.5, 3}, {2, 1e-9, 0, 0}};
  static const int64_t sizes[] = {1, 31, 1000};
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  float *logits = malloc(1000 * sizeof *logits);
  int32_t *got = malloc(sizeof *got), *bad = malloc(sizeof *bad);
  assert_true(logits && got && bad);
  int differ = 0, drawn = 0;
  bool seen[1000] = {false};
  for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (uint64_t step = 0; step < 2; step++) {
        const int64_t V = sizes[s];
        const bool ties = step % 2; /* of few values, some minus infinity */
        for (int64_t v = 0; v < V; v++) {
          const double x = wn_random_normal(step, WN_STREAM_TEST, s, (uint64_t)v) * 2;
          logits[v] = (float)(ties ? floor(x) : x);
          if (ties && v % 7 == 3) logits[v] = -INFINITY;
        }
        const wn_sampling rule = {.temperature = rules[r].temperature,
                                  .top_p = rules[r].top_p,
                                  .min_p = rules[r].min_p,
                                  .top_k = rules[r].top_k,
                                  .seed = 77 + r};
        int32_t want = -1;
        *got = -2, *bad = 9;
        assert_ok(ctx, wn_sample(ctx, logits, V, &rule, step, &want));
        const struct wn_cuda_sample a = {.logits = logits,
                                         .V = V,
                                         .top_k = rule.top_k,
                                         .temperature = rule.temperature,
                                         .top_p = rule.top_p,
                                         .min_p = rule.min_p,
                                         .seed = rule.seed,
                                         .step = step,
                                         .token = got,
                                         .bad = bad};
        wn_emulate_seed(step);
        assert_ok(ctx, wn_cuda_sample(&e, &a));
        assert_null(wn_emulate_error());
        assert_int_equal(*bad, 0);
        differ += *got != want;
        drawn++;
        if (V == 1000) seen[*got] = true;
      }
  assert_int_equal(differ, 0);
  assert_true(drawn == 60);
  int kinds = 0;
  for (int i = 0; i < 1000; i++) kinds += seen[i];
  assert_true(kinds > 5);
  free(logits), free(got), free(bad);
  wn_context_destroy(ctx);
}

static void test_bad_logits(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct wn_exec e = {.ctx = ctx, .backend = wn_backend_cuda_table(), .threads = 1, .dtype = WN_F32};
  static const float rows[3][2] = {{NAN, 1}, {1, INFINITY}, {-INFINITY, -INFINITY}};
  float *logits = malloc(sizeof *rows);
  int32_t *token = malloc(sizeof *token), *bad = malloc(sizeof *bad);
  assert_true(logits && token && bad);
  for (int i = 0; i < 3; i++) {
    memcpy(logits, rows[i], sizeof *rows);
    *bad = 0;
    const struct wn_cuda_sample a = {
        .logits = logits, .V = 2, .temperature = 1, .top_p = 1, .token = token, .bad = bad};
    assert_ok(ctx, wn_cuda_sample(&e, &a));
    assert_null(wn_emulate_error());
    assert_int_equal(*bad, i == 2 ? 2 : 1);
  }
  free(logits), free(token), free(bad);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_equal_to_the_host),
      cmocka_unit_test(test_bad_logits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
