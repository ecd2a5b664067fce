/* Two contexts at the same time, with two and four threads, on shapes for which every operation divides its work:
 * training, whole sequences, prompts, decoding with and without eviction. Each gives the same bits as alone. Under the
 * thread sanitizer (CMake preset tsan) the same test finds races. */
#include "support.h"

#include <pthread.h>

#include "winnow/winnow.h"
#include "policies.h"

enum { B = 2, T = 96, V = 300, STEPS = 2, DECODED = 3, PAIR = 2 };

static const char *const mechanisms[] = {
    "{}",
    "{\"selective\": {\"mem\": {}}, \"threshold\": {}}",
    "{\"selective\": {\"per_kv_head\": true, \"strength\": \"learned\"}, \"window\": 40}",
    "{\"span\": {\"dynamic\": true, \"limit\": 64}, \"exclusive\": {\"gate\": true}}",
    "{\"relative\": {}, \"sinks\": 2, \"dropout\": 0.1}",
    "{\"strided\": 8, \"buckets\": {}}",
    "{\"sqrt\": {\"buffer\": 16}, \"span\": {\"limit\": 64}}",
};

struct job {
  const char *attention;
  int threads;
  bool half;
  wn_policy policy;
  wn_status status;
  char error[512];
  double loss[STEPS];
  float logits[B * T * V], cached[V], evicted[V];
};

static wn_status job_decode(wn_context *ctx, wn_model *model, const struct job *j, const wn_budgets *budgets,
                            const int32_t *ids, float *logits) {
  wn_session *session = NULL;
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = T,
                                      .budgets = budgets,
                                      .cache = j->half ? WN_CACHE_HALF : WN_CACHE_FLOAT};
  wn_status status = wn_session_create(ctx, model, &options, &session);
  if (status == WN_OK) status = wn_session_feed(ctx, session, ids, T - DECODED, 32, logits);
  for (int t = T - DECODED; t < T && status == WN_OK; t++)
    status = wn_session_feed(ctx, session, ids + t, 1, 0, logits);
  wn_session_destroy(session);
  return status;
}

static wn_status job_work(wn_context *ctx, struct job *j) {
  wn_model *model = NULL;
  wn_trainer *trainer = NULL;
  wn_recipe recipe;
  wn_budgets budgets;
  int32_t ids[B * T], targets[B * T];
  for (int i = 0; i < B * T; i++) ids[i] = i * 7919 % V, targets[i] = (i * 7919 + 7919) % V;
  wn_recipe_init(&recipe);
  budgets_init(&budgets);
  wn_model_config *c = &recipe.model;
  c->vocab_size = V, c->context = T, c->layers = 2, c->width = 64, c->heads = 4, c->kv_heads = 2;
  recipe.train.batch = B, recipe.train.steps = STEPS, recipe.train.warmup = 0, recipe.train.context = T;
  wn_status status = wn_attention_config_parse(ctx, j->attention, &c->attention);
  if (status == WN_OK) status = wn_model_config_resolve(ctx, c);
  if (status == WN_OK) status = wn_model_create(ctx, c, 5, &model);
  if (status == WN_OK) status = wn_trainer_create(ctx, model, &recipe.train, &trainer);
  for (int i = 0; i < STEPS && status == WN_OK; i++) {
    wn_train_progress progress;
    status = wn_trainer_step(ctx, trainer, ids, targets, NULL, &progress);
    j->loss[i] = progress.loss;
  }
  if (status == WN_OK) status = wn_model_logits(ctx, model, ids, B, T, NULL, j->logits);
  if (status == WN_OK) status = job_decode(ctx, model, j, NULL, ids, j->cached);
  budgets.policy = j->policy;
  if (status == WN_OK) status = wn_budgets_parse(ctx, c, "24,16", &budgets);
  if (status == WN_OK) status = job_decode(ctx, model, j, &budgets, ids, j->evicted);
  wn_budgets_clear(&budgets);
  wn_trainer_destroy(trainer);
  wn_model_destroy(model);
  return status;
}

static void *job_run(void *user) {
  struct job *j = user;
  wn_context *ctx = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = j->threads};
  j->status = wn_context_create(&options, &ctx);
  if (j->status == WN_OK) j->status = job_work(ctx, j);
  snprintf(j->error, sizeof j->error, "%s", ctx ? wn_context_error(ctx) : "");
  wn_context_destroy(ctx);
  return NULL;
}

static void job_init(struct job *j, size_t mechanism, int threads) {
  const char *attention = mechanisms[mechanism % (sizeof mechanisms / sizeof *mechanisms)];
  memset(j, 0, sizeof *j);
  j->attention = attention;
  j->threads = threads;
  j->half = mechanism == 0;
  j->policy = strstr(attention, "selective") ? WN_POLICY_SELECTIVE
              : mechanism % 2                ? WN_POLICY_H2O
                                             : WN_POLICY_STREAMING;
}

/* Mechanism m in one context, mechanism m + 1 in the other, at the same time. */
static void contexts_of(int threads) {
  static struct job alone, beside[PAIR];
  for (size_t m = 0; m < sizeof mechanisms / sizeof *mechanisms; m++) {
    pthread_t thread[PAIR];
    for (int i = 0; i < PAIR; i++) {
      job_init(&beside[i], m + (size_t)i, threads);
      assert_int_equal(pthread_create(&thread[i], NULL, job_run, &beside[i]), 0);
    }
    for (int i = 0; i < PAIR; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < PAIR; i++)
      if (beside[i].status != WN_OK) fail_msg("%s, %d threads: %s", beside[i].attention, threads, beside[i].error);
    job_init(&alone, m, threads);
    job_run(&alone);
    assert_memory_equal(beside[0].loss, alone.loss, sizeof alone.loss);
    assert_memory_equal(beside[0].logits, alone.logits, sizeof alone.logits);
    assert_memory_equal(beside[0].cached, alone.cached, sizeof alone.cached);
    assert_memory_equal(beside[0].evicted, alone.evicted, sizeof alone.evicted);
    assert_true(alone.loss[0] > 0 && alone.loss[1] != alone.loss[0]);
  }
}

static void two_contexts_of_two_threads(void **state) {
  (void)state;
  contexts_of(2);
}
static void two_contexts_of_four_threads(void **state) {
  (void)state;
  contexts_of(4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(two_contexts_of_two_threads),
                                     cmocka_unit_test(two_contexts_of_four_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
