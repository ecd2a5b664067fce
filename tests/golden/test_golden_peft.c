/* peft adapters. Those in tests/golden/peft (tools/make-goldens-peft.py) give peft's logits on the models of
 * tests/golden/hf, whatever format the model has. Adapters that winnow writes give the result of its own low-rank
 * updates. Files that are not such adapters are refused in one line. */
#include "support.h"

#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "formats/adapter.h"
#include "train/lora.h"
#include "winnow/convert.h"
#include "winnow/model.h"
#include "reach.h"

static wn_context *ctx;
static char folder[512];

static int set_up(void **state) {
  (void)state;
  const wn_context_options options = {.size = sizeof options, .threads = 2, .exact_rows = 1};
  if (wn_context_create(&options, &ctx) != WN_OK) return 1;
  make_folder(folder);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

static const char *golden(const char *kind, const char *name) {
  static char paths[16][4096];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, 4096, "%s/golden/%s/%s", WN_TEST_DIR, kind, name);
  return path;
}

static wn_status load(const char *path, const char *adapter, bool as_float, wn_model **out) {
  const wn_model_load_options options = {.size = sizeof options, .as_float = as_float, .adapter = adapter};
  return wn_model_load(ctx, path, &options, out);
}

/* The largest difference from peft's logits, and the largest of those. */
static double apart(wn_model *model, const char *name, double *largest) {
  char file[64];
  wn_safetensors *s;
  snprintf(file, sizeof file, "%s.logits.safetensors", name);
  assert_ok(ctx, wn_safetensors_open(ctx, golden("peft", file), &s));
  const wn_safetensors_entry *t = wn_safetensors_find(s, "tokens"), *y = wn_safetensors_find(s, "logits");
  float *got = malloc(y->bytes), *want = malloc(y->bytes);
  int32_t *tokens = malloc(t->bytes);
  memcpy(want, y->data, y->bytes);
  memcpy(tokens, t->data, t->bytes);
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, t->shape[0], t->shape[1], NULL, got));
  double worst = 0;
  *largest = 0;
  for (size_t i = 0; i < y->bytes / sizeof *got; i++) {
    worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    *largest = fmax(*largest, fabs((double)want[i]));
  }
  free(got), free(want), free(tokens);
  wn_safetensors_close(s);
  return worst;
}

static void logits(void **state) {
  (void)state;
  static const char *const names[] = {"llama", "gpt2", "phi3", "gemma3", "gemma2", "llama-bias"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *name = names[i];
    const char *const forms[] = {golden("hf", name), path_in(folder, "m.gguf"), path_in(folder, "own")};
    for (int form = 0; form < 3; form++) {
      const wn_convert_options to = {
          .size = sizeof to, .to = form == 1 ? WN_CONVERT_GGUF : WN_CONVERT_WINNOW, .overwrite = true};
      if (form == 1 && (!strcmp(name, "phi3") || !strncmp(name, "gemma", 5))) continue; /* windows */
      if (form > 0) assert_ok(ctx, wn_model_convert(ctx, golden("hf", name), forms[form], &to, NULL));
      for (int as_float = 0; as_float < 2; as_float++) {
        double largest, without;
        wn_model *model;
        assert_ok(ctx, load(forms[form], golden("peft", name), as_float, &model));
        const double worst = apart(model, name, &largest);
        wn_model_destroy(model);
        assert_ok(ctx, load(forms[form], NULL, as_float, &model));
        without = apart(model, name, &largest);
        wn_model_destroy(model);
        if (!(worst <= 1e-4)) fail_msg("%s, form %d: logits differ by %.3g of %.3g", name, form, worst, largest);
        assert_true(without > 0.1); /* it has an effect */
      }
    }
  }
}

/* Blocks of 8 bits: matrices that the adapter changes become float, the others stay quantised. */
static void packed(void **state) {
  (void)state;
  const wn_convert_options to = {
      .size = sizeof to, .to = WN_CONVERT_GGUF, .typed = true, .type = WN_GGUF_Q8_0, .overwrite = true};
  wn_model *model, *plain;
  wn_tensor_info info, before;
  int changed = 0, kept = 0;
  assert_ok(ctx, wn_model_convert(ctx, golden("hf", "llama"), path_in(folder, "q8.gguf"), &to, NULL));
  assert_ok(ctx, load(path_in(folder, "q8.gguf"), golden("peft", "llama"), false, &model));
  assert_ok(ctx, load(path_in(folder, "q8.gguf"), NULL, false, &plain));
  for (int i = 0; i < wn_model_tensor_count(model); i++) {
    assert_ok(ctx, wn_model_tensor_info(model, i, &info));
    assert_ok(ctx, wn_model_tensor_info(plain, i, &before));
    if (before.types[0] == WN_GGUF_Q8_0) info.types[0] == WN_GGUF_F32 ? changed++ : kept++;
  }
  assert_int_equal(changed, 2 + 1); /* q, k and v of two layers, and the output; rows of 40 are not whole blocks */
  assert_true(kept > 0);
  double largest;
  assert_true(apart(model, "llama", &largest) < 0.1 * largest);
  wn_model_destroy(model);
  wn_model_destroy(plain);
}

/* ---- adapters that winnow writes ---- */

static void compare_models(wn_model *a, wn_model *b, const char *name) {
  for (int i = 0; i < wn_model_tensor_count(a); i++) {
    wn_safetensors_entry x, y;
    assert_ok(ctx, wn_model_tensor_at(a, i, &x));
    assert_ok(ctx, wn_model_tensor_at(b, i, &y));
    for (size_t k = 0; k < x.bytes / sizeof(float); k++)
      if (!(fabsf(((const float *)x.data)[k] - ((const float *)y.data)[k]) < 1e-5f))
        fail_msg("%s: %s [%zu] is %g, expected %g", name, x.name, k, (double)((const float *)y.data)[k],
                 (double)((const float *)x.data)[k]);
  }
}

static void written(void **state) {
  (void)state;
  static const char *const names[] = {"llama", "gpt2", "phi3", "qwen3", "olmo2"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    for (int gguf = 0; gguf < 2; gguf++) {
      const char *path = golden("hf", names[i]);
      if (gguf && !strcmp(names[i], "phi3")) continue;
      if (gguf) {
        const wn_convert_options to = {.size = sizeof to, .to = WN_CONVERT_GGUF, .overwrite = true};
        assert_ok(ctx, wn_model_convert(ctx, path, path_in(folder, "base.gguf"), &to, NULL));
        path = path_in(folder, "base.gguf");
      }
      wn_model *model, *again;
      struct wn_lora lora;
      size_t gradients = 0;
      assert_ok(ctx, load(path, NULL, true, &model));
      assert_ok(ctx, wn_lora_init(ctx, model, 2, 5, 3, NULL, &gradients, &lora));
      struct wn_adapter_update all[64];
      for (int k = 0; k < lora.count; k++) {
        const struct wn_lora_map *m = &lora.maps[k];
        for (int64_t n = 0; n < m->rows * lora.rank; n++)
          ((float *)reach(m->b))[n] = (float)((n * 7 + k) % 13 - 6) * 0.1f;
        all[k] = (struct wn_adapter_update){.row = model->table.rows[m->row].name,
                                            .first = m->first,
                                            .rows = m->rows,
                                            .columns = m->columns,
                                            .a = reach(m->a),
                                            .b = reach(m->b)};
      }
      assert_ok(ctx, wn_lora_merge(&lora));
      const struct wn_adapter_updates updates = {
          .all = all, .count = lora.count, .rank = 2, .alpha = 5, .base = "somewhere"};
      assert_ok(ctx, wn_adapter_write(ctx, folder, &model->config, &updates));
      assert_ok(ctx, load(path, folder, true, &again));
      compare_models(model, again, names[i]);
      wn_model_destroy(again);
      wn_lora_clear(&lora);
      wn_model_destroy(model);
    }
  }
}

/* ---- refusals ---- */

static void write_text(const char *name, const char *text) {
  assert_ok(ctx, wn_file_write(ctx, path_in(folder, name), text, strlen(text)));
}

#define Q "base_model.model.model.layers.0.self_attn.q_proj.lora_"
static void write_tensors(const char *a_name, const char *b_name, int64_t rank, int64_t in, int64_t out, float value) {
  static float values[64 * 64];
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) values[i] = value;
  const wn_safetensors_entry entries[2] = {{.name = a_name,
                                            .dtype = WN_F32,
                                            .ndim = 2,
                                            .shape = {rank, in},
                                            .data = values,
                                            .bytes = (size_t)(rank * in) * sizeof(float)},
                                           {.name = b_name,
                                            .dtype = WN_F32,
                                            .ndim = 2,
                                            .shape = {out, rank},
                                            .data = values,
                                            .bytes = (size_t)(out * rank) * sizeof(float)}};
  assert_ok(ctx,
            wn_safetensors_write(ctx, path_in(folder, "adapter_model.safetensors"), entries, b_name ? 2 : 1, NULL));
}

#define E "base_model.model.model.embed_tokens.lora_embedding_"
#define L "base_model.model.lm_head.lora_"
/* A tied model: what the adapter names gets rows of its own, and the other keeps those of the file, packed as they are.
 */
static void tied(void **state) {
  (void)state;
  static const struct {
    const char *config, *a, *b;
    bool embedding, output; /* which of them changes */
  } cases[] = {{"{\"peft_type\": \"LORA\", \"r\": 2}", L "A.weight", L "B.weight", false, true},
               {"{\"peft_type\": \"LORA\", \"r\": 2}", E "A", E "B", true, false},
               {"{\"peft_type\": \"LORA\", \"r\": 2, \"ensure_weight_tying\": true}", E "A", E "B", true, true}};
  const wn_convert_options to = {
      .size = sizeof to, .to = WN_CONVERT_GGUF, .typed = true, .type = WN_GGUF_Q8_0, .overwrite = true};
  assert_ok(ctx, wn_model_convert(ctx, golden("hf", "llama-bias"), path_in(folder, "q8.gguf"), &to, NULL));
  for (int i = 0; i < 3; i++) {
    wn_model *model;
    bool seen = false;
    write_text("adapter_config.json", cases[i].config);
    write_tensors(cases[i].a, cases[i].b, 2, i == 0 ? 32 : 48, i == 0 ? 48 : 32, 0.5f);
    assert_ok(ctx, load(path_in(folder, "q8.gguf"), folder, false, &model));
    assert_int_equal(model->config.tied, i == 2);
    for (int k = 0; k < wn_model_tensor_count(model); k++) {
      wn_tensor_info info;
      assert_ok(ctx, wn_model_tensor_info(model, k, &info));
      const bool output = !strcmp(info.name, "output.weight");
      if (!output && strcmp(info.name, "embed.weight") != 0) continue;
      const bool changes = output ? cases[i].output : cases[i].embedding;
      assert_int_equal(info.types[0], changes ? WN_GGUF_F32 : WN_GGUF_Q8_0);
      seen |= output;
    }
    assert_int_equal(seen, i != 2);
    wn_model_destroy(model);
  }
}

static void refused(const char *expected, wn_status status) {
  wn_model *model = NULL;
  assert_refused(ctx, load(golden("hf", "llama"), folder, false, &model), status, expected);
  assert_null(model);
}

static void refusals(void **state) {
  (void)state;
  static const struct {
    const char *config, *expected;
  } cases[] = {
      {"[]", "expected a JSON object"},
      {"{", "adapter_config.json"},
      {"{\"peft_type\": \"IA3\"}", "\"peft_type\" is \"IA3\""},
      {"{\"peft_type\": 3}", "\"peft_type\" is not a string"},
      {"{\"peft_type\": \"LORA\", \"bias\": \"all\"}", "\"bias\" is \"all\""},
      {"{\"peft_type\": \"LORA\", \"use_dora\": true}", "DoRA"},
      {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"lm_head\"]}", "whole modules"},
      {"{\"peft_type\": \"LORA\", \"layer_replication\": [[0, 2]]}", "layers that are used several times"},
      {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"pissa\"}", "\"init_lora_weights\" is \"pissa\""},
      {"{\"peft_type\": \"LORA\", \"r\": -1}", "\"r\" is not a whole number"},
      {"{\"peft_type\": \"LORA\", \"r\": 3}", "is 3, its tensors have 2"},
      {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 1e300}", "at most 1e6"},
      {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": [2]}", "\"rank_pattern\" is not an object"},
      {"{\"peft_type\": \"LORA\", \"r\": 2, \"alpha_pattern\": {\"q_proj\": \"2\"}}", "\"q_proj\" is not a number"},
      {"{\"peft_type\": \"LORA\", \"r\": 2, \"alpha_pattern\": {\".*proj\": 2}}", "regular expression"},
  };
  wn_model *model;
  write_tensors(Q "A.weight", Q "B.weight", 2, 32, 32, 0.5f);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text("adapter_config.json", cases[i].config);
    if (load(golden("hf", "llama"), folder, false, &model) == WN_OK) fail_msg("taken: %s", cases[i].config);
    if (!strstr(wn_context_error(ctx), cases[i].expected) || strchr(wn_context_error(ctx), '\n'))
      fail_msg("%s: %s; expected \"%s\"", cases[i].config, wn_context_error(ctx), cases[i].expected);
  }
  write_text("adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 2}");
  assert_ok(ctx, load(golden("hf", "llama"), folder, false, &model));
  wn_model_destroy(model);
  write_tensors(Q "A.weight", Q "B.weight", 2, 32, 31, 0.5f);
  refused("is not of shape [32,2]", WN_ERR_SHAPE);
  write_tensors(Q "A.weight", Q "B.weight", 2, 31, 32, 0.5f);
  refused("is not of shape [2,32]", WN_ERR_SHAPE);
  write_tensors(Q "A.weight", NULL, 2, 32, 32, 0.5f);
  refused("has lora_A alone", WN_ERR_FORMAT);
  write_tensors(Q "A.weight", Q "B.weight", 2, 32, 32, NAN);
  refused("not finite", WN_ERR_FORMAT);
  write_tensors(Q "A.weight", Q "B.weight", 2, 32, 32, 3e38f);
  refused("with the update by " Q "B.weight, layers.0.attn.qkv.weight holds values that are not finite", WN_ERR_FORMAT);
  write_tensors("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", NULL, 2, 32, 32, 1);
  refused("no update of a projection", WN_ERR_UNSUPPORTED);
  write_tensors(E "A", NULL, 2, 48, 32, 1);
  refused("has lora_embedding_A alone", WN_ERR_FORMAT);
  write_tensors(E "A", E "B", 2, 32, 48, 1); /* as of a projection */
  refused("lora_embedding_A is not of shape [2,48]", WN_ERR_SHAPE);
  write_tensors(E "A.weight", E "B.weight", 2, 48, 32, 1);
  refused("no update of a projection", WN_ERR_UNSUPPORTED);
  write_text("adapter_model.safetensors", "12345678{");
  refused("adapter_model.safetensors", WN_ERR_FORMAT);
  unlink(path_in(folder, "adapter_model.safetensors"));
  refused("adapter_model.safetensors", WN_ERR_IO);
  unlink(path_in(folder, "adapter_config.json"));
  refused("adapter_config.json", WN_ERR_IO);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(logits), cmocka_unit_test(packed), cmocka_unit_test(tied),
                                     cmocka_unit_test(written), cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
