/* Files of every released version (tests/released/VERSION, written by that version's program: tools/add-released) load
 * with today's code: models in all formats, with the losses that the version measured; runs, which can be resumed for a
 * step; logs, searches, comparisons, budgets, tokenizers, token files. */
#include "folder.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include "winnow/data.h"
#include "winnow/model.h"
#include "winnow/prune.h"
#include "winnow/report.h"
#include "winnow/tokenizer.h"
#include "winnow/train.h"
#include "policies.h"

static const char *in(const char *version, const char *name) {
  static char paths[8][1024];
  static int next;
  char *path = paths[next++ % 8];
  assert_true(snprintf(path, 1024, "%s/released/%s/%s", WN_TEST_DIR, version, name) < 1024);
  return path;
}

/* Calls test(version) for every folder. There must be at least two. */
static void each(void (*test)(const char *version)) {
  DIR *dir = opendir(WN_TEST_DIR "/released");
  assert_non_null(dir);
  int count = 0;
  for (struct dirent *e; (e = readdir(dir));) {
    if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
    test(e->d_name);
    count++;
  }
  closedir(dir);
  assert_true(count >= 2);
}

static void sources(const char *version, bool bytes, wn_data_config *data) {
  wn_recipe recipe;
  wn_recipe_init(&recipe);
  *data = recipe.data;
  data->kind = WN_DATA_TOKENS;
  snprintf(data->val, sizeof data->val, "%s", in(version, bytes ? "bytes/val.bin" : "pieces/val.bin"));
}

static void one_loss(const char *version, const char *name, double expected) {
  wn_model *model;
  wn_data_config data;
  wn_data_source *source;
  wn_eval_result r;
  assert_ok(ctx, wn_model_load(ctx, in(version, name), NULL, &model));
  const wn_model_config *c = wn_model_config_get(model);
  sources(version, !strcmp(name, "spans"), &data);
  data.stream = c->recurrence > 0;
  assert_ok(ctx, wn_data_source_create(ctx, &data, "val", c->context, (int32_t)c->vocab_size, &source));
  const wn_eval_options o = {.size = sizeof o, .batch = 2};
  assert_ok(ctx, wn_eval(ctx, model, source, &o, &r));
  /* Another backend and other sums; more so for Q8_0 and F16 weights, for which the cpu backend rounds activations. */
  const bool packed = strstr(name, ".gguf") || !strcmp(name, "hf");
  if (!(fabs(r.loss - expected) <= (packed ? 2e-3 : 1e-5)))
    fail_msg("%s/%s: the loss is %.8f; the version itself measured %.8f", version, name, r.loss, expected);
  wn_data_source_destroy(source);
  wn_model_destroy(model);
}

static void losses_of(const char *version) {
  json_t *expected = json_load_file(in(version, "expected.json"), 0, NULL);
  assert_string_equal(json_string_value(json_object_get(expected, "version")), version);
  const char *name;
  json_t *value;
  int count = 0;
  json_object_foreach(expected, name, value) {
    if (!json_is_real(value)) continue;
    one_loss(version, name, json_real_value(value));
    count++;
  }
  assert_true(count >= 6);
  json_decref(expected);
}
static void losses(void **state) {
  (void)state;
  each(losses_of);
}

static void copy_file(const char *from, const char *to) {
  FILE *f = fopen(from, "rb");
  static char bytes[1 << 20];
  assert_non_null(f);
  const size_t n = fread(bytes, 1, sizeof bytes, f);
  assert_true(n < sizeof bytes && fclose(f) == 0);
  put_file(to, bytes, n);
}

/* A copy of the run is resumed for two steps, from the step of its files. */
static void one_run(const char *version, const char *name) {
  char run[600], to[1200], from[1200], train[1200], val[1200], tokenizer[1200];
  snprintf(run, sizeof run, "%s/%s-%s", folder, version, name);
  assert_int_equal(mkdir(run, 0777), 0);
  DIR *dir = opendir(in(version, name));
  assert_non_null(dir);
  for (struct dirent *e; (e = readdir(dir));) {
    if (e->d_name[0] == '.') continue;
    snprintf(from, sizeof from, "%s/%s", in(version, name), e->d_name);
    snprintf(to, sizeof to, "%s/%s", run, e->d_name);
    copy_file(from, to);
  }
  closedir(dir);
  const char *file = in(version, strcmp(name, "spans") ? "pieces/val.bin" : "bytes/val.bin");
  snprintf(train, sizeof train, "data.train=%s", file);
  snprintf(val, sizeof val, "data.val=%s", file);
  if (strcmp(name, "spans"))
    snprintf(tokenizer, sizeof tokenizer, "data.tokenizer=%s/tokenizer.model", in(version, name));
  else
    snprintf(tokenizer, sizeof tokenizer, "data.tokenizer=bytes");
  const char *const sets[] = {train, val, tokenizer, "train.steps=8"};
  wn_recipe recipe;
  snprintf(to, sizeof to, "%s/recipe.json", run);
  assert_ok(ctx, wn_recipe_load(ctx, to, sets, 4, &recipe));
  assert_true(wn_train_can_resume(run));
  wn_train_log log;
  assert_ok(ctx, wn_train_log_load(ctx, run, &log));
  assert_int_equal(log.count, 6);
  assert_true(isfinite(log.loss[5]));
  wn_train_log_clear(&log);
  assert_ok(ctx, wn_train_run(ctx, &recipe, run, true, NULL, NULL));
  assert_ok(ctx, wn_train_log_load(ctx, run, &log));
  assert_int_equal(log.count, 8);
  assert_true(log.step[6] == 7 && log.step[7] == 8 && log.loss[7] < 7);
  wn_train_log_clear(&log);
}

static void runs_of(const char *version) {
  one_run(version, "selective");
  one_run(version, "spans");
}
static void runs(void **state) {
  (void)state;
  each(runs_of);
}

static void others_of(const char *version) {
  wn_prune_curve curve;
  wn_prune_comparison comparison;
  wn_budgets budgets;
  wn_model *model;
  assert_ok(ctx, wn_prune_curve_load(ctx, in(version, "search/search.json"), &curve));
  assert_true(curve.count >= 2 && curve.layers == 2);
  budgets_init(&budgets);
  assert_ok(ctx, wn_budgets_load(ctx, in(version, "search"), &budgets));
  for (int l = 0; l < 2; l++) assert_true(budgets.tokens[l] == curve.points[curve.count - 1].tokens[l]);
  wn_budgets_clear(&budgets);
  wn_prune_curve_clear(&curve);
  assert_ok(ctx, wn_prune_comparison_load(ctx, in(version, "compare/compare.json"), &comparison));
  assert_true(comparison.count >= 3);
  wn_prune_comparison_loaded_clear(&comparison);
  assert_ok(ctx, wn_model_load(ctx, in(version, "encoder"), NULL, &model));
  assert_int_equal(wn_model_config_get(model)->encoder.layers, 1);
  wn_model_destroy(model);
  /* A text is encoded and decoded, with a folder's tokenizer and those inside GGUF files: all give the same pieces. */
  static const char *const names[] = {"selective", "llama.gguf", "selective.gguf", "hf"};
  static const char text[] = "seven and eleven are thirty";
  int32_t *first = NULL;
  size_t first_count = 0;
  for (int i = 0; i < 4; i++) {
    wn_tokenizer *tok;
    int32_t *ids;
    size_t count, bytes;
    char *back;
    assert_ok(ctx, wn_tokenizer_load(ctx, in(version, names[i]), &tok));
    assert_ok(ctx, wn_tokenizer_encode(ctx, tok, text, sizeof text - 1, false, false, &ids, &count));
    assert_ok(ctx, wn_tokenizer_decode(ctx, tok, ids, count, &back, &bytes));
    assert_string_equal(back, text);
    if (i == 0) first = ids, first_count = count;
    assert_int_equal(count, first_count);
    assert_memory_equal(ids, first, count * sizeof *ids);
    if (i > 0) wn_tokens_free(ids);
    wn_text_free(back);
    wn_tokenizer_destroy(tok);
  }
  wn_tokens_free(first);
}
static void others(void **state) {
  (void)state;
  each(others_of);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(losses), cmocka_unit_test(runs), cmocka_unit_test(others)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
