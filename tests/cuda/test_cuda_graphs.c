/* Decoding steps as CUDA graphs (src/backends/cuda/steps.cu), emulated or on a device. They give the same bits as
 * single launches: for one and several sequences, sessions that step together, budgets that evict and move tokens,
 * half-float caches and cuBLASLt's products. In the emulation calls are counted: a token is one launch of a graph and
 * nothing else, few nodes are changed, and nothing is allocated once the graph exists. Sessions that step together have
 * the bits of each alone, whatever the others are; their attention is one launch, and so are their draws. */
#include "train/tiny.h"

#include "backends/backends.h"
#include "backends/cuda/cuda.h"
#include "cuda/emulate_api.h"
#include "ops/sample.h"
#include "winnow/generate.h"
#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/session_group.h"
#include "policies.h"

enum { V = 16, PROMPT = 3, STEPS = 13, COUNTED = 4, STREAMS_MAX = 9, SESSIONS_MAX = 3 };

struct graph_case {
  const char *name;
  const char *attention; /* NULL: standard */
  bool half;
  int64_t streams, sessions; /* streams of one session; or sessions stepping together */
  const char *policy;        /* with a budget of 6; NULL: none */
  int least;                 /* at least so many launches for one changed node */
};

#define SELECTIVE "{\"selective\":{}}"
#define GATES "{\"forget\":{\"per_query_head\":true},\"write\":{\"window\":2,\"keys\":true,\"hidden\":5},\"fade\":true}"
static const struct graph_case cases[] = {
    {.name = "one stream", .streams = 1, .least = 2},
    {.name = "selective", .attention = SELECTIVE, .streams = 1, .least = 1},
    {.name = "a half-float cache", .half = true, .streams = 1, .least = 2},
    {.name = "nine streams: cuBLASLt", .streams = 9, .least = 1}, /* it launches few kernels */
    {.name = "three sessions together", .sessions = 3, .streams = 1, .least = 1},
    {.name = "selective, a budget", .attention = SELECTIVE, .streams = 1, .policy = "selective", .least = 2},
    {.name = "streaming, a budget", .streams = 1, .policy = "streaming", .least = 2},
    {.name = "h2o, a budget", .streams = 2, .policy = "h2o", .least = 2},
    {.name = "gates on keys", .attention = GATES, .streams = 2, .least = 1},
    {.name = "gates on keys, a budget", .attention = GATES, .streams = 2, .policy = "streaming", .least = 2},
    {.name = "random, together", .sessions = 3, .streams = 1, .policy = "random", .least = 1},
};

struct decoded {
  float logits[STEPS][STREAMS_MAX * V];
  wn_emulated_calls calls; /* in the last COUNTED steps */
  uint64_t launches, made;
};

static wn_context *ctx;
static int setup(void **state) {
  (void)state;
  ctx = tiny_context("cuda", 1);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

static wn_model *make_model(const char *attention) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = V, c.context = 256, c.layers = 2, c.width = 32, c.heads = 4, c.kv_heads = 2, c.head_size = 8;
  c.ffn_width = 48;
  c.position = WN_POS_ROPE;
  if (attention) must(ctx, wn_attention_config_parse(ctx, attention, &c.attention));
  must(ctx, wn_model_config_resolve(ctx, &c));
  must(ctx, wn_model_create(ctx, &c, 3, &model));
  return model;
}

static wn_session *make_session(wn_model *model, const struct graph_case *k, int64_t capacity,
                                wn_session_group *group) {
  wn_budgets budgets;
  wn_session *session;
  budgets_init(&budgets);
  if (k->policy) assert_int_equal(wn_policy_find(NULL, k->policy, &budgets.policy), WN_OK);
  if (k->policy) must(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), "6", &budgets));
  must(ctx, wn_session_create(ctx, model,
                              &(wn_session_options){.size = sizeof(wn_session_options),
                                                    .sequences = k->streams,
                                                    .capacity = capacity,
                                                    .budgets = k->policy ? &budgets : NULL,
                                                    .cache = k->half ? WN_CACHE_HALF : WN_CACHE_FLOAT,
                                                    .group = group},
                              &session));
  wn_budgets_clear(&budgets);
  return session;
}

static int32_t token_of(int64_t stream, int step) {
  return (int32_t)((stream * 5 + step * 3 + step / 4) % V);
}

static void no_error(const char *where) {
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s: %s", where, error);
}

/* A step of the session's streams, or of all sessions together. */
static void step(const struct graph_case *k, wn_session **sessions, wn_session_group *group, int s, float *logits) {
  int32_t tokens[STREAMS_MAX];
  wn_session_row rows[SESSIONS_MAX];
  for (int64_t i = 0; i < k->streams; i++) tokens[i] = token_of(i, s);
  if (!group) {
    must(ctx, wn_session_feed(ctx, sessions[0], tokens, 1, 0, logits));
    return;
  }
  for (int64_t i = 0; i < k->sessions; i++)
    rows[i] = (wn_session_row){.session = sessions[i], .token = token_of(i, s), .logits = NULL};
  rows[k->sessions - 1].logits = logits; /* of one only, so that reading them does not split the step */
  must(ctx, wn_session_group_feed(ctx, group, rows, k->sessions));
}

static void decode(const struct graph_case *k, bool graphs, struct decoded *out) {
  wn_model *model = make_model(k->attention);
  wn_session_group *group = NULL;
  wn_session *sessions[SESSIONS_MAX] = {NULL};
  wn_emulated_calls before = {0}, after;
  uint64_t launches = 0, made = 0;
  int32_t prompt[STREAMS_MAX * PROMPT];
  wn_cuda_graphs_off(!graphs);
  if (k->sessions) must(ctx, wn_session_group_create(ctx, model, k->sessions, &group));
  for (int i = 0; i < STREAMS_MAX * PROMPT; i++) prompt[i] = (7 * i + 1) % V;
  for (int64_t i = 0; i < (group ? k->sessions : 1); i++) {
    sessions[i] = make_session(model, k, 48, group);
    must(ctx, wn_session_feed(ctx, sessions[i], prompt + i, PROMPT, 0, NULL));
  }
  for (int s = 0; s < STEPS; s++) {
    if (s == STEPS - COUNTED)
      before = wn_emulate_calls(), launches = wn_emulate_launches(), made = wn_emulate_allocations();
    step(k, sessions, group, s, out->logits[s]);
    no_error(k->name);
  }
  after = wn_emulate_calls();
  out->calls.kernels = after.kernels - before.kernels, out->calls.graphs = after.graphs - before.graphs;
  out->calls.nodes = after.nodes - before.nodes, out->calls.copies = after.copies - before.copies;
  out->calls.events = after.events - before.events;
  out->launches = wn_emulate_launches() - launches, out->made = wn_emulate_allocations() - made;
  for (int64_t i = 0; i < (group ? k->sessions : 1); i++) wn_session_destroy(sessions[i]);
  wn_session_group_destroy(group);
  wn_model_destroy(model);
  wn_cuda_graphs_off(false);
}

static void test_bits_and_calls(void **state) {
  (void)state;
  static struct decoded with, without;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct graph_case *k = &cases[i];
    decode(k, false, &without);
    decode(k, true, &with);
    const size_t bytes = (size_t)k->streams * V * sizeof(float);
    for (int s = 0; s < STEPS; s++)
      if (memcmp(with.logits[s], without.logits[s], bytes)) fail_msg("%s: other logits in step %d", k->name, s);
    if (!wn_emulated()) continue;
    const wn_emulated_calls *a = &without.calls, *b = &with.calls;
    print_message(
        "# %s: calls a token without graphs %g kernels, %g copies, %g marks; with %g graphs, %g nodes changed, "
        "%g kernels, %g copies, %g marks\n",
        k->name, (double)a->kernels / COUNTED, (double)a->copies / COUNTED, (double)a->events / COUNTED,
        (double)b->graphs / COUNTED, (double)b->nodes / COUNTED, (double)b->kernels / COUNTED,
        (double)b->copies / COUNTED, (double)b->events / COUNTED);
    assert_int_equal(a->graphs + a->nodes, 0);
    assert_true(a->kernels >= 15 * COUNTED);
    assert_int_equal(b->graphs, COUNTED);
    assert_int_equal(b->kernels, 0);
    assert_true(b->nodes > 0 && b->nodes * (uint64_t)k->least <= a->kernels);
    assert_true(b->copies < a->copies);             /* tokens and positions are kernel arguments */
    assert_true(with.launches >= without.launches); /* some copies become launches */
    assert_int_equal(with.made, 0);
    assert_int_equal(without.made, 0);
  }
}

/* Sessions that take turns have their own graphs. */
static void test_turns(void **state) {
  (void)state;
  const struct graph_case *k = &cases[1];
  wn_model *model = make_model(k->attention);
  wn_session *sessions[2] = {make_session(model, k, 48, NULL), make_session(model, k, 48, NULL)};
  float logits[2][V];
  wn_emulated_calls before = {0};
  uint64_t made = 0;
  for (int s = 0; s < 8; s++) {
    if (s == 4) before = wn_emulate_calls(), made = wn_emulate_allocations();
    for (int i = 0; i < 2; i++) step(k, &sessions[i], NULL, s, logits[i]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
  }
  no_error("turns");
  const wn_emulated_calls after = wn_emulate_calls();
  if (wn_emulated()) {
    assert_int_equal(after.graphs - before.graphs, 2 * 4);
    assert_int_equal(after.kernels - before.kernels, 0);
    assert_true(after.nodes - before.nodes < 8 * 20); /* not all nodes of a step */
  }
  assert_int_equal(wn_emulate_allocations(), made);
  wn_session_destroy(sessions[0]), wn_session_destroy(sessions[1]);
  wn_model_destroy(model);
}

/* More sessions than graphs that are kept: the oldest graphs are dropped and made again. */
static void test_many(void **state) {
  (void)state;
  enum { MANY = 18 };
  const struct graph_case *k = &cases[0];
  wn_model *model = make_model(k->attention);
  wn_session *sessions[MANY];
  float first[V], logits[V];
  const wn_emulated_calls before = wn_emulate_calls();
  for (int i = 0; i < MANY; i++) {
    sessions[i] = make_session(model, k, 48, NULL);
    for (int s = 0; s < 2; s++) step(k, &sessions[i], NULL, s, logits);
    if (i == 0) memcpy(first, logits, sizeof logits);
    assert_memory_equal(logits, first, sizeof logits);
  }
  for (int i = 0; i < 2; i++) {
    for (int s = 2; s < 4; s++) step(k, &sessions[i], NULL, s, logits);
    if (i == 0) memcpy(first, logits, sizeof logits);
    assert_memory_equal(logits, first, sizeof logits);
  }
  no_error("many");
  const uint64_t graphs = wn_emulate_calls().graphs - before.graphs; /* graphs of earlier sessions may fit some */
  if (wn_emulated()) assert_true(graphs >= MANY + 2 && graphs < 2 * MANY);
  for (int i = 0; i < MANY; i++) wn_session_destroy(sessions[i]);
  wn_model_destroy(model);
}

/* Sessions of other lengths and capacities; mixed: with caches of two types, and budgets of their own. */
enum { MEMBERS = 18 };
static wn_session *make_member(wn_model *model, int i, bool mixed, wn_session_group *group) {
  const struct graph_case k = {.streams = 1,
                               .half = mixed && i % 5 == 4,
                               .policy = !mixed       ? NULL
                                         : i % 7 == 3 ? "streaming"
                                         : i % 7 == 5 ? "h2o"
                                                      : NULL};
  const int64_t prompt = 37 * i % 101 + 1;
  int32_t tokens[101];
  wn_session *s = make_session(model, &k, prompt + 8 + i, group);
  for (int64_t t = 0; t < prompt; t++) tokens[t] = (int32_t)((i + 3 * t + t / 7) % V);
  must(ctx, wn_session_feed(ctx, s, tokens, prompt, 0, NULL));
  return s;
}
static void check_together(const char *attention, int members, bool mixed) {
  enum { LAYERS = 2, CALLS = 16 }; /* CALLS: of a launch */
  wn_model *model = make_model(attention);
  wn_session_group *group;
  wn_session *alone[MEMBERS], *together[MEMBERS];
  wn_session_row rows[MEMBERS];
  float want[V], got[MEMBERS][V];
  must(ctx, wn_session_group_create(ctx, model, members, &group));
  for (int i = 0; i < members; i++)
    alone[i] = make_member(model, i, mixed, NULL), together[i] = make_member(model, i, mixed, group);
  for (int s = 0; s < 3; s++) {
    for (int i = 0; i < members; i++)
      rows[i] = (wn_session_row){.session = together[i], .token = token_of(i, s), .logits = got[i]};
    const uint64_t before = wn_emulate_launches_in("attention_decode.cu");
    must(ctx, wn_session_group_feed(ctx, group, rows, members));
    const uint64_t launches = wn_emulate_launches_in("attention_decode.cu") - before;
    if (wn_emulated() && !mixed && members == MEMBERS)
      assert_int_equal(launches, LAYERS * 2 * ((members + CALLS - 1) / CALLS));
    for (int i = 0; i < members; i++) {
      must(ctx, wn_session_feed(ctx, alone[i], &rows[i].token, 1, 0, want));
      if (memcmp(want, got[i], sizeof want))
        fail_msg("%s%s: session %d has other logits alone", attention ? attention : "standard", mixed ? ", mixed" : "",
                 i);
    }
  }
  no_error("together");
  for (int i = 0; i < members; i++) wn_session_destroy(alone[i]), wn_session_destroy(together[i]);
  wn_session_group_destroy(group);
  wn_model_destroy(model);
}
static void test_together(void **state) {
  (void)state;
  check_together(NULL, MEMBERS, false);
  check_together(SELECTIVE, 4, false);
  check_together(NULL, 7, true);
  check_together(SELECTIVE, 7, true);
  check_together("{\"window\":40,\"softcap\":{\"cap\":5}}", 7, true);
  check_together("{\"exclusive\":{},\"gate\":\"elementwise\"}", 4, false);
  check_together(GATES, 4, true);
}

static wn_sampling sampling_of(int i) {
  return (wn_sampling){.temperature = 1.5, .top_p = i % 2 ? 0.95 : 1, .seed = (uint64_t)i};
}

/* Generations together draw WN_SAMPLE_ROWS rows a launch, and the tokens of each alone. */
static void test_draws(void **state) {
  (void)state;
  enum { MANY = WN_SAMPLE_ROWS + 2, TOKENS = 3 };
  wn_model *model = make_model(NULL);
  wn_session_group *group;
  wn_generation_turn turns[MANY];
  wn_session *sessions[MANY];
  int32_t together[MANY][TOKENS], alone[TOKENS];
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = (const int32_t[]){3, 1, 2}, o.prompt_count = 1, o.max_tokens = TOKENS, o.ignore_end = true;
  must(ctx, wn_session_group_create(ctx, model, MANY, &group));
  for (int i = 0; i < MANY; i++) {
    sessions[i] = make_session(model, &cases[0], 48, group);
    o.sampling = sampling_of(i);
    o.drawn = together[i];
    must(ctx, wn_generation_create(ctx, sessions[i], &o, &turns[i].generation));
  }
  must(ctx, wn_generation_step_together(ctx, group, turns, MANY, 0)); /* prompts */
  for (int s = 0; s < TOKENS; s++) {
    const uint64_t before = wn_emulate_launches_in("sample.cu");
    must(ctx, wn_generation_step_together(ctx, group, turns, MANY, 0));
    if (wn_emulated()) assert_int_equal(wn_emulate_launches_in("sample.cu") - before, 2);
  }
  no_error("draws");
  for (int i = 0; i < MANY; i++) {
    wn_generation_destroy(turns[i].generation);
    wn_session_destroy(sessions[i]);
    if (i % 8 > 0) continue;
    sessions[i] = make_session(model, &cases[0], 48, NULL);
    o.sampling = sampling_of(i);
    o.drawn = alone;
    must(ctx, wn_session_generate(ctx, sessions[i], &o, NULL));
    assert_memory_equal(alone, together[i], sizeof alone);
    wn_session_destroy(sessions[i]);
  }
  wn_session_group_destroy(group);
  wn_model_destroy(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bits_and_calls), cmocka_unit_test(test_turns), cmocka_unit_test(test_many),
      cmocka_unit_test(test_together),       cmocka_unit_test(test_draws),
  };
  wn_backend_cuda_linked((wn_backend_cuda_table)());
  return cmocka_run_group_tests(tests, setup, teardown);
}
