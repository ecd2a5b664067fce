/* Checkpoints: what is saved loads again bit for bit. Files that do not fit are refused with one clear line, without
 * allocating the model that they claim to be. */
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "model/models.h"
#include "reach.h"

static char dir[64];
static wn_context *ctx;

static int drop(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
  return remove(path);
}

static int begin(void **state) {
  (void)state;
  strcpy(dir, "/tmp/winnow-model-XXXXXX");
  if (!mkdtemp(dir)) return 1;
  ctx = context_of("cpu", 1);
  return 0;
}

static int end(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return nftw(dir, drop, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *in_dir(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static void refused(wn_status status, const char *a, const char *b) {
  wn_model *model = NULL;
  wn_memory_info before, after;
  wn_memory_info_get(&before);
  const wn_status got = wn_model_load(ctx, dir, NULL, &model);
  wn_memory_info_get(&after);
  const char *error = wn_context_error(ctx);
  if (got != status || model || !strstr(error, a) || !strstr(error, b) || strchr(error, '\n'))
    fail_msg("status %s, detail \"%s\"; expected %s, \"%s\" and \"%s\"", wn_status_name(got), error,
             wn_status_name(status), a, b);
  assert_int_equal(before.live_bytes, after.live_bytes);
}

static void test_round_trip(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *model = model_of(ctx, &c, WN_F32), *back = NULL;
    OK(ctx, wn_model_save(ctx, model, NULL, dir)); /* replaces the previous one */
    OK(ctx, wn_model_load(ctx, dir, NULL, &back));
    assert_int_equal(back->table.total, model->table.total);
    assert_memory_equal(reach(back->params), reach(model->params), model->table.total * sizeof(float));
    assert_int_equal(wn_model_parameter_count(back), wn_model_parameter_count(model));
    char *a, *b;
    OK(ctx, wn_model_config_json(ctx, &model->config, &a));
    OK(ctx, wn_model_config_json(ctx, wn_model_config_get(back), &b));
    assert_string_equal(a, b);
    wn_text_free(a);
    wn_text_free(b);
    wn_model_destroy(back);
    wn_model_destroy(model);
  }
}

/* A checkpoint of model_cases[k] whose list of tensors `change` has damaged. */
static void spoil_case(int k, void (*change)(wn_safetensors_entry *entries, int *count)) {
  const wn_model_config c = model_case_config(&model_cases[k]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  OK(ctx, wn_model_save(ctx, model, NULL, dir));
  int count = model->table.count;
  wn_safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
  assert_non_null(entries);
  for (int i = 0; i < count; i++) OK(ctx, wn_model_tensor_at(model, i, &entries[i]));
  change(entries, &count);
  OK(ctx, wn_safetensors_write(ctx, in_dir("model.safetensors"), entries, count, NULL));
  free(entries);
  wn_model_destroy(model);
}

static void spoil(void (*change)(wn_safetensors_entry *entries, int *count)) {
  spoil_case(1, change);
}

static void lose(wn_safetensors_entry *e, int *count) {
  e[1] = e[--*count];
}
static void rename_last(wn_safetensors_entry *e, int *count) {
  e[*count - 1].name = "something.else";
}
static void add(wn_safetensors_entry *e, int *count) {
  e[*count] = e[0];
  e[(*count)++].name = "layers.7.norm1.gain";
}
static void transpose(wn_safetensors_entry *e, int *count) {
  (void)count;
  const int64_t n = e[0].shape[0];
  e[0].shape[0] = e[0].shape[1];
  e[0].shape[1] = n;
}
static void flatten(wn_safetensors_entry *e, int *count) {
  (void)count;
  e[0].shape[0] *= e[0].shape[1];
  e[0].ndim = 1;
}
static void retype(wn_safetensors_entry *e, int *count) {
  (void)count;
  e[0].dtype = WN_I32;
}
static void poison(wn_safetensors_entry *e, int *count) {
  (void)count;
  ((float *)(uintptr_t)e[1].data)[3] = NAN;
}

static float of_range;
static void leave_range(wn_safetensors_entry *e, int *count) {
  for (int i = 0; i < *count; i++)
    if (strstr(e[i].name, "attn.span")) ((float *)(uintptr_t)e[i].data)[0] = of_range;
}

static void test_wrong_tensors(void **state) {
  (void)state;
  spoil(lose);
  refused(WN_ERR_FORMAT, "layers.0.norm1.gain is missing", "[16]");
  spoil(rename_last);
  refused(WN_ERR_FORMAT, "output.weight is missing", "[13,16]");
  spoil(add);
  refused(WN_ERR_FORMAT, "layers.7.norm1.gain is not part", "model.safetensors");
  spoil(transpose);
  refused(WN_ERR_SHAPE, "embed.weight has shape [16,13]", "expected [13,16]");
  spoil(flatten);
  refused(WN_ERR_SHAPE, "embed.weight has shape [208]", "expected [13,16]");
  spoil(retype);
  refused(WN_ERR_FORMAT, "embed.weight is of dtype I32", "expected F32");
  spoil(poison);
  refused(WN_ERR_FORMAT, "layers.0.norm1.gain", "not finite");
  int spans = 0;
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    if (!c.attention.span.enabled || c.attention.span.dynamic) continue;
    spans++;
    of_range = -1e30f;
    spoil_case(k, leave_range);
    refused(WN_ERR_FORMAT, "attn.span holds -1e+30", "expected values from 0 to 1");
    of_range = 1.5f;
    spoil_case(k, leave_range);
    refused(WN_ERR_FORMAT, "attn.span holds 1.5", "expected values from 0 to 1");
  }
  assert_true(spans > 0);
}

static void write_config(const char *text) {
  OK(ctx, wn_file_write(ctx, in_dir("config.json"), text, strlen(text)));
}

static void test_wrong_files(void **state) {
  (void)state;
  const wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  OK(ctx, wn_model_save(ctx, model, NULL, dir));
  /* Claims of terabytes are checked against the file before anything is allocated. */
  write_config(
      "{\"vocab_size\": 16777216, \"layers\": 4096, \"width\": 262144, \"heads\": 4096, \"ffn_width\": 1048576}");
  refused(WN_ERR_SHAPE, "embed.weight", "[16777216,262144]");
  write_config("{\"vocab_size\": 13, \"layers\": 4096, \"width\": 16, \"heads\": 4, \"position\": \"none\"}");
  refused(WN_ERR_SHAPE, "layers.0.attn.out.weight", "[16,16]");
  write_config("{\"vocab_size\": 13, \"layers\": -1}");
  refused(WN_ERR_CONFIG, "config.json", "layers");
  write_config("{\"vocab_size\": 13, \"widht\": 16}");
  refused(WN_ERR_CONFIG, "widht", "width");
  write_config("{\"vocab_size\": 13,");
  refused(WN_ERR_FORMAT, "config.json:1:18", "expected");
  assert_int_equal(remove(in_dir("config.json")), 0);
  refused(WN_ERR_IO, "config.json", "");
  OK(ctx, wn_model_save(ctx, model, NULL, dir));
  assert_int_equal(truncate(in_dir("model.safetensors"), 700), 0);
  refused(WN_ERR_FORMAT, "model.safetensors", "");
  assert_int_equal(remove(in_dir("model.safetensors")), 0);
  refused(WN_ERR_IO, "model.safetensors", "");
  wn_model_destroy(model);
}

static void test_tokenizer(void **state) {
  (void)state;
  wn_model_config c = model_case_config(&model_cases[1]);
  struct wn_model *small = model_of(ctx, &c, WN_F32), *model, *back;
  c.vocab_size = 256;
  model = model_of(ctx, &c, WN_F32);
  wn_tokenizer *tok;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  OK(ctx, wn_model_save(ctx, model, tok, dir));
  OK(ctx, wn_model_load(ctx, dir, NULL, &back));
  wn_model_destroy(back);
  assert_int_equal(wn_model_save(ctx, small, tok, dir), WN_ERR_SHAPE); /* nothing is written */
  OK(ctx, wn_model_load(ctx, dir, NULL, &back));
  wn_model_destroy(back);
  OK(ctx, wn_model_save(ctx, small, NULL, dir));
  refused(WN_ERR_SHAPE, "256", "13");
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_model_destroy(small);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_round_trip, begin, end),
      cmocka_unit_test_setup_teardown(test_wrong_tensors, begin, end),
      cmocka_unit_test_setup_teardown(test_wrong_files, begin, end),
      cmocka_unit_test_setup_teardown(test_tokenizer, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
