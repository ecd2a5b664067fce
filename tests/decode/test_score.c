/* Scores are the log-softmax of whole logits, in every configuration and under every policy. Forks and snapshots
 * continue with the same bits as a session that was never copied. */
#include "model/models.h"

#include "support.h"
#include "winnow/score.h"
#include "reach.h"
#include "policies.h"

enum { B = 2, T = 14, V = 13, K = 4 };

/* One row, in double. */
static double log_softmax(const float *logits, int32_t id) {
  double top = -INFINITY, sum = 0;
  for (int v = 0; v < V; v++) top = fmax(top, (double)logits[v]);
  for (int v = 0; v < V; v++) sum += exp((double)logits[v] - top);
  return (double)logits[id] - top - log(sum);
}
/* Whether v comes before w in a list of the most probable tokens. */
static bool before(const float *logits, int v, int w) {
  return logits[v] > logits[w] || (logits[v] == logits[w] && v < w);
}
static int best_of(const float *logits) {
  int best = 0;
  for (int v = 1; v < V; v++) best = before(logits, v, best) ? v : best;
  return best;
}

static void random_tokens(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

struct scored {
  double log_probability[B * T], top_log_probability[B * T * K];
  uint8_t greedy[B * T];
  int32_t top[B * T * K];
};
static wn_scores scores_of(struct scored *s) {
  memset(s, 0x55, sizeof *s);
  return (wn_scores){.size = sizeof(wn_scores),
                     .log_probability = s->log_probability,
                     .greedy = s->greedy,
                     .top_k = K,
                     .top = s->top,
                     .top_log_probability = s->top_log_probability};
}

/* Compares n scores with rows of logits [n,V]. */
static void scores_agree(const char *name, const struct scored *s, const float *logits, const int32_t *targets, int n,
                         double tolerance) {
  for (int i = 0; i < n; i++) {
    const float *row = logits + (size_t)i * V;
    if (targets[i] < 0) {
      assert_true(s->log_probability[i] == 0 && !s->greedy[i] && s->top[i * K] == -1);
      continue;
    }
    const double expected = log_softmax(row, targets[i]);
    if (!(fabs(s->log_probability[i] - expected) <= tolerance))
      fail_msg("%s: score %d: expected %.9g, found %.9g", name, i, expected, s->log_probability[i]);
    const int best = best_of(row), greedy = s->top[i * K];
    /* Two nearly equal tokens may change places between two ways to compute logits. */
    if (greedy != best) assert_true(fabs((double)row[greedy] - (double)row[best]) <= tolerance);
    assert_int_equal(s->greedy[i], greedy == targets[i]);
    for (int j = 0; j < K; j++) {
      const int32_t id = s->top[i * K + j];
      assert_true(fabs(s->top_log_probability[i * K + j] - log_softmax(row, id)) <= tolerance);
      if (j > 0) assert_true(s->top_log_probability[i * K + j] <= s->top_log_probability[i * K + j - 1]);
      int above = 0;
      for (int v = 0; v < V; v++) above += (double)row[v] > (double)row[id] + tolerance;
      assert_true(above <= j);
    }
  }
}

static void targets_of(const int32_t *ids, int32_t *targets) {
  for (int b = 0; b < B; b++)
    for (int t = 0; t < T; t++) targets[b * T + t] = t + 1 < T ? ids[b * T + t + 1] : -1;
  targets[3] = targets[T + 7] = -1; /* positions without a target */
}

static void test_every_configuration(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    for (int backend = 0; backend < 2; backend++) {
      wn_context *ctx = context_of(backend ? "ref" : "cpu", 1);
      wn_model_config c = model_case_config(&model_cases[k]);
      struct wn_model *model = model_of(ctx, &c, backend ? most_exact(ctx) : WN_F32);
      int32_t ids[B * T], targets[B * T];
      float logits[B * T * V];
      struct scored found;
      wn_session *s;
      random_tokens((uint64_t)k, ids, B * T);
      targets_of(ids, targets);
      OK(ctx, wn_model_logits(ctx, model, ids, B, T, NULL, logits));
      OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
      const wn_scores out = scores_of(&found);
      OK(ctx, wn_session_score(ctx, s, ids, targets, T, &out));
      scores_agree(model_cases[k].name, &found, logits, targets, B * T, 2e-4);
      assert_int_equal(wn_session_position(s), T);
      wn_session_destroy(s);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
  }
}

/* Under every policy, in two parts: scores are the log-softmax of the logits of feeding token by token. */
static void test_every_policy(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .sel = {PAPER}};
  wn_model_config c = model_case_config(&k);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[B * T], targets[B * T], one[B];
  float logits[B * T * V], row[B * V];
  struct scored found;
  for (wn_policy p = 0; (int)p < wn_policy_count(); p++) {
    wn_budgets budgets;
    wn_session *s;
    if (!wn_policy_suits(p, &c.attention)) continue; /* gates */
    budgets_init(&budgets);
    budgets.policy = p;
    OK(ctx, wn_budgets_parse(ctx, &c, "5", &budgets));
    OK(ctx, wn_session_create(ctx, model,
                              WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &budgets), &s));
    random_tokens(100 + (uint64_t)p, ids, B * T);
    targets_of(ids, targets);
    for (int t = 0; t < T; t++) {
      for (int b = 0; b < B; b++) one[b] = ids[b * T + t];
      OK(ctx, wn_session_feed(ctx, s, one, 1, 0, row));
      for (int b = 0; b < B; b++) memcpy(logits + (b * T + t) * V, row + b * V, V * sizeof *row);
    }
    wn_session_reset(s);
    const wn_scores out = scores_of(&found);
    OK(ctx, wn_session_score(ctx, s, ids, targets, T, &out));
    scores_agree(wn_policy_name(p), &found, logits, targets, B * T, 1e-4);
    wn_session_destroy(s);
    wn_budgets_clear(&budgets);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* More rows than are scored at a time, more tokens than a piece. */
static void test_long(void **state) {
  (void)state;
  enum { LONG = 700 };
  wn_context *ctx = context_of("cpu", 2);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.context = LONG;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  static int32_t ids[LONG], targets[LONG];
  static float logits[LONG * V];
  static double found[LONG];
  wn_session *s;
  random_tokens(3, ids, LONG);
  for (int t = 0; t < LONG; t++) targets[t] = t % 5 == 4 || t == LONG - 1 ? -1 : ids[t + 1];
  OK(ctx, wn_model_logits(ctx, model, ids, 1, LONG, NULL, logits));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = LONG), &s));
  OK(ctx,
     wn_session_score(ctx, s, ids, targets, LONG, &(wn_scores){.size = sizeof(wn_scores), .log_probability = found}));
  for (int t = 0; t < LONG; t++)
    assert_true(targets[t] < 0 ? found[t] == 0 : fabs(found[t] - log_softmax(logits + t * V, targets[t])) < 1e-4);
  /* After its first score a session allocates nothing. */
  wn_memory_info first, second;
  wn_session_reset(s);
  wn_memory_info_get(&first);
  OK(ctx,
     wn_session_score(ctx, s, ids, targets, LONG, &(wn_scores){.size = sizeof(wn_scores), .log_probability = found}));
  wn_memory_info_get(&second);
  assert_int_equal(first.total_allocations, second.total_allocations);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_next(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[B * T], targets[B * 3] = {1, 12, -1, 0, 7, 7};
  float logits[B * V], rows[B * 3 * V];
  struct scored found;
  wn_session *s;
  random_tokens(9, ids, B * T);
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
  const wn_scores out = scores_of(&found);
  assert_refused(ctx, wn_session_score_next(ctx, s, targets, 3, &out), WN_ERR_ARGUMENT, "seen no token");
  OK(ctx, wn_session_feed(ctx, s, ids, 6, 0, NULL));
  OK(ctx, wn_session_score_next(ctx, s, targets, 3, &out)); /* logits not computed before */
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, ids, 6, 0, logits));
  for (int b = 0; b < B; b++)
    for (int i = 0; i < 3; i++) memcpy(rows + (b * 3 + i) * V, logits + b * V, V * sizeof *logits);
  scores_agree("next", &found, rows, targets, B * 3, 1e-5);
  /* Scoring feeds nothing: the text continues as if it had not been scored. */
  float with[B * V], without[B * V];
  OK(ctx, wn_session_score_next(ctx, s, targets, 3, &out));
  OK(ctx, wn_session_feed(ctx, s, ids, 4, 0, with));
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, ids, 6, 0, NULL));
  OK(ctx, wn_session_feed(ctx, s, ids, 4, 0, without));
  assert_memory_equal(with, without, sizeof with);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void make_session(wn_context *ctx, wn_model *model, wn_policy policy, const char *budget, int64_t sequences,
                         int64_t capacity, wn_session **out) {
  wn_budgets budgets;
  budgets_init(&budgets);
  budgets.policy = policy;
  if (budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &budgets));
  OK(ctx, wn_session_create(ctx, model,
                            WN_OPTIONS(wn_session_options, .sequences = sequences, .capacity = capacity,
                                       .budgets = budget ? &budgets : NULL),
                            out));
  wn_budgets_clear(&budgets);
}

/* A session that is rolled back to a snapshot after reading another text continues with the same bits. Forks continue
 * as if each had been fed from the start. */
static void test_copies(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *ctx = context_of("cpu", 1);
    wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    for (int p = -1; p < wn_policy_count(); p++) {
      const wn_policy policy = p < 0 ? 0 : (wn_policy)p;
      if (p >= 0 && (k % 4 != p % 4 || !wn_policy_suits(policy, &c.attention))) continue;
      wn_session *s, *kept, *forks, *alone, *any;
      int32_t ids[B * T], tails[4 * 3], tail[B * 3];
      float expected[B * V], found[B * V], forked[4 * V];
      random_tokens((uint64_t)(k * 10 + p + 1), ids, B * T);
      random_tokens((uint64_t)(k * 10 + p + 700), tails, 4 * 3);
      make_session(ctx, model, policy, p < 0 ? NULL : "4", B, 16, &s);
      make_session(ctx, model, policy, p < 0 ? NULL : "4", B, 12, &kept);
      make_session(ctx, model, policy, p < 0 ? NULL : "4", 2 * B, 16, &forks);
      make_session(ctx, model, policy, p < 0 ? NULL : "4", B, 16, &alone);
      OK(ctx, wn_session_feed(ctx, s, ids, 7, 0, NULL));
      OK(ctx, wn_session_copy(ctx, kept, s, NULL));
      OK(ctx, wn_session_copy(ctx, forks, s, NULL));
      assert_int_equal(wn_session_position(forks), 7);
      OK(ctx, wn_session_feed(ctx, s, tails, 3, 0, expected));
      OK(ctx, wn_session_feed(ctx, s, ids, 5, 0, NULL));
      OK(ctx, wn_session_copy(ctx, s, kept, NULL)); /* roll back */
      OK(ctx, wn_session_feed(ctx, s, tails, 3, 0, found));
      assert_memory_equal(expected, found, sizeof found);
      /* Sequences in any order: the forks reversed, and those that they continue with. */
      int64_t rows[2 * B];
      int32_t turned[2 * B * 3];
      float mixed[2 * B * V];
      for (int b = 0; b < 2 * B; b++) {
        rows[b] = (2 * B - 1 - b) / 2;
        memcpy(turned + b * 3, tails + (2 * B - 1 - b) * 3, 3 * sizeof *turned);
      }
      wn_session_reset(alone);
      OK(ctx, wn_session_feed(ctx, alone, ids, 7, 0, NULL));
      make_session(ctx, model, policy, p < 0 ? NULL : "4", 2 * B, 16, &any);
      OK(ctx, wn_session_copy(ctx, any, alone, rows));
      OK(ctx, wn_session_feed(ctx, any, turned, 3, 0, mixed));
      OK(ctx, wn_session_feed(ctx, forks, tails, 3, 0, forked));
      for (int b = 0; b < 2 * B; b++)
        for (int v = 0; v < V; v++)
          if (fabsf(mixed[(2 * B - 1 - b) * V + v] - forked[b * V + v]) > 1e-4f)
            fail_msg("%s, policy %d: sequence %d by rows", model_cases[k].name, p, b);
      wn_session_destroy(any);
      for (int way = 0; way < 2; way++) { /* fork b*2+way is of sequence b */
        for (int b = 0; b < B; b++) memcpy(tail + b * 3, tails + (b * 2 + way) * 3, 3 * sizeof *tail);
        wn_session_reset(alone);
        OK(ctx, wn_session_feed(ctx, alone, ids, 7, 0, NULL));
        OK(ctx, wn_session_feed(ctx, alone, tail, 3, 0, found));
        for (int b = 0; b < B; b++)
          for (int v = 0; v < V; v++)
            if (fabsf(found[b * V + v] - forked[(b * 2 + way) * V + v]) > 1e-4f)
              fail_msg("%s, policy %d: fork %d", model_cases[k].name, p, b * 2 + way);
      }
      wn_session_destroy(s), wn_session_destroy(kept), wn_session_destroy(forks), wn_session_destroy(alone);
    }
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *two, *three, *budgeted, *other, *short_one;
  int32_t ids[2] = {1, 2}, targets[2] = {1, V};
  double found[2];
  wn_scores out = {.size = sizeof out, .log_probability = found};
  make_session(ctx, model, 0, NULL, 2, 16, &two);
  make_session(ctx, model, 0, NULL, 3, 16, &three);
  make_session(ctx, model, WN_POLICY_WINDOW, "4", 2, 16, &budgeted);
  make_session(ctx, model, WN_POLICY_H2O, "4", 2, 16, &other);
  assert_refused(ctx, wn_session_copy(ctx, three, two, NULL), WN_ERR_ARGUMENT, "expected a multiple");
  assert_refused(ctx, wn_session_copy(ctx, budgeted, two, NULL), WN_ERR_ARGUMENT, "different budgets");
  assert_refused(ctx, wn_session_copy(ctx, budgeted, other, NULL), WN_ERR_ARGUMENT, "different budgets");
  assert_refused(ctx, wn_session_copy(ctx, three, two, (const int64_t[]){0, 2, 1}), WN_ERR_ARGUMENT,
                 "rows[1] is 2, expected 0 to 1");
  assert_refused(ctx, wn_session_copy(ctx, two, two, (const int64_t[]){1, 0}), WN_ERR_ARGUMENT, "within itself");
  OK(ctx, wn_session_copy(ctx, three, two, (const int64_t[]){0, 1, 1}));
  OK(ctx, wn_session_copy(ctx, two, two, NULL));
  make_session(ctx, model, 0, NULL, 2, 1, &short_one);
  OK(ctx, wn_session_feed(ctx, two, (const int32_t[]){1, 2, 3, 4}, 2, 0, NULL));
  assert_refused(ctx, wn_session_copy(ctx, short_one, two, NULL), WN_ERR_ARGUMENT,
                 "2 tokens cannot be copied to a session of 1");
  wn_session_destroy(short_one);
  wn_session_reset(two);
  assert_refused(ctx, wn_session_score(ctx, two, ids, targets, 1, &out), WN_ERR_ARGUMENT, "targets[1] is 13");
  targets[1] = -2;
  assert_refused(ctx, wn_session_score(ctx, two, ids, targets, 1, &out), WN_ERR_ARGUMENT, "targets[1] is -2");
  targets[1] = 0;
  assert_refused(ctx, wn_session_score(ctx, two, ids, NULL, 1, &out), WN_ERR_ARGUMENT, "targets is NULL");
  out.top_k = 2;
  assert_refused(ctx, wn_session_score(ctx, two, ids, targets, 1, &out), WN_ERR_ARGUMENT, "top_k is 2");
  out.top_k = V + 1;
  assert_refused(ctx, wn_session_score(ctx, two, ids, targets, 1, &out), WN_ERR_ARGUMENT, "top_k is 14");
  assert_int_equal(wn_session_position(two), 0); /* nothing was fed */
  /* Logits that are NaN are reported. */
  out.top_k = 0;
  memset(reach(model->params), 0xFF, 64);
  wn_status status = wn_session_score(ctx, two, (int32_t[]){0, 0}, targets, 1, &out);
  assert_int_equal(status, WN_ERR_DIVERGED);
  wn_session_destroy(two), wn_session_destroy(three), wn_session_destroy(budgeted), wn_session_destroy(other);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_configuration),
      cmocka_unit_test(test_every_policy),
      cmocka_unit_test(test_long),
      cmocka_unit_test(test_next),
      cmocka_unit_test(test_copies),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
