/* The rule of the budget search, on losses that can be worked out by hand and on random ones checked exhaustively. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "prune/greedy.h"

enum { LAYERS_MAX = 6 };

/* A table of costs: cost[l][n] of lowering layer l n times. The loss is their sum. With noise, each vector of budgets
 * adds a random number, so that increases depend on other layers' budgets, as in a model. */
struct table {
  int64_t layers, step, tokens[LAYERS_MAX], first[LAYERS_MAX];
  double cost[LAYERS_MAX][64];
  double noise;
  int calls;
};

static double loss_of(const struct table *t, const int64_t *tokens) {
  double sum = 0;
  uint64_t vector = 0;
  for (int64_t l = 0; l < t->layers; l++) {
    sum += t->cost[l][(t->first[l] - tokens[l]) / t->step];
    vector = vector * 1000 + (uint64_t)tokens[l];
  }
  return sum + (t->noise > 0 ? t->noise * wn_random_uniform(1, WN_STREAM_TEST, vector, 0) : 0);
}

static wn_status evaluate(void *user, int64_t layer, int64_t to, double *loss) {
  struct table *t = user;
  int64_t tokens[LAYERS_MAX];
  memcpy(tokens, t->tokens, sizeof tokens);
  assert_int_equal(tokens[layer] - to, t->step);
  assert_true(to >= t->step);
  tokens[layer] = to;
  *loss = loss_of(t, tokens);
  t->calls++;
  return WN_OK;
}

struct bench {
  struct table table;
  struct wn_greedy greedy;
  double increase[LAYERS_MAX], trial[LAYERS_MAX];
};

static void begin(struct bench *b, int64_t layers, int64_t step, int64_t context, double target, bool lazy,
                  bool check) {
  struct table *t = &b->table;
  t->layers = layers;
  t->step = step;
  t->calls = 0;
  for (int64_t l = 0; l < layers; l++) t->tokens[l] = t->first[l] = context, b->increase[l] = NAN;
  b->greedy = (struct wn_greedy){.layers = layers,
                                 .step = step,
                                 .tokens = t->tokens,
                                 .loss = loss_of(t, t->tokens),
                                 .target = target,
                                 .lazy = lazy,
                                 .check = check,
                                 .increase = b->increase,
                                 .trial = b->trial,
                                 .evaluate = evaluate,
                                 .user = t};
}

/* Runs until the search stops. order: the lowered layers, as digits. */
static enum wn_greedy_verdict run(struct bench *b, char *order, int *differing) {
  struct wn_greedy_choice choice;
  int n = 0;
  if (differing) *differing = 0;
  for (;;) {
    assert_int_equal(wn_greedy_choose(&b->greedy, &choice), WN_OK);
    order[n] = 0;
    if (choice.verdict != WN_GREEDY_LOWER) return choice.verdict;
    order[n++] = (char)('0' + choice.layer);
    if (differing) *differing += choice.differs;
    wn_greedy_take(&b->greedy, &choice);
    assert_true(b->greedy.loss == loss_of(&b->table, b->table.tokens));
  }
}

/* Three layers, 32 tokens, 8 a step: three steps each until 8 are left.
 *   layer 0:  1  5  6     increases 1 4 1
 *   layer 1:  2  4  9     increases 2 2 5
 *   layer 2: -1  1  7     increases -1 2 6 */
static const double by_hand[3][4] = {{0, 1, 5, 6}, {0, 2, 4, 9}, {0, -1, 1, 7}};

static void fill_by_hand(struct bench *b) {
  memset(b, 0, sizeof *b);
  for (int l = 0; l < 3; l++) memcpy(b->table.cost[l], by_hand[l], sizeof by_hand[l]);
}

static void test_order(void **state) {
  (void)state;
  struct bench b;
  char order[64];
  fill_by_hand(&b);
  /* Layer 2 (-1), 0 (1), then 1 and 2 tie at 2, so the lower one goes first: 1 (2), 1 (2), 2 (2). Then 0 (4), 0 (1), 1
   * (5), 2 (6). */
  begin(&b, 3, 8, 32, INFINITY, false, false);
  assert_int_equal(run(&b, order, NULL), WN_GREEDY_AT_FLOOR);
  assert_string_equal(order, "201120012");
  for (int l = 0; l < 3; l++) assert_int_equal(b.table.tokens[l], 8);
  assert_int_equal(b.table.calls, 3 + 3 + 3 + 3 + 3 + 3 + 3 + 2 + 1);
}

static void test_target(void **state) {
  (void)state;
  struct bench b;
  char order[64];
  /* Losses on the way: -1 0 2 4 6 10 11 16 22. A loss equal to the target is still allowed. */
  const struct {
    double target;
    const char *order;
  } cases[] = {{-2, ""}, {-1, "2"}, {3.5, "201"}, {4, "2011"}, {9.9, "20112"}, {22, "201120012"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int lazy = 0; lazy < 2; lazy++) {
      fill_by_hand(&b);
      begin(&b, 3, 8, 32, cases[i].target, lazy, false);
      const enum wn_greedy_verdict end = run(&b, order, NULL);
      if (lazy && i >= 4) continue; /* increases that shrink: the lazy search goes another way */
      assert_string_equal(order, cases[i].order);
      assert_int_equal(end, cases[i].target < 22 ? WN_GREEDY_AT_TARGET : WN_GREEDY_AT_FLOOR);
    }
}

/* A budget never goes below one step, whether or not the context is a multiple of it. */
static void test_floor(void **state) {
  (void)state;
  struct bench b;
  char order[64];
  memset(&b, 0, sizeof b);
  begin(&b, 2, 8, 27, INFINITY, false, false);
  assert_int_equal(run(&b, order, NULL), WN_GREEDY_AT_FLOOR);
  assert_string_equal(order, "0011"); /* 27, 19, 11; nothing costs anything, so the lowest layer goes first */
  assert_int_equal(b.table.tokens[0], 11);
  begin(&b, 1, 8, 15, INFINITY, false, false);
  assert_int_equal(run(&b, order, NULL), WN_GREEDY_AT_FLOOR);
  assert_string_equal(order, "");
}

static void fill_random(struct bench *b, uint64_t seed, bool growing) {
  memset(b, 0, sizeof *b);
  b->table.noise = growing ? 0 : 0.5;
  for (uint64_t l = 0; l < LAYERS_MAX; l++)
    for (uint64_t n = 1; n < 64; n++) {
      const double x = wn_random_uniform(seed, WN_STREAM_TEST, l, n);
      const double last = b->table.cost[l][n - 1] - (n > 1 ? b->table.cost[l][n - 2] : 0);
      b->table.cost[l][n] = b->table.cost[l][n - 1] + (growing ? last + x : x - 0.2);
    }
}

/* Every step equals that of a search through all layers. The lazy search does the same with fewer evaluations where
 * increases only grow; elsewhere the check reports each step that differs. */
static void test_random(void **state) {
  (void)state;
  struct bench b;
  char exact[512], lazy[512];
  int differing, seen = 0;
  for (uint64_t seed = 0; seed < 40; seed++)
    for (int growing = 0; growing < 2; growing++) {
      fill_random(&b, seed, growing);
      begin(&b, LAYERS_MAX, 4, 64, INFINITY, false, false);
      int64_t at[LAYERS_MAX];
      for (int l = 0; l < LAYERS_MAX; l++) at[l] = 64;
      assert_int_equal(run(&b, exact, NULL), WN_GREEDY_AT_FLOOR);
      const int calls = b.table.calls;
      for (int i = 0; exact[i]; i++) {
        int best = -1;
        double least = INFINITY;
        for (int l = LAYERS_MAX - 1; l >= 0; l--) {
          if (at[l] < 8) continue;
          at[l] -= 4;
          const double loss = loss_of(&b.table, at);
          at[l] += 4;
          if (loss <= least) least = loss, best = l;
        }
        assert_int_equal(exact[i] - '0', best);
        at[best] -= 4;
      }
      begin(&b, LAYERS_MAX, 4, 64, INFINITY, true, false);
      assert_int_equal(run(&b, lazy, NULL), WN_GREEDY_AT_FLOOR);
      assert_true(b.table.calls < calls);
      if (growing) assert_string_equal(lazy, exact);
      begin(&b, LAYERS_MAX, 4, 64, INFINITY, true, true);
      assert_int_equal(run(&b, lazy, &differing), WN_GREEDY_AT_FLOOR);
      if (growing) assert_int_equal(differing, 0);
      if (strcmp(lazy, exact)) assert_true(differing > 0);
      seen += differing;
    }
  assert_true(seen > 0);
}

/* The lazy search does not stop at the target while lowering another layer would still stay within it. */
static void test_lazy_target(void **state) {
  (void)state;
  struct bench b;
  char order[512];
  int stopped = 0;
  for (uint64_t seed = 0; seed < 60; seed++) {
    fill_random(&b, seed, false);
    begin(&b, LAYERS_MAX, 4, 64, 0, true, false);
    b.greedy.target = b.greedy.loss + 0.1 * (double)(seed % 8);
    if (run(&b, order, NULL) != WN_GREEDY_AT_TARGET) continue;
    stopped++;
    for (int l = 0; l < LAYERS_MAX; l++) {
      if (b.table.tokens[l] < 8) continue;
      b.table.tokens[l] -= 4;
      assert_true(loss_of(&b.table, b.table.tokens) > b.greedy.target);
      b.table.tokens[l] += 4;
    }
  }
  assert_true(stopped > 10);
}

static wn_status refuse(void *user, int64_t layer, int64_t to, double *loss) {
  (void)user, (void)layer, (void)to, (void)loss;
  return WN_ERR_CANCELLED;
}

static void test_failure(void **state) {
  (void)state;
  struct bench b;
  struct wn_greedy_choice choice;
  fill_by_hand(&b);
  begin(&b, 3, 8, 32, INFINITY, false, false);
  b.greedy.evaluate = refuse;
  assert_int_equal(wn_greedy_choose(&b.greedy, &choice), WN_ERR_CANCELLED);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_order),       cmocka_unit_test(test_target),
                                     cmocka_unit_test(test_floor),       cmocka_unit_test(test_random),
                                     cmocka_unit_test(test_lazy_target), cmocka_unit_test(test_failure)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
