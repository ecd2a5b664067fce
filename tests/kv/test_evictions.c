/* Evictions found for whole sequences, against the rule carried out token by token in double, on the arrays of one
 * attention call: every policy, every option of selective attention, documents, grouped heads, biases, score maps, any
 * budget, budgets for single key-value heads; on ref in both precisions and on the cpu backend. A budget of the
 * sequence's length or more evicts nothing. Bad calls are refused. */
#include "kv/simulated.h"
#include "policies.h"

static int64_t check(wn_policy policy, uint64_t seed) {
  enum wn_isa isa;
  assert_ok(ctx, wn_cpu_select_isa(ctx, &isa));
  const struct place places[] = {
      {wn_backend_ref(), WN_F64, 1}, {wn_backend_ref(), WN_F32, 2}, {wn_backend_cpu(isa), WN_F32, 1}};
  return check_at(places, 3, policy, seed);
}

static void check_many(wn_policy policy, uint64_t seeds) {
  int64_t evictions = 0;
  for (uint64_t seed = 0; seed < seeds; seed++) evictions += check(policy, seed);
  assert_true(evictions > 1000);
}
static void test_weights(void **state) {
  (void)state;
  check_many(WN_POLICY_H2O, 32);
  check_many(WN_POLICY_TOVA, 32);
  for (uint64_t seed = 33; seed < 33 + 6 * 24; seed += 6) /* long ones, with selections */
    for (int h2o = 0; h2o < 2; h2o++) check(h2o ? WN_POLICY_H2O : WN_POLICY_TOVA, seed);
}

static void test_votes(void **state) {
  (void)state;
  check_many(WN_POLICY_SNAPKV, 40);
  assert_true(mapped > 20);
  for (uint64_t seed = 60; seed < 60 + 6 * 16; seed += 6) check(WN_POLICY_SNAPKV, seed);
}

static void test_selective(void **state) {
  (void)state;
  check_many(WN_POLICY_SELECTIVE, 60);
}
static void test_positions(void **state) {
  (void)state;
  check_many(WN_POLICY_WINDOW, 12);
  check_many(WN_POLICY_STREAMING, 16);
  check_many(WN_POLICY_RANDOM, 16);
  assert_true(ragged > 10);
}

static void test_keys(void **state) {
  (void)state;
  check_many(WN_POLICY_KNORM, 40);
  check_many(WN_POLICY_KEYDIFF, 40);
}

static void test_nothing_goes(void **state) {
  (void)state;
  struct call c;
  call_make(&c, WN_F32, 3, true);
  const int64_t T = c.a.Tk, n = c.a.B * wn_selection_groups(&c.a) * T;
  int32_t *evicted_at = malloc((size_t)n * sizeof *evicted_at);
  const int64_t budgets[] = {T, T + 1, T + 2, INT64_MAX};
  for (int i = 0; i < 4 * WN_POLICY_COUNT; i++) {
    wn_budgets x;
    int64_t K = budgets[i % 4];
    budgets_init(&x);
    x.policy = (wn_policy)(i / 4);
    x.layers = 1, x.tokens = &K;
    assert_false(wn_evictions_any(&x, 0, T));
    assert_ok(ctx, find(wn_backend_ref(), WN_F32, 2, &x, 0, &c.a, evicted_at));
    const int64_t P = wn_policy_groups(&x, c.a.Hkv, wn_selection_groups(&c.a));
    assert_true(c.a.B * P * T <= n);
    for (int64_t j = 0; j < c.a.B * P * T; j++) assert_int_equal(evicted_at[j], WN_EVICTED_NEVER);
  }
  free(evicted_at);
  call_clear(&c);
}

static void attend(const struct wn_backend *backend, struct wn_attention *a) {
  struct wn_exec exec = {.ctx = ctx, .backend = backend, .threads = 2, .dtype = WN_F32};
  exec.scratch_bytes = wn_op_attention_scratch(&exec, a, false);
  exec.scratch = aligned_alloc(WN_ALIGN, (exec.scratch_bytes / WN_ALIGN + 1) * WN_ALIGN);
  assert_ok(ctx, wn_op_attention_forward(&exec, a));
  free(exec.scratch);
}

/* A head that keeps everything gives the same outputs to the bit, whatever other heads evict. */
static void test_one_head_keeps_all(void **state) {
  (void)state;
  enum wn_isa isa;
  int looked = 0;
  assert_ok(ctx, wn_cpu_select_isa(ctx, &isa));
  for (uint64_t seed = 0; seed < 24; seed++) {
    struct call c;
    call_make(&c, WN_F32, seed, false);
    const int64_t T = c.a.Tk, P = c.a.Hkv, n = c.a.B * T * c.a.H * c.a.D, share = c.a.H / P, D = c.a.D;
    if (P == 1 || T < 8) {
      call_clear(&c);
      continue;
    }
    wn_budgets x;
    budgets_init(&x);
    int64_t most = T, of_heads[6];
    x.policy = WN_POLICY_TOVA, x.layers = 1, x.tokens = &most, x.per_kv_head = true;
    x.heads = P, x.head_tokens = of_heads;
    for (int64_t g = 0; g < P; g++) of_heads[g] = g == 1 ? T : 3;
    int32_t *evicted_at = malloc((size_t)(c.a.B * P * T) * sizeof *evicted_at);
    float *first = malloc((size_t)n * sizeof *first);
    for (int where = 0; where < 2; where++) {
      const struct wn_backend *backend = where ? wn_backend_cpu(isa) : wn_backend_ref();
      c.a.slots.evicted_at = NULL, c.a.slots.groups = 0;
      attend(backend, &c.a);
      memcpy(first, c.a.y, (size_t)n * sizeof *first);
      assert_ok(ctx, find(backend, WN_F32, 1, &x, 0, &c.a, evicted_at));
      c.a.slots.evicted_at = evicted_at, c.a.slots.groups = P;
      attend(backend, &c.a);
      const float *y = c.a.y;
      int64_t others = 0;
      for (int64_t i = 0; i < n; i++) {
        const bool same = memcmp(&y[i], &first[i], sizeof *y) == 0;
        if (i / D % c.a.H / share != 1)
          others += !same;
        else if (!same)
          fail_msg("seed %d on %s: output %lld is %a, %a without budgets", (int)seed, backend->name, (long long)i,
                   (double)y[i], (double)first[i]);
      }
      looked += others > 0;
    }
    free(first);
    free(evicted_at);
    call_clear(&c);
  }
  assert_true(looked >= 10);
}

static void test_refused(void **state) {
  (void)state;
  struct call c;
  call_make(&c, WN_F32, 5, false);
  int32_t *evicted_at = malloc((size_t)(c.a.B * c.a.Tk) * sizeof *evicted_at);
  int64_t tokens[1] = {2};
  wn_budgets x;
  budgets_init(&x);
  x.layers = 1, x.tokens = tokens;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 0, &c.a, evicted_at), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "selective"));
  x.policy = WN_POLICY_STREAMING, x.cache_positions = true;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 0, &c.a, evicted_at), WN_ERR_UNSUPPORTED);
  x.policy = WN_POLICY_WINDOW;
  assert_int_equal(find(wn_backend_ref(), WN_F32, 1, &x, 1, &c.a, evicted_at), WN_ERR_ARGUMENT);
  free(evicted_at);
  call_clear(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_selective),
                                     cmocka_unit_test(test_positions),
                                     cmocka_unit_test(test_weights),
                                     cmocka_unit_test(test_votes),
                                     cmocka_unit_test(test_keys),
                                     cmocka_unit_test(test_nothing_goes),
                                     cmocka_unit_test(test_one_head_keeps_all),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
