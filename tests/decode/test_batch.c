/* Random batches: pieces of prompts, single tokens, rows whose states are read (scores and embeddings come from these),
 * and tokens with guesses after them, of sessions with several budgets. Every row has the bits of a session that is fed
 * alone, whatever the others are, and whether the room takes them at once or not. */
#include "decode/batch.h"
#include "decode/session_ahead.h"
#include "model/budget_choices.h"

enum { V = 13, CONTEXT = 16, MOST = 7, GUESSES = 4, LEAST = 1000 };

struct member {
  wn_session *alone, *together;
  struct wn_feed one; /* what is fed alone */
  int32_t tokens[CONTEXT];
  float logits[2][V];
  char *states[2]; /* [CONTEXT,C] alone and together */
};
struct members {
  const char *name;
  struct member of[MOST];
  int count;
  struct wn_room room;
  uint64_t drawn;
};

static int64_t draw(struct members *x, int64_t n) {
  return (int64_t)wn_random_below(11, WN_STREAM_TEST, 5, x->drawn++, (uint32_t)n);
}

static wn_status keep_states(void *user, const struct wn_feed *f, const void *states) {
  const struct wn_model *m = f->session->model;
  const size_t bytes = (size_t)(f->T * m->config.width) * wn_dtype_size(m->dtype);
  return wn_memory_read(m->ctx, m->backend->memory, user, states, bytes);
}

static void member_add(wn_context *ctx, wn_model *model, const wn_budgets *budgets, wn_cache_format cache,
                       struct members *out) {
  struct member *m = &out->of[out->count];
  const wn_session_options options = {
      .size = sizeof options, .sequences = 1, .capacity = CONTEXT, .budgets = budgets, .cache = cache};
  if (out->count == MOST || wn_session_create(ctx, model, &options, &m->alone) != WN_OK) return;
  OK(ctx, wn_session_create(ctx, model, &options, &m->together));
  if (!budgets) OK(ctx, wn_session_ahead_open(ctx, m->together, GUESSES));
  for (int i = 0; i < 2; i++) m->states[i] = malloc((size_t)(CONTEXT * model->config.width) * sizeof(double));
  out->count++;
}

static void members_make(wn_context *ctx, wn_model *model, int k, struct members *out) {
  *out = (struct members){.name = model_cases[k].name, .drawn = (uint64_t)k << 32};
  for (int i = 0; i < 2; i++) member_add(ctx, model, NULL, WN_CACHE_FLOAT, out);
  member_add(ctx, model, NULL, WN_CACHE_HALF, out);
  for (int i = 0; i < CHOICES; i++) {
    const struct choice *c = &choices[(i + 5 * k) % CHOICES];
    wn_budgets b;
    if (!fits(c, &model->config)) continue;
    budgets_of(c, &model->config, 3 + i % 3, &b);
    if (i % 2) b.when = WN_WHEN_EVERY, b.every = 3;
    if (wn_budgets_check(ctx, &b, &model->config) == WN_OK) member_add(ctx, model, &b, WN_CACHE_FLOAT, out);
    wn_budgets_clear(&b);
  }
  OK(ctx, wn_batch_room(ctx, model, 2 * CONTEXT, CONTEXT, &out->room)); /* some batches need two passes */
}

static void members_clear(struct members *x) {
  for (int i = 0; i < x->count; i++) {
    wn_session_destroy(x->of[i].alone), wn_session_destroy(x->of[i].together);
    free(x->of[i].states[0]), free(x->of[i].states[1]);
  }
  wn_room_clear(&x->room);
}

/* Draws what a member feeds. False: nothing. */
static bool member_draw(struct members *x, struct member *m, struct wn_feed *feed) {
  wn_session *s = m->together;
  const int kind = (int)draw(x, 5);
  if (kind == 0 || s->position == CONTEXT) {
    wn_session_reset(m->alone), wn_session_reset(s);
    if (kind == 0) return false;
  }
  const int64_t left = CONTEXT - s->position, guesses = wn_session_ahead_room(s, GUESSES);
  const bool ahead = kind == 1 && s->ahead && guesses > 0;
  const int64_t most = ahead ? 1 + guesses : kind < 3 ? 1 : left;
  *feed = (struct wn_feed){.session = s,
                           .tokens = m->tokens,
                           .T = 1 + draw(x, most),
                           .ahead = ahead,
                           .logits = kind != 4,
                           .out = kind != 4 ? m->logits[1] : NULL,
                           .take = keep_states,
                           .user = m->states[1]};
  for (int64_t t = 0; t < feed->T; t++) m->tokens[t] = (int32_t)draw(x, V);
  return true;
}

static void member_same(const struct members *x, const struct wn_feed *feed, const char *what, const void *alone,
                        const void *together, size_t bytes) {
  if (memcmp(alone, together, bytes))
    fail_msg("%s, batch after draw %llu: %s of %lld rows after %lld differ from those alone", x->name,
             (unsigned long long)x->drawn, what, (long long)feed->T, (long long)feed->session->position);
}

/* Feeds the same tokens alone: the guesses as single tokens, of which the first `right` follow. */
static void member_compare(wn_context *ctx, struct members *x, struct member *m, const struct wn_feed *feed) {
  const struct wn_model *model = feed->session->model;
  const size_t row = (size_t)model->config.width * wn_dtype_size(model->dtype);
  float read[2][V];
  const int64_t right = feed->ahead ? draw(x, feed->T) : 0, passes = feed->ahead ? 1 + right : 1;
  for (int64_t j = 0; j < passes; j++) {
    struct wn_feed one = *feed;
    one.session = m->alone, one.ahead = false;
    one.tokens += j, one.T = feed->ahead ? 1 : feed->T;
    one.out = one.logits ? m->logits[0] : NULL, one.user = m->states[0];
    OK(ctx, wn_batch_run(ctx, m->alone->room, &one, 1));
    assert_int_equal(one.T, feed->ahead ? 1 : feed->T);
    member_same(x, feed, "states", m->states[0], m->states[1] + (size_t)j * row, (size_t)one.T * row);
    if (j > 0) OK(ctx, wn_session_ahead_take(m->together));
    for (int i = 0; i < 2 && feed->logits; i++)
      OK(ctx, wn_session_copy_logits(model, i ? m->together->logits : m->alone->logits, 1, read[i]));
    if (feed->logits) member_same(x, feed, "logits", read[0], read[1], sizeof read[0]);
    if (j == 0 && feed->logits) member_same(x, feed, "copied logits", m->logits[0], m->logits[1], sizeof m->logits[0]);
  }
  OK(ctx, wn_session_ahead_drop(m->together));
  assert_int_equal(m->alone->position, m->together->position);
}

static int check_model(wn_context *ctx, int k, wn_dtype dtype, int batches) {
  const wn_model_config c = model_case_config(&model_cases[k]);
  struct wn_model *model = model_of(ctx, &c, dtype);
  struct members x;
  int run = 0;
  members_make(ctx, model, k, &x);
  while (run < batches) {
    struct wn_feed feeds[MOST];
    struct member *of[MOST];
    int n = 0;
    const int first = (int)draw(&x, x.count);
    for (int i = 0; i < x.count; i++) {
      struct member *m = &x.of[(first + i) % x.count];
      if (member_draw(&x, m, &feeds[n])) of[n++] = m;
    }
    if (n == 0) continue;
    OK(ctx, wn_batch_check(ctx, model, feeds, n));
    OK(ctx, wn_batch_run(ctx, &x.room, feeds, n));
    for (int i = 0; i < n; i++) member_compare(ctx, &x, of[i], &feeds[i]);
    run++;
  }
  members_clear(&x);
  wn_model_destroy(model);
  return run;
}

static void test_cpu(void **state) {
  (void)state;
  int run = 0;
  for (int threads = 1; threads <= 2; threads++) {
    wn_context *ctx = context_of("cpu", threads);
    for (int k = 0; k < MODEL_CASES; k++) run += check_model(ctx, k, WN_F32, LEAST / MODEL_CASES / 2 + 1);
    wn_context_destroy(ctx);
  }
  assert_true(run >= LEAST);
}

static void test_ref(void **state) {
  (void)state;
  int run = 0;
  wn_context *ctx = context_of("ref", 1);
  for (int k = 0; k < MODEL_CASES; k++) run += check_model(ctx, k, most_exact(ctx), LEAST / MODEL_CASES + 1);
  assert_true(run >= LEAST);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_ref)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
