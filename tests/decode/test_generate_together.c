/* Many generations that step together: tokens, log probabilities, texts and ends equal those of wn_session_generate
 * alone, whichever others join and leave; prompts are read in order, a piece at a time; a generation that fails or is
 * cancelled does not change the others. */
#include "model/budget_choices.h"
#include "winnow/generate.h"
#include "policies.h"

enum { V = 64, CONTEXT = 512, MANY = 14, TOKENS = 24 };

/* Everything that a generation hands out. */
struct heard {
  int64_t tokens;
  int32_t ids[TOKENS];
  double log_probability[TOKENS];
  int64_t ruin, stop; /* draw at which logits become NaN or the callback stops; -1: none */
};

static bool on_piece(void *user, const wn_generate_piece *piece) {
  struct heard *h = user;
  assert_true(h->tokens < TOKENS && piece->index == h->tokens);
  h->ids[h->tokens] = piece->id;
  h->log_probability[h->tokens++] = piece->log_probability;
  return h->tokens - 1 != h->stop;
}
static void on_logits(void *user, int64_t index, float *logits, int64_t n) {
  const struct heard *h = user;
  logits[index % n] += 0.5f;
  if (index == h->ruin) logits[3] = NAN;
}

struct member {
  int32_t prompt[CONTEXT];
  wn_generate_options options;
  wn_budgets budgets;
  struct heard heard;
  wn_session *session;
  wn_generation *generation;
  bool joined, over;
};

static wn_session *member_session(wn_context *ctx, wn_model *model, const struct member *m) {
  wn_session *s;
  const wn_session_options room = {.size = sizeof room,
                                   .sequences = 1,
                                   .capacity = m->options.prompt_count + TOKENS,
                                   .budgets = m->budgets.layers ? &m->budgets : NULL};
  OK(ctx, wn_session_create(ctx, model, &room, &s));
  return s;
}

/* Prompts of 1 to 400 tokens, every third one under a budget, greedy and sampled. */
static void member_make(const wn_model *model, int i, struct member *m) {
  static const int64_t lengths[] = {1, 300, 17, 400, 128, 5, 129};
  memset(m, 0, sizeof *m);
  wn_generate_options_init(&m->options, sizeof m->options);
  m->options.prompt = m->prompt;
  m->options.prompt_count = lengths[i % 7];
  for (int64_t t = 0; t < CONTEXT; t++)
    m->prompt[t] = (int32_t)wn_random_below(4, WN_STREAM_TEST, (uint64_t)i, (uint64_t)t, V);
  m->options.max_tokens = i % 5 == 4 ? 0 : TOKENS - i % 4;
  m->options.sampling = (wn_sampling){.temperature = i % 2 ? 0.9 : 0, .top_p = 0.95, .seed = (uint64_t)i};
  m->options.log_probabilities = true;
  m->options.piece = on_piece;
  if (i % 4 == 1) m->options.logits = on_logits;
  m->options.user = &m->heard;
  m->heard.ruin = m->heard.stop = -1;
  budgets_init(&m->budgets);
  if (i % 3 == 2) budgets_of(&choices[1 + i % 5], &model->config, 20, &m->budgets);
}

static void members_compare(const struct member *x, const struct heard *expected, const wn_generate_result *alone,
                            int i) {
  const wn_generate_result *r = wn_generation_result(x->generation);
  if (r->end != alone->end || r->tokens != alone->tokens || r->steps != alone->steps || r->unfed != alone->unfed ||
      r->prompt_tokens != alone->prompt_tokens)
    fail_msg("generation %d: end %d, %lld tokens; alone %d, %lld", i, r->end, (long long)r->tokens, alone->end,
             (long long)alone->tokens);
  if (x->heard.tokens != expected->tokens ||
      memcmp(x->heard.ids, expected->ids, (size_t)expected->tokens * sizeof *expected->ids) ||
      memcmp(x->heard.log_probability, expected->log_probability, (size_t)expected->tokens * sizeof(double)))
    fail_msg("generation %d: other tokens, or other log probabilities, than alone", i);
}

static wn_model *small_model(wn_context *ctx) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V;
  c.context = CONTEXT;
  return model_of(ctx, &c, WN_F32);
}

/* One step of all members that have joined and are not finished. Returns their number. */
static int step(wn_context *ctx, wn_session_group *group, struct member *x, int64_t pieces, wn_status expected) {
  wn_generation_turn turns[MANY];
  int of[MANY], n = 0;
  int64_t before[MANY], reading = 0, read = 0;
  for (int i = 0; i < MANY; i++) {
    if (!x[i].joined || x[i].over) continue;
    before[n] = wn_generation_result(x[i].generation)->prompt_tokens;
    turns[n] = (wn_generation_turn){.generation = x[i].generation};
    of[n++] = i;
  }
  if (n == 0) return 0;
  const wn_status status = wn_generation_step_together(ctx, group, turns, n, pieces);
  if (status != expected && status != WN_OK) fail_msg("a step: %s", wn_context_error(ctx));
  for (int k = 0; k < n; k++) {
    struct member *m = &x[of[k]];
    const int64_t now = wn_generation_result(m->generation)->prompt_tokens;
    if (before[k] < m->options.prompt_count) {
      reading++;
      assert_int_equal(turns[k].token, -1);
      assert_true(now > before[k] ? read == reading - 1 : true); /* the first in order read */
      read += now > before[k];
    }
    m->over = !turns[k].more;
    if (turns[k].status != WN_OK) assert_true(m->heard.ruin >= 0 && m->over);
  }
  assert_int_equal(read, pieces == 0 || reading < pieces ? reading : pieces);
  return n;
}

static void check(int threads, int64_t pieces, bool ruins) {
  static struct member x[MANY];
  static struct heard expected[MANY];
  wn_generate_result alone[MANY];
  wn_context *ctx = context_of("cpu", threads);
  wn_model *model = small_model(ctx);
  wn_session_group *group;
  OK(ctx, wn_session_group_create(ctx, model, MANY, &group));
  for (int i = 0; i < MANY; i++) {
    member_make(model, i, &x[i]);
    wn_session *s = member_session(ctx, model, &x[i]);
    if (ruins && i == 1) x[i].heard.ruin = 6;
    if (ruins && i == 3) x[i].heard.stop = 4;
    const wn_status status = wn_session_generate(ctx, s, &x[i].options, &alone[i]);
    assert_int_equal(status, ruins && i == 1 ? WN_ERR_ARGUMENT : WN_OK);
    expected[i] = x[i].heard;
    x[i].heard.tokens = 0;
    wn_session_destroy(s);
    x[i].session = member_session(ctx, model, &x[i]);
    OK(ctx, wn_generation_create(ctx, x[i].session, &x[i].options, &x[i].generation));
  }
  for (int round = 0, left = 1; left || round < 2 * MANY; round++) {
    if (round < 2 * MANY) x[(round * 5) % MANY].joined = true; /* one by one, out of order */
    left = step(ctx, group, x, pieces, ruins ? WN_ERR_ARGUMENT : WN_OK);
    assert_true(round < 400);
  }
  for (int i = 0; i < MANY; i++) {
    members_compare(&x[i], &expected[i], &alone[i], i);
    wn_generation_destroy(x[i].generation);
    wn_session_destroy(x[i].session);
    wn_budgets_clear(&x[i].budgets);
  }
  wn_session_group_destroy(group);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_same_as_alone(void **state) {
  (void)state;
  check(2, 1, false);
  check(1, 0, false);
  check(2, 3, false);
}

static void test_failures_are_ones_own(void **state) {
  (void)state;
  check(2, 1, true);
}

static void test_cancel(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model *model = small_model(ctx);
  wn_session_group *group;
  struct member x[2];
  wn_generation_turn turns[3] = {{0}}; /* one more than the group allows */
  OK(ctx, wn_session_group_create(ctx, model, 2, &group));
  for (int i = 0; i < 2; i++) {
    member_make(model, i, &x[i]);
    x[i].session = member_session(ctx, model, &x[i]);
    OK(ctx, wn_generation_create(ctx, x[i].session, &x[i].options, &x[i].generation));
    turns[i].generation = x[i].generation;
  }
  for (int round = 0; round < 4; round++) OK(ctx, wn_generation_step_together(ctx, group, turns, 2, 1));
  wn_context_cancel(ctx);
  OK(ctx, wn_generation_step_together(ctx, group, turns, 2, 1));
  for (int i = 0; i < 2; i++) {
    assert_false(turns[i].more);
    assert_int_equal(wn_generation_result(x[i].generation)->end, WN_GENERATE_CANCELLED);
  }
  wn_context_resume(ctx);
  turns[1].generation = turns[0].generation; /* refused turns */
  assert_int_equal(wn_generation_step_together(ctx, group, turns, 2, 1), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "turns 0 and 1 are of the same session"));
  assert_int_equal(wn_generation_step_together(ctx, group, turns, 3, 1), WN_ERR_ARGUMENT);
  for (int i = 0; i < 2; i++) {
    wn_generation_destroy(x[i].generation);
    wn_session_destroy(x[i].session);
  }
  wn_session_group_destroy(group);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_as_alone), cmocka_unit_test(test_failures_are_ones_own),
                                     cmocka_unit_test(test_cancel)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
