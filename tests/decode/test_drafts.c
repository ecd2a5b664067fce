/* Drafts change nothing but the number of steps: for every model, cache and budget, on both backends, greedy and
 * sampled, alone and together with others, tokens, log probabilities, logits and results have the same bits as without;
 * and so has what is fed to the session afterwards. A refused row changes nothing. */
#include "decode/drafts.h"
#include "decode/batch.h"
#include "decode/session_ahead.h"
#include "model/budget_choices.h"

enum { V = 13, CONTEXT = 96, PROMPT = 20, TOKENS = 44, MEMBERS = 3 };

struct heard {
  int64_t tokens;
  int32_t ids[TOKENS];
  double log_probability[TOKENS];
  float logits[TOKENS][V];
  wn_generate_result result;
  float after[V]; /* logits of a token that is fed afterwards */
};

static bool on_piece(void *user, const wn_generate_piece *piece) {
  struct heard *h = user;
  assert_true(h->tokens < TOKENS && piece->index == h->tokens);
  h->ids[h->tokens] = piece->id;
  h->log_probability[h->tokens++] = piece->log_probability;
  return true;
}
static void on_logits(void *user, int64_t index, float *logits, int64_t n) {
  struct heard *h = user;
  assert_int_equal(n, V);
  memcpy(h->logits[index], logits, sizeof h->logits[index]);
}

/* A text that repeats itself, with errors. */
static void prompt_of(uint64_t seed, int32_t *out) {
  for (int64_t t = 0; t < PROMPT; t++) {
    const bool odd = wn_random_below(8, WN_STREAM_TEST, seed, (uint64_t)(t + 100), 7) == 0;
    out[t] = (int32_t)wn_random_below(8, WN_STREAM_TEST, seed, (uint64_t)(odd ? t : t % 5), V);
  }
}

static wn_model *guesser; /* a draft model; NULL: lookup alone */

static wn_generate_options options_of(uint64_t seed, const int32_t *prompt, int draft, struct heard *heard) {
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = prompt, o.prompt_count = PROMPT;
  o.max_tokens = TOKENS - (int64_t)(seed % 5);
  o.sampling = (wn_sampling){.temperature = seed % 2 ? 0.4 : 0, .top_p = 0.95, .seed = seed};
  if (seed % 3 == 2) o.repetition_penalty = 1.05, o.frequency_penalty = 0.01;
  o.log_probabilities = true;
  o.piece = on_piece, o.user = heard;
  if (seed % 4 < 3) o.logits = on_logits;
  o.draft_tokens = draft;
  o.draft_model = draft ? guesser : NULL;
  return o;
}

static wn_session *session_of(wn_context *ctx, wn_model *model, const wn_budgets *budgets, wn_cache_format cache,
                              int64_t capacity) {
  wn_session *s;
  const wn_session_options room = {
      .size = sizeof room, .sequences = 1, .capacity = capacity, .budgets = budgets, .cache = cache};
  OK(ctx, wn_session_create(ctx, model, &room, &s));
  return s;
}

static void feed_after(wn_context *ctx, wn_session *s, struct heard *h) {
  const int32_t token = 5;
  if (s->position < s->capacity) OK(ctx, wn_session_feed(ctx, s, &token, 1, 0, h->after));
}

static void same(const char *name, const struct heard *with, const struct heard *without) {
  const wn_generate_result *a = &with->result, *b = &without->result;
  if (a->end != b->end || a->tokens != b->tokens || a->steps != b->steps || a->unfed != b->unfed)
    fail_msg("%s: end %d, %lld tokens, unfed %d; without drafts %d, %lld, %d", name, a->end, (long long)a->tokens,
             a->unfed, b->end, (long long)b->tokens, b->unfed);
  if (memcmp(with->ids, without->ids, sizeof with->ids)) fail_msg("%s: other tokens", name);
  if (memcmp(with->log_probability, without->log_probability, sizeof with->log_probability))
    fail_msg("%s: other log probabilities", name);
  if (memcmp(with->logits, without->logits, sizeof with->logits)) fail_msg("%s: other logits", name);
  if (memcmp(with->after, without->after, sizeof with->after)) fail_msg("%s: other logits afterwards", name);
  assert_int_equal(b->drafted, 0);
  assert_true(a->accepted >= 0 && a->accepted <= a->drafted);
}

/* Totals, so that the comparison cannot be about nothing. */
struct totals {
  int64_t drafted, accepted, without;
};

/* One case: MEMBERS texts alone, and the same together. */
static void check(wn_context *ctx, wn_model *model, const char *name, const wn_budgets *budgets, wn_cache_format cache,
                  int64_t capacity, struct totals *totals) {
  static struct heard heard[3][MEMBERS];
  int32_t prompt[MEMBERS][PROMPT];
  wn_session *session[MEMBERS];
  wn_generation *generation[MEMBERS];
  wn_generation_turn turns[MEMBERS];
  wn_session_group *group;
  memset(heard, 0, sizeof heard);
  OK(ctx, wn_session_group_create(ctx, model, MEMBERS + 9, &group));
  for (int i = 0; i < MEMBERS; i++) {
    const uint64_t seed = (uint64_t)(i + 3 * (int)(strlen(name) % 4));
    prompt_of(seed, prompt[i]);
    for (int k = 0; k < 2; k++) {
      wn_session *s = session_of(ctx, model, budgets, cache, capacity);
      const wn_generate_options o = options_of(seed, prompt[i], k ? 7 : 0, &heard[k][i]);
      OK(ctx, wn_session_generate(ctx, s, &o, &heard[k][i].result));
      assert_null(s->ahead);
      feed_after(ctx, s, &heard[k][i]);
      wn_session_destroy(s);
    }
    session[i] = session_of(ctx, model, budgets, cache, capacity);
    const wn_generate_options o = options_of(seed, prompt[i], 7, &heard[2][i]);
    OK(ctx, wn_generation_create(ctx, session[i], &o, &generation[i]));
    turns[i] = (wn_generation_turn){.generation = generation[i]};
  }
  for (int left = 1; left;) {
    OK(ctx, wn_generation_step_together(ctx, group, turns, MEMBERS, 0));
    left = 0;
    for (int i = 0; i < MEMBERS; i++) left += turns[i].more;
  }
  for (int i = 0; i < MEMBERS; i++) {
    heard[2][i].result = *wn_generation_result(generation[i]);
    wn_generation_destroy(generation[i]);
    feed_after(ctx, session[i], &heard[2][i]);
    wn_session_destroy(session[i]);
    for (int k = 1; k < 3; k++) same(name, &heard[k][i], &heard[0][i]);
    totals->drafted += heard[1][i].result.drafted, totals->accepted += heard[1][i].result.accepted;
    totals->without += heard[1][i].result.drafted == 0;
  }
  wn_session_group_destroy(group);
}

static void check_models(const char *backend, int threads, wn_dtype dtype) {
  struct totals all = {0};
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_model_config c = model_case_config(&model_cases[k]);
    if (c.encoder.layers > 0) continue;
    c.vocab_size = V;
    c.context = CONTEXT;
    wn_context *ctx = context_of(backend, threads);
    wn_model *model = model_of(ctx, &c, dtype);
    struct totals of = {0};
    const wn_session_options probe = {.size = sizeof probe, .sequences = 1, .capacity = CONTEXT};
    wn_session *s;
    if (wn_session_create(ctx, model, &probe, &s) != WN_OK) { /* what a cache does not serve */
      wn_model_destroy(model);
      wn_context_destroy(ctx);
      continue;
    }
    wn_session_destroy(s);
    check(ctx, model, model_cases[k].name, NULL, WN_CACHE_FLOAT, CONTEXT, &of);
    check(ctx, model, model_cases[k].name, NULL, WN_CACHE_FLOAT, PROMPT + 30, &of); /* becomes full */
    for (int i = k % 6; i < CHOICES; i += 6) {
      struct totals none = {0};
      wn_budgets b;
      if (!fits(&choices[i], &model->config)) continue;
      budgets_of(&choices[i], &model->config, 9, &b);
      check(ctx, model, model_cases[k].name, &b, WN_CACHE_FLOAT, CONTEXT, &none);
      assert_int_equal(none.drafted, 0); /* evicted tokens do not come back */
      wn_budgets_clear(&b);
    }
    all.drafted += of.drafted, all.accepted += of.accepted;
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
  assert_true(all.accepted > 300 && all.accepted < all.drafted);
}

/* A draft model: the model itself, whose greedy guesses are right, and another one. What it guesses changes no bit. */
static void test_models(void **state) {
  (void)state;
  struct totals own = {0}, other = {0};
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_model_config c = model_case_config(&model_cases[k]), small;
    if (c.encoder.layers > 0) continue;
    c.vocab_size = V;
    c.context = CONTEXT;
    wn_context *ctx = context_of("cpu", 2);
    wn_model *model = model_of(ctx, &c, WN_F32), *draft;
    const struct model_case plain = {.position = WN_POS_LEARNED, .ffn = WN_FFN_GELU, .kv_heads = 2};
    const wn_session_options probe = {.size = sizeof probe, .sequences = 1, .capacity = CONTEXT};
    wn_session *s;
    small = model_case_config(&plain);
    small.layers = 1, small.vocab_size = V, small.context = PROMPT + TOKENS / 2; /* it can follow half of a text */
    draft = model_of(ctx, &small, WN_F32);
    if (wn_session_create(ctx, model, &probe, &s) == WN_OK) {
      wn_session_destroy(s);
      guesser = model;
      check(ctx, model, model_cases[k].name, NULL, WN_CACHE_FLOAT, CONTEXT, &own);
      guesser = draft;
      check(ctx, model, model_cases[k].name, NULL, WN_CACHE_FLOAT, PROMPT + 30, &other);
      guesser = NULL;
    }
    wn_model_destroy(draft);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
  assert_true(own.accepted > 1000 && own.accepted * 2 > own.drafted);
  assert_true(other.drafted > 300 && other.accepted < other.drafted);
}

/* Every guess of a model for itself is right where nothing else changes what is drawn: a step for 1 + 7 tokens. */
static void test_own_guesses(void **state) {
  (void)state;
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V, c.context = CONTEXT;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *s = session_of(ctx, model, NULL, WN_CACHE_FLOAT, CONTEXT);
  int32_t prompt[PROMPT];
  for (int32_t i = 0; i < PROMPT; i++) prompt[i] = (i * i + 3) % V; /* repeats nothing for long */
  wn_generate_options o;
  wn_generate_result r;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = prompt, o.prompt_count = PROMPT, o.max_tokens = TOKENS, o.sampling.temperature = 0, o.draft_tokens = 7;
  o.draft_model = model;
  OK(ctx, wn_session_generate(ctx, s, &o, &r));
  assert_int_equal(r.tokens, TOKENS);
  assert_true(r.drafted > 0 && r.accepted == r.drafted);
  wn_session_destroy(s);
  /* refused: another vocabulary */
  c.vocab_size = V + 1;
  wn_model *other = model_of(ctx, &c, WN_F32);
  s = session_of(ctx, model, NULL, WN_CACHE_FLOAT, CONTEXT);
  o.draft_model = other;
  assert_int_equal(wn_session_generate(ctx, s, &o, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "the draft model has a vocabulary of 14"));
  wn_session_destroy(s);
  wn_model_destroy(other);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_ref(void **state) {
  (void)state;
  check_models("ref", 1, WN_F64);
}
static void test_cpu(void **state) {
  (void)state;
  check_models("cpu", 2, WN_F32);
}

/* Half floats, and four threads. */
static void test_half(void **state) {
  (void)state;
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  const wn_model_config c = model_case_config(&k);
  struct totals of = {0};
  wn_context *ctx = context_of("cpu", 4);
  wn_model *model = model_of(ctx, &c, WN_F32);
  if (model->backend->attention_served.row & WN_TERM_HALF)
    check(ctx, model, "half floats", NULL, WN_CACHE_HALF, CONTEXT, &of);
  else
    check(ctx, model, "floats", NULL, WN_CACHE_FLOAT, CONTEXT, &of);
  assert_true(of.accepted > 0);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  const wn_model_config c = model_case_config(&k);
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *s = session_of(ctx, model, NULL, WN_CACHE_FLOAT, CONTEXT);
  struct wn_room room = {0};
  struct heard heard = {0};
  int32_t prompt[PROMPT];
  prompt_of(1, prompt);
  wn_generate_options o = options_of(1, prompt, -1, &heard);
  assert_int_equal(wn_session_generate(ctx, s, &o, NULL), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "draft_tokens is -1, expected 0 to 32"));
  o.draft_tokens = WN_DRAFT_MAX + 1;
  assert_int_equal(wn_session_generate(ctx, s, &o, NULL), WN_ERR_ARGUMENT);
  OK(ctx, wn_session_ahead_open(ctx, s, 1));
  int32_t tokens[3] = {1, V, 2};
  struct wn_feed feed = {.session = s, .tokens = tokens, .T = 2, .ahead = true, .logits = true};
  assert_int_equal(wn_batch_check(ctx, model, &feed, 1), WN_ERR_ARGUMENT); /* outside the vocabulary */
  tokens[1] = 3, feed.T = 3;
  assert_int_equal(wn_batch_check(ctx, model, &feed, 1), WN_ERR_ARGUMENT); /* two ahead, with room for one */
  assert_int_equal(s->position, 0);
  feed.T = 2;
  OK(ctx, wn_batch_check(ctx, model, &feed, 1));
  OK(ctx, wn_batch_run(ctx, &room, &feed, 1));
  assert_int_equal(s->position, 1);
  OK(ctx, wn_session_ahead_take(s));
  assert_int_equal(s->position, 2);
  wn_session_ahead_close(s);
  wn_room_clear(&room);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref),    cmocka_unit_test(test_cpu),
                                     cmocka_unit_test(test_half),   cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_models), cmocka_unit_test(test_own_guesses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
