/* wn_sample: greedy, top-k, top-p and min-p against a plain sort, frequencies, ties, determinism, refusals. */
#include "model/models.h"

enum { N = 400 };

static void fill(float *logits, uint64_t seed) {
  for (int v = 0; v < N; v++) {
    const double z = 3 * wn_random_normal(seed, WN_STREAM_TEST, 0, (uint64_t)v);
    logits[v] = (float)(v % 3 ? z : rint(z)); /* many ties, also -0 */
  }
  logits[7] = -INFINITY;
}

struct item {
  float logit;
  int id;
};
static int by_logit(const void *a, const void *b) {
  const struct item *x = a, *y = b;
  /* In the order of bits -0 is below 0. */
  const int sx = signbit(x->logit) != 0, sy = signbit(y->logit) != 0;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  if (sx != sy) return sx - sy;
  return x->id - y->id;
}

/* How many of the sorted items top-k and top-p keep. */
static int kept(const struct item *items, double temperature, int top_k, double top_p) {
  int n = top_k > 0 && top_k < N ? top_k : N;
  double total = 0, sum = 0;
  for (int i = 0; i < n; i++) total += exp(((double)items[i].logit - (double)items[0].logit) / temperature);
  if (top_p == 1) return n;
  for (int i = 0; i < n; i++) {
    sum += exp(((double)items[i].logit - (double)items[0].logit) / temperature);
    if (sum >= top_p * total * (1 - 1e-12)) return i + 1;
  }
  return n;
}

static void test_cuts(void **state) {
  (void)state;
  static const int ks[] = {0, 1, 2, 17, 200, 399, 400, 1000};
  static const double ps[] = {1, 0.999, 0.9, 0.5, 0.1, 1e-9};
  for (uint64_t seed = 0; seed < 3; seed++) {
    float logits[N];
    struct item items[N];
    fill(logits, seed);
    for (int v = 0; v < N; v++) items[v] = (struct item){logits[v], v};
    qsort(items, N, sizeof *items, by_logit);
    int rank[N];
    for (int i = 0; i < N; i++) rank[items[i].id] = i;
    for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
      for (size_t p = 0; p < sizeof ps / sizeof *ps; p++) {
        const wn_sampling s = {.temperature = 4, .top_k = ks[k], .top_p = ps[p], .seed = seed};
        const int n = kept(items, 4, ks[k], ps[p]);
        int seen_last = 0;
        for (uint64_t step = 0; step < 200; step++) {
          int32_t token = -1, again = -1;
          assert_int_equal(wn_sample(NULL, logits, N, &s, step, &token), WN_OK);
          assert_int_equal(wn_sample(NULL, logits, N, &s, step, &again), WN_OK);
          assert_int_equal(token, again);
          assert_in_range(token, 0, N - 1);
          assert_true(token != 7);
          if (rank[token] >= n)
            fail_msg("top_k %d, top_p %g: token of rank %d drawn, %d kept", ks[k], ps[p], rank[token], n);
          seen_last |= rank[token] == n - 1;
        }
        if (n <= 2) assert_true(seen_last); /* not too much is cut */
      }
    }
  }
}

/* min_p equals removing the logits below the largest plus log(min_p), also combined with the other filters. */
static void test_min_p(void **state) {
  (void)state;
  static const double shares[] = {1e-6, 0.02, 0.3, 0.9, 1};
  for (uint64_t seed = 0; seed < 3; seed++) {
    float logits[N], left[N];
    fill(logits, seed);
    for (size_t i = 0; i < 5; i++) {
      float top = -INFINITY;
      int n = 0;
      for (int v = 0; v < N; v++) top = fmaxf(top, logits[v]);
      for (int v = 0; v < N; v++) {
        const bool stays = exp((double)logits[v] - (double)top) >= shares[i] * (1 - 1e-6);
        left[v] = stays ? logits[v] : -INFINITY;
        n += stays;
      }
      assert_true(n >= 1 && (shares[i] < 0.5 || n < N));
      for (int cuts = 0; cuts < 3; cuts++) {
        wn_sampling s = {.temperature = 3, .top_p = cuts == 1 ? 0.7 : 1, .top_k = cuts == 2 ? 5 : 0, .seed = seed};
        for (uint64_t step = 0; step < 100; step++) {
          int32_t expected, token;
          s.min_p = 0;
          assert_int_equal(wn_sample(NULL, left, N, &s, step, &expected), WN_OK);
          s.min_p = shares[i];
          assert_int_equal(wn_sample(NULL, logits, N, &s, step, &token), WN_OK);
          assert_int_equal(token, expected);
        }
      }
    }
  }
  const float logits[2] = {1, 2};
  int32_t token;
  wn_sampling s = {.temperature = 1, .top_p = 1, .min_p = 1.5};
  assert_int_equal(wn_sample(NULL, logits, 2, &s, 0, &token), WN_ERR_ARGUMENT);
  s.min_p = NAN;
  assert_int_equal(wn_sample(NULL, logits, 2, &s, 0, &token), WN_ERR_ARGUMENT);
}

static void test_frequencies(void **state) {
  (void)state;
  const float logits[] = {0, 1, 2, -1};
  const wn_sampling s = {.temperature = 0.7, .top_p = 1, .seed = 3};
  double expected[4], total = 0;
  int counts[4] = {0};
  for (int v = 0; v < 4; v++) total += expected[v] = exp((double)logits[v] / 0.7);
  for (uint64_t step = 0; step < 20000; step++) {
    int32_t token;
    assert_int_equal(wn_sample(NULL, logits, 4, &s, step, &token), WN_OK);
    counts[token]++;
  }
  for (int v = 0; v < 4; v++) assert_true(fabs(counts[v] / 20000.0 - expected[v] / total) < 0.015);
}

static void test_greedy_and_refusals(void **state) {
  (void)state;
  float logits[] = {-3, 5, 5, 1};
  wn_sampling s = {.temperature = 0, .top_p = 1};
  int32_t token = -1;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_OK);
  assert_int_equal(token, 1); /* of equal ones the lowest id */
  wn_sampling_init(&s);
  assert_true(s.temperature == 0.8 && s.top_k == 0 && s.top_p == 0.95 && s.seed == 0);
  s.temperature = -1;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
  s.temperature = NAN;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
  s.temperature = 1, s.top_p = 0;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
  s.top_p = 1.5;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
  s.top_p = 1, s.top_k = -1;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
  s.top_k = 0;
  assert_int_equal(wn_sample(NULL, logits, 0, &s, 0, &token), WN_ERR_ARGUMENT);
  logits[2] = NAN;
  assert_int_equal(wn_sample(NULL, logits, 4, &s, 0, &token), WN_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_min_p),
      cmocka_unit_test(test_frequencies),
      cmocka_unit_test(test_greedy_and_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
