/* Sessions under budgets: fed token by token, in pieces or at once, they hold the same tokens and give the same logits,
 * for every configuration and policy. Budgets that are never reached change no bit. Ties are decided by the rules.
 * Bytes and allocations are counted. What the policies keep is compared with goldens elsewhere. */
#include "model/budget_choices.h"
#include "decode/session.h"
#include "policies.h"

enum { B = 2, T = 14, V = 13, LAYERS = 2 };

/* The numbers that a policy stores for each token. */
static int64_t notes_of(const wn_budgets *b) {
  if (b->policy == WN_POLICY_SNAPKV) return b->snapkv.rows;
  return b->policy == WN_POLICY_H2O || b->policy == WN_POLICY_TOVA;
}

/* At most so many bytes are what the host copies for a policy that runs there, from a backend's memory. */
static size_t copies_of(const struct wn_model *model, const wn_budgets *b, size_t all) {
  return model->backend->memory->host || b->policy != WN_POLICY_GATES ? 0 : 2 * all;
}

/* The choice's model case, with grouped heads. */
static wn_model_config grouped(const struct choice *c) {
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config config = model_case_config(&model_cases[k]);
    if (config.kv_heads != 2 || config.heads != 4 || config.attention.sinks > 0) continue;
    if (!wn_policy_suits(c->policy, &config.attention)) continue;
    if (c->policy == WN_POLICY_SELECTIVE
            ? c->ragged ? config.attention.selective.per_kv_head : config.attention.selective.enabled
            : !config.attention.selective.enabled)
      return config;
  }
  fail_msg("no model for policy %s", wn_policy_name(c->policy));
  return model_case_config(&model_cases[0]);
}

/* What a session holds: bit j of held[l][b][p] stands for position j. */
struct trace {
  float logits[T][B * V];
  uint32_t held[T][LAYERS][B][4];
};

static void look(const wn_session *s, uint32_t held[LAYERS][B][4]) {
  memset(held, 0, sizeof(uint32_t) * LAYERS * B * 4);
  for (int64_t i = 0; i < s->first[LAYERS]; i++) {
    const struct wn_kv_cache *c = &s->caches[i];
    const int64_t l = s->parts[i].layer, first = s->parts[i].kv0;
    assert_true(c->count <= c->shape.capacity);
    assert_int_equal(wn_kv_cache_positions(s->ctx, c), WN_OK);
    for (int b = 0; b < B; b++)
      for (int p = 0; p < (c->at ? c->shape.groups : 1); p++)
        for (int j = 0; j < c->count; j++) {
          const int32_t at = c->at ? c->at[(b * c->shape.groups + p) * c->shape.capacity + j] : j;
          assert_true(at >= 0 && at < T && !(held[l][b][first + p] >> at & 1));
          held[l][b][first + p] |= UINT32_C(1) << at;
        }
  }
}

/* Stores results where pieces (0-terminated) end. */
static void feed(wn_context *ctx, wn_session *s, const int32_t *ids, const int *pieces, int64_t chunk,
                 struct trace *out) {
  wn_session_reset(s);
  for (int i = 0, at = 0; pieces[i]; i++) {
    int32_t part[B * T];
    for (int b = 0; b < B; b++) memcpy(part + b * pieces[i], ids + b * T + at, (size_t)pieces[i] * sizeof *part);
    at += pieces[i];
    OK(ctx, wn_session_feed(ctx, s, part, pieces[i], chunk, out->logits[at - 1]));
    look(s, out->held[at - 1]);
  }
}

static void same(const char *name, const char *what, const struct trace *x, const struct trace *y, double tolerance) {
  double top = 0;
  for (int t = 0; t < T; t++)
    for (int i = 0; i < B * V; i++) top = fmax(top, fabs((double)x->logits[t][i]));
  for (int t = 0; t < T; t++) {
    if (memcmp(x->held[t], y->held[t], sizeof x->held[t]) != 0)
      fail_msg("%s, %s: after %d tokens the layers hold %x %x, expected %x %x", name, what, t + 1, y->held[t][0][0][0],
               y->held[t][1][0][0], x->held[t][0][0][0], x->held[t][1][0][0]);
    for (int i = 0; i < B * V; i++)
      if (!(fabs((double)x->logits[t][i] - (double)y->logits[t][i]) <= tolerance * top))
        fail_msg("%s, %s: logit %d of position %d is %g, expected %g", name, what, i, t, (double)y->logits[t][i],
                 (double)x->logits[t][i]);
  }
}

/* Whole sequences, whose evictions are computed first, give the same logits as token by token. */
static void same_as_batch(const char *name, wn_context *ctx, wn_model *model, const int32_t *ids, const wn_budgets *b,
                          const struct trace *x, double tolerance) {
  static float logits[B * T * V];
  double top = 0;
  OK(ctx, wn_model_logits(ctx, model, ids, B, T, WN_OPTIONS(wn_logits_options, .budgets = b), logits));
  for (int i = 0; i < B * T * V; i++) top = fmax(top, fabs((double)logits[i]));
  for (int i = 0; i < B * T * V; i++) {
    const double found = (double)x->logits[i / V % T][i / (T * V) * V + i % V];
    if (!(fabs((double)logits[i] - found) <= tolerance * top))
      fail_msg("%s: logit %d of position %d is %g, in a batch %g", name, i % V, i / V % T, found, (double)logits[i]);
  }
}

static const int singly[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, mixed[] = {4, 1, 1, 5, 3, 0},
                 whole[] = {14, 0}, late[] = {1, 9, 1, 3, 0};

static void test_ways_of_feeding(void **state) {
  (void)state;
  static const int64_t budgets[] = {1, 2, 5};
  wn_context *ref = context_of("ref", 1), *cpu = context_of("cpu", 1);
  static struct trace expected, found;
  int done[CHOICES] = {0};
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct tokens x;
    /* No token occurs twice: without positions equal tokens would have the same keys and scores, up to rounding. */
    for (int i = 0; i < B * T; i++) x.ids[i] = (int32_t)((5 * (i % T) + 3 * (i / T)) % V);
    for (int i = 0; i < CHOICES; i++) {
      if (!fits(&choices[i], &c)) continue;
      done[i]++;
      for (int backend = 0; backend < 2; backend++) {
        wn_context *ctx = backend ? cpu : ref;
        struct wn_model *model = model_of(ctx, &c, backend ? WN_F32 : WN_F64);
        const double tolerance = backend ? 6e-6 : 2e-7; /* logits are stored as float */
        char name[160];
        wn_budgets b;
        wn_session *s;
        const int64_t K = budgets[(k + i) % 3];
        budgets_of(&choices[i], &c, K, &b);
        snprintf(name, sizeof name, "%s, %s%s, %d tokens, %s", model_cases[k].name, wn_policy_name(b.policy),
                 b.heads > 0         ? " each head its own"
                 : b.per_kv_head     ? " by head"
                 : b.cache_positions ? " by place"
                                     : "",
                 (int)K, backend ? "cpu" : "ref");
        if (c.attention.threshold.enabled && !b.per_kv_head && b.heads == 0)
          OK(ctx, wn_model_set_control_tokens(ctx, model, (const int32_t[]){2, 5, 11}, 3));
        OK(ctx, wn_session_create(ctx, model,
                                  WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &b), &s));
        struct trace first = expected; /* on ref */
        memset(&expected, 0, sizeof expected);
        feed(ctx, s, x.ids, singly, 0, &expected);
        same_as_batch(name, ctx, model, x.ids, &b, &expected, tolerance);
        wn_budgets_clear(&b);
        if (backend) same(name, "beside ref", &first, &expected, tolerance);
        found = expected;
        feed(ctx, s, x.ids, mixed, 2, &found);
        same(name, "in pieces", &expected, &found, tolerance);
        feed(ctx, s, x.ids, whole, 0, &found);
        same(name, "at once", &expected, &found, tolerance);
        feed(ctx, s, x.ids, late, 0, &found);
        same(name, "at once from the second token on", &expected, &found, tolerance);
        wn_session_destroy(s);
        wn_model_destroy(model);
      }
    }
  }
  for (int i = 0; i < CHOICES; i++) assert_true(done[i] >= (choices[i].ragged ? 2 : 4));
  wn_context_destroy(ref);
  wn_context_destroy(cpu);
}

static void test_budgets_that_never_bind(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  static struct trace expected, found;
  for (int k = 0; k < MODEL_CASES; k += 2) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    struct tokens x;
    tokens_of(&x, B, T, V, false);
    wn_session *s;
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
    const size_t bytes = wn_session_kv_bytes(s);
    feed(ctx, s, x.ids, mixed, 0, &expected);
    wn_session_destroy(s);
    for (int i = 0; i < CHOICES; i++) {
      wn_budgets b;
      if (!fits(&choices[i], &c)) continue;
      budgets_of(&choices[i], &c, T, &b);
      OK(ctx, wn_session_create(ctx, model,
                                WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &b), &s));
      assert_int_equal(wn_session_kv_bytes(s), bytes);
      feed(ctx, s, x.ids, mixed, 0, &found);
      assert_memory_equal(found.logits[T - 1], expected.logits[T - 1], sizeof found.logits[0]);
      assert_memory_equal(found.logits[5], expected.logits[5], sizeof found.logits[0]);
      wn_session_destroy(s);
      wn_budgets_clear(&b);
    }
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* All scores are equal, since weights are 0: the oldest token is evicted, but `selective` keeps position 0 while there
 * is another. */
static void test_ties(void **state) {
  (void)state;
  static const struct {
    struct choice choice;
    int64_t K;
    uint32_t held; /* after 10 tokens */
  } rows[] = {{{.policy = WN_POLICY_SELECTIVE}, 4, 1u << 0 | 1u << 7 | 1u << 8 | 1u << 9},
              {{.policy = WN_POLICY_SELECTIVE}, 2, 1u << 0 | 1u << 9},
              {{.policy = WN_POLICY_SELECTIVE}, 1, 1u << 9},
              {{.policy = WN_POLICY_TOVA}, 4, 0xfu << 6},
              {{.policy = WN_POLICY_TOVA, .per_kv_head = true}, 4, 0xfu << 6},
              {{.policy = WN_POLICY_STREAMING}, 4, 1u << 0 | 1u << 1 | 1u << 8 | 1u << 9},
              {{.policy = WN_POLICY_STREAMING}, 2, 1u << 0 | 1u << 9},
              {{.policy = WN_POLICY_STREAMING}, 1, 1u << 9},
              {{.policy = WN_POLICY_WINDOW}, 4, 0xfu << 6}};
  static const int one_by_one[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, at_once[] = {10, 0};
  for (int backend = 0; backend < 2; backend++) {
    wn_context *ctx = context_of(backend ? "cpu" : "ref", 1);
    const wn_model_config selective = model_case_config(&model_cases[7]), dense = model_case_config(&model_cases[1]);
    struct tokens x;
    tokens_of(&x, B, T, V, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      const wn_model_config *c = rows[i].choice.policy == WN_POLICY_SELECTIVE ? &selective : &dense;
      struct wn_model *model = model_of(ctx, c, WN_F32);
      OK(ctx, model->backend->memory->zero(ctx, model->params, model->table.total * sizeof(float)));
      wn_budgets b;
      budgets_of(&rows[i].choice, c, rows[i].K, &b);
      b.tokens[1] = rows[i].K;
      wn_session *s;
      OK(ctx, wn_session_create(ctx, model,
                                WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &b), &s));
      for (int way = 0; way < 2; way++) {
        static struct trace found;
        feed(ctx, s, x.ids, way ? at_once : one_by_one, 0, &found);
        for (int l = 0; l < LAYERS; l++)
          for (int p = 0; p < (rows[i].choice.per_kv_head ? 2 : 1); p++)
            if (found.held[9][l][1][p] != rows[i].held)
              fail_msg("row %d, layer %d: holds %x, expected %x", (int)i, l, found.held[9][l][1][p], rows[i].held);
      }
      wn_session_destroy(s);
      wn_budgets_clear(&b);
      wn_model_destroy(model);
    }
    wn_context_destroy(ctx);
  }
}

static void test_bytes_and_allocations(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  for (int i = 0; i < CHOICES; i++) {
    if (choices[i].ragged) continue; /* tested above */
    const bool gates = choices[i].policy == WN_POLICY_GATES;
    const wn_model_config c = gates ? grouped(&choices[i])
                                    : model_case_config(&model_cases[choices[i].policy == WN_POLICY_SELECTIVE ? 7 : 1]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_budgets b;
    wn_session *s;
    budgets_of(&choices[i], &c, 3, &b);
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 4096, .budgets = &b), &s));
    const int64_t P = choices[i].per_kv_head ? 2 : 1, state_of = notes_of(&b);
    const int64_t token =
        2 * 2 * 6 + (b.policy == WN_POLICY_SELECTIVE) + P + state_of * P + 2 * s->caches[0].shape.width;
    const size_t expected = (size_t)((3 + 4) * token) * 4; /* budgets of 3 and of 4 */
    assert_in_range(wn_session_kv_bytes(s), expected, expected + 2 * 8 * 64 + copies_of(model, &b, expected));
    size_t held = 0;
    for (int l = 0; l < LAYERS; l++) {
      wn_memory_info before, after;
      struct wn_kv_cache copy;
      wn_memory_info_get(&before);
      OK(ctx, wn_kv_cache_init(ctx, &s->caches[l].shape, &copy));
      wn_memory_info_get(&after);
      held += after.live_bytes - before.live_bytes;
      wn_kv_cache_clear(&copy);
    }
    assert_int_equal(wn_session_kv_bytes(s), held);
    float logits[V];
    int32_t prompt[300];
    for (int t = 0; t < 300; t++) prompt[t] = t % V;
    wn_memory_info before, after;
    wn_memory_info_get(&before);
    OK(ctx, wn_session_feed(ctx, s, prompt, 300, 0, logits));
    for (int t = 0; t < 20; t++) OK(ctx, wn_session_feed(ctx, s, prompt + t, 1, 0, logits));
    wn_memory_info_get(&after);
    /* The numbers of keys are sums that the host computes, in an allocated copy of other memory. */
    if (!copies_of(model, &b, 1)) assert_int_equal(before.total_allocations, after.total_allocations);
    assert_int_equal(wn_session_position(s), 320);
    for (int n = 0; n < V; n++) assert_true(isfinite(logits[n]));
    wn_session_destroy(s);
    wn_budgets_clear(&b);
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* Each head's cache has its own size. The same budget for all heads, written head by head, gives the same bits as the
 * layer's. */
static void test_heads(void **state) {
  (void)state;
  static const struct {
    const char *same, *layer, *heads;
    int64_t tokens; /* of `heads`, each one head */
  } rows[] = {{"5:5,3:3", "5,3", "5:2,3:9", 19}, {"4:4", "4", "1:4096,6:2", 9 + T}};
  for (int i = 0; i < CHOICES; i++) {
    const struct choice *k = &choices[i];
    if (!k->per_kv_head && !k->ragged) continue;
    const wn_model_config c = grouped(k);
    wn_context *ctx = context_of("cpu", 1);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    struct tokens x;
    tokens_of(&x, B, T, V, false);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
      static struct trace found[2];
      const char *const texts[] = {rows[r].layer, rows[r].same, rows[r].heads};
      for (int n = 0; n < 3; n++) {
        wn_budgets b;
        wn_session *s;
        budgets_of(k, &c, 4, &b);
        OK(ctx, wn_budgets_parse(ctx, &c, texts[n], &b));
        OK(ctx, wn_session_create(ctx, model,
                                  WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T, .budgets = &b), &s));
        if (n < 2) {
          feed(ctx, s, x.ids, mixed, 0, &found[n]);
          assert_int_equal(s->first[LAYERS], LAYERS);
        } else {
          const int64_t state_of = notes_of(&b);
          const int64_t numbers = s->caches[0].shape.width; /* of a key, in models with gates */
          const int64_t token = 2 * c.head_size + (b.policy == WN_POLICY_SELECTIVE) + 1 + state_of + numbers;
          const size_t expected = (size_t)(B * rows[r].tokens * token) * 4;
          /* Heads that hold everything store no positions and nothing for the policy. */
          assert_in_range(wn_session_kv_bytes(s), expected - (size_t)(B * T * (1 + state_of)) * 4,
                          expected + 4 * 8 * 64 + copies_of(model, &b, expected));
          size_t held = 0;
          for (int64_t part = 0; part < s->first[LAYERS]; part++) held += s->caches[part].bytes;
          assert_int_equal(wn_session_kv_bytes(s), held);
          assert_int_equal(s->first[LAYERS], 2 * LAYERS);
        }
        wn_session_destroy(s);
        wn_budgets_clear(&b);
      }
      assert_memory_equal(&found[0], &found[1], sizeof found[0]);
    }
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

/* Heads with their own caches are divided among threads when single rows arrive. The bits are those of one thread. */
static void test_heads_on_threads(void **state) {
  (void)state;
  enum { N = 120, HEADS = 4 };
  static const char *const attention[] = {"{}", "{\"selective\":{\"per_kv_head\":true}}",
                                          "{\"write\":{\"window\":4,\"keys\":true,\"hidden\":3},"
                                          "\"forget\":{\"per_query_head\":true}}"};
  static int32_t ids[B * N];
  static float logits[2][N][B * V];
  for (int i = 0; i < B * N; i++) ids[i] = (int32_t)wn_random_below(4, WN_STREAM_TEST, 9, (uint64_t)i, V);
  for (int i = 0; i < CHOICES; i++) {
    if (!choices[i].ragged) continue;
    for (int threads = 0; threads < 2; threads++) {
      wn_context *ctx = context_of("cpu", threads ? 4 : 1);
      wn_model_config c = model_case_config(&model_cases[1]);
      c.kv_heads = HEADS, c.context = N;
      OK(ctx, wn_attention_config_parse(ctx,
                                        attention[choices[i].policy == WN_POLICY_SELECTIVE ? 1
                                                  : choices[i].policy == WN_POLICY_GATES   ? 2
                                                                                           : 0],
                                        &c.attention));
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      wn_budgets b;
      wn_session *s;
      budgets_init(&b);
      b.policy = choices[i].policy, b.per_kv_head = choices[i].per_kv_head, b.seed = 3;
      OK(ctx, wn_budgets_parse(ctx, &c, "40:17:33:5,64:63:8:9", &b));
      OK(ctx, wn_session_create(ctx, model,
                                WN_OPTIONS(wn_session_options, .sequences = B, .capacity = N, .budgets = &b), &s));
      for (int t = 0; t < N; t++) {
        const int32_t now[B] = {ids[t], ids[N + t]};
        OK(ctx, wn_session_feed(ctx, s, now, 1, 0, logits[threads][t]));
      }
      wn_session_destroy(s);
      wn_budgets_clear(&b);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
    if (memcmp(logits[0], logits[1], sizeof logits[0]) != 0)
      fail_msg("%s: four threads give other logits than one", wn_policy_name(choices[i].policy));
  }
}

/* The positions that a cache of one sequence holds in its first group: held[position]. */
static void positions(const wn_session *s, int64_t l, bool *held, int64_t n) {
  const struct wn_kv_cache *c = &s->caches[l];
  memset(held, 0, (size_t)n * sizeof *held);
  for (int64_t j = 0; j < c->count; j++) held[c->at ? c->at[j] : j] = true;
}

/* Long enough for several blocks and pieces: one by one, at once, and in pieces that cut blocks short. */
static void test_long_prompts(void **state) {
  (void)state;
  enum { N = 700 };
  static const struct {
    int model;
    wn_policy policy;
    int64_t K;
    const char *attention;            /* instead of the model's */
    enum { LAYER, HEADS, PLACES } of; /* HEADS: a budget for each head; PLACES: cache positions */
  } rows[] = {{7, WN_POLICY_SELECTIVE, 40, NULL, LAYER},
              {12, WN_POLICY_SELECTIVE, 130, NULL, LAYER},
              {1, WN_POLICY_STREAMING, 33, NULL, LAYER},
              {1, WN_POLICY_STREAMING, 33, NULL, PLACES},
              {3, WN_POLICY_STREAMING, 200, NULL, PLACES},
              {1, WN_POLICY_STREAMING, 2, NULL, PLACES},
              {1, WN_POLICY_STREAMING, 1, NULL, PLACES},
              {1, WN_POLICY_STREAMING, 40, "{\"window\":30,\"sinks\":1}", PLACES}, /* row by row */
              {1, WN_POLICY_RANDOM, 64, NULL, LAYER},
              {1, WN_POLICY_WINDOW, N, "{\"window\":70,\"sinks\":1}", LAYER}, /* trimmed */
              {1, WN_POLICY_WINDOW, N, "{\"span\":{\"limit\":90,\"ramp\":8,\"init\":0.5},\"selective\":{}}", LAYER},
              {1, WN_POLICY_SELECTIVE, 50, "{\"window\":45,\"selective\":{},\"threshold\":{\"tau\":0.9}}", LAYER},
              {1, WN_POLICY_H2O, 40, NULL, LAYER},
              {1, WN_POLICY_TOVA, 90, NULL, LAYER},
              {1, WN_POLICY_H2O, 30, "{\"selective\":{\"per_kv_head\":true},\"sinks\":2}", HEADS},
              {1, WN_POLICY_TOVA, 70, "{\"span\":{\"limit\":900,\"ramp\":50,\"init\":0.2}}", HEADS},
              {1, WN_POLICY_SELECTIVE, 30, "{\"selective\":{\"per_kv_head\":true}}", HEADS},
              {1, WN_POLICY_RANDOM, 30, NULL, HEADS}};
  static bool expected[2 * LAYERS][N], found[N];
  static int32_t ids[N];
  float last[V] = {0}, logits[V];
  for (int t = 0; t < N; t++) ids[t] = (int32_t)wn_random_below(9, WN_STREAM_TEST, 1, (uint64_t)t, V);
  for (int backend = 0; backend < 2; backend++) {
    wn_context *ctx = context_of(backend ? "cpu" : "ref", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      wn_model_config c = model_case_config(&model_cases[rows[i].model]);
      if (rows[i].attention) OK(ctx, wn_attention_config_parse(ctx, rows[i].attention, &c.attention));
      struct wn_model *model = model_of(ctx, &c, backend ? WN_F32 : WN_F64);
      wn_budgets b;
      wn_session *s;
      const bool heads = rows[i].of == HEADS, places = rows[i].of == PLACES;
      budgets_of(&(struct choice){.policy = rows[i].policy,
                                  .per_kv_head = heads && rows[i].policy != WN_POLICY_SELECTIVE,
                                  .cache_positions = places,
                                  .ragged = heads},
                 &c, rows[i].K, &b);
      OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = N, .budgets = &b), &s));
      if (places) assert_int_equal(s->cache_position_blocks, !rows[i].attention);
      for (int way = 0; way < 3; way++) {
        const int64_t step = way == 0 ? 1 : way == 1 ? N : 233;
        wn_session_reset(s);
        for (int64_t at = 0; at < N; at += step)
          OK(ctx, wn_session_feed(ctx, s, ids + at, step < N - at ? step : N - at, way == 2 ? 150 : 0, logits));
        for (int64_t l = 0; l < s->first[LAYERS]; l++) {
          positions(s, l, way ? found : expected[l], N);
          if (way && memcmp(found, expected[l], sizeof found) != 0)
            fail_msg("row %d on %s, way %d: cache %d holds others", (int)i, backend ? "cpu" : "ref", way, (int)l);
        }
        if (way == 0) memcpy(last, logits, sizeof last);
        for (int n = 0; n < V; n++)
          if (!(fabs((double)logits[n] - (double)last[n]) <= (backend ? 2e-5 : 1e-6)))
            fail_msg("row %d on %s, way %d: logit %d is %g, expected %g", (int)i, backend ? "cpu" : "ref", way, n,
                     (double)logits[n], (double)last[n]);
      }
      wn_session_destroy(s);
      wn_budgets_clear(&b);
      wn_model_destroy(model);
    }
    wn_context_destroy(ctx);
  }
}

/* If every layer rotates by cache positions, a text may be of any length: same logits, and memory that does not depend
 * on the length. */
static void test_endless(void **state) {
  (void)state;
  enum { N = 700, K = 12, ENDLESS = 1 << 30 };
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]); /* rotary */
  assert_int_equal(c.position, WN_POS_ROPE);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_policy streaming;
  assert_int_equal(wn_policy_find(NULL, "streaming", &streaming), WN_OK);
  static float expected[V], found[V];
  static int32_t ids[N];
  size_t bytes[2];
  for (int i = 0; i < N; i++) ids[i] = (i * 7 + i / 5) % V;
  for (int endless = 0; endless < 2; endless++) {
    wn_budgets b;
    wn_session *s;
    wn_memory_info before, after;
    budgets_of(&(struct choice){.policy = streaming, .cache_positions = true}, &c, K, &b);
    wn_memory_info_get(&before);
    OK(ctx, wn_session_create(ctx, model,
                              WN_OPTIONS(wn_session_options, .capacity = endless ? ENDLESS : N, .budgets = &b), &s));
    wn_memory_info_get(&after);
    bytes[endless] = (size_t)(after.live_bytes - before.live_bytes);
    OK(ctx, wn_session_feed(ctx, s, ids, N - 20, 0, NULL));
    for (int i = N - 20; i < N; i++) OK(ctx, wn_session_feed(ctx, s, ids + i, 1, 0, endless ? found : expected));
    wn_session_destroy(s);
    wn_budgets_clear(&b);
  }
  assert_memory_equal(expected, found, sizeof found);
  if (bytes[1] > bytes[0] + 65536) fail_msg("%zu bytes, %zu for a text of %d tokens", bytes[1], bytes[0], N);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Without budgets a layer holds what it can see. */
static void test_trimmed(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]); /* rotary */
  wn_session *s;
  assert_int_equal(wn_attention_config_parse(ctx, "{\"window\":5,\"window_layers\":\"10\"}", &c.attention), WN_OK);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 1000), &s));
  assert_int_equal(s->caches[0].shape.capacity, 5);
  assert_int_equal(s->caches[1].shape.capacity, 1000);
  assert_int_equal(wn_session_kv_bytes(s), s->caches[0].bytes + s->caches[1].bytes);
  assert_true(s->caches[0].bytes * 100 < s->caches[1].bytes);
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = model_case_config(&model_cases[0]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_budgets b;
  wn_session *s;
  budgets_of(&choices[5], &c, 3, &b);
  b.policy = WN_POLICY_SELECTIVE;
  assert_int_equal(wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16, .budgets = &b), &s),
                   WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "selective attention"));
  b.policy = WN_POLICY_WINDOW, b.tokens[0] = 0;
  assert_int_equal(wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16, .budgets = &b), &s),
                   WN_ERR_CONFIG);
  b.tokens[0] = 1, b.layers = 1;
  assert_int_equal(wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16, .budgets = &b), &s),
                   WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "2 layers"));
  wn_budgets_clear(&b);
  wn_model_destroy(model);
  /* A feed that fails half way: relative positions up to 16, and a text of 20 tokens. */
  const wn_model_config relative = model_case_config(&model_cases[16]);
  assert_true(relative.attention.relative.enabled && relative.context == 16);
  const int32_t ids[20] = {0};
  float logits[V];
  model = model_of(ctx, &relative, WN_F32);
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 20), &s));
  assert_int_not_equal(wn_session_feed(ctx, s, ids, 20, 0, logits), WN_OK);
  assert_non_null(strstr(wn_context_error(ctx), "relative positions"));
  assert_int_equal(wn_session_feed(ctx, s, ids, 1, 0, logits), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "reset"));
  wn_session_reset(s);
  OK(ctx, wn_session_feed(ctx, s, ids, 16, 0, logits));
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ways_of_feeding),
      cmocka_unit_test(test_budgets_that_never_bind),
      cmocka_unit_test(test_ties),
      cmocka_unit_test(test_heads),
      cmocka_unit_test(test_heads_on_threads),
      cmocka_unit_test(test_endless),
      cmocka_unit_test(test_trimmed),
      cmocka_unit_test(test_long_prompts),
      cmocka_unit_test(test_bytes_and_allocations),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
