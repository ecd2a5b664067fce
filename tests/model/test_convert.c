/* wn_model_convert: a model that is converted and converted back is the same, bit for bit. A feature that a format
 * cannot express is refused by name, or exported with winnow's own model code. 8 bits mean exactly Q8_0. Existing files
 * stay. */
#include "folder.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "formats/import.h"
#include "winnow/convert.h"
#include "winnow/model.h"

static const char *golden(const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/golden/hf/%s", WN_TEST_DIR, name);
  return path;
}

static wn_convert_options to(wn_convert_form form) {
  return (wn_convert_options){.size = sizeof(wn_convert_options), .to = form, .overwrite = true};
}

static void convert(const char *from, const char *out, wn_convert_form form) {
  const wn_convert_options o = to(form);
  wn_convert_result r;
  assert_ok(ctx, wn_model_convert(ctx, from, out, &o, &r));
  assert_true(r.tensors > 0 && r.bytes > 0);
}

/* Two models have the same configuration and the same weights, to the bit. */
static void same_model(const char *a, const char *b) {
  wn_model *x, *y;
  char *p, *q;
  assert_ok(ctx, wn_model_load(ctx, a, WN_OPTIONS(wn_model_load_options, .as_float = true), &x));
  assert_ok(ctx, wn_model_load(ctx, b, WN_OPTIONS(wn_model_load_options, .as_float = true), &y));
  assert_ok(ctx, wn_model_config_json(ctx, wn_model_config_get(x), &p));
  assert_ok(ctx, wn_model_config_json(ctx, wn_model_config_get(y), &q));
  assert_string_equal(p, q);
  assert_int_equal(wn_model_tensor_count(x), wn_model_tensor_count(y));
  for (int i = 0; i < wn_model_tensor_count(x); i++) {
    wn_safetensors_entry s, t;
    assert_ok(ctx, wn_model_tensor_at(x, i, &s));
    assert_ok(ctx, wn_model_tensor_at(y, i, &t));
    assert_string_equal(s.name, t.name);
    assert_int_equal(s.bytes, t.bytes);
    if (memcmp(s.data, t.data, s.bytes) != 0) fail_msg("%s and %s: %s differs", a, b, s.name);
  }
  wn_text_free(p);
  wn_text_free(q);
  wn_model_destroy(x);
  wn_model_destroy(y);
}

/* Cancelled: no file under the target's name, and no temporary file. */
static void cancelled(void **state) {
  (void)state;
  const struct {
    wn_convert_form form;
    const char *out, *file;
  } cases[] = {{WN_CONVERT_WINNOW_GGUF, "stopped.gguf", "stopped.gguf"},
               {WN_CONVERT_HF, "stopped", "stopped/model.safetensors"}};
  for (int i = 0; i < 2; i++) {
    const wn_convert_options o = to(cases[i].form);
    wn_context_cancel(ctx);
    assert_int_equal(wn_model_convert(ctx, golden("llama"), path_in(folder, cases[i].out), &o, NULL), WN_ERR_CANCELLED);
    wn_context_resume(ctx);
    assert_int_equal(access(path_in(folder, cases[i].file), F_OK), -1);
    assert_int_equal(count_temporary(path_in(folder, "")), 0);
    if (i == 1) assert_int_equal(count_temporary(path_in(folder, cases[i].out)), 0);
  }
}

static void round_trips(void **state) {
  (void)state;
  static const struct {
    const char *model;
    bool gguf;
  } models[] = {{"llama", true},        {"llama-bias", true},     {"mistral", false},  {"qwen2", false},
                {"qwen3", true},        {"gpt2", true},           {"gemma2", false},   {"gemma3", false},
                {"gemma2.gguf", true},  {"gemma3.gguf", true},    {"granite", true},   {"olmo2", true},
                {"granite.gguf", true}, {"olmo2.gguf", true},     {"mixtral", false},  {"mixtral.gguf", true},
                {"qwen2_moe", true},    {"qwen2_moe.gguf", true}, {"qwen3_moe", true}, {"qwen3_moe.gguf", true},
                {"phi3", false},        {"phi3.gguf", true}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    const char *own = path_in(folder, "own"), *hf = path_in(folder, "hf"), *file = path_in(folder, "m.gguf"),
               *back = path_in(folder, "back");
    convert(golden(models[i].model), own, WN_CONVERT_WINNOW);
    convert(own, hf, WN_CONVERT_HF);
    convert(hf, back, WN_CONVERT_WINNOW);
    same_model(own, back);
    convert(own, path_in(folder, "own.gguf"), WN_CONVERT_WINNOW_GGUF);
    convert(path_in(folder, "own.gguf"), back, WN_CONVERT_WINNOW);
    same_model(own, back);
    if (!models[i].gguf) continue;
    convert(own, file, WN_CONVERT_GGUF);
    convert(file, back, WN_CONVERT_WINNOW);
    same_model(own, back);
    convert(hf, file, WN_CONVERT_GGUF); /* directly from one format to the other */
    convert(file, hf, WN_CONVERT_HF);
    convert(hf, back, WN_CONVERT_WINNOW);
    same_model(own, back);
  }
}

/* Writes a golden's folder again. Its biases on the feed-forward become 0, or go, and config.json says so. */
static void write_biases(const char *model, const char *to, bool zero) {
  static const char key[] = "\"mlp_bias\": true";
  char path[4096], text[8192] = "";
  wn_safetensors *s;
  wn_safetensors_entry list[64];
  static const float zeros[64];
  int n = 0;
  snprintf(path, sizeof path, "%s/model.safetensors", golden(model));
  assert_ok(ctx, wn_safetensors_open(ctx, path, &s));
  for (int i = 0; i < wn_safetensors_count(s); i++) {
    const wn_safetensors_entry *e = wn_safetensors_at(s, i);
    const bool found = strstr(e->name, ".mlp.") && strstr(e->name, ".bias");
    if (found && !zero) continue;
    list[n] = *e;
    assert_true(!found || e->bytes <= sizeof zeros);
    if (found) list[n].data = zeros;
    n++;
  }
  assert_true(access(to, F_OK) == 0 || mkdir(to, 0700) == 0);
  snprintf(path, sizeof path, "%s/model.safetensors", to);
  assert_ok(ctx, wn_safetensors_write(ctx, path, list, n, NULL));
  wn_safetensors_close(s);
  snprintf(path, sizeof path, "%s/config.json", golden(model));
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_true(fread(text, 1, sizeof text - 1, f) > 0);
  fclose(f);
  const char *at = strstr(text, key);
  assert_non_null(at);
  snprintf(path, sizeof path, "%s/config.json", to);
  f = fopen(path, "wb");
  assert_non_null(f);
  fprintf(f, "%.*s\"mlp_bias\": %s%s", (int)(at - text), text, zero ? "true" : "false", at + strlen(key));
  assert_int_equal(fclose(f), 0);
}

static void logits_of(const char *path, float *out /* [4,48] */) {
  const int32_t tokens[4] = {3, 1, 4, 1};
  wn_model *model;
  assert_ok(ctx, wn_model_load(ctx, path, NULL, &model));
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, 1, 4, NULL, out));
  wn_model_destroy(model);
}

/* Biases on attention's projections alone are those of a model whose other biases are 0. */
static void attention_biases(void **state) {
  (void)state;
  static const char *const models[] = {"llama-bias", "granite"};
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    char zeros[600], alone[600], back[600];
    snprintf(zeros, sizeof zeros, "%s/zeros", folder);
    snprintf(alone, sizeof alone, "%s/alone", folder);
    snprintf(back, sizeof back, "%s/back", folder);
    const wn_convert_form forms[] = {WN_CONVERT_WINNOW, WN_CONVERT_GGUF, WN_CONVERT_HF, WN_CONVERT_WINNOW_GGUF};
    float x[4 * 48], y[4 * 48];
    write_biases(models[i], zeros, true);
    write_biases(models[i], alone, false);
    logits_of(zeros, x);
    logits_of(alone, y);
    assert_memory_equal(x, y, sizeof x);
    logits_of(golden(models[i]), x);
    assert_memory_not_equal(x, y, sizeof x); /* the biases that went had an effect */
    convert(alone, path_in(folder, "own"), WN_CONVERT_WINNOW);
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
      const char *file = path_in(folder, form % 2 ? "other.gguf" : "other");
      wn_convert_result r;
      const wn_convert_options o = to(forms[form]);
      assert_ok(ctx, wn_model_convert(ctx, alone, file, &o, &r));
      if (forms[form] == WN_CONVERT_HF) assert_string_not_equal(r.architecture, "winnow");
      convert(file, back, WN_CONVERT_WINNOW);
      same_model(path_in(folder, "own"), back);
    }
  }
}

/* Types are kept where the format knows them: BF16 from transformers, quantised weights from GGUF. */
static void types_stay(void **state) {
  (void)state;
  wn_tensor_info info;
  wn_model *model;
  convert(golden("mistral"), path_in(folder, "hf"), WN_CONVERT_HF);
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "hf"), NULL, &model));
  assert_ok(ctx, wn_model_tensor_info(model, 0, &info));
  assert_int_equal(info.types[0], WN_GGUF_BF16);
  wn_model_destroy(model);
  convert(golden("llama3.gguf"), path_in(folder, "same.gguf"), WN_CONVERT_GGUF);
  same_model(golden("llama3.gguf"), path_in(folder, "same.gguf"));
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "same.gguf"), NULL, &model));
  assert_ok(ctx, wn_model_tensor_info(model, 0, &info));
  assert_int_equal(info.types[0], WN_GGUF_Q8_0);
  wn_model_destroy(model);
  /* Llama 3's factors become the scaling settings that they derive from, and factors again. */
  convert(golden("llama3.gguf"), path_in(folder, "hf3"), WN_CONVERT_HF);
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "hf3"), NULL, &model));
  const wn_model_config *c = wn_model_config_get(model);
  assert_int_equal(c->rope_scaling.type, WN_ROPE_LLAMA3);
  assert_int_equal(c->rope_scaling.context, 24);
  assert_true(c->rope_scaling.factor == 8 && !c->rope_factors);
  wn_model_destroy(model);
}

/* 8 bits: each weight is within half a step of its block, the largest up to F16's precision of the step. */
static void eight_bits(void **state) {
  (void)state;
  wn_model *exact, *rounded;
  wn_convert_options o = to(WN_CONVERT_GGUF);
  o.typed = true, o.type = WN_GGUF_Q8_0;
  convert(golden("llama"), path_in(folder, "own"), WN_CONVERT_WINNOW);
  assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "own"), path_in(folder, "q8.gguf"), &o, NULL));
  convert(path_in(folder, "own"), path_in(folder, "f32.gguf"), WN_CONVERT_GGUF);
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "f32.gguf"), WN_OPTIONS(wn_model_load_options, .as_float = true),
                               &exact));
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "q8.gguf"), WN_OPTIONS(wn_model_load_options, .as_float = true),
                               &rounded));
  int blocks = 0;
  for (int i = 0; i < wn_model_tensor_count(exact); i++) {
    wn_safetensors_entry a, b;
    assert_ok(ctx, wn_model_tensor_at(exact, i, &a));
    assert_ok(ctx, wn_model_tensor_at(rounded, i, &b));
    const float *x = a.data, *y = b.data;
    const size_t n = a.bytes / sizeof *x;
    const bool vector = a.ndim == 1, whole = a.shape[a.ndim - 1] % 32 == 0;
    if (vector) assert_memory_equal(x, y, a.bytes);
    for (size_t k = 0; !vector && whole && k < n; k += 32, blocks++) {
      float largest = 0;
      for (int j = 0; j < 32; j++) largest = fmaxf(largest, fabsf(x[k + (size_t)j]));
      for (int j = 0; j < 32; j++)
        if (fabsf(x[k + (size_t)j] - y[k + (size_t)j]) > largest / 127 * 0.5f + largest / 1024)
          fail_msg("%s: %g became %g of %g", a.name, (double)x[k + (size_t)j], (double)y[k + (size_t)j],
                   (double)largest);
    }
    for (size_t k = 0; !vector && !whole && k < n; k++) /* rows of 40: F16 */
      assert_true(fabsf(x[k] - y[k]) <= fabsf(x[k]) / 2048 + 1e-7f);
  }
  assert_true(blocks > 100);
  wn_model_destroy(exact);
  wn_model_destroy(rounded);
}

/* Rounding to nearest, ties to even, at the ends of each range. */
static void encoding(void **state) {
  (void)state;
  static const struct {
    float x;
    uint16_t half, bf16;
  } cases[] = {{0, 0, 0},
               {1, 0x3c00, 0x3f80},
               {-2.5f, 0xc100, 0xc020},
               {65504, 0x7bff, 0x4780},
               {0x1p-24f, 1, 0x3380},
               {0x1.8p-24f, 2, 0x33c0},
               {0x1p-25f, 0, 0x3300},
               {0x1.ff8p-15f, 0x3ff, 0x3880},
               {0x1.ffcp-15f, 0x400, 0x3880},
               {0x1.004p0f, 0x3c01, 0x3f80},
               {0x1.002p0f, 0x3c00, 0x3f80},
               {0x1.006p0f, 0x3c02, 0x3f80},
               {0x1.01p0f, 0x3c04, 0x3f80},
               {0x1.03p0f, 0x3c0c, 0x3f82}};
  uint16_t out;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_ok(ctx, wn_gguf_encode(ctx, WN_GGUF_F16, &cases[i].x, 1, &out));
    if (out != cases[i].half) fail_msg("%a as F16 is %04x, expected %04x", (double)cases[i].x, out, cases[i].half);
    assert_ok(ctx, wn_gguf_encode(ctx, WN_GGUF_BF16, &cases[i].x, 1, &out));
    if (out != cases[i].bf16) fail_msg("%a as BF16 is %04x, expected %04x", (double)cases[i].x, out, cases[i].bf16);
  }
  const float large = 65520;
  assert_refused(ctx, wn_gguf_encode(ctx, WN_GGUF_F16, &large, 1, &out), WN_ERR_ARGUMENT, "too large");
  assert_refused(ctx, wn_gguf_encode(ctx, WN_GGUF_Q8_0, &large, 1, &out), WN_ERR_ARGUMENT, "whole blocks");
}

static void save_model(const char *dir, void (*change)(wn_model_config *)) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 10, c.context = 16, c.layers = 2, c.width = 8, c.heads = 2, c.ffn_width = 12;
  c.position = WN_POS_ROPE;
  change(&c);
  assert_ok(ctx, wn_model_create(ctx, &c, 1, &model));
  assert_ok(ctx, wn_model_save(ctx, model, NULL, dir));
  wn_model_destroy(model);
}

static void is_selective(wn_model_config *c) {
  c->attention.selective.enabled = true;
}
static void has_gates(wn_model_config *c) {
  static const char text[] = "{\"forget\": true, \"write\": {\"window\": 3}, \"fade\": true}";
  assert_int_equal(wn_attention_config_parse(NULL, text, &c->attention), WN_OK);
}
static void is_post(wn_model_config *c) {
  c->norm_place = WN_NORM_POST;
}
static void has_dynamic_scaling(wn_model_config *c) {
  c->rope_scaling.type = WN_ROPE_DYNAMIC, c->rope_scaling.factor = 2, c->rope_scaling.context = c->context / 2;
}
static void has_embed_norm(wn_model_config *c) {
  c->embed_norm = true;
}
static void is_learned(wn_model_config *c) {
  c->position = WN_POS_LEARNED;
}
static void has_gelu(wn_model_config *c) {
  c->ffn = WN_FFN_GELU;
}
static void has_both(wn_model_config *c) {
  c->qk_norm = c->bias = true;
}
static void has_scale(wn_model_config *c) {
  c->attention.scale = 0.3;
}
static void has_part(wn_model_config *c) {
  c->rope_size = 2;
}
static void has_part_norms(wn_model_config *c) {
  c->rope_size = 2, c->qk_norm = true;
}
static void has_part_experts(wn_model_config *c) {
  c->rope_size = 2, c->experts.count = 3, c->experts.active = 2, c->experts.normalize = true;
}
static void has_part_wide(wn_model_config *c) {
  c->rope_size = 2, c->head_size = 6;
}
static void has_long_window(wn_model_config *c) {
  c->rope_scaling.type = WN_ROPE_LONG, c->rope_scaling.context = 8, c->rope_scaling.factor = 2;
  c->attention.window = 4;
}
static void has_long_norms(wn_model_config *c) {
  c->rope_scaling.type = WN_ROPE_LONG, c->rope_scaling.context = 8, c->rope_scaling.factor = 2, c->qk_norm = true;
}
static void has_part_scaled(wn_model_config *c) {
  c->rope_size = 2, c->rope_scaling.type = WN_ROPE_LINEAR, c->rope_scaling.factor = 2;
}
static void has_factors_scaled(wn_model_config *c) {
  c->rope_factors = true, c->rope_scaling.type = WN_ROPE_LINEAR, c->rope_scaling.factor = 2;
}
/* In GGUF Llama 3's scaling is a tensor of factors, which llama.cpp reads for llama and granite only. */
static void has_llama3(wn_model_config *c) {
  c->rope_scaling.type = WN_ROPE_LLAMA3, c->rope_scaling.factor = 8, c->rope_scaling.context = 8;
  c->rope_scaling.low_freq_factor = 1, c->rope_scaling.high_freq_factor = 4;
}
static void has_llama3_granite(wn_model_config *c) {
  has_llama3(c);
  c->residual_scale = 0.5;
}
static void has_llama3_biases(wn_model_config *c) {
  has_llama3(c);
  c->qkv_bias = true;
}
static void has_llama3_norms(wn_model_config *c) {
  has_llama3(c);
  c->qk_norm = true;
}
static void has_llama3_branches(wn_model_config *c) {
  has_llama3(c);
  c->norm_place = WN_NORM_BRANCH, c->qk_norm = c->qk_norm_whole = true;
}
static void has_llama3_gemma(wn_model_config *c) {
  has_llama3(c);
  c->norm_place = WN_NORM_BOTH, c->ffn = WN_FFN_GEGLU, c->embed_scale = sqrt((double)c->width), c->qk_norm = true;
}
static void has_llama3_part(wn_model_config *c) {
  has_llama3(c);
  c->rope_size = 2;
}
static void has_factors_norms(wn_model_config *c) {
  c->rope_factors = true, c->qk_norm = true;
}
static void has_window(wn_model_config *c) {
  c->attention.window = 4;
  strcpy(c->attention.window_layers, "01");
}
static void is_dynamic(wn_model_config *c) {
  c->rope_scaling.type = WN_ROPE_DYNAMIC;
}

/* Features of other families on Llama's shape, where the family has no keys for them. */
static void has_embed_scale(wn_model_config *c) {
  c->embed_scale = 3;
}
static void has_logit_softcap(wn_model_config *c) {
  c->logit_softcap = 30;
}
static void has_branch_norms(wn_model_config *c) {
  c->norm_place = WN_NORM_BOTH; /* as in Gemma, but with SwiGLU */
}
static void has_local_theta(wn_model_config *c) {
  has_window(c);
  c->qk_norm = true, c->rope_local_theta = 500;
}
/* Granite's keys, and one that it lacks. */
static void has_scaled_window(wn_model_config *c) {
  c->residual_scale = 0.5, c->attention.window = 4;
}
static void has_scaled_norms(wn_model_config *c) {
  c->embed_scale = 3, c->qk_norm = true; /* as in Qwen 3 */
}
static void is_granite(wn_model_config *c) {
  c->residual_scale = 0.5, c->logit_divisor = 3, c->logit_softcap = 30;
}
static void has_norms_on_branches(wn_model_config *c) {
  c->norm_place = WN_NORM_BRANCH, c->qk_norm = true;
}
/* llama.cpp cannot read this family with tied embeddings. */
static void is_olmo2(wn_model_config *c) {
  c->norm_place = WN_NORM_BRANCH, c->qk_norm = c->qk_norm_whole = true, c->tied = true;
}
/* Neither can it its Qwen2 with experts; and in both its Qwen2s the attention output is [width, width]. */
static void is_qwen2_moe(wn_model_config *c) {
  c->qkv_bias = true, c->experts.count = 3, c->experts.active = 2, c->experts.shared_width = 12;
  c->experts.shared_gate = true;
}
static void is_tied_qwen2_moe(wn_model_config *c) {
  is_qwen2_moe(c);
  c->tied = true;
}
static void is_wide_qwen2_moe(wn_model_config *c) {
  is_qwen2_moe(c);
  c->head_size = 6;
}
static void is_wide_qwen2(wn_model_config *c) {
  c->qkv_bias = true, c->head_size = 6;
}
static void has_attention_biases(wn_model_config *c) {
  c->qkv_bias = c->out_bias = true;
}
static void has_attention_biases_and_norms(wn_model_config *c) {
  has_attention_biases(c);
  c->qk_norm = true; /* as in Qwen 3, which has none in llama.cpp */
}
static void has_out_bias(wn_model_config *c) {
  c->out_bias = true;
}
static void is_tied_qwen2(wn_model_config *c) {
  c->qkv_bias = c->tied = true;
}
static void has_whole_norms(wn_model_config *c) {
  c->qk_norm = c->qk_norm_whole = true;
}
/* Gemma 2's shape. llama.cpp expects its windows in layers 0, 2, ... */
static void is_gemma2(wn_model_config *c) {
  c->norm_place = WN_NORM_BOTH, c->ffn = WN_FFN_GEGLU, c->embed_scale = sqrt((double)c->width), c->tied = true;
  c->logit_softcap = 30, c->attention.window = 4;
  strcpy(c->attention.window_layers, "01");
}

static void refusals(void **state) {
  (void)state;
  static const struct {
    void (*change)(wn_model_config *);
    bool hf, gguf;               /* not in the family: hf gets winnow's model code, gguf is refused */
    const char *named, *refused; /* refused: what that model code cannot compute */
  } cases[] = {{is_selective, true, true, "attention.selective", NULL},
               {has_gates, true, true, "attention.forget", NULL},
               {is_post, true, true, "norm_place", NULL},
               {has_embed_norm, true, true, "embed_norm", NULL},
               {is_learned, true, true, "learned positions", NULL},
               {has_gelu, true, true, "ffn", NULL},
               {has_both, true, true, "qk_norm", NULL},
               {has_scale, false, false, "", NULL}, /* as in Granite */
               {has_part, false, false, "", NULL},  /* as in Phi-3 */
               {has_part_norms, true, true, "rope_size", NULL},
               {has_part_experts, true, true, "rope_size", "experts"},
               {has_part_wide, false, true, "head_size", NULL},
               {has_long_window, false, true, "attention.window", NULL},
               {has_long_norms, true, true, "type longrope", "type longrope"},
               {has_part_scaled, true, false, "rope_size", NULL},
               {has_factors_scaled, true, false, "rope_factors", NULL}, /* the scaling is kept */
               {has_llama3, false, false, "", NULL},
               {has_llama3_granite, false, false, "", NULL},
               {has_llama3_biases, false, true, "type llama3", NULL},
               {has_llama3_norms, false, true, "type llama3", NULL},
               {has_llama3_branches, false, true, "type llama3", NULL},
               {has_llama3_gemma, false, true, "type llama3", NULL},
               {has_llama3_part, true, true, "type llama3", NULL},
               {has_factors_norms, false, true, "rope_factors", NULL},
               {has_dynamic_scaling, true, true, "type dynamic", NULL},
               {has_window, true, true, "attention.window", NULL},
               {has_embed_scale, false, false, "", NULL}, /* as in Granite */
               {has_scaled_window, true, true, "attention.window", "residual_scale"},
               {has_scaled_norms, true, true, "embed_scale", NULL},
               {is_granite, true, true, "logit_softcap", "residual_scale"},
               {has_norms_on_branches, true, true, "qk_norm_whole", "norm_place"},
               {is_olmo2, false, true, "tied", NULL},
               {is_qwen2_moe, false, false, "", NULL},
               {is_tied_qwen2_moe, false, true, "tied", NULL},
               {is_wide_qwen2_moe, false, true, "head_size", NULL},
               {is_wide_qwen2, false, true, "head_size", NULL},
               {has_attention_biases, false, false, "", NULL}, /* as in Llama */
               {has_attention_biases_and_norms, false, true, "qk_norm", NULL},
               {has_out_bias, true, true, "out_bias", NULL},
               {is_tied_qwen2, false, false, "", NULL},
               {has_whole_norms, true, true, "qk_norm_whole", "qk_norm_whole"},
               {has_logit_softcap, true, true, "logit_softcap", NULL},
               {has_branch_norms, true, true, "geglu", NULL},
               {has_local_theta, true, true, "rope_local_theta", NULL},
               {is_gemma2, false, true, "window_layers", NULL},
               {is_dynamic, false, true, "dynamic", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const wn_convert_options hf = to(WN_CONVERT_HF), gguf = to(WN_CONVERT_GGUF);
    save_model(path_in(folder, "run"), cases[i].change);
    wn_convert_result r;
    const wn_status status = wn_model_convert(ctx, path_in(folder, "run"), path_in(folder, "x"), &hf, &r);
    if (cases[i].refused) {
      assert_int_equal(status, WN_ERR_UNSUPPORTED);
      if (!strstr(wn_context_error(ctx), cases[i].refused)) fail_msg("%zu: %s", i, wn_context_error(ctx));
    } else if (status != WN_OK) {
      fail_msg("%zu %s: %s", i, cases[i].named, wn_context_error(ctx));
    }
    if (!cases[i].refused && cases[i].hf != !strcmp(r.architecture, "winnow"))
      fail_msg("%s is %s", cases[i].named, r.architecture);
    if (!cases[i].refused)
      assert_int_equal(access(path_in(folder, "x/modeling_winnow.py"), F_OK), cases[i].hf ? 0 : -1);
    if (!cases[i].refused)
      assert_int_equal(access(path_in(folder, "x/configuration_winnow.py"), F_OK), cases[i].hf ? 0 : -1);
    if (cases[i].hf && !cases[i].refused) { /* the same to the bit, wherever it is loaded */
      same_model(path_in(folder, "run"), path_in(folder, "x"));
      convert(path_in(folder, "x"), path_in(folder, "back"), WN_CONVERT_WINNOW);
      same_model(path_in(folder, "run"), path_in(folder, "back"));
    }
    if (cases[i].gguf) { /* the message names all formats that work */
      assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "run"), path_in(folder, "x.gguf"), &gguf, NULL),
                     WN_ERR_UNSUPPORTED, cases[i].named);
      const char *can = cases[i].refused ? "it can in \"winnow\" and" : "it can in \"hf\", \"winnow\" and";
      if (!strstr(wn_context_error(ctx), can)) fail_msg("%zu: %s", i, wn_context_error(ctx));
    } else {
      assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "run"), path_in(folder, "x.gguf"), &gguf, NULL));
    }
    /* Winnow's own GGUF can express everything. */
    convert(path_in(folder, "run"), path_in(folder, "own.gguf"), WN_CONVERT_WINNOW_GGUF);
    same_model(path_in(folder, "run"), path_in(folder, "own.gguf"));
  }
}

/* llama.cpp rotates whole heads in every architecture except Phi-3's. */
static void part_turns(void **state) {
  (void)state;
  void (*const changes[])(wn_model_config *) = {has_part, has_part_scaled};
  const wn_convert_options gguf = to(WN_CONVERT_GGUF);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    wn_convert_result r;
    save_model(path_in(folder, "run"), changes[i]);
    assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "run"), path_in(folder, "x.gguf"), &gguf, &r));
    assert_string_equal(r.architecture, "phi3");
    same_model(path_in(folder, "run"), path_in(folder, "x.gguf"));
  }
}

static void has_memory(wn_model_config *c) {
  c->recurrence = 8;
}
static void has_encoder(wn_model_config *c) {
  c->encoder.layers = 1;
}

/* Features that winnow's exported model code does not compute either. */
static void refused_by_name(void **state) {
  (void)state;
  static const struct {
    void (*change)(wn_model_config *);
    const char *named;
  } cases[] = {{has_memory, "segment recurrence (\"memory\")"}, {has_encoder, "an encoder (\"encoder.layers\")"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const wn_convert_options hf = to(WN_CONVERT_HF);
    save_model(path_in(folder, "run"), cases[i].change);
    assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "run"), path_in(folder, "x"), &hf, NULL),
                   WN_ERR_UNSUPPORTED, cases[i].named);
  }
}

static void write_text(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0);
  assert_int_equal(fclose(f), 0);
}

/* The config.json of such a folder comes from a stranger. */
static void bad_own_folders(void **state) {
  (void)state;
  static const struct {
    const char *config, *named;
  } cases[] = {{"{\"model_type\": \"winnow\"}", "\"winnow\" is missing"},
               {"{\"model_type\": \"winnow\", \"winnow\": 3}", "no object"},
               {"{\"model_type\": \"winnow\", \"winnow\": {\"layers\": 0}}", "layers"},
               {"{\"model_type\": \"winnow\", \"winnow\": {\"attention\": {\"nonsense\": true}}}", "nonsense"},
               {"{\"model_type\": \"winnow\", \"winnow\": {\"vocab_size\": 10, \"width\": 16777216}}", "width"}};
  wn_model *model;
  save_model(path_in(folder, "run"), is_selective);
  convert(path_in(folder, "run"), path_in(folder, "x"), WN_CONVERT_HF);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text(path_in(folder, "x/config.json"), cases[i].config);
    assert_int_not_equal(wn_model_load(ctx, path_in(folder, "x"), NULL, &model), WN_OK);
    if (!strstr(wn_context_error(ctx), cases[i].named)) fail_msg("%s: %s", cases[i].named, wn_context_error(ctx));
  }
}

static void targets(void **state) {
  (void)state;
  wn_convert_options o = to(WN_CONVERT_HF);
  o.overwrite = false;
  assert_ok(ctx, wn_model_convert(ctx, golden("llama"), path_in(folder, "new"), &o, NULL));
  assert_refused(ctx, wn_model_convert(ctx, golden("llama"), path_in(folder, "new"), &o, NULL), WN_ERR_ARGUMENT,
                 "already holds a model");
  o.overwrite = true;
  assert_ok(ctx, wn_model_convert(ctx, golden("llama"), path_in(folder, "new"), &o, NULL));
  assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "new"), path_in(folder, "new"), &o, NULL), WN_ERR_ARGUMENT,
                 "the same");
  o.to = WN_CONVERT_GGUF;
  assert_refused(ctx, wn_model_convert(ctx, golden("llama"), path_in(folder, "new"), &o, NULL), WN_ERR_ARGUMENT,
                 "a folder");
  o.typed = true, o.to = WN_CONVERT_HF, o.type = WN_GGUF_Q8_0;
  assert_refused(ctx, wn_model_convert(ctx, golden("llama"), path_in(folder, "q"), &o, NULL), WN_ERR_UNSUPPORTED,
                 "Q8_0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cancelled),       cmocka_unit_test(round_trips),      cmocka_unit_test(types_stay),
      cmocka_unit_test(eight_bits),      cmocka_unit_test(encoding),         cmocka_unit_test(refusals),
      cmocka_unit_test(refused_by_name), cmocka_unit_test(bad_own_folders),  cmocka_unit_test(targets),
      cmocka_unit_test(part_turns),      cmocka_unit_test(attention_biases),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
