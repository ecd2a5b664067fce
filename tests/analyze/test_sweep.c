/* The sweep over tau: each point equals an evaluation of a model with that threshold, the baseline an evaluation
 * without context. Tasks are compared with greedy decoding by hand, and the rule that picks tau is tried on numbers. */
#include "model/models.h"

#include "support.h"
#include "winnow/analyze.h"

enum { T = 32, V = 256 };
static const char text[] =
    "What is kept of the weight is what is read; the rest is context that nobody needed. How much "
    "of it may go before a reader notices, and which part, is a question of measure.";

static wn_model_config config_of(const char *attention) {
  const struct model_case k = {
      .position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true, .attention = attention};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V, c.context = T;
  return c;
}

static double loss_of(wn_context *ctx, const char *attention, const wn_tokenizer *tok, double *accuracy) {
  wn_model_config c = config_of(attention);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_eval_result r;
  OK(ctx, wn_eval_text(ctx, model, tok, text, sizeof text - 1, NULL, &r));
  wn_model_destroy(model);
  *accuracy = r.accuracy;
  return r.loss;
}

/* The next token, from a forward pass over everything. */
static int32_t next(wn_context *ctx, struct wn_model *model, const int32_t *ids, int64_t n) {
  static float logits[T * V];
  OK(ctx, wn_model_logits(ctx, model, ids, 1, n, NULL, logits));
  int32_t best = 0;
  for (int32_t i = 1; i < V; i++)
    if (logits[(n - 1) * V + i] > logits[(n - 1) * V + best]) best = i;
  return best;
}

static void test_points(void **state) {
  (void)state;
  for (int backend = 0; backend < 2; backend++) {
    wn_context *ctx = context_of(backend ? "cpu" : "ref", 1);
    wn_model_config c = config_of("{}");
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    wn_tokenizer *tok;
    OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
    /* Tasks: what the model itself generates after a prompt; for every second one the last token is another. */
    enum { TASKS = 6 };
    int32_t prompt[TASKS][10], answer[TASKS][3];
    wn_sweep_task tasks[TASKS];
    for (int i = 0; i < TASKS; i++) {
      for (int k = 0; k < 10; k++) prompt[i][k] = (uint8_t)text[7 * i + k];
      int32_t whole[13];
      memcpy(whole, prompt[i], sizeof prompt[i]);
      for (int k = 0; k < 3; k++) whole[10 + k] = answer[i][k] = next(ctx, model, whole, 10 + k);
      if (i % 2) answer[i][2] = (answer[i][2] + 1) % V;
      tasks[i] = (wn_sweep_task){prompt[i], prompt[i] + 8, answer[i], 10, 2, 3};
    }
    const double taus[] = {0.3, 0.7, 1};
    const int32_t control[] = {' '};
    const wn_sweep_options options = {
        .size = sizeof options, .taus = taus, .tau_count = 3, .gamma = 0.95, .tasks = tasks, .task_count = TASKS};
    const wn_analysis_input input = {.tok = tok, .text = text, .bytes = sizeof text - 1};
    wn_sweep_report *r;
    OK(ctx, wn_analyze_sweep(ctx, model, &input, &options, &r));
    static const char *const same[] = {"{\"threshold\":{\"tau\":0.3}}", "{\"threshold\":{\"tau\":0.7}}", "{}",
                                       "{\"window\":1}"};
    for (int i = 0; i < 4; i++) {
      const wn_sweep_point *p = i < 3 ? &r->point[i] : &r->baseline;
      double accuracy;
      const double loss = loss_of(ctx, same[i], tok, &accuracy);
      assert_true(fabs(p->loss - loss) < 1e-6 && fabs(p->accuracy - accuracy) < 1e-9);
      assert_true(fabs(p->perplexity - exp(loss)) < 1e-4 * exp(loss));
    }
    assert_true(r->full.loss == r->point[2].loss && fabs(r->point[0].loss - r->full.loss) > 1e-3);
    assert_true(r->full.exact == 0.5); /* exactly the tasks whose answer was left unchanged */
    assert_false(model->config.attention.threshold.enabled || model->config.attention.window);
    assert_null(model->control);
    /* Control tokens change what the threshold keeps. */
    wn_sweep_options kept = options;
    kept.control = control, kept.control_count = 1, kept.task_count = 0;
    wn_sweep_report *other;
    OK(ctx, wn_analyze_sweep(ctx, model, &input, &kept, &other));
    assert_true(other->full.loss == r->full.loss && other->point[0].loss != r->point[0].loss);
    assert_true(other->best_exact == -1);
    wn_sweep_report_destroy(other);
    wn_sweep_report_destroy(r);
    OK(ctx, wn_analyze_sweep(ctx, model, NULL, &options, &r)); /* tasks alone */
    assert_true(r->full.exact == 0.5 && r->best_loss == -1 && r->full.tokens == 0);
    wn_sweep_report_destroy(r);
    wn_model_destroy(model);
    wn_tokenizer_destroy(tok);
    wn_context_destroy(ctx);
  }
}

static void test_rule(void **state) {
  (void)state;
  const double rises[] = {0.1, 0.5, 0.9, 0.96, 0.97, 1}, dips[] = {0.1, 0.96, 0.9, 0.96, 0.97, 1}, none[] = {0.1, 0.2};
  assert_int_equal(wn_sweep_optimum(rises, 6, 0, 1, 0.95), 3);
  assert_int_equal(wn_sweep_optimum(dips, 6, 0, 1, 0.95), 3); /* the first point from which on all are enough */
  assert_int_equal(wn_sweep_optimum(rises, 6, 0.8, 1, 0.5), 2);
  assert_int_equal(wn_sweep_optimum(none, 2, 0, 1, 0.95), -1);
  assert_int_equal(wn_sweep_optimum(rises, 6, 1, 1, 0.95), -1); /* no improvement to keep */
  const double losses[] = {-3, -2.04, -2.0};                    /* the paper's rule with P = -loss */
  assert_int_equal(wn_sweep_optimum(losses, 3, -3, -2, 0.95), 1);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_model_config c = config_of("{}");
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  const double taus[] = {0.5}, zero[] = {0};
  const int32_t ids[] = {1};
  const wn_sweep_task empty = {ids, ids, ids, 1, 0, 1};
  wn_sweep_report *r;
  wn_sweep_options o = {.size = sizeof o, .taus = taus, .tau_count = 1, .gamma = 0.95};
  assert_refused(ctx, wn_analyze_sweep(ctx, model, NULL, &o, &r), WN_ERR_ARGUMENT, "text or tasks");
  o.tasks = &empty, o.task_count = 1;
  assert_refused(ctx, wn_analyze_sweep(ctx, model, NULL, &o, &r), WN_ERR_ARGUMENT, "task 0");
  o.gamma = 1;
  assert_refused(ctx, wn_analyze_sweep(ctx, model, NULL, &o, &r), WN_ERR_ARGUMENT, "gamma");
  o.taus = zero;
  assert_refused(ctx, wn_analyze_sweep(ctx, model, NULL, &o, &r), WN_ERR_ARGUMENT, "tau");
  assert_null(r);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_points), cmocka_unit_test(test_rule),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
