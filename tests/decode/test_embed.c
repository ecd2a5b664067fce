/* Hidden states and embeddings. States equal the final norm's output of a whole pass in double, in every configuration;
 * under budgets they equal those of feeding token by token. Embeddings are made of them. */
#include "model/models.h"

#include "model/workspace.h"
#include "support.h"
#include "winnow/embed.h"
#include "reach.h"
#include "policies.h"

enum { B = 2, T = 14, V = 13, LONG = 300 };

static void random_tokens(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

/* The final norm's output [B,T,C] of a pass over whole sequences, by the reference in double. */
static void states_of_pass(wn_context *ctx, struct wn_model *model, const int32_t *ids, double *out) {
  wn_workspace *ws;
  struct wn_run run;
  OK(ctx, wn_workspace_create(ctx, model, B, T, &(struct wn_workspace_options){.activation_dtype = WN_F32}, &ws));
  OK(ctx, wn_run_batch(&run, model, ws, &(struct wn_batch){.B = B, .T = T, .tokens = ids}, NULL));
  OK(ctx, wn_run_stack(&run, ws));
  memcpy(out, reach(ws->n_out), (size_t)(B * T * model->config.width) * sizeof *out);
  wn_workspace_destroy(ws);
}

static void test_every_configuration(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *exact = context_of("ref", 1), *ctx = context_of("cpu", 1);
    wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *reference = model_of(exact, &c, WN_F64), *model = model_of(ctx, &c, WN_F32);
    const int64_t C = c.width;
    double *expected = malloc((size_t)(B * T * C) * sizeof *expected);
    float *found = malloc((size_t)(B * T * C) * sizeof *found);
    int32_t ids[B * T];
    wn_session *s;
    random_tokens((uint64_t)k, ids, B * T);
    states_of_pass(exact, reference, ids, expected);
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .sequences = B, .capacity = T), &s));
    OK(ctx, wn_session_states(ctx, s, ids, T, found));
    assert_int_equal(wn_session_position(s), T);
    for (int64_t i = 0; i < B * T * C; i++)
      if (!(fabs((double)found[i] - expected[i]) <= 2e-4))
        fail_msg("%s: state %d, element %d: %g, expected %g", model_cases[k].name, (int)(i / C), (int)(i % C),
                 (double)found[i], expected[i]);
    wn_session_destroy(s);
    free(expected), free(found);
    wn_model_destroy(reference), wn_model_destroy(model);
    wn_context_destroy(exact), wn_context_destroy(ctx);
  }
}

/* States [n,C] of one text, with or without a budget, in one call and token by token; and its embeddings. */
static void check_text(wn_context *ctx, wn_model *model, const char *budget, const int32_t *ids) {
  const int64_t C = wn_model_config_get(model)->width;
  float *states = malloc((size_t)(LONG * C) * sizeof *states), *one = malloc((size_t)C * sizeof *one);
  wn_budgets b;
  wn_session *s;
  budgets_init(&b);
  assert_int_equal(wn_policy_find(NULL, "h2o", &b.policy), WN_OK);
  if (budget) OK(ctx, wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b));
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = LONG, .budgets = budget ? &b : NULL),
                            &s));
  OK(ctx, wn_session_states(ctx, s, ids, LONG, states));
  wn_session_reset(s);
  for (int t = 0; t < LONG; t++) {
    OK(ctx, wn_session_states(ctx, s, ids + t, 1, one));
    for (int64_t i = 0; i < C; i++) assert_true(fabsf(one[i] - states[t * C + i]) <= 2e-4f);
  }
  for (int pooling = 0; pooling < WN_POOLING_COUNT; pooling++)
    for (int raw = 0; raw < 2; raw++) {
      const wn_embed_options o = {.size = sizeof o, .pooling = (wn_pooling)pooling, .raw = raw};
      double mean[512] = {0}, square = 0;
      assert_true(C <= 512);
      for (int t = 0; t < LONG; t++)
        for (int64_t i = 0; i < C; i++)
          mean[i] = pooling == WN_POOLING_LAST ? (double)states[t * C + i] : mean[i] + (double)states[t * C + i] / LONG;
      for (int64_t i = 0; i < C; i++) square += mean[i] * mean[i];
      wn_session_reset(s);
      OK(ctx, wn_session_embed(ctx, s, ids, LONG, pooling + raw ? &o : NULL, one));
      for (int64_t i = 0; i < C; i++) assert_true(fabs((double)one[i] - mean[i] / (raw ? 1 : sqrt(square))) < 1e-5);
    }
  wn_session_destroy(s);
  wn_budgets_clear(&b);
  free(states), free(one);
}

static void test_embeddings(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c = model_case_config(&model_cases[1]);
  c.context = LONG;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  int32_t ids[LONG];
  float out[512];
  wn_session *s;
  random_tokens(5, ids, LONG);
  check_text(ctx, model, NULL, ids);
  check_text(ctx, model, "20", ids);
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = LONG), &s));
  assert_refused(ctx, wn_session_embed(ctx, s, ids, LONG + 1, NULL, out), WN_ERR_ARGUMENT, "do not fit");
  const wn_embed_options bad = {.size = sizeof bad, .pooling = (wn_pooling)7};
  assert_refused(ctx, wn_session_embed(ctx, s, ids, 3, &bad, out), WN_ERR_ARGUMENT, "pooling 7");
  ids[2] = V;
  assert_refused(ctx, wn_session_embed(ctx, s, ids, 3, NULL, out), WN_ERR_ARGUMENT, "token");
  assert_refused(ctx, wn_session_states(ctx, s, ids, 3, out), WN_ERR_ARGUMENT, "token");
  assert_string_equal(wn_pooling_name(WN_POOLING_LAST), "last");
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_configuration), cmocka_unit_test(test_embeddings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
