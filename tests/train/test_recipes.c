/* Every recipe in recipes/ loads, has no key without effect, has the number of parameters that its paper gives, and
 * starts: two steps at a small size. */
#include "told.h"

#include <dirent.h>
#include <math.h>

#include "model/model.h"
#include "train/idle.h"

enum { RECIPES_MAX = 64, VOCAB = 64, TOKENS = 400 };
static char names[RECIPES_MAX][256];
static int name_count;

static int by_name(const void *a, const void *b) {
  return strcmp(a, b);
}

static int list_recipes(void **state) {
  (void)state;
  DIR *dir = opendir(WN_TEST_DIR "/../recipes");
  if (!dir) return -1;
  for (struct dirent *e; (e = readdir(dir));) {
    const char *dot = strrchr(e->d_name, '.');
    if (dot && !strcmp(dot, ".json") && name_count < RECIPES_MAX)
      snprintf(names[name_count++], sizeof names[0], "%s", e->d_name);
  }
  closedir(dir);
  qsort(names, (size_t)name_count, sizeof names[0], by_name);
  return 0;
}

static void recipe_path(const char *name, char out[1024]) {
  snprintf(out, 1024, "%s/../recipes/%.255s", WN_TEST_DIR, name);
}

static void recipe_read(wn_context *ctx, const char *name, wn_recipe *out) {
  char path[1024];
  recipe_path(name, path);
  must(ctx, wn_recipe_load(ctx, path, NULL, 0, out));
}

static void test_load(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  assert_true(name_count >= 10);
  for (int i = 0; i < name_count; i++) {
    char *json = NULL;
    wn_recipe r;
    recipe_read(ctx, names[i], &r);
    bool selective = strstr(names[i], "selective.json") || strstr(names[i], "mem.json");
    if (r.model.attention.selective.enabled != selective) fail_msg("%s: its name and its attention differ", names[i]);
    assert_int_equal(r.model.attention.selective.mem.enabled, strstr(names[i], "-mem.json") != NULL);
    must(ctx, wn_recipe_json(ctx, &r, &json));
    wn_text_free(json);
  }
  wn_context_destroy(ctx);
}

static void test_no_idle_keys(void **state) {
  (void)state;
  wn_context *ctx = told_context();
  for (int i = 0; i < name_count; i++) {
    wn_recipe r;
    recipe_read(ctx, names[i], &r);
    *told = 0;
    must(ctx, wn_recipe_warn_idle(ctx, &r));
    if (*told) fail_msg("%s: %s", names[i], told);
  }
  wn_context_destroy(ctx);
}

/* Two recipes that are compared differ only in their attention. */
static void test_pairs(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  int pairs = 0;
  for (int i = 0; i < name_count; i++) {
    char *end = strstr(names[i], "-standard.json");
    if (!end) continue;
    char path[1024], other[1100], *a = NULL, *b = NULL;
    wn_recipe x, y;
    recipe_path(names[i], path);
    must(ctx, wn_recipe_load(ctx, path, NULL, 0, &x));
    snprintf(other, sizeof other, "%s/../recipes/%.*s-selective.json", WN_TEST_DIR, (int)(end - names[i]), names[i]);
    must(ctx, wn_recipe_load(ctx, other, NULL, 0, &y));
    y.model.attention = x.model.attention;
    must(ctx, wn_recipe_json(ctx, &x, &a));
    must(ctx, wn_recipe_json(ctx, &y, &b));
    if (strcmp(a, b)) fail_msg("%s and its selective twin differ in more than attention", names[i]);
    wn_text_free(a);
    wn_text_free(b);
    pairs++;
  }
  assert_true(pairs >= 5);
  wn_context_destroy(ctx);
}

static double parameters(wn_context *ctx, const char *name, int64_t vocab, bool bare, wn_model_config *config) {
  wn_recipe r;
  recipe_read(ctx, name, &r);
  if (vocab) r.model.vocab_size = vocab;
  must(ctx, wn_model_config_resolve(ctx, &r.model));
  struct wn_param_table table = {0};
  must(ctx, wn_param_table_create(ctx, &r.model, &table));
  double count = 0;
  for (int k = 0; k < table.count; k++)
    if (!bare || strcmp(table.rows[k].name, "embed.weight")) count += (double)table.rows[k].count;
  wn_param_table_clear(&table);
  *config = r.model;
  return count;
}

/* Leviathan et al., Table 7: with a vocabulary of 7,964 the three counts are exactly those of matrices, embeddings and
 * 6 vectors of the width in each layer. Here a layer has 2 such vectors and two norms of its heads, and there is a
 * final norm. GPT-2's count is exact. Sukhbaatar et al., tables 1 and 2, count in millions, with text8's 27 characters
 * and enwik8's 205; Zhai, §4.1, in tenths of a billion, without the embedding. */
static void test_parameter_counts(void **state) {
  (void)state;
  const struct {
    const char *name;
    int64_t vocab;
    double count, tolerance;
    bool bare;    /* embedding left out */
    bool vectors; /* the paper's layers have 6 */
  } published[] = {
      {"selective-paper-d8-selective.json", 7964, 33603584, 0, false, true},
      {"selective-paper-d12-standard.json", 7964, 97615872, 0, false, true},
      {"selective-paper-d16-mem.json", 7964, 218226688, 0, false, true},
      {"selective-paper-d8-standard.json", 7964, 33603584, 5e-4, false, false},
      {"selective-paper-d12-selective.json", 7964, 97615872, 5e-4, false, false},
      {"selective-paper-d16-selective.json", 7964, 218226688, 5e-4, false, false},
      {"gpt2-124m.json", 0, 124439808, 0, false, false},
      {"modded-nanogpt.json", 0, 162201600, 2e-4, false, false}, /* its matrices; here norms have gains, which stay 1 */
      {"adaptive-span.json", 27, 38e6, 0.5 / 38, false, false},
      {"adaptive-span.json", 205, 39e6, 0.5 / 39, false, false},
      {"adaptive-span-large.json", 27, 209e6, 0.5 / 209, false, false},
      {"adaptive-span-large.json", 205, 209e6, 0.5 / 209, false, false},
      {"t5-small-selective.json", 0, 60506624, 0, false, false}, /* Raffel et al. 2020: the tensors of its checkpoint */
      {"t5-small-standard.json", 0, 60506624, 0, false, false},
      {"xsa-0.7b.json", 0, 0.7e9, 0.05 / 0.7, true, false},
      {"xsa-1.4b.json", 0, 1.4e9, 0.05 / 1.4, true, false},
      {"xsa-2.7b.json", 0, 2.7e9, 0.05 / 2.7, true, false},
  };
  wn_context *ctx = tiny_context("cpu", 1);
  for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
    wn_model_config c;
    double count = parameters(ctx, published[i].name, published[i].vocab, published[i].bare, &c);
    if (published[i].vectors) count += (double)(c.layers * (4 * c.width - 2 * c.head_size) - c.width);
    if (!(fabs(count - published[i].count) <= published[i].tolerance * published[i].count))
      fail_msg("%s: %.0f parameters, published %.0f", published[i].name, count, published[i].count);
  }
  wn_context_destroy(ctx);
}

/* The settings given in papers, key by key: Leviathan et al., appendix A.1 and §5; Sukhbaatar et al., "Implementation
 * details" in §4, except its program's small setting. */
static void test_settings_of_the_papers(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  for (int i = 0; i < 2; i++) {
    wn_recipe r;
    recipe_read(ctx, i ? "variable-assignment-paper-standard.json" : "variable-assignment-paper-selective.json", &r);
    assert_int_equal(r.data.kind, WN_DATA_VARIABLE_ASSIGNMENT);
    assert_int_equal(r.data.variables, 3);
    assert_int_equal(r.data.values, 1000);
    assert_int_equal(r.data.assignments, 128);
    assert_int_equal(r.train.steps, 65536);
    assert_int_equal(r.train.batch * r.train.accumulate, 2048);
    assert_int_equal(r.train.warmup, 1000);
    assert_true(r.train.lr == 0.005 && r.train.beta1 == 0.9 && r.train.beta2 == 0.999);
    assert_true(r.train.schedule == WN_SCHED_COSINE && r.train.min_lr_ratio == 0);
    assert_true(r.model.layers == 3 && r.model.heads == 3 && r.model.width == 192);
  }
  const struct {
    const char *name;
    int64_t layers, width, ffn_width, limit;
    double loss;
  } spans[] = {{"adaptive-span.json", 12, 512, 2048, 8192, 0.5e-6},
               {"adaptive-span-large.json", 24, 768, 4096, 8192, 0.5e-6},
               {"dynamic-span.json", 12, 512, 2048, 1024, 2e-6},
               {"adaptive-span-small.json", 0, 0, 0, 0, 2e-6},
               {"docs-char-span.json", 0, 0, 0, 0, 2e-6}};
  for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
    const bool paper = spans[i].layers > 0;
    wn_model_config c;
    wn_recipe r;
    recipe_read(ctx, spans[i].name, &r);
    r.model.vocab_size = 27;
    c = r.model;
    must(ctx, wn_model_config_resolve(ctx, &c));
    assert_true(r.model.attention.span.ramp == 32 && r.model.attention.span.loss == spans[i].loss);
    if (paper) {
      assert_true(c.layers == spans[i].layers && c.width == spans[i].width && c.ffn_width == spans[i].ffn_width);
      assert_true(c.heads == 8 && c.attention.span.limit == spans[i].limit && c.context == 512);
      assert_true(r.train.optimizer == WN_OPT_ADAGRAD && r.train.lr == 0.07 && r.train.clip_tensor == 0.03);
      assert_true(r.train.clip == 0 && r.train.warmup == 32000 && r.train.batch * r.train.accumulate == 64);
    }
    struct wn_param_table table = {0};
    must(ctx, wn_param_table_create(ctx, &c, &table));
    const double bound = 1 / sqrt((double)c.width);
    const char *const rows[] = {"embed.weight", "relative.weight", "layers.1.attn.qkv.weight",
                                "layers.1.attn.out.weight"};
    for (int k = 0; k < 4; k++) {
      const int at = wn_param_find(&table, rows[k]);
      if (at < 0) fail_msg("%s: no %s", spans[i].name, rows[k]);
      for (int module = 0; module < (k == 2 ? 3 : 1); module++) {
        const struct wn_param_start *start = &table.rows[at].start[module];
        if (k < 2 ? start->kind != WN_START_NORMAL || start->scale != 1
                  : start->kind != WN_START_UNIFORM || fabs(start->scale - bound) > 1e-12)
          fail_msg("%s: %s starts otherwise than in the paper", spans[i].name, rows[k]);
      }
    }
    wn_param_table_clear(&table);
  }
  wn_context_destroy(ctx);
}

static void test_start(void **state) {
  (void)state;
  char dir[256], data[300], train[400], val[400];
  tiny_folder(dir);
  snprintf(data, sizeof data, "%s/tokens.bin", dir);
  snprintf(train, sizeof train, "data.train=\"%s\"", data);
  snprintf(val, sizeof val, "data.val=\"%s\"", data);
  wn_context *ctx = tiny_context("cpu", 1), *ref = tiny_context("ref", 1);
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; i++) ids[i] = (i * i + i / 7) % VOCAB;
  must(ctx, wn_token_file_write(ctx, data, "llmc", VOCAB, ids, TOKENS));
  for (int i = 0; i < name_count; i++) {
    char path[1024], run[600];
    wn_recipe r;
    recipe_path(names[i], path);
    snprintf(run, sizeof run, "%s/%.200s.run", dir, names[i]);
    const char *small[] = {"train.steps=2", "train.batch=2", "train.accumulate=1", "train.eval_batches=1",
                           "model.layers=2", "model.ffn_width=24", "model.head_size=8", "model.width=32",
                           "model.heads=2", "train.context=0",
                           /* only with token files: a task sets its own number of tokens */
                           "model.vocab_size=64", "model.context=16", train, val, "data.tokenizer=\"\"",
                           /* only with an encoder */
                           "model.vocab_size=72", "data.sentinels=8", "data.end_token=-1", "model.encoder.layers=2",
                           "model.encoder.context=24", "data.input_length=0"};
    enum { SPANS = sizeof small / sizeof *small, FILES = SPANS - 6, TASK = FILES - 5 };
    must(ctx, wn_recipe_load(ctx, path, NULL, 0, &r));
    const int sets = r.data.kind == WN_DATA_SPAN_CORRUPTION ? SPANS : r.data.kind == WN_DATA_TOKENS ? FILES : TASK;
    must(ctx, wn_recipe_load(ctx, path, small, sets, &r));
    wn_status status = wn_train_run(ctx, &r, run, false, NULL, NULL);
    if (status == WN_ERR_UNSUPPORTED) { /* a term that only ref supports */
      tiny_remove(run);
      must(ref, wn_train_run(ref, &r, run, false, NULL, NULL));
    } else if (status != WN_OK) {
      fail_msg("%s: %s", names[i], wn_context_error(ctx));
    }
    tiny_remove(run);
  }
  wn_context_destroy(ctx);
  wn_context_destroy(ref);
  tiny_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_load),
                                     cmocka_unit_test(test_no_idle_keys),
                                     cmocka_unit_test(test_pairs),
                                     cmocka_unit_test(test_parameter_counts),
                                     cmocka_unit_test(test_settings_of_the_papers),
                                     cmocka_unit_test(test_start)};
  return cmocka_run_group_tests(tests, list_recipes, NULL);
}
