/* Searches for compressions at a context's end. A trial's loss is that of a session which reads the context, compresses
 * it and scores what follows, whether or not one reading serves all trials; without evictions it is the whole model's.
 * Interrupted and resumed a search gives what an undisturbed one gives. What has no such search is refused. */
#include "prune/bench.h"

#include <math.h>

#include "decode/session.h"
#include "prune/evaluator.h"
#include "winnow/score.h"

enum { READ = 48 };

static const struct {
  const char *policy; /* as --policy has it */
  bool shares;        /* one reading serves all budgets */
  const char *sets[2];
} cases[] = {
    {"knorm", true, {"model.heads=4", "model.kv_heads=2"}},
    {"snapkv", true, {"model.position=rope", "model.layers=3"}},
    {"expected", true, {"model.position=rope", "model.bias=false"}},
    {"ada-snapkv", true, {"model.heads=4", "model.kv_heads=2"}},
    {"selective", false, {"model.attention.selective.enabled=true", "model.layers=3"}},
    {"gates", false, {"model.attention.write.enabled=true", "model.attention.write.window=4"}},
};

static void case_init(size_t i, struct bench *b, wn_prune_options *o) {
  bench_init(b, cases[i].sets, 2);
  *o = options_of(b, 0);
  if (!wn_budgets_named(cases[i].policy, &o->budgets))
    must(b->ctx, wn_policy_find(b->ctx, cases[i].policy, &o->budgets.policy));
  o->budgets.when = WN_WHEN_PROMPT;
  o->read = READ;
}

/* The sum of a row's losses behind the context, by the public calls. */
static double by_hand(const struct bench *b, const wn_budgets *budgets, const struct wn_prune_set *set, int64_t row) {
  double log_probability[CONTEXT], sum = 0;
  const wn_scores scores = {.size = sizeof scores, .log_probability = log_probability};
  const int32_t *tokens = set->tokens + row * set->T, *targets = set->targets + row * set->T;
  wn_session *s;
  must(b->ctx, wn_session_create(b->ctx, b->model,
                                 WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = budgets), &s));
  must(b->ctx, wn_session_read_context(b->ctx, s, tokens, READ, NULL));
  for (int64_t l = 0; l < budgets->layers; l++)
    assert_true(wn_session_held_tokens(s, l) <= budgets->tokens[l] * 2 * b->model->config.kv_heads);
  must(b->ctx, wn_session_score(b->ctx, s, tokens + READ, targets + READ, CONTEXT - READ, &scores));
  for (int64_t t = READ; t < CONTEXT; t++) sum -= log_probability[t - READ];
  wn_session_destroy(s);
  return sum;
}

static void test_trials(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int kept = 0; kept < 2; kept++) {
      struct bench b;
      wn_prune_options o;
      struct wn_prune_set set;
      struct wn_prune_evaluator *once, *plain;
      int64_t tokens[3] = {READ, READ, READ};
      double whole, x, rows[ROWS];
      case_init(i, &b, &o);
      must(b.ctx, wn_prune_set_load(b.ctx, "set", &o.search, CONTEXT, VOCAB, false, &set));
      must(b.ctx, wn_prune_set_leave(b.ctx, "set", &set, READ));
      assert_int_equal(set.counted, ROWS * (CONTEXT - READ));
      must(b.ctx, wn_prune_plain_create(b.ctx, b.model, &set, 2, NULL, &plain));
      must(b.ctx, plain->begin(plain, NULL, &whole));
      must(b.ctx, wn_prune_once_create(b.ctx, b.model, &set, 2, &o.budgets, kept ? 1 << 30 : 0, &once));
      must(b.ctx, once->begin(once, tokens, &x));
      if (!(fabs(x - whole) < 1e-5)) fail_msg("%s: %g, without a cache %g", cases[i].policy, x, whole);
      wn_budgets budgets = o.budgets;
      budgets.layers = b.model->config.layers, budgets.tokens = tokens;
      for (int64_t to = 8; to < READ; to += 13) {
        double sum = 0;
        must(b.ctx, once->evaluate(once, 1, to, &x));
        tokens[1] = to;
        for (int64_t r = 0; r < ROWS; r++) sum += by_hand(&b, &budgets, &set, r);
        tokens[1] = READ;
        if (!(fabs(sum / (double)set.counted - x) < 1e-6))
          fail_msg("%s, %d tokens: %g, by hand %g", cases[i].policy, (int)to, x, sum / (double)set.counted);
        assert_true(x != whole);
      }
      must(b.ctx, once->accept(once, 0, 20, &x));
      must(b.ctx, once->rows(once, rows));
      assert_true(fabs((rows[0] + rows[1] + rows[2]) / (double)set.counted - x) < 1e-12);
      once->destroy(once);
      plain->destroy(plain);
      wn_prune_set_clear(&set);
      bench_clear(&b);
    }
}

/* One reading and one a trial choose alike; so does a search in portions. */
static void test_search(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct bench b;
    wn_prune_options o;
    wn_prune_curve whole, parts, again;
    char path[320];
    wn_budgets found;
    case_init(i, &b, &o);
    must(b.ctx, search(&b, &o, "whole", false, &whole));
    assert_int_equal(whole.end, WN_PRUNE_FLOOR);
    assert_int_equal(whole.count, 1 + whole.layers * (READ / STEP - 1));
    assert_true(whole.points[0].total == whole.layers * READ && whole.points[whole.count - 1].saving == 3);
    o.max_steps = 1;
    for (bool more = false;; more = true) {
      must(b.ctx, search(&b, &o, "parts", more, &parts));
      if (parts.end != WN_PRUNE_STEPS) break;
      wn_prune_curve_clear(&parts);
    }
    same_curves(cases[i].policy, &whole, &parts);
    o.max_steps = 0, o.memory = 1;
    must(b.ctx, search(&b, &o, "again", false, &again));
    for (int64_t p = 0; p < whole.count; p++)
      if (whole.points[p].layer != again.points[p].layer ||
          fabs(whole.points[p].search_loss - again.points[p].search_loss) > 1e-6)
        fail_msg("%s: point %d: %g, read again %g", cases[i].policy, (int)p, whole.points[p].search_loss,
                 again.points[p].search_loss);
    snprintf(path, sizeof path, "%s/whole/budgets.json", b.dir);
    wn_budgets_init(&found, NULL);
    must(b.ctx, wn_budgets_load(b.ctx, path, &found));
    assert_true(found.when == WN_WHEN_PROMPT && found.method == o.budgets.method && found.allot == o.budgets.allot);
    assert_memory_equal(found.tokens, whole.points[whole.count - 1].tokens, (size_t)whole.layers * sizeof(int64_t));
    wn_budgets_clear(&found);
    o.read = READ - 1; /* another context */
    assert_int_equal(search(&b, &o, "parts", true, &(wn_prune_curve){0}), WN_ERR_CONFIG);
    wn_prune_curve_clear(&whole);
    wn_prune_curve_clear(&parts);
    wn_prune_curve_clear(&again);
    bench_clear(&b);
  }
}

static void test_refusals(void **state) {
  (void)state;
  struct bench b;
  wn_prune_options o;
  case_init(0, &b, &o);
#define REFUSED(STATUS, SAYS)                                                                                          \
  do {                                                                                                                 \
    assert_int_equal(search(&b, &o, "none", false, &(wn_prune_curve){0}), STATUS);                                     \
    if (!strstr(wn_context_error(b.ctx), SAYS)) fail_msg("%s", wn_context_error(b.ctx));                               \
    case_init_again(&b, &o);                                                                                           \
  } while (0)
#define case_init_again(B, O)                                                                                          \
  (O)->read = READ, (O)->budgets.allot = WN_ALLOT_UNIFORM, (O)->budgets.when = WN_WHEN_PROMPT
  o.read = CONTEXT;
  REFUSED(WN_ERR_ARGUMENT, "a context of 80 tokens in rows of 80, expected 2 to 79");
  o.budgets.allot = WN_ALLOT_TAU;
  REFUSED(WN_ERR_UNSUPPORTED, "divides budgets by itself");
  o.budgets.when = WN_WHEN_ALWAYS;
  REFUSED(WN_ERR_ARGUMENT, "a context of 48 tokens needs \"when\" prompt or hold");
  o.budgets.when = WN_WHEN_EVERY, o.budgets.every = 4, o.read = 0;
  REFUSED(WN_ERR_UNSUPPORTED, "\"when\" is \"every\"");
  bench_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_trials), cmocka_unit_test(test_search),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
