/* The input up to its first NUL is read as a recipe, as a model's config.json and as an "attention" object. Then follow
 * changes to keys, each ended by a NUL. What loads must write JSON that loads to the same. */
#include "fuzz/fuzz.h"

#include "attention/registry.h"
#include "ops/attention.h"
#include "base/alloc.h"
#include "model/config.h"
#include "winnow/train.h"

static void try_recipe(wn_context *ctx, const char *path, const char *const *sets, int count) {
  wn_recipe recipe, back;
  if (wn_recipe_load(ctx, path, sets, count, &recipe) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  char *text = NULL, *again = NULL;
  HOLDS(wn_recipe_json(ctx, &recipe, &text) == WN_OK);
  if (wn_recipe_load(ctx, fuzz_file((const uint8_t *)text, strlen(text)), NULL, 0, &back) != WN_OK) {
    fprintf(stderr, "%s\n%s\n", wn_context_error(ctx), text);
    abort();
  }
  HOLDS(wn_recipe_json(ctx, &back, &again) == WN_OK);
  HOLDS(strcmp(text, again) == 0);
  wn_free(text);
  wn_free(again);
}

static void try_model(wn_context *ctx, const char *text, size_t bytes) {
  wn_model_config config, back;
  if (wn_model_config_parse(ctx, "config.json", text, bytes, &config) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  char *json = NULL, *again = NULL;
  HOLDS(wn_model_config_json(ctx, &config, &json) == WN_OK);
  HOLDS(wn_model_config_parse(ctx, "config.json", json, strlen(json), &back) == WN_OK);
  HOLDS(wn_model_config_json(ctx, &back, &again) == WN_OK);
  HOLDS(strcmp(json, again) == 0);
  HOLDS(config.head_size > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0 && config.ffn_width > 0);
  wn_free(json);
  wn_free(again);
}

static void try_attention(wn_context *ctx, const char *text) {
  wn_attention_config config;
  if (wn_attention_config_parse(ctx, text, &config) != WN_OK) {
    fuzz_refused(ctx);
    return;
  }
  struct wn_attention terms = {.H = 8, .Hkv = 2};
  wn_attention_terms(&config, -1, 64, &terms);
  HOLDS(terms.scale > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wn_context *ctx = fuzz_context();
  char *copy = malloc(size + 1);
  HOLDS(copy);
  if (size) memcpy(copy, data, size);
  copy[size] = 0;
  size_t json = strlen(copy);
  const char *sets[8];
  int count = 0;
  for (size_t at = json + 1; at <= size && count < 8; at += strlen(copy + at) + 1) sets[count++] = copy + at;
  try_recipe(ctx, fuzz_file(data, json), sets, count);
  try_model(ctx, copy, json);
  try_attention(ctx, copy);
  free(copy);
  return 0;
}
