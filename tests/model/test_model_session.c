/* Decoding token by token, chunked prefill and the whole sequence at once give the same logits, on both backends, for
 * every configuration. A token allocates nothing. */
#include "model/models.h"

enum { B = 2, T = 14, V = 13 };

/* Logits [B,T,V] at the positions where pieces (0-terminated) end; other positions stay as they are. */
static void feed(wn_context *ctx, wn_model *model, const int32_t *ids, const int *pieces, int64_t chunk, float *out) {
  wn_session *s;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B), &s));
  for (int round = 0; round < 2; round++) { /* a second time after a reset */
    int64_t at = 0;
    for (int i = 0; pieces[i]; i++) {
      int32_t part[B * T];
      float logits[B * V];
      for (int b = 0; b < B; b++) memcpy(part + b * pieces[i], ids + b * T + at, (size_t)pieces[i] * sizeof *part);
      OK(ctx, wn_session_feed(ctx, s, part, pieces[i], chunk, logits));
      at += pieces[i];
      assert_int_equal(wn_session_position(s), at);
      for (int b = 0; b < B; b++) memcpy(out + (b * T + at - 1) * V, logits + b * V, V * sizeof *out);
    }
    if (round == 0) wn_session_reset(s);
  }
  wn_session_destroy(s);
}

static void compare(const char *name, const char *what, const float *expected, const float *found, double tolerance) {
  double top = 0;
  for (int i = 0; i < B * T * V; i++) top = fmax(top, fabs((double)expected[i]));
  for (int i = 0; i < B * T * V; i++)
    if (!(fabs((double)expected[i] - (double)found[i]) <= tolerance * top))
      fail_msg("%s, %s: logit %d of position %d is %g, expected %g", name, what, i % V, i / V % T, (double)found[i],
               (double)expected[i]);
}

static void check(const char *backend, wn_dtype dtype, double tolerance) {
  static const int singly[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, mixed[] = {5, 1, 1, 4, 3, 0},
                   whole[] = {14, 0};
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *ctx = context_of(backend, k % 12 == 6 ? 2 : 1); /* threads are slow on a busy machine */
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *model = model_of(ctx, &c, dtype);
    struct tokens x;
    tokens_of(&x, B, T, V, false);
    float expected[B * T * V], found[B * T * V];
    OK(ctx, wn_model_logits(ctx, model, x.ids, B, T, NULL, expected));
    memcpy(found, expected, sizeof found);
    feed(ctx, model, x.ids, singly, 0, found);
    compare(model_cases[k].name, "token by token", expected, found, tolerance);
    feed(ctx, model, x.ids, mixed, 2, found);
    compare(model_cases[k].name, "in pieces", expected, found, tolerance);
    feed(ctx, model, x.ids, whole, 0, found);
    compare(model_cases[k].name, "at once", expected, found, tolerance);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

static void test_decode_ref(void **state) {
  (void)state;
  check("ref", WN_F64, 2e-7);
}

static void test_decode_cpu(void **state) {
  (void)state;
  check("cpu", WN_F32, 4e-6); /* twice the rounding error of the worst case; others are under 2e-6 */
}

static void test_no_allocation(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = model_case_config(&model_cases[12]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_memory_info before, after;
  wn_session *s;
  wn_memory_info_get(&before);
  OK(ctx, wn_session_create(ctx, model, NULL, &s));
  wn_memory_info_get(&after);
  /* k and v of Hkv heads, sk, F; each array is padded to a cache line. */
  const size_t expected = (size_t)c.layers * (16 * (2 * 2 * 6 + 6 + 1)) * sizeof(float);
  assert_in_range(wn_session_kv_bytes(s), expected, expected + (size_t)c.layers * 4 * 64);
  assert_true(after.live_bytes - before.live_bytes > wn_session_kv_bytes(s));
  float logits[V];
  const int32_t prompt[] = {1, 2, 3, 4, 5};
  OK(ctx, wn_session_feed(ctx, s, prompt, 5, 0, logits));
  wn_memory_info_get(&before);
  wn_sampling sampling;
  wn_sampling_init(&sampling);
  int32_t token = 0;
  for (uint64_t i = 0; i < 6; i++) {
    OK(ctx, wn_sample(ctx, logits, V, &sampling, i, &token));
    OK(ctx, wn_session_feed(ctx, s, &token, 1, 0, logits));
  }
  wn_memory_info_get(&after);
  assert_int_equal(before.total_allocations, after.total_allocations);
  assert_int_equal(before.live_bytes, after.live_bytes);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config learned = model_case_config(&model_cases[0]), rotary = model_case_config(&model_cases[1]);
  struct wn_model *a = model_of(ctx, &learned, WN_F32), *b = model_of(ctx, &rotary, WN_F32);
  wn_session *s;
  assert_int_equal(wn_session_create(ctx, a, WN_OPTIONS(wn_session_options, .capacity = 17), &s), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "learned positions for 16"));
  assert_int_equal(wn_session_create(ctx, a, WN_OPTIONS(wn_session_options, .sequences = -1, .capacity = 4), &s),
                   WN_ERR_ARGUMENT);
  OK(ctx, wn_session_create(ctx, b, WN_OPTIONS(wn_session_options, .capacity = 20),
                            &s)); /* rotary: past the training context */
  int32_t ids[21] = {0};
  float logits[V];
  assert_int_equal(wn_session_feed(ctx, s, ids, 21, 0, logits), WN_ERR_ARGUMENT);
  ids[3] = V;
  assert_int_equal(wn_session_feed(ctx, s, ids, 5, 0, logits), WN_ERR_ARGUMENT);
  ids[3] = -1;
  assert_int_equal(wn_session_feed(ctx, s, ids, 5, 0, logits), WN_ERR_ARGUMENT);
  assert_int_equal(wn_session_position(s), 0);
  ids[3] = 0;
  OK(ctx, wn_session_feed(ctx, s, ids, 20, 3, logits));
  assert_int_equal(wn_session_feed(ctx, s, ids, 1, 0, NULL), WN_ERR_ARGUMENT);
  wn_session_destroy(s);
  wn_model_destroy(a);
  wn_model_destroy(b);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_decode_ref),
      cmocka_unit_test(test_decode_cpu),
      cmocka_unit_test(test_no_allocation),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
