/* Rotary positions in config.json, as transformers' classes read them: which of two keys takes precedence, and what a
 * missing key means. And keys in GGUF that llama.cpp applies whatever the scaling. */
#include "folder.h"

#include "formats/import.h"
#include "winnow/gguf.h"

/* The config.json of a small model with these keys added. */
static wn_status read_config(const char *type, const char *keys, wn_model_config *out) {
  static const char sizes[] = "\"vocab_size\": 48, \"max_position_embeddings\": 64, \"num_hidden_layers\": 2, "
                              "\"hidden_size\": 32, \"intermediate_size\": 40, \"num_attention_heads\": 4, "
                              "\"num_key_value_heads\": 2, \"head_dim\": 8";
  char text[2048];
  const struct wn_family *family;
  assert_true(snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s, %s}", type, sizes, keys) < (int)sizeof text);
  json_t *object = json_loads(text, 0, NULL);
  assert_non_null(object);
  const wn_status status = wn_import_hf_config(ctx, "config.json", object, &family, out);
  json_decref(object);
  return status;
}

#define YARN "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4"
#define LLAMA3                                                                                                         \
  "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1, \"high_freq_factor\": 4"
#define INSIDE ", \"original_max_position_embeddings\": 32}"
#define OUTSIDE ", \"original_max_position_embeddings\": 16"

/* For llama3 and yarn the file's own number of positions takes precedence over the one in rope_scaling. */
static void first_context(void **state) {
  (void)state;
  static const struct {
    const char *type, *keys;
    int64_t expected;
  } cases[] = {{"qwen3", YARN "}", 64},
               {"qwen3", YARN "}" OUTSIDE, 16},
               {"llama", YARN INSIDE, 32},
               {"llama", YARN INSIDE OUTSIDE, 16},
               {"llama", LLAMA3 INSIDE, 32},
               {"llama", LLAMA3 "}" OUTSIDE, 16},
               {"granite", LLAMA3 INSIDE OUTSIDE, 16},
               {"gemma2", YARN INSIDE OUTSIDE, 16},
               {"gemma3_text", YARN INSIDE OUTSIDE, 32}, /* of the layers with full attention */
               {"llama", "\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}" OUTSIDE, 64}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_model_config c;
    assert_ok(ctx, read_config(cases[i].type, cases[i].keys, &c));
    if (c.rope_scaling.context != cases[i].expected)
      fail_msg("%s, %s: %lld", cases[i].type, cases[i].keys, (long long)c.rope_scaling.context);
  }
  /* and the factor is the ratio of the two contexts where no key gives one */
  wn_model_config c;
  assert_ok(ctx, read_config("llama", "\"rope_scaling\": {\"rope_type\": \"yarn\"}" OUTSIDE, &c));
  assert_true(c.rope_scaling.factor == 4);
  assert_refused(ctx, read_config("llama", LLAMA3 "}", &c), WN_ERR_CONFIG, "original_max_position_embeddings");
  assert_refused(ctx, read_config("llama", YARN "}, \"original_max_position_embeddings\": \"16\"", &c), WN_ERR_CONFIG,
                 "\"original_max_position_embeddings\" is not a whole number");
}

/* Without a key for the base it is the class's default, with or without scaling. */
static void bases(void **state) {
  (void)state;
  static const struct {
    const char *type, *keys;
    double expected;
  } cases[] = {{"llama", "\"rope_scaling\": null", 10000},
               {"mixtral", "\"rope_scaling\": null", 1e6},
               {"mixtral", "\"rope_theta\": 7000", 7000},
               {"mixtral", "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}", 1e6},
               {"mixtral", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}", 1e6},
               {"mixtral", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"rope_theta\": 5000}", 5000},
               {"mixtral", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000}", 5000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    wn_model_config c;
    assert_ok(ctx, read_config(cases[i].type, cases[i].keys, &c));
    if (c.rope_theta != cases[i].expected) fail_msg("%s, %s: %g", cases[i].type, cases[i].keys, c.rope_theta);
  }
}

/* ---- GGUF ---- */

static wn_status copy_tensor(void *user, int i, void *out, size_t bytes) {
  memcpy(out, ((const wn_gguf_tensor *)user)[i].data, bytes);
  return WN_OK;
}

/* A golden's file with this scaling (NULL: its own) and this factor, without the tensors whose names contain `dropped`.
 */
static const char *change_gguf(const char *golden, const char *architecture, const char *type, float attention,
                               const char *dropped) {
  char key[128];
  wn_gguf *file;
  wn_gguf_values *values;
  wn_gguf_tensor kept[128];
  int count = 0;
  const char *out = path_in(folder, "changed.gguf");
  snprintf(key, sizeof key, "%s/golden/hf/%s", WN_TEST_DIR, golden);
  assert_ok(ctx, wn_gguf_open(ctx, key, &file));
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  for (int i = 0; i < wn_gguf_value_count(file); i++) {
    const wn_gguf_value *v = wn_gguf_value_at(file, i);
    if (!strstr(v->key, "attn_factor")) wn_gguf_values_copy(values, v);
  }
  snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
  if (type) wn_gguf_values_put_string(values, key, type, strlen(type));
  snprintf(key, sizeof key, "%s.rope.scaling.factor", architecture);
  if (type) wn_gguf_values_put_float(values, key, 2);
  snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", architecture);
  wn_gguf_values_put_float(values, key, attention);
  for (int i = 0; i < wn_gguf_tensor_count(file) && count < 128; i++)
    if (!dropped || !strstr(wn_gguf_tensor_at(file, i)->name, dropped)) kept[count++] = *wn_gguf_tensor_at(file, i);
  assert_ok(ctx, wn_gguf_write(ctx, out, values, kept, count, copy_tensor, kept));
  wn_gguf_values_destroy(values);
  wn_gguf_close(file);
  return out;
}

/* The factor on rotated queries and keys: read for yarn and longrope, refused elsewhere because it would be lost. */
static void magnitudes(void **state) {
  (void)state;
  static const struct {
    const char *golden, *architecture, *type;
    float attention;
    const char *dropped;
    bool refused;
  } cases[] = {
      {"llama3.gguf", "llama", NULL, 1, NULL, false},         {"llama3.gguf", "llama", NULL, 1.5f, NULL, true},
      {"llama3.gguf", "llama", "none", 1.5f, NULL, true},     {"llama3.gguf", "llama", "linear", 1, NULL, false},
      {"llama3.gguf", "llama", "linear", 2, NULL, true},      {"llama3.gguf", "llama", "yarn", 2, NULL, false},
      {"phi3.gguf", "phi3", NULL, 1.5f, NULL, false},         {"phi3.gguf", "phi3", NULL, 1, "rope_factors", false},
      {"phi3.gguf", "phi3", NULL, 1.5f, "rope_factors", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct wn_import import;
    const char *path =
        change_gguf(cases[i].golden, cases[i].architecture, cases[i].type, cases[i].attention, cases[i].dropped);
    const wn_status status = wn_import_open(ctx, path, &import);
    if (status != (cases[i].refused ? WN_ERR_UNSUPPORTED : WN_OK))
      fail_msg("%zu: %s: %s", i, wn_status_name(status), wn_context_error(ctx));
    if (cases[i].refused && !strstr(wn_context_error(ctx), "rope.scaling.attn_factor\" is "))
      fail_msg("%zu: %s", i, wn_context_error(ctx));
    wn_import_clear(&import);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(first_context), cmocka_unit_test(bases),
                                     cmocka_unit_test(magnitudes)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
