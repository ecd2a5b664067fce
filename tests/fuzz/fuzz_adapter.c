/* A peft adapter for a small model. The first byte chooses the model. Then come the length of adapter_config.json in
 * two bytes, that file, and adapter_model.safetensors. An adapter that opens must name the tensors that it changes,
 * change no others, and leave all weights finite. */
#include "fuzz/fuzz.h"

#include <math.h>
#include "base/fields.h"
#include "formats/adapter.h"
#include "formats/import.h"
#include "model/model.h"
#include "winnow/model.h"

#define SIZES "\"vocab_size\": 8, \"max_position_embeddings\": 8, "
static const char *const configs[] = {
    "{\"model_type\": \"llama\", " SIZES "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, "
    "\"tie_word_embeddings\": false}",
    "{\"model_type\": \"gpt2\", \"vocab_size\": 8, \"n_positions\": 8, \"n_embd\": 8, \"n_layer\": 2, \"n_head\": 2}"};
enum { MODELS = sizeof configs / sizeof *configs };

struct base {
  struct wn_import import;
  wn_model *plain, *changed; /* the same weights before an adapter */
};

static void make(wn_context *ctx, int i, struct base *b) {
  json_t *object = NULL;
  snprintf(b->import.where, sizeof b->import.where, "model");
  if (wn_json_load_text(ctx, WN_JSON_CONFIG, "model", configs[i], strlen(configs[i]), &object) != WN_OK ||
      wn_import_hf_config(ctx, "model", object, &b->import.family, &b->import.config) != WN_OK ||
      wn_model_create(ctx, &b->import.config, 1, &b->plain) != WN_OK ||
      wn_model_create(ctx, &b->import.config, 1, &b->changed) != WN_OK) {
    fprintf(stderr, "%s\n", wn_context_error(ctx));
    abort();
  }
  json_decref(object);
}

/* Every tensor is finite, and unchanged unless the adapter names it. Without the adapter it is as before. */
static void compare(const struct base *b, const struct wn_adapter *x, bool merged) {
  for (int i = 0; i < wn_model_tensor_count(b->plain); i++) {
    wn_safetensors_entry from, to;
    HOLDS(wn_model_tensor_at(b->plain, i, &from) == WN_OK && wn_model_tensor_at(b->changed, i, &to) == WN_OK);
    float *values = (float *)(uintptr_t)to.data;
    if (!wn_adapter_changes(x, from.name)) HOLDS(!memcmp(from.data, to.data, from.bytes));
    for (size_t k = 0; merged && k < to.bytes / sizeof *values; k++) HOLDS(isfinite(values[k]));
    memcpy(values, from.data, from.bytes);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct base bases[MODELS];
  wn_context *ctx = fuzz_context();
  if (size < 1) return 0;
  struct base *b = &bases[data[0] % MODELS];
  if (!b->plain) make(ctx, data[0] % MODELS, b);
  data++, size--;
  const uint8_t *config;
  const size_t n = fuzz_part(&data, &size, &config);
  fuzz_put("adapter_config.json", config, n);
  fuzz_put("adapter_model.safetensors", data, size);
  struct wn_adapter *x = NULL;
  if (wn_adapter_open(ctx, fuzz_path(""), &b->import, &x) != WN_OK) {
    fuzz_refused(ctx);
    HOLDS(!x);
    return 0;
  }
  const bool merged = wn_adapter_merge(ctx, x, b->changed) == WN_OK;
  if (!merged) fuzz_refused(ctx);
  compare(b, x, merged);
  wn_adapter_close(x);
  return 0;
}
