/* Several sessions step together. Whichever take part, each gets to the bit what it gets alone, and holds the same
 * tokens afterwards: for every model, cache, budget and policy; with sessions that join and leave; on long texts, whose
 * attention is divided among threads. A refused call changes nothing. A step allocates nothing. */
#include "model/budget_choices.h"
#include "winnow/generate.h"
#include "winnow/measure.h"
#include "winnow/score.h"
#include "winnow/session_group.h"

enum { V = 13, CONTEXT = 16, MOST = 2 * (CHOICES + 2), STEPS = 9 };

/* Pairs of sessions: one steps alone, the other with others. */
struct pair {
  char name[120];
  wn_session *alone, *together;
  int64_t prompt;
};
struct pairs {
  struct pair of[MOST];
  int count;
  wn_session_group *group; /* the group that steps, in whose memory prompts are read */
};

static int32_t token_of(uint64_t pair, uint64_t at) {
  return (int32_t)wn_random_below(8, WN_STREAM_TEST, pair, at, V);
}

/* tau 0: the model's own threshold. */
static void pair_add_tau(wn_context *ctx, wn_model *model, const wn_budgets *budgets, wn_cache_format cache, double tau,
                         int64_t capacity, const char *name, struct pairs *out) {
  wn_session_options options = {
      .size = sizeof options, .sequences = 1, .capacity = capacity, .budgets = budgets, .cache = cache, .tau = tau};
  struct pair *p = &out->of[out->count];
  assert_true(out->count < MOST);
  snprintf(p->name, sizeof p->name, "%s", name);
  OK(ctx, wn_session_create(ctx, model, &options, &p->alone));
  options.group = out->group;
  OK(ctx, wn_session_create(ctx, model, &options, &p->together));
  out->count++;
}

static void pair_add(wn_context *ctx, wn_model *model, const wn_budgets *budgets, wn_cache_format cache,
                     int64_t capacity, const char *name, struct pairs *out) {
  pair_add_tau(ctx, model, budgets, cache, 0, capacity, name, out);
}

/* Without budgets and under every budget that suits the model, in floats and in the format `stored` (AUTO: not). */
static void pairs_make(wn_context *ctx, wn_model *model, wn_cache_format stored, struct pairs *out) {
  const bool too = stored != WN_CACHE_AUTO;
  out->count = 0;
  OK(ctx, wn_session_group_create(ctx, model, MOST, &out->group));
  pair_add(ctx, model, NULL, WN_CACHE_FLOAT, CONTEXT, "everything", out);
  if (too) pair_add(ctx, model, NULL, stored, CONTEXT, wn_cache_format_name(stored), out);
  for (int i = 0; i < CHOICES; i++) {
    char name[120];
    wn_budgets b;
    if (!fits(&choices[i], &model->config)) continue;
    budgets_of(&choices[i], &model->config, 3 + i % 3, &b);
    snprintf(name, sizeof name, "choice %d, %s", i, wn_policy_name(choices[i].policy));
    pair_add(ctx, model, &b, WN_CACHE_FLOAT, CONTEXT, name, out);
    if (too && !choices[i].cache_positions) pair_add(ctx, model, &b, stored, CONTEXT, name, out);
    wn_budgets_clear(&b);
  }
  for (int i = 0; i < out->count; i++) { /* prompts of unequal lengths */
    int32_t prompt[CONTEXT];
    struct pair *p = &out->of[i];
    p->prompt = 1 + i % 5;
    for (int64_t t = 0; t < p->prompt; t++) prompt[t] = token_of((uint64_t)i, (uint64_t)t);
    OK(ctx, wn_session_feed(ctx, p->alone, prompt, p->prompt, 0, NULL));
    OK(ctx, wn_session_feed(ctx, p->together, prompt, p->prompt, 0, NULL));
  }
}

static void pairs_clear(struct pairs *x) {
  for (int i = 0; i < x->count; i++) wn_session_destroy(x->of[i].alone), wn_session_destroy(x->of[i].together);
  wn_session_group_destroy(x->group);
}

static void pair_same(const char *model, const struct pair *p, const char *what, const float *alone,
                      const float *together) {
  if (memcmp(alone, together, V * sizeof *alone))
    fail_msg("%s, %s: %s differs from the session alone", model, p->name, what);
}

/* Which sessions take part, and in which order, changes with every step. */
static int step_order(const struct pairs *x, int step, int *out) {
  int n = 0;
  for (int k = 0; k < x->count; k++) {
    const int i = step % 2 ? x->count - 1 - k : k;
    if (step == 0 || (i + step) % 4 != 0) out[n++] = i;
  }
  return n;
}

static void pairs_step(wn_context *ctx, const char *name, struct pairs *x, int step) {
  static float alone[MOST][V], together[MOST][V];
  wn_session_row rows[MOST];
  int order[MOST];
  const int n = step_order(x, step, order);
  for (int k = 0; k < n; k++) {
    struct pair *p = &x->of[order[k]];
    const int32_t token = token_of((uint64_t)order[k], (uint64_t)(100 + step));
    OK(ctx, wn_session_feed(ctx, p->alone, &token, 1, 0, alone[k]));
    rows[k] = (wn_session_row){.session = p->together, .token = token, .logits = k % 5 == 4 ? NULL : together[k]};
  }
  OK(ctx, wn_session_group_feed(ctx, x->group, rows, n));
  for (int k = 0; k < n; k++) {
    struct pair *p = &x->of[order[k]];
    double expected, found;
    const int32_t next = token_of(7, (uint64_t)step);
    const wn_scores one = {.size = sizeof one, .log_probability = &expected},
                    other = {.size = sizeof other, .log_probability = &found};
    assert_int_equal(rows[k].status, WN_OK);
    assert_int_equal(wn_session_position(p->together), wn_session_position(p->alone));
    if (rows[k].logits) pair_same(name, p, "a step", alone[k], together[k]);
    OK(ctx, wn_session_score_next(ctx, p->alone, &next, 1, &one));
    OK(ctx, wn_session_score_next(ctx, p->together, &next, 1, &other));
    assert_true(expected == found);
  }
}

static void check_stored(wn_context *ctx, const struct model_case *k, wn_dtype dtype, bool control, int64_t head_size,
                         wn_cache_format stored) {
  wn_model_config c = model_case_config(k);
  if (head_size) c.head_size = head_size;
  struct wn_model *model = model_of(ctx, &c, dtype);
  const int32_t controls[] = {2, 5, 9};
  struct pairs x;
  if (control) OK(ctx, wn_model_set_control_tokens(ctx, model, controls, 3));
  wn_session *probe = NULL;
  const wn_session_options options = {.size = sizeof options, .sequences = 1, .cache = stored};
  const bool served = wn_session_create(ctx, model, &options, &probe) == WN_OK; /* not with every mechanism */
  wn_session_destroy(probe);
  pairs_make(ctx, model, served ? stored : WN_CACHE_AUTO, &x);
  for (int step = 0; step < STEPS; step++) pairs_step(ctx, k->name, &x, step);
  for (int i = 0; i < x.count; i++) { /* what they hold: both continue alone with a piece */
    float alone[V], together[V];
    const int32_t piece[] = {1, 4, 3};
    const int64_t left = CONTEXT - wn_session_position(x.of[i].alone), n = left < 3 ? left : 3;
    if (n == 0) continue;
    OK(ctx, wn_session_feed(ctx, x.of[i].alone, piece, n, 0, alone));
    OK(ctx, wn_session_feed(ctx, x.of[i].together, piece, n, 0, together));
    pair_same(k->name, &x.of[i], "a piece after the steps", alone, together);
  }
  pairs_clear(&x);
  wn_model_destroy(model);
}

static void check_model(wn_context *ctx, const struct model_case *k, wn_dtype dtype, bool control) {
  check_stored(ctx, k, dtype, control, 0, WN_CACHE_HALF);
}

static void test_cpu(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  for (int k = 0; k < MODEL_CASES; k++) check_model(ctx, &model_cases[k], WN_F32, false);
  wn_context_destroy(ctx);
}

/* Caches in blocks, whose heads have 32 numbers or more. */
static void test_blocks(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const int cases[] = {1, 5, 7};
  for (int i = 0; i < 3; i++) {
    check_stored(ctx, &model_cases[cases[i]], WN_F32, false, 32, WN_CACHE_Q8_0);
    check_stored(ctx, &model_cases[cases[i]], WN_F32, false, 64, WN_CACHE_Q4_0);
  }
  wn_context_destroy(ctx);
}

static void test_ref(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  for (int k = 0; k < MODEL_CASES; k += 3) check_model(ctx, &model_cases[k], most_exact(ctx), false);
  wn_context_destroy(ctx);
}

/* A threshold with control tokens that it always keeps. */
static void test_control_tokens(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  int found = 0;
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    if (!c.attention.threshold.enabled) continue;
    check_model(ctx, &model_cases[k], WN_F32, true);
    found++;
  }
  assert_true(found > 0);
  wn_context_destroy(ctx);
}

/* Sessions with their own thresholds, and one without any, next to those with the model's. */
static void test_own_thresholds(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct pairs x = {.count = 0};
  wn_budgets b;
  budgets_of(&choices[1], &c, 4, &b);
  OK(ctx, wn_session_group_create(ctx, model, MOST, &x.group));
  const double taus[] = {0, 0.3, 0.7, 1, WN_TAU_NONE};
  for (int i = 0; i < 5; i++) pair_add_tau(ctx, model, NULL, WN_CACHE_FLOAT, taus[i], CONTEXT, "a threshold", &x);
  pair_add_tau(ctx, model, &b, WN_CACHE_FLOAT, 0.5, CONTEXT, "a threshold under a budget", &x);
  for (int step = 0; step < STEPS; step++) pairs_step(ctx, "thresholds", &x, step);
  pairs_clear(&x);
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Beyond the model's table of rotary angles, where `dynamic` scaling gives each text its own angles. */
static void test_own_angles(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c = model_case_config(&model_cases[1]);
  c.rope_scaling.type = WN_ROPE_DYNAMIC;
  c.rope_scaling.factor = 2;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct pairs x = {.count = 0};
  const int64_t lengths[] = {CONTEXT, 40, 90, 24};
  OK(ctx, wn_session_group_create(ctx, model, 4, &x.group));
  for (int i = 0; i < 4; i++) pair_add(ctx, model, NULL, WN_CACHE_FLOAT, lengths[i], "a text of its own length", &x);
  for (int step = 0; step < STEPS; step++) pairs_step(ctx, "dynamic angles", &x, step);
  pairs_clear(&x);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* 1 to 40 long texts: one thread, several threads, and each session on its own thread. */
static void test_long_texts(void **state) {
  enum { LONG = 700, MANY = 40, PIECE = 32 };
  static int32_t prompt[LONG];
  static float expected[MANY][V], found[MANY][V];
  (void)state;
  for (int threads = 1; threads <= 3; threads++) {
    wn_context *ctx = context_of("cpu", threads);
    wn_model_config c = model_case_config(&model_cases[1]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_session_group *group;
    wn_session *s[MANY];
    wn_session_row rows[MANY];
    OK(ctx, wn_session_group_create(ctx, model, MANY, &group));
    for (int i = 0; i < MANY; i++) {
      const wn_session_options options = {
          .size = sizeof options, .sequences = 1, .capacity = LONG + 8, .group = i % 2 ? group : NULL};
      OK(ctx, wn_session_create(ctx, model, &options, &s[i]));
      for (int64_t t = 0; t < LONG; t++) prompt[t] = token_of((uint64_t)i, (uint64_t)t);
      const int64_t n = i % 4 == 3 ? 1 + i : LONG - 13 * i;
      /* Products of so few rows run on one thread. Larger ones may differ in the last digit with how they are divided.
       */
      for (int64_t t = 0; t < n; t += PIECE)
        OK(ctx, wn_session_feed(ctx, s[i], prompt + t, n - t < PIECE ? n - t : PIECE, 0, NULL));
    }
    for (int n = 1; n <= MANY; n += n < 3 ? 1 : 37) {
      wn_session *copy[MANY];
      for (int i = 0; i < n; i++) {
        const wn_session_options options = {.size = sizeof options, .sequences = 1, .capacity = LONG + 8};
        OK(ctx, wn_session_create(ctx, model, &options, &copy[i]));
        OK(ctx, wn_session_copy(ctx, copy[i], s[i], NULL));
        const int32_t token = token_of(3, (uint64_t)i);
        rows[i] = (wn_session_row){.session = copy[i], .token = token, .logits = found[i]};
      }
      OK(ctx, wn_session_group_feed(ctx, group, rows, n));
      for (int i = 0; i < n; i++) {
        OK(ctx, wn_session_copy(ctx, copy[i], s[i], NULL));
        if (threads == 1 && n == MANY) OK(ctx, wn_session_feed(ctx, copy[i], &rows[i].token, 1, 0, expected[i]));
        wn_session_destroy(copy[i]);
      }
      if (threads == 1 && n < MANY) continue;
      for (int i = 0; i < n; i++)
        if (memcmp(expected[i], found[i], sizeof found[i]))
          fail_msg("%d threads, session %d of %d differs from the session alone on one thread", threads, i, n);
    }
    for (int i = 0; i < MANY; i++) wn_session_destroy(s[i]);
    wn_session_group_destroy(group);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* A session of a group owns its cache and what a step needs. Prompts are read in the group's memory, which is as large
 * as the largest session needs and is freed with the group. */
static void test_memory_of_the_group(void **state) {
  enum { LONG = 300 };
  static int32_t prompt[LONG];
  float alone[V], shared[V];
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session_group *group;
  wn_session *s[3], *own;
  unsigned long long at[5], peak;
  const int64_t lengths[] = {40, LONG, LONG};
  OK(ctx, wn_session_group_create(ctx, model, 3, &group));
  for (int64_t t = 0; t < LONG; t++) prompt[t] = token_of(1, (uint64_t)t);
  for (int i = 0; i < 3; i++) {
    const wn_session_options options = {.size = sizeof options, .sequences = 1, .capacity = lengths[i], .group = group};
    OK(ctx, wn_context_memory(ctx, &at[i], &peak));
    OK(ctx, wn_session_create(ctx, model, &options, &s[i]));
    if (i == 1) OK(ctx, wn_session_feed(ctx, s[0], prompt, lengths[0], 0, NULL)); /* the group's memory has moved */
  }
  OK(ctx, wn_context_memory(ctx, &at[3], &peak));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = LONG), &own));
  OK(ctx, wn_context_memory(ctx, &at[4], &peak));
  assert_true(at[3] - at[2] < at[2] - at[1]); /* the second long one adds no such memory */
  assert_true(at[3] - at[2] < 2 * wn_session_kv_bytes(s[2]));
  assert_true(at[4] - at[3] > at[3] - at[2] + 256 * (uint64_t)c.width * 4); /* a session without a group does */
  OK(ctx, wn_session_feed(ctx, own, prompt, LONG, 0, alone));
  OK(ctx, wn_session_feed(ctx, s[2], prompt, 130, 0, NULL));
  OK(ctx, wn_session_feed(ctx, s[1], prompt, LONG, 0, shared)); /* in between */
  assert_memory_equal(alone, shared, sizeof alone);
  wn_session_reset(s[2]);
  OK(ctx, wn_session_feed(ctx, s[2], prompt, LONG, 0, shared));
  assert_memory_equal(alone, shared, sizeof alone);
  for (int i = 0; i < 3; i++) wn_session_destroy(s[i]);
  wn_session_destroy(own);
  wn_session_group_destroy(group);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *model = model_of(ctx, &c, WN_F32), *other = model_of(ctx, &c, WN_F32);
  wn_session *s, *t, *two, *foreign;
  wn_session_group *g;
  float logits[V];
  assert_int_equal(wn_session_group_create(ctx, model, 0, &g), WN_ERR_ARGUMENT);
  assert_null(g);
  OK(ctx, wn_session_group_create(ctx, model, 2, &g));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 2), &s));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 2), &t));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = 2, .capacity = 2), &two));
  OK(ctx, wn_session_create(ctx, other, WN_OPTIONS(wn_session_options, .capacity = 2), &foreign));
  wn_session *none;
  const wn_session_options wrong_group = {.size = sizeof wrong_group, .sequences = 1, .capacity = 2, .group = g};
  assert_int_equal(wn_session_create(ctx, other, &wrong_group, &none), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "the options' group is of another model"));
  assert_null(none);
  const struct {
    wn_session *second;
    int32_t token;
    int64_t n;
    wn_status status;
    const char *says;
  } wrong[] = {{t, V, 2, WN_ERR_ARGUMENT, "token"},
               {t, -1, 2, WN_ERR_ARGUMENT, "token"},
               {s, 0, 2, WN_ERR_ARGUMENT, "rows 0 and 1 are of the same session"},
               {two, 0, 2, WN_ERR_UNSUPPORTED, "session 1 has 2 sequences"},
               {foreign, 0, 2, WN_ERR_ARGUMENT, "session 1 is of another model"},
               {t, 0, 3, WN_ERR_ARGUMENT, "3 sessions, expected 1 to 2"},
               {t, 0, 0, WN_ERR_ARGUMENT, "0 sessions, expected 1 to 2"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    wn_session_row rows[3] = {{.session = s, .logits = logits, .status = WN_OK},
                              {.session = wrong[i].second, .token = wrong[i].token},
                              {.session = t}};
    assert_int_equal(wn_session_group_feed(ctx, g, rows, wrong[i].n), wrong[i].status);
    if (!strstr(wn_context_error(ctx), wrong[i].says))
      fail_msg("\"%s\" lacks \"%s\"", wn_context_error(ctx), wrong[i].says);
    for (int64_t k = 0; k < wrong[i].n; k++) assert_int_equal(rows[k].status, wrong[i].status);
    assert_int_equal(wn_session_position(s), 0);
    assert_int_equal(wn_session_position(t), 0);
  }
  wn_session_row rows[2] = {{.session = s, .token = 1}, {.session = t, .token = 2, .logits = logits}};
  OK(ctx, wn_session_group_feed(ctx, g, rows, 2)); /* the refusals have broken nothing */
  OK(ctx, wn_session_group_feed(ctx, g, rows, 1));
  assert_int_equal(wn_session_group_feed(ctx, g, rows, 2), WN_ERR_ARGUMENT); /* the first session is full */
  assert_int_equal(wn_session_position(t), 1);
  wn_session_destroy(s), wn_session_destroy(t), wn_session_destroy(two), wn_session_destroy(foreign);
  wn_session_group_destroy(g);
  wn_session_group_destroy(NULL);
  wn_model_destroy(model), wn_model_destroy(other);
  wn_context_destroy(ctx);
}

static void test_no_allocation(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = model_case_config(&model_cases[5]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_memory_info before, after;
  struct pairs x;
  pairs_make(ctx, model, WN_CACHE_AUTO, &x);
  wn_session_row rows[MOST];
  static float logits[MOST][V];
  wn_memory_info_get(&before);
  for (int step = 0; step < STEPS; step++) {
    for (int i = 0; i < x.count; i++)
      rows[i] = (wn_session_row){.session = x.of[i].together, .token = step, .logits = logits[i]};
    OK(ctx, wn_session_group_feed(ctx, x.group, rows, x.count));
  }
  wn_memory_info_get(&after);
  assert_int_equal(before.total_allocations, after.total_allocations);
  pairs_clear(&x);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cpu),
      cmocka_unit_test(test_blocks),
      cmocka_unit_test(test_ref),
      cmocka_unit_test(test_control_tokens),
      cmocka_unit_test(test_own_thresholds),
      cmocka_unit_test(test_own_angles),
      cmocka_unit_test(test_long_texts),
      cmocka_unit_test(test_memory_of_the_group),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_no_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
