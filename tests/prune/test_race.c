/* The race between layers: the error that it states, on made-up losses whose cheapest layer is known, and the search
 * with it on a small model. */
#include "prune/bench.h"

#include <math.h>

#include "prune/greedy.h"
#include "prune/race.h"

enum { LAYERS = 4, MADE_ROWS = 256, BATCH = 8, DRAWS = 1000 };

/* Losses of rows that are made up: loss [layer][row]. */
struct made {
  struct wn_prune_evaluator base;
  double loss[LAYERS][MADE_ROWS];
  int64_t read;
};

static wn_status made_part(struct wn_prune_evaluator *e, int64_t layer, int64_t to, const struct wn_prune_part *part,
                           double *loss) {
  struct made *m = (struct made *)e;
  assert_int_equal(to, 24);
  for (int64_t r = part->from; r < part->until; r++) loss[r] = m->loss[layer][r], m->read++;
  return WN_OK;
}

static wn_status made_evaluate(void *user, int64_t layer, int64_t to, double *loss) {
  const struct made *m = user;
  (void)to;
  *loss = 0;
  for (int64_t r = 0; r < MADE_ROWS; r++) *loss += m->loss[layer][r] / MADE_ROWS;
  return WN_OK;
}

/* Draw `draw` of a population: rows have losses of their own, shared by all layers, and layer l costs l * gap more,
 * with a spread of 1 in the differences. */
static void made_draw(struct made *m, uint64_t draw, double gap) {
  m->read = 0;
  for (uint64_t l = 0; l < LAYERS; l++)
    for (uint64_t r = 0; r < MADE_ROWS; r++)
      m->loss[l][r] = 10 * wn_random_normal(draw, WN_STREAM_TEST, 99, r) + gap * (double)l +
                      wn_random_normal(draw, WN_STREAM_TEST, l, r) / sqrt(2);
}

struct outcome {
  int wrong, early;
  double read, evaluations;
};

/* One step for each of many draws, with a race at delta. */
static struct outcome race_draws(double delta, double gap) {
  struct outcome o = {0};
  wn_context *ctx = tiny_context("cpu", 1);
  struct made m = {.base = {.part = made_part}};
  struct wn_race race;
  must(ctx, wn_race_init(ctx, &m.base, &(struct wn_race_search){LAYERS, 1, MADE_ROWS, BATCH, delta}, &race));
  for (uint64_t draw = 0; draw < DRAWS; draw++) {
    int64_t tokens[LAYERS] = {32, 32, 32, 32}, lowered[LAYERS];
    double trial[LAYERS], increase[LAYERS];
    struct wn_greedy_choice exact, choice;
    made_draw(&m, draw, gap);
    struct wn_greedy greedy = {.layers = LAYERS,
                               .step = 8,
                               .tokens = tokens,
                               .target = INFINITY,
                               .increase = increase,
                               .trial = trial,
                               .lowered = lowered,
                               .evaluate = made_evaluate,
                               .user = &m};
    must(ctx, wn_greedy_choose(&greedy, &exact));
    assert_int_equal(exact.left, 0);
    greedy.race = &race;
    must(ctx, wn_greedy_choose(&greedy, &choice));
    assert_int_equal(choice.raced, m.read);
    assert_int_equal(choice.evaluations, choice.left);
    o.wrong += choice.layer != exact.layer;
    o.early += choice.left == 1;
    o.read += (double)m.read / MADE_ROWS / DRAWS;
    o.evaluations += (double)choice.evaluations / DRAWS;
  }
  wn_free(race.loss);
  wn_context_destroy(ctx);
  return o;
}

/* At most delta of the steps differ, within what 1,000 draws can tell; a winner that is clear is found early. With a
 * delta of almost 0 nothing drops out. */
static void test_error(void **state) {
  (void)state;
  static const double gaps[] = {0, 0.02, 0.1, 0.3, 1, 3}, deltas[] = {0.3, 0.05};
  for (size_t d = 0; d < sizeof deltas / sizeof *deltas; d++)
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++) {
      const struct outcome o = race_draws(deltas[d], gaps[g]);
      print_message("delta %g, gap %g: %d of %d wrong, %d decided early, %.2f + %.2f passes\n", deltas[d], gaps[g],
                    o.wrong, DRAWS, o.early, o.read, o.evaluations);
      assert_true(o.wrong <= deltas[d] * DRAWS + 3 * sqrt(deltas[d] * (1 - deltas[d]) * DRAWS));
      if (gaps[g] >= 1) assert_true(o.early > 9 * DRAWS / 10 && o.read + o.evaluations < LAYERS / 2.0);
    }
  const struct outcome none = race_draws(1e-300, 1);
  assert_true(none.wrong == 0 && none.early == 0 && fabs(none.evaluations - LAYERS) < 1e-9);
}

/* Equal layers: all are evaluated, and the lowest one is taken. */
static void test_equal(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  struct made m = {.base = {.part = made_part}};
  struct wn_race race;
  int64_t to[LAYERS] = {24, 24, 24, 24}, read;
  double trial[LAYERS] = {NAN, NAN, INFINITY, NAN};
  must(ctx, wn_race_init(ctx, &m.base, &(struct wn_race_search){LAYERS, 1, MADE_ROWS, BATCH, 0.5}, &race));
  must(ctx, wn_race_run(&race, LAYERS, to, trial, &read));
  assert_int_equal(read, 3 * 2 * BATCH); /* more rows would not tell */
  assert_true(isnan(trial[0]) && isnan(trial[1]) && isinf(trial[2]) && isnan(trial[3]));
  wn_free(race.loss);
  must(ctx, wn_race_init(ctx, &m.base, &(struct wn_race_search){LAYERS, 1, 3 * BATCH, BATCH, 0.5}, &race));
  must(ctx, wn_race_run(&race, LAYERS, to, trial, &read)); /* too few rows for a look */
  assert_int_equal(read, 0);
  wn_free(race.loss);
  wn_context_destroy(ctx);
}

static wn_prune_options race_options(const struct bench *b, double delta) {
  wn_prune_options o = options_of(b, WN_POLICY_SELECTIVE);
  o.batch = 1;
  o.race = delta;
  return o;
}

/* The budgets of two curves, and losses that may differ by the order of the sums. */
static bool same_budgets(const wn_prune_curve *a, const wn_prune_curve *b) {
  bool same = a->count == b->count;
  for (int64_t i = 0; same && i < a->count; i++)
    same = !memcmp(a->points[i].tokens, b->points[i].tokens, (size_t)a->layers * sizeof(int64_t)) &&
           fabs(a->points[i].search_loss - b->points[i].search_loss) < 1e-9;
  return same;
}

/* With a delta of almost 0 the search is the exact one; with a large one layers drop out. Reuse and plain evaluations,
 * one thread and two, and a search that is interrupted and resumed give the same bits. */
static void test_search(void **state) {
  (void)state;
  static const char *const sets[] = {"model.attention.selective.enabled=true", "model.layers=3"};
  struct bench b;
  wn_prune_curve exact, race, other;
  bench_init(&b, sets, 2);
  write_tokens(b.ctx, b.search, 1, 8);
  wn_prune_options o = race_options(&b, 0);
  must(b.ctx, search(&b, &o, "exact", false, &exact));
  o.race = 1e-300;
  must(b.ctx, search(&b, &o, "zero", false, &race));
  assert_true(same_budgets(&exact, &race));
  assert_true(race.points[1].race_left == 3 && race.points[1].raced_rows == 3 * 2 && race.points[1].evaluations == 3);
  wn_prune_curve_clear(&race);
  o = race_options(&b, 0.999);
  o.check = true;
  must(b.ctx, search(&b, &o, "race", false, &race));
  int64_t dropped = 0;
  for (int64_t i = 1; i < race.count; i++) dropped += race.points[i].race_left < 3 && race.points[i].race_left > 0;
  assert_true(dropped > 0);
  o.plain = true;
  must(b.ctx, search(&b, &o, "plain", false, &other));
  same_curves("plain", &race, &other);
  wn_prune_curve_clear(&other);
  o.plain = false, o.max_steps = 5;
  must(b.ctx, search(&b, &o, "part", false, NULL));
  o.max_steps = 0;
  must(b.ctx, search(&b, &o, "part", true, &other));
  same_curves("resumed", &race, &other);
  for (int64_t i = 0; i < race.count; i++) {
    assert_int_equal(race.points[i].raced_rows, other.points[i].raced_rows);
    assert_int_equal(race.points[i].race_left, other.points[i].race_left);
    assert_int_equal(race.points[i].exact_layer, other.points[i].exact_layer);
  }
  wn_prune_curve_clear(&other);
  o.race = 0.5;
  assert_int_equal(search(&b, &o, "part", true, NULL), WN_ERR_CONFIG);
  o.race = 0.5, o.lazy = true;
  assert_int_equal(search(&b, &o, "lazy", false, NULL), WN_ERR_ARGUMENT);
  o.race = 1, o.lazy = false;
  assert_int_equal(search(&b, &o, "one", false, NULL), WN_ERR_ARGUMENT);
  wn_context *ctx = b.ctx, *two = tiny_context("cpu", 2);
  b.ctx = two;
  o = race_options(&b, 0.999), o.check = true;
  must(two, search(&b, &o, "two", false, &other));
  same_curves("two threads", &race, &other);
  wn_context_destroy(two);
  b.ctx = ctx;
  wn_prune_curve_clear(&other);
  wn_prune_curve_clear(&race);
  wn_prune_curve_clear(&exact);
  bench_clear(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_error), cmocka_unit_test(test_equal),
                                     cmocka_unit_test(test_search)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
