/* Contexts in different threads are independent: each trains and decodes to the bit what it would alone. So are several
 * sessions of one model that are fed in turn. */
#include "model/models.h"
#include "support.h"

#include <pthread.h>

#include "winnow/train.h"
#include "policies.h"

enum { T = 16, V = 13, STEPS = 6, THREADS = 3 };

struct job {
  int which;
  wn_status status;
  char error[512];
  float logits[V], loss[STEPS];
};

static const int cases[THREADS] = {7, 27,
                                   25}; /* of model_cases: selective and grouped, dynamic spans, by key-value head */

static wn_status work(struct job *j, wn_context *ctx) {
  struct wn_model *model = NULL;
  wn_trainer *trainer = NULL;
  wn_session *session = NULL;
  struct tokens x;
  const wn_model_config c = model_case_config(&model_cases[cases[j->which]]);
  const wn_train_config config = {.steps = STEPS,
                                  .batch = 2,
                                  .accumulate = 1,
                                  .context = T,
                                  .lr = 0.01,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .clip = 1,
                                  .seed = 3,
                                  .lr_mechanisms = 1,
                                  .schedule = WN_SCHED_CONSTANT,
                                  .activation_dtype = WN_F32};
  tokens_of(&x, 2, T, V, false);
  wn_status status = wn_model_create_dtype(ctx, &c, 7, WN_F32, &model);
  if (status == WN_OK) status = wn_trainer_create(ctx, model, &config, &trainer);
  for (int i = 0; i < STEPS && status == WN_OK; i++) {
    wn_train_progress p;
    status = wn_trainer_step(ctx, trainer, x.ids, x.targets, NULL, &p);
    j->loss[i] = (float)p.loss;
  }
  if (status == WN_OK) status = wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = T), &session);
  if (status == WN_OK) status = wn_session_feed(ctx, session, x.ids, T - 3, 0, j->logits);
  for (int t = T - 3; t < T && status == WN_OK; t++) status = wn_session_feed(ctx, session, x.ids + t, 1, 0, j->logits);
  wn_session_destroy(session);
  wn_trainer_destroy(trainer);
  wn_model_destroy(model);
  return status;
}

static void *run(void *user) {
  struct job *j = user;
  wn_context *ctx = NULL;
  j->status =
      wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 1 + j->which % 2}, &ctx);
  if (j->status == WN_OK) j->status = work(j, ctx);
  snprintf(j->error, sizeof j->error, "%s", ctx ? wn_context_error(ctx) : "");
  wn_context_destroy(ctx);
  return NULL;
}

static void test_contexts(void **state) {
  (void)state;
  struct job alone[THREADS], beside[THREADS];
  pthread_t threads[THREADS];
  memset(alone, 0, sizeof alone);
  for (int i = 0; i < THREADS; i++) {
    alone[i].which = i;
    run(&alone[i]);
    if (alone[i].status != WN_OK) fail_msg("%d: %s", i, alone[i].error);
    assert_true(alone[i].loss[STEPS - 1] < alone[i].loss[0]);
  }
  for (int round = 0; round < 3; round++) {
    memset(beside, 0, sizeof beside);
    for (int i = 0; i < THREADS; i++) {
      beside[i].which = i;
      assert_int_equal(pthread_create(&threads[i], NULL, run, &beside[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
      if (beside[i].status != WN_OK) fail_msg("%d beside others: %s", i, beside[i].error);
      assert_memory_equal(beside[i].loss, alone[i].loss, sizeof alone[i].loss);
      assert_memory_equal(beside[i].logits, alone[i].logits, sizeof alone[i].logits);
    }
  }
}

/* One session ahead of another, one under budgets, one that is restarted in between. */
static void test_sessions_of_one_model(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = model_case_config(&model_cases[7]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct tokens x;
  float alone[3][V], found[3][V];
  wn_budgets budgets;
  wn_session *s[3];
  tokens_of(&x, 2, T, V, false);
  budgets_init(&budgets);
  OK(ctx, wn_budgets_parse(ctx, &c, "4,6", &budgets));
  for (int turns = 0; turns < 2; turns++) {
    for (int i = 0; i < 3; i++)
      OK(ctx,
         wn_session_create(ctx, model,
                           WN_OPTIONS(wn_session_options, .capacity = T, .budgets = i == 1 ? &budgets : NULL), &s[i]));
    if (turns == 0)
      for (int i = 0; i < 3; i++)
        for (int t = 0; t < T; t++) OK(ctx, wn_session_feed(ctx, s[i], x.ids + i + t, 1, 0, alone[i]));
    for (int t = 0; t < T && turns == 1; t++) {
      if (t == 5) { /* a piece of another text, then a reset */
        OK(ctx, wn_session_feed(ctx, s[2], x.ids, 7, 0, NULL));
        wn_session_reset(s[2]);
        for (int k = 0; k < 5; k++) OK(ctx, wn_session_feed(ctx, s[2], x.ids + 2 + k, 1, 0, found[2]));
      }
      for (int i = 0; i < 3; i++) OK(ctx, wn_session_feed(ctx, s[i], x.ids + i + t, 1, 0, found[i]));
    }
    for (int i = 0; i < 3; i++) wn_session_destroy(s[i]);
  }
  assert_memory_equal(found, alone, sizeof alone);
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* One model used by several contexts at once, each in its own thread, as winnow/context.h promises. */
struct reader {
  struct wn_model *model;
  int which;
  wn_status status;
  float logits[2][V];
};

static void *read_model(void *user) {
  struct reader *r = user;
  const wn_context_options options = {.size = sizeof options, .threads = 1 + r->which % 2};
  wn_context *ctx = NULL;
  wn_session *session = NULL;
  struct tokens x;
  float whole[2 * T * V];
  tokens_of(&x, 2, T, V, false);
  r->status = wn_context_create(&options, &ctx);
  if (r->status == WN_OK)
    r->status = wn_session_create(ctx, r->model, WN_OPTIONS(wn_session_options, .capacity = T), &session);
  if (r->status == WN_OK) r->status = wn_session_feed(ctx, session, x.ids + r->which, T - 2, 0, r->logits[0]);
  for (int t = T - 2; t < T && r->status == WN_OK; t++)
    r->status = wn_session_feed(ctx, session, x.ids + r->which + t, 1, 0, r->logits[0]);
  if (r->status == WN_OK) r->status = wn_model_logits(ctx, r->model, x.ids, 2, T, NULL, whole);
  memcpy(r->logits[1], whole, sizeof r->logits[1]);
  wn_session_destroy(session);
  wn_context_destroy(ctx);
  return NULL;
}

static void test_one_model_in_contexts(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  for (int k = 0; k < THREADS; k++) {
    const wn_model_config c = model_case_config(&model_cases[cases[k]]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    struct reader alone[THREADS], beside[THREADS];
    pthread_t threads[THREADS];
    memset(alone, 0, sizeof alone), memset(beside, 0, sizeof beside);
    for (int i = 0; i < THREADS; i++) {
      alone[i].model = beside[i].model = model, alone[i].which = beside[i].which = i;
      read_model(&alone[i]);
      assert_int_equal(alone[i].status, WN_OK);
    }
    assert_memory_not_equal(alone[0].logits[0], alone[1].logits[0], sizeof alone[0].logits[0]);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_model, &beside[i]), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
      assert_int_equal(beside[i].status, WN_OK);
      assert_memory_equal(beside[i].logits, alone[i].logits, sizeof alone[i].logits);
    }
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_contexts), cmocka_unit_test(test_sessions_of_one_model),
                                     cmocka_unit_test(test_one_model_in_contexts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
