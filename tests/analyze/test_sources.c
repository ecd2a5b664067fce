/* Every call that takes a data source refuses one whose sequences have another length than the call expects: longer
 * ones would overflow the call's arrays, shorter ones would leave a part of them unset. */
#include "support.h"

#include "winnow/analyze.h"
#include "winnow/selection.h"
#include "policies.h"

enum { CONTEXT = 16, V = 16 };

struct bench {
  wn_context *ctx;
  wn_model *model;
  const wn_data_source *source;
  const wn_eval_options *options;
};

static wn_status run_eval(struct bench *b) {
  wn_eval_result r;
  return wn_eval(b->ctx, b->model, b->source, b->options, &r);
}

static wn_analysis_input input_of(const struct bench *b) {
  return (wn_analysis_input){.source = b->source, .options = b->options};
}

static wn_status run_look(struct bench *b) {
  wn_look_report *r = NULL;
  const wn_look_options o = {.size = sizeof o, .early = 4};
  const wn_analysis_input in = input_of(b);
  wn_status status = wn_analyze_look(b->ctx, b->model, &in, &o, &r);
  wn_look_report_destroy(r);
  return status;
}

static wn_status run_meaning(struct bench *b) {
  wn_meaning_report *r = NULL;
  const wn_meaning_options o = {.size = sizeof o};
  const wn_analysis_input in = input_of(b);
  wn_status status = wn_analyze_meaning(b->ctx, b->model, &in, &o, &r);
  wn_meaning_report_destroy(r);
  return status;
}

static wn_status run_spans(struct bench *b) {
  wn_span_report *r = NULL;
  const wn_analysis_input in = input_of(b);
  wn_status status = wn_analyze_spans(b->ctx, b->model, &in, &r);
  wn_span_report_destroy(r);
  return status;
}

static wn_status run_sweep(struct bench *b) {
  wn_sweep_report *r = NULL;
  const double taus[] = {0.5, 1};
  const wn_sweep_options o = {.size = sizeof o, .taus = taus, .tau_count = 2, .gamma = 0.95};
  const wn_analysis_input in = input_of(b);
  wn_status status = wn_analyze_sweep(b->ctx, b->model, &in, &o, &r);
  wn_sweep_report_destroy(r);
  return status;
}

static wn_status run_survival(struct bench *b) {
  wn_survival_report *r = NULL;
  wn_budgets budgets;
  budgets_init(&budgets);
  wn_status status = wn_budgets_parse(b->ctx, wn_model_config_get(b->model), "4,6", &budgets);
  const wn_budgets *const list[] = {&budgets};
  const wn_analysis_input in = input_of(b);
  if (status == WN_OK) status = wn_analyze_survival(b->ctx, b->model, &in, list, 1, &r);
  wn_survival_report_destroy(r);
  wn_budgets_clear(&budgets);
  return status;
}

static wn_status run_mean(struct bench *b) {
  wn_selection_mean *m = NULL;
  const int64_t T = b->options->context ? b->options->context : CONTEXT;
  const wn_selection_mean_options o = {.size = sizeof o, .T = T, .sequences = 2};
  wn_status status = wn_analyze_selection_mean(b->ctx, b->model, b->source, &o, &m);
  wn_selection_mean_destroy(m);
  return status;
}

static const struct {
  const char *name;
  wn_status (*run)(struct bench *b);
} calls[] = {{"wn_eval", run_eval},
             {"wn_analyze_look", run_look},
             {"wn_analyze_meaning", run_meaning},
             {"wn_analyze_spans", run_spans},
             {"wn_analyze_sweep", run_sweep},
             {"wn_analyze_survival", run_survival},
             {"wn_analyze_selection_mean", run_mean}};
enum { CALLS = sizeof calls / sizeof *calls };

static void bench_init(struct bench *b) {
  wn_model_config c;
  *b = (struct bench){.ctx = make_context()};
  wn_model_config_init(&c);
  c.vocab_size = V, c.context = CONTEXT, c.layers = 2, c.width = 16, c.heads = 2;
  c.attention.selective.enabled = true;
  c.attention.span.enabled = c.attention.span.dynamic = true;
  c.attention.span.limit = CONTEXT;
  assert_ok(b->ctx, wn_model_config_resolve(b->ctx, &c));
  assert_ok(b->ctx, wn_model_create(b->ctx, &c, 1, &b->model));
}

static void test_rows(void **state) {
  (void)state;
  struct bench b;
  wn_recipe r;
  char dir[512];
  bench_init(&b);
  make_folder(dir);
  wn_recipe_init(&r);
  r.data.kind = WN_DATA_TOKENS;
  snprintf(r.data.val, sizeof r.data.val, "%.500s/val.bin", dir);
  const struct {
    int64_t rows, context; /* of the source; the call's (0: the model's) */
    int32_t vocab;
    wn_status expected;
    const char *part;
  } cases[] = {{CONTEXT, 0, V, WN_OK, ""},
               {8, 8, V, WN_OK, ""},
               {8, 8, V - 1, WN_OK, ""},
               {CONTEXT, 8, V, WN_ERR_ARGUMENT, "rows of 16 tokens, the context is 8"},
               {4 * CONTEXT, 0, V, WN_ERR_ARGUMENT, "rows of 64 tokens, the context is 16"},
               {8, 0, V, WN_ERR_ARGUMENT, "rows of 8 tokens, the context is 16"},
               {1, CONTEXT, V, WN_ERR_ARGUMENT, "rows of 1 tokens, the context is 16"},
               {CONTEXT, 0, V + 1, WN_ERR_ARGUMENT, "16"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int k = 0; k < CALLS; k++) {
      wn_data_source *source = NULL;
      const wn_eval_options options = {
          .size = sizeof options, .batch = 2, .context = cases[i].context, .max_batches = 1};
      const int32_t vocab = cases[i].vocab;
      int32_t few[200]; /* the first sequences have the vocabulary's last token */
      for (int n = 0; n < 200; n++) few[n] = n < CONTEXT ? vocab - 1 : n % vocab;
      assert_ok(b.ctx, wn_token_file_write(b.ctx, r.data.val, "llmc", V + 1, few, 200));
      assert_ok(b.ctx, wn_data_source_create(b.ctx, &r.data, "val", cases[i].rows, vocab, &source));
      b.source = source, b.options = &options;
      const wn_status found = calls[k].run(&b);
      if (found != cases[i].expected || (found != WN_OK && !strstr(wn_context_error(b.ctx), cases[i].part)))
        fail_msg("%s, case %zu: expected %s with \"%s\", found %s: %s", calls[k].name, i,
                 wn_status_name(cases[i].expected), cases[i].part, wn_status_name(found), wn_context_error(b.ctx));
      wn_data_source_destroy(source);
    }
  wn_model_destroy(b.model);
  wn_context_destroy(b.ctx);
  remove_folder(dir);
}

/* Sources of encoder inputs go with models that have an encoder, and only with those. */
static void test_inputs(void **state) {
  (void)state;
  struct bench b;
  wn_recipe r;
  char dir[512];
  int32_t ids[400];
  bench_init(&b);
  make_folder(dir);
  for (int i = 0; i < 400; i++) ids[i] = i * 5 % 6;
  wn_recipe_init(&r);
  r.data.kind = WN_DATA_SPAN_CORRUPTION;
  r.data.sentinels = 8, r.data.input_length = CONTEXT, r.data.start_token = 0, r.data.end_token = -1;
  snprintf(r.data.val, sizeof r.data.val, "%.500s/val.bin", dir);
  assert_ok(b.ctx, wn_token_file_write(b.ctx, r.data.val, "llmc", V, ids, 400));
  wn_data_source *source = NULL;
  assert_ok(b.ctx, wn_data_source_create(b.ctx, &r.data, "val", CONTEXT, V, &source));
  const wn_eval_options options = {.size = sizeof options, .batch = 2, .max_batches = 1};
  b.source = source, b.options = &options;
  for (int k = 0; k < CALLS; k++) assert_refused(b.ctx, calls[k].run(&b), WN_ERR_ARGUMENT, "no encoder");
  wn_model_destroy(b.model);
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = V, c.context = CONTEXT, c.layers = 1, c.width = 16, c.heads = 2, c.encoder.layers = 1;
  c.encoder.context = CONTEXT - 1;
  assert_ok(b.ctx, wn_model_config_resolve(b.ctx, &c));
  assert_ok(b.ctx, wn_model_create(b.ctx, &c, 1, &b.model));
  assert_refused(b.ctx, run_eval(&b), WN_ERR_ARGUMENT, "encoder takes at most 15");
  wn_data_source_destroy(source);
  r.data.input_length = CONTEXT - 1;
  assert_ok(b.ctx, wn_data_source_create(b.ctx, &r.data, "val", CONTEXT, V, &source));
  b.source = source;
  assert_ok(b.ctx, run_eval(&b));
  wn_data_source_destroy(source);
  r.data.kind = WN_DATA_TOKENS;
  assert_ok(b.ctx, wn_data_source_create(b.ctx, &r.data, "val", CONTEXT, V, &source));
  b.source = source;
  assert_refused(b.ctx, run_eval(&b), WN_ERR_ARGUMENT, "no inputs");
  wn_data_source_destroy(source);
  wn_model_destroy(b.model);
  wn_context_destroy(b.ctx);
  remove_folder(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_inputs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
