/* Options structs carry their size: a caller built against an older or a newer header is served, or refused in one
 * line. */
#include "support.h"

#include <winnow/winnow.h>
#include "base/options.h"

/* The same struct as an older header, this one and a newer one declare it. */
struct past {
  size_t size;
  const char *title;
};
struct present {
  size_t size;
  const char *title;
  int64_t limit;
};
struct future {
  size_t size;
  const char *title;
  int64_t limit, colour;
};

static void test_shorter_struct(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const struct past old = {.size = sizeof old, .title = "old"};
  struct present own;
  memset(&own, 0xFF, sizeof own);
  assert_int_equal(wn_options_read(ctx, "present", &old, &own, sizeof own), WN_OK);
  assert_int_equal(own.size, sizeof own);
  assert_string_equal(own.title, "old");
  assert_int_equal(own.limit, 0);
  wn_context_destroy(ctx);
}

static void test_longer_struct(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  struct future newer = {.size = sizeof newer, .title = "new", .limit = 7};
  struct present own;
  assert_int_equal(wn_options_read(ctx, "present", &newer, &own, sizeof own), WN_OK);
  assert_int_equal(own.limit, 7);
  newer.colour = 1;
  assert_int_equal(wn_options_read(ctx, "present", &newer, &own, sizeof own), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(ctx), "present has a field that this library does not know"));
  wn_context_destroy(ctx);
}

/* Configurations have room instead of a size: what a newer caller puts there is refused, each by the first call that
 * takes it. */
static void test_reserved(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_recipe r;
  wn_recipe_init(&r);
  r.model.vocab_size = 11, r.model.context = 8, r.model.width = 8, r.model.layers = 1, r.model.heads = 2;
  wn_model *model;
  assert_int_equal(wn_model_create(ctx, &r.model, 1, &model), WN_OK);
  wn_model_config newer = r.model;
  newer.reserved[31] = 1;
  wn_model *none;
  assert_int_equal(wn_model_create(ctx, &newer, 1, &none), WN_ERR_UNSUPPORTED);
  assert_string_equal(wn_context_error(ctx),
                      "wn_model_config has a field that this library does not know, or was not initialised "
                      "(wn_model_config_init)");
  wn_trainer *trainer;
  r.train.reserved[0] = 1;
  assert_int_equal(wn_trainer_create(ctx, model, &r.train, &trainer), WN_ERR_UNSUPPORTED);
  wn_data_source *source;
  r.data.kind = WN_DATA_COPY, r.data.reserved[0] = 1;
  assert_int_equal(wn_data_source_create(ctx, &r.data, "train", 8, 11, &source), WN_ERR_UNSUPPORTED);
  wn_budgets budgets;
  wn_budgets_init(&budgets, NULL);
  assert_int_equal(wn_budgets_parse(ctx, wn_model_config_get(model), "4", &budgets), WN_OK);
  budgets.reserved[0] = 1;
  wn_session *session;
  assert_int_equal(wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .budgets = &budgets), &session),
                   WN_ERR_UNSUPPORTED);
  budgets.reserved[0] = 0;
  wn_budgets_clear(&budgets);
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  const int32_t prompt[] = {1, 2};
  o.prompt = prompt, o.prompt_count = 2, o.max_tokens = 2;
  assert_int_equal(wn_generate(ctx, model, &o, NULL), WN_OK);
  o.sampling.reserved[7] = 1;
  assert_int_equal(wn_generate(ctx, model, &o, NULL), WN_ERR_UNSUPPORTED);
  int32_t token;
  const float logits[11] = {0};
  assert_int_equal(wn_sample(ctx, logits, 11, &o.sampling, 0, &token), WN_ERR_UNSUPPORTED);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_sizes_that_cannot_be(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const size_t sizes[] = {0, 1, sizeof(size_t), sizeof(struct present) - 1, SIZE_MAX, (size_t)1 << 40};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const struct present o = {.size = sizes[i]};
    struct present own = {.limit = 3};
    assert_int_equal(wn_options_read(ctx, "present", &o, &own, sizeof own), WN_ERR_ARGUMENT);
    assert_non_null(strstr(wn_context_error(ctx), "the size of present is "));
    assert_int_equal(own.limit, 3);
  }
  struct present own;
  assert_int_equal(wn_options_read(ctx, "present", NULL, &own, sizeof own), WN_ERR_ARGUMENT);
  wn_context_destroy(ctx);
}

/* Bytes after the caller's struct are not touched. */
static void test_defaults_of_a_shorter_struct(void **state) {
  (void)state;
  const struct present defaults = {.title = "usual", .limit = 5};
  struct {
    struct past o;
    int64_t guard;
  } caller = {.guard = 11};
  wn_options_default(&defaults, sizeof defaults, &caller.o, sizeof caller.o);
  assert_int_equal(caller.o.size, sizeof caller.o);
  assert_string_equal(caller.o.title, "usual");
  assert_int_equal(caller.guard, 11);
  wn_prune_options prune;
  memset(&prune, 0xFF, sizeof prune);
  wn_prune_options_init(&prune, sizeof prune);
  assert_int_equal(prune.size, sizeof prune);
  assert_int_equal(prune.step, 8);
}

/* Every function that takes options refuses size 0 before it checks anything else. */
static void test_every_function_asks_for_the_size(void **state) {
  (void)state;
  wn_context *ctx = make_context(), *other = NULL;
  wn_model_config config;
  wn_model_config_init(&config);
  config.vocab_size = 256, config.context = 8, config.layers = 1, config.width = 8, config.heads = 1;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  assert_ok(ctx, wn_model_config_resolve(ctx, &config));
  assert_ok(ctx, wn_model_create(ctx, &config, 1, &model));
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
#define REFUSED(context, type, call)                                                                                   \
  do {                                                                                                                 \
    const type zero = {0};                                                                                             \
    assert_refused(context, call, WN_ERR_ARGUMENT, "the size of " #type " is 0; the caller sets it to sizeof(");       \
  } while (0)
  wn_eval_result eval;
  wn_data_prepare_result prepared;
  wn_meaning_report *meaning;
  wn_sweep_report *sweep;
  wn_look_report *look;
  wn_session *session;
  wn_prune_comparison comparison;
  wn_page *page;
  wn_live *live;
  REFUSED(other, wn_context_options, wn_context_create(&zero, &other));
  REFUSED(ctx, wn_tokenizer_train_options, wn_tokenizer_train(ctx, &zero));
  REFUSED(ctx, wn_data_prepare_options, wn_data_prepare(ctx, &zero, &prepared));
  REFUSED(ctx, wn_eval_options, wn_eval(ctx, model, NULL, &zero, &eval));
  REFUSED(ctx, wn_eval_options, wn_eval_text(ctx, model, tok, "text", 4, &zero, &eval));
  REFUSED(ctx, wn_session_options, wn_session_create(ctx, model, &zero, &session));
  REFUSED(ctx, wn_convert_options, wn_model_convert(ctx, "nowhere", "nowhere.gguf", &zero, NULL));
  REFUSED(ctx, wn_prune_options, wn_prune_search(ctx, model, &zero, "nowhere", false, NULL, NULL, NULL));
  REFUSED(ctx, wn_prune_compare_options, wn_prune_compare(ctx, &zero, NULL, NULL, &comparison));
  REFUSED(ctx, wn_page_options, wn_page_create(ctx, &zero, &page));
  REFUSED(ctx, wn_live_options, wn_live_start(ctx, &zero, &live));
  const wn_analysis_input input = {.tok = tok, .text = "text", .bytes = 4};
  REFUSED(ctx, wn_meaning_options, wn_analyze_meaning(ctx, model, &input, &zero, &meaning));
  REFUSED(ctx, wn_sweep_options, wn_analyze_sweep(ctx, model, &input, &zero, &sweep));
  REFUSED(ctx, wn_look_options, wn_analyze_look(ctx, model, &input, &zero, &look));
  REFUSED(ctx, wn_eval_options,
          wn_analyze_meaning(ctx, model, &(wn_analysis_input){.tok = tok, .text = "text", .bytes = 4, .options = &zero},
                             NULL, &meaning));
  wn_context_destroy(other);
  wn_model_destroy(model);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

/* A call as an older program makes it: its struct ends after the first field. */
static void test_an_older_program_evaluates(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_model_config config;
  wn_model_config_init(&config);
  config.vocab_size = 256, config.context = 8, config.layers = 1, config.width = 8, config.heads = 1;
  wn_model *model = NULL;
  wn_tokenizer *tok = NULL;
  assert_ok(ctx, wn_model_config_resolve(ctx, &config));
  assert_ok(ctx, wn_model_create(ctx, &config, 1, &model));
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  struct {
    size_t size;
    int64_t batch, context;
    unsigned char garbage[256]; /* lies behind the caller's struct */
  } old = {.size = 3 * sizeof(int64_t), .batch = 2, .context = 4};
  memset(old.garbage, 0xA5, sizeof old.garbage);
  const wn_eval_options now = {.size = sizeof now, .batch = 2, .context = 4};
  wn_eval_result a, b;
  assert_ok(ctx, wn_eval_text(ctx, model, tok, "some text", 9, (const wn_eval_options *)(const void *)&old, &a));
  assert_ok(ctx, wn_eval_text(ctx, model, tok, "some text", 9, &now, &b));
  assert_int_equal(a.tokens, 8);
  assert_true(a.loss == b.loss);
  wn_model_destroy(model);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shorter_struct),
      cmocka_unit_test(test_longer_struct),
      cmocka_unit_test(test_reserved),
      cmocka_unit_test(test_sizes_that_cannot_be),
      cmocka_unit_test(test_defaults_of_a_shorter_struct),
      cmocka_unit_test(test_every_function_asks_for_the_size),
      cmocka_unit_test(test_an_older_program_evaluates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
