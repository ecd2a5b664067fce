/* The prefix cache: it never changes an answer, to the bit, under any policy; what it finds, keeps and drops. */
#include "model/models.h"

#include "decode/session.h"
#include "serve/prefix.h"
#include "support.h"
#include "winnow/generate.h"
#include "policies.h"

enum { CONTEXT = 1100, V = 64, DRAWN = 3 };

static const struct kind {
  const char *policy, *options, *budget;
} kinds[] = {{NULL, NULL, NULL},           {"window", NULL, "40"},
             {"streaming", NULL, "30,50"}, {"streaming", "cache_positions=true", "40"},
             {"h2o", NULL, "24"},          {"h2o", "recent=0.25", "24"},
             {"tova", NULL, "24"},         {"snapkv", NULL, "48"},
             {"random", "seed=3", "24"},   {"h2o", "per_kv_head=true", "24"},
             {"selective", NULL, "24"}};
enum { KINDS = sizeof kinds / sizeof *kinds };
static bool suits(const struct kind *k, bool selective) {
  return selective ? !k->options || strcmp(k->options, "per_kv_head=true") != 0
                   : !k->policy || strcmp(k->policy, "selective") != 0;
}

static wn_model *tiny_model(wn_context *ctx, bool selective) {
  struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  if (selective) k.sel = (wn_selective_config){PAPER};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V;
  c.context = CONTEXT;
  return model_of(ctx, &c, WN_F32);
}

static wn_session *session_of(wn_context *ctx, wn_model *model, const struct kind *k, int64_t capacity,
                              wn_cache_format format) {
  wn_session *s;
  wn_budgets b;
  budgets_init(&b);
  if (k->policy) assert_int_equal(wn_policy_find(NULL, k->policy, &b.policy), WN_OK);
  if (k->options) OK(ctx, wn_budgets_set(ctx, k->options, &b));
  if (k->budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), k->budget, &b));
  const wn_session_options options = {
      .size = sizeof options, .sequences = 1, .capacity = capacity, .budgets = k->budget ? &b : NULL, .cache = format};
  OK(ctx, wn_session_create(ctx, model, &options, &s));
  wn_budgets_clear(&b);
  return s;
}

struct answer {
  int32_t drawn[DRAWN];
  float logits[DRAWN][V];
  int64_t found;
};
static void on_logits(void *user, int64_t index, float *logits, int64_t n) {
  struct answer *a = user;
  memcpy(a->logits[index], logits, (size_t)n * sizeof *logits);
}

/* Answers as the server's worker does. prefix NULL: without knowledge of other prompts. */
static struct answer answer_to(wn_context *ctx, wn_model *model, struct wn_prefix *prefix, const struct kind *k,
                               const int32_t *ids, int64_t count, int64_t more_room) {
  struct answer a = {.found = 0};
  struct wn_prefix_places places = {0};
  wn_session *s = session_of(ctx, model, k, count + DRAWN + more_room, WN_CACHE_FLOAT);
  wn_generate_options o;
  wn_generation *g;
  if (prefix) {
    a.found = wn_prefix_find(prefix, s, ids, count);
    places = wn_prefix_places(prefix, s, ids, count);
    assert_int_equal(wn_session_position(s), a.found);
  }
  wn_generate_options_init(&o, sizeof o);
  o.prompt = ids + a.found, o.prompt_count = count - a.found;
  o.max_tokens = DRAWN, o.sampling = (wn_sampling){.top_p = 1};
  o.logits = on_logits, o.user = &a, o.drawn = a.drawn;
  OK(ctx, wn_generation_create(ctx, s, &o, &g));
  for (bool more = true; more;) {
    OK(ctx, wn_generation_step(ctx, g, &more));
    const int64_t at = wn_session_position(s);
    if (prefix && at > a.found && at <= count && (at == places.part || at == places.last))
      wn_prefix_keep(prefix, ctx, s, ids, at, UINT64_MAX);
  }
  wn_generation_destroy(g);
  wn_session_destroy(s);
  return a;
}

static void same(const struct answer *a, const struct answer *b, const char *what, int number) {
  if (memcmp(a->drawn, b->drawn, sizeof a->drawn) != 0 || memcmp(a->logits, b->logits, sizeof a->logits) != 0)
    fail_msg("%s %d: another answer where %d tokens were known", what, number, (int)a->found);
}

static uint64_t draw(uint64_t number, uint64_t n) {
  return wn_random_below(11, WN_STREAM_TEST, 7, number, (uint32_t)n);
}

/* Prompts that share a beginning with earlier ones, under every policy. */
enum { PROMPTS = 1000, KNOWN = 12, LONGEST = 640 };
static void test_random_prompts(void **state) {
  (void)state;
  static int32_t known[KNOWN][LONGEST];
  int64_t lengths[KNOWN] = {0};
  int found[KINDS] = {0};
  uint64_t n = 0;
  for (int selective = 0; selective < 2; selective++) {
    wn_context *ctx = context_of("cpu", 1);
    wn_model *model = tiny_model(ctx, selective);
    struct wn_prefix prefix = {.limit = 600000};
    for (int i = 0; i < PROMPTS / 2; i++) {
      int kind = (int)draw(n++, KINDS);
      while (!suits(&kinds[kind], selective)) kind = (int)draw(n++, KINDS);
      int32_t *ids = known[i % KNOWN], copy[LONGEST];
      const int64_t from = (int64_t)draw(n++, KNOWN), length = 1 + (int64_t)draw(n++, LONGEST);
      int64_t common = lengths[from] < length ? lengths[from] : length;
      if (draw(n++, 3) == 0) common = (int64_t)draw(n++, (uint64_t)common + 1);
      memcpy(copy, known[from], sizeof copy);
      for (int64_t t = common; t < length; t++) copy[t] = (int32_t)draw(n++, V);
      memcpy(ids, copy, sizeof copy);
      lengths[i % KNOWN] = length;
      const int64_t more_room = (int64_t)draw(n++, 3) * 100;
      const struct answer with = answer_to(ctx, model, &prefix, &kinds[kind], ids, length, more_room),
                          without = answer_to(ctx, model, NULL, &kinds[kind], ids, length, more_room);
      same(&with, &without, "prompt", i);
      found[kind] += with.found > 0;
      assert_true(prefix.counts.bytes <= prefix.limit);
    }
    assert_true(prefix.counts.states > 0 && prefix.counts.bytes > 0);
    wn_prefix_shrink(&prefix, 0);
    assert_true(!prefix.first && !prefix.last && prefix.counts.bytes == 0 && prefix.counts.states == 0);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
  for (int k = 0; k < KINDS; k++)
    if (found[k] == 0) fail_msg("kind %d: no prompt's beginning was ever found", k);
}

static void fill(int32_t *ids, int64_t from, int64_t to, uint64_t seed) {
  for (int64_t i = from; i < to; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 8, (uint64_t)i, V);
}

/* A growing conversation finds its last turn. Of prompts with the same beginning the third one finds it, and without
 * budgets already the second. */
static void test_patterns(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *models[] = {tiny_model(ctx, false), tiny_model(ctx, true)};
  for (int i = 0; i < 2 * KINDS; i++) {
    const struct kind *k = &kinds[i / 2];
    wn_model *model = models[i % 2];
    if (!suits(k, i % 2)) continue;
    struct wn_prefix prefix = {.limit = 1 << 26};
    int32_t ids[1000];
    fill(ids, 0, 1000, 1);
    static const int64_t turns[] = {100, 150, 300, 600, 1000}, expected[] = {0, 0, 128, 256, 512};
    for (int t = 0; t < 5; t++)
      assert_int_equal(answer_to(ctx, model, &prefix, k, ids, turns[t], 50).found, expected[t]);
    if (i == 0) assert_int_equal(prefix.counts.states, 1); /* a longer state replaces the shorter ones */
    wn_prefix_shrink(&prefix, 0);
    int64_t found[4];
    for (int p = 0; p < 4; p++) { /* the first 300 tokens are the same */
      fill(ids, 300, 1000, (uint64_t)p + 50);
      found[p] = answer_to(ctx, model, &prefix, k, ids, 900, 50).found;
    }
    const bool whole = !k->budget && i % 2 == 0; /* later tokens change F of earlier ones */
    assert_true(found[0] == 0 && found[1] == (whole ? 256 : 0) && found[2] == 256 && found[3] == 256);
    assert_int_equal(answer_to(ctx, model, &prefix, k, ids, 900, 50).found, 768); /* the same prompt again */
    assert_int_equal(answer_to(ctx, model, &prefix, k, ids, 768, 50).found, whole ? 512 : 256);
    wn_prefix_shrink(&prefix, 0);
  }
  wn_model_destroy(models[0]);
  wn_model_destroy(models[1]);
  wn_context_destroy(ctx);
}

/* Other policies, budgets, options, formats and models do not find these states. */
static void test_strangers(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = tiny_model(ctx, true), *other = tiny_model(ctx, true);
  struct wn_prefix prefix = {.limit = 1 << 26};
  int32_t ids[400];
  fill(ids, 0, 400, 2);
  for (int i = 0; i < 2 * KINDS; i++)
    if (suits(&kinds[i % KINDS], true))
      assert_int_equal(answer_to(ctx, model, &prefix, &kinds[i % KINDS], ids, 400, 0).found, i < KINDS ? 0 : 256);
  assert_int_equal(answer_to(ctx, other, &prefix, &kinds[0], ids, 400, 0).found, 0);
  wn_session *half = session_of(ctx, model, &(struct kind){NULL, NULL, NULL}, 500, WN_CACHE_FLOAT);
  assert_int_equal(wn_prefix_find(&prefix, half, ids, 256), 0); /* at least one token must be read */
  assert_int_equal(wn_prefix_find(&prefix, half, ids, 257), 256);
  wn_session_destroy(half);
  wn_prefix_shrink(&prefix, 0);
  wn_model *plain = tiny_model(ctx, false);
  assert_int_equal(answer_to(ctx, plain, &prefix, &kinds[0], ids, 400, 0).found, 0);
  half = session_of(ctx, plain, &kinds[0], 500, WN_CACHE_HALF);
  assert_int_equal(wn_prefix_find(&prefix, half, ids, 400), 0);
  wn_session_destroy(half);
  /* Without memory nothing is kept. */
  struct wn_prefix off = {.limit = 0}, small = {.limit = 1000};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(answer_to(ctx, plain, &off, &kinds[0], ids, 400, 0).found, 0);
    assert_int_equal(answer_to(ctx, plain, &small, &kinds[0], ids, 400, 0).found, 0);
  }
  assert_true(!off.first && !small.first);
  wn_prefix_shrink(&prefix, 0);
  wn_model_destroy(model), wn_model_destroy(other), wn_model_destroy(plain);
  wn_context_destroy(ctx);
}

/* The least recently used state is dropped first. A state takes memory for its text, not for the session's capacity. */
static void test_memory(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = tiny_model(ctx, false);
  struct wn_prefix prefix = {.limit = 1 << 26};
  int32_t ids[4][300];
  for (int i = 0; i < 4; i++) fill(ids[i], 0, 300, (uint64_t)i + 70);
  answer_to(ctx, model, &prefix, &kinds[0], ids[0], 300, 0);
  const uint64_t one = prefix.counts.bytes;
  answer_to(ctx, model, &prefix, &kinds[0], ids[1], 300, 700);
  assert_int_equal(prefix.counts.bytes, 2 * one); /* the session's capacity was larger, the text was not */
  wn_session *s = session_of(ctx, model, &kinds[0], 256, WN_CACHE_FLOAT);
  assert_true(one > wn_session_kv_bytes(s) && one < wn_session_kv_bytes(s) + 16384); /* and for its struct */
  wn_session_destroy(s);
  prefix.limit = 3 * one;
  answer_to(ctx, model, &prefix, &kinds[0], ids[2], 300, 0);
  assert_int_equal(answer_to(ctx, model, &prefix, &kinds[0], ids[0], 300, 0).found, 256); /* now it is recently used */
  answer_to(ctx, model, &prefix, &kinds[0], ids[3], 300, 0);
  assert_int_equal(prefix.counts.bytes, 3 * one);
  assert_int_equal(answer_to(ctx, model, &prefix, &kinds[0], ids[0], 300, 0).found, 256);
  assert_int_equal(answer_to(ctx, model, &prefix, &kinds[0], ids[3], 300, 0).found, 256);
  wn_prefix_shrink(&prefix, 2 * one);
  assert_int_equal(prefix.counts.states, 2);
  assert_int_equal(answer_to(ctx, model, &prefix, &kinds[0], ids[1], 300, 0).found, 0);
  wn_prefix_shrink(&prefix, 0);
  assert_true(prefix.counts.prompts == 8 && prefix.counts.found == 3 && prefix.counts.tokens == 3 * 256);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_prompts),
      cmocka_unit_test(test_patterns),
      cmocka_unit_test(test_strangers),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
