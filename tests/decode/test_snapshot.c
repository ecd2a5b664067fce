/* Snapshots: a session that returns to one continues with the same bits as a session that has read the text itself, in
 * every configuration and under every policy, also when the two have different capacities. And where prompts are cut
 * into pieces. */
#include "model/models.h"

#include "decode/session.h"
#include "decode/snapshot.h"
#include "support.h"
#include "winnow/generate.h"
#include "policies.h"

enum { V = 13, READ = 9, EARLY = 5, TAIL = 8, CONTEXT = 48 };

static void random_tokens(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

static wn_session *session_with(wn_context *ctx, wn_model *model, wn_policy policy, const char *options,
                                const char *budget, int64_t capacity) {
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  b.policy = policy;
  if (options) OK(ctx, wn_budgets_set(ctx, options, &b));
  if (budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  OK(ctx, wn_session_create(ctx, model,
                            WN_OPTIONS(wn_session_options, .capacity = capacity, .budgets = budget ? &b : NULL), &s));
  wn_budgets_clear(&b);
  return s;
}

/* The text's beginning, in the pieces in which prompts are read. */
static void read_beginning(wn_context *ctx, wn_session *s, const int32_t *ids, int n) {
  OK(ctx, wn_session_feed(ctx, s, ids, EARLY, 0, NULL));
  if (n > EARLY) OK(ctx, wn_session_feed(ctx, s, ids + EARLY, n - EARLY, 0, NULL));
}

/* Continues with a piece, then token by token. */
static void continue_with(wn_context *ctx, wn_session *s, const int32_t *tail, float *logits) {
  OK(ctx, wn_session_feed(ctx, s, tail, 4, 0, logits));
  for (int i = 4; i < TAIL; i++) OK(ctx, wn_session_feed(ctx, s, tail + i, 1, 0, logits + (i - 3) * V));
}

static void check_continues(wn_context *ctx, wn_model *model, const char *name, wn_policy policy, const char *budget) {
  int32_t ids[READ + TAIL], other[READ];
  float expected[TAIL * V], found[TAIL * V];
  random_tokens((uint64_t)policy + 40, ids, READ + TAIL);
  random_tokens((uint64_t)policy + 41, other, READ);
  wn_session *from = session_with(ctx, model, policy, NULL, budget, 30),
             *to = session_with(ctx, model, policy, NULL, budget, 44);
  struct wn_snapshot *x;
  read_beginning(ctx, from, ids, READ);
  OK(ctx, wn_snapshot_take(ctx, from, READ, &x));
  OK(ctx, wn_session_feed(ctx, from, other, READ, 0, NULL)); /* continues; the snapshot stays */
  read_beginning(ctx, to, other, READ);
  if (!wn_snapshot_suits(x, to)) { /* the larger session has a window where the smaller one held everything */
    wn_session_destroy(to);
    to = session_with(ctx, model, policy, NULL, budget, 30);
  }
  assert_true(wn_snapshot_suits(x, to));
  for (int n = READ; n >= EARLY; n -= READ - EARLY) {
    if (n < READ && !wn_snapshot_rolls_back(to)) break;
    memset(found, 0x55, sizeof found);
    wn_session *alone = session_with(ctx, model, policy, NULL, budget, 30);
    read_beginning(ctx, alone, ids, n);
    continue_with(ctx, alone, other, expected);
    OK(ctx, wn_snapshot_restore(x, n, to));
    assert_int_equal(wn_session_position(to), n);
    continue_with(ctx, to, other, found);
    if (memcmp(expected, found, (TAIL - 3) * V * sizeof *found) != 0)
      fail_msg("%s, policy %s, budget %s, at %d: other logits", name, wn_policy_name(policy), budget ? budget : "none",
               n);
    wn_session_destroy(alone);
  }
  wn_snapshot_destroy(x);
  wn_session_destroy(from);
  wn_session_destroy(to);
}

static void test_continues(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *ctx = context_of("cpu", 1);
    wn_model_config c = model_case_config(&model_cases[k]);
    c.context = CONTEXT;
    c.recurrence = 0;
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    for (wn_policy p = 0; p < wn_policy_count(); p++) {
      if (p == 0) check_continues(ctx, model, model_cases[k].name, p, NULL);
      if (!wn_policy_suits(p, &c.attention)) continue;
      check_continues(ctx, model, model_cases[k].name, p, "4");
      if (k % 4 == p % 4) check_continues(ctx, model, model_cases[k].name, p, "20,6");
    }
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* A snapshot's size depends on the text, not on the session. It suits sessions that were created in the same way. */
static void test_what_suits(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]);
  c.context = 4096;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[READ];
  random_tokens(3, ids, READ);
  static const struct {
    const char *policy, *options, *budget;
  } kinds[] = {{"window", NULL, NULL},      {"window", NULL, "4"},         {"window", NULL, "5"},
               {"window", NULL, "4,5"},     {"streaming", NULL, "4"},      {"h2o", NULL, "4"},
               {"h2o", "recent=0.25", "4"}, {"streaming", "sinks=2", "4"}, {"h2o", "per_kv_head=true", "4"},
               {"random", NULL, "4"},       {"random", "seed=7", "4"},     {"snapkv", NULL, "4"}};
  enum { KINDS = sizeof kinds / sizeof *kinds };
  wn_session *sessions[KINDS];
  struct wn_snapshot *snapshots[KINDS];
  for (int i = 0; i < KINDS; i++) {
    wn_policy p;
    assert_int_equal(wn_policy_find(NULL, kinds[i].policy, &p), WN_OK);
    sessions[i] = session_with(ctx, model, p, kinds[i].options, kinds[i].budget, i == 0 ? 4000 : 40);
    read_beginning(ctx, sessions[i], ids, READ);
    OK(ctx, wn_snapshot_take(ctx, sessions[i], READ, &snapshots[i]));
    assert_true(wn_snapshot_need(sessions[i], READ) <
                16384 + wn_session_kv_bytes(sessions[i]) * (i == 0 ? READ : 40) / (i == 0 ? 4000 : 40));
  }
  for (int i = 0; i < KINDS; i++)
    for (int j = 0; j < KINDS; j++)
      if (wn_snapshot_suits(snapshots[i], sessions[j]) != (i == j)) fail_msg("%d and %d", i, j);
  wn_session *half;
  OK(ctx, wn_session_create(
              ctx, model,
              &(wn_session_options){
                  .size = sizeof(wn_session_options), .sequences = 1, .capacity = 4000, .cache = WN_CACHE_HALF},
              &half));
  assert_false(wn_snapshot_suits(snapshots[0], half));
  wn_session_destroy(half);
  struct wn_snapshot *x;
  assert_refused(ctx, wn_snapshot_take(ctx, sessions[1], READ - 1, &x), WN_ERR_ARGUMENT, "does not know its state");
  assert_refused(ctx, wn_snapshot_take(ctx, sessions[0], READ + 1, &x), WN_ERR_ARGUMENT, "does not know its state");
  for (int i = 0; i < KINDS; i++) wn_snapshot_destroy(snapshots[i]), wn_session_destroy(sessions[i]);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Pieces end at position 128 and at multiples of 256, wherever the prompt begins. */
static void test_places(void **state) {
  (void)state;
  static const int64_t rows[][3] = {{0, 128, 0},     {1, 128, 0},     {127, 128, 0},   {128, 256, 128},
                                    {255, 256, 128}, {256, 512, 256}, {511, 512, 256}, {512, 768, 512}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(wn_session_place_after(rows[i][0]), rows[i][1]);
    assert_int_equal(wn_session_place_before(rows[i][0]), rows[i][2]);
  }
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]);
  c.context = 800;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *s = session_with(ctx, model, 0, NULL, NULL, 800);
  int32_t ids[700];
  random_tokens(8, ids, 700);
  OK(ctx, wn_session_feed(ctx, s, ids, 5, 0, NULL));
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = ids, o.prompt_count = 700, o.max_tokens = 1;
  wn_generation *g;
  OK(ctx, wn_generation_create(ctx, s, &o, &g));
  for (int64_t at = 5; at < 705;) {
    bool more;
    const int64_t next = wn_session_place_after(at);
    OK(ctx, wn_generation_step(ctx, g, &more));
    at = next < 705 ? next : 705;
    assert_int_equal(wn_session_position(s), at);
  }
  wn_generation_destroy(g);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_continues),
      cmocka_unit_test(test_what_suits),
      cmocka_unit_test(test_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
