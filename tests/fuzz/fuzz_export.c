/* A model is converted and loaded again. The first byte chooses the target and its type. The rest is a GGUF file, or
 * the length of config.json in two bytes, that file, and model.safetensors. A converted model must load, and its values
 * must equal the source's within the type's rounding, row by row, also where source and target pair dimensions
 * differently in RoPE. */
#include "fuzz/fuzz.h"

#include <math.h>
#include "formats/import.h"
#include "model/layer.h"
#include "winnow/convert.h"
#include "winnow/model.h"

static bool ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && !strcmp(name + n - m, end);
}

/* The source row of a row in the target's tensor. */
static int64_t source_row(const wn_model_config *from, const wn_model_config *to, const char *name, int64_t r) {
  if (from->position != WN_POS_ROPE || from->rope_pairs == to->rope_pairs) return r;
  const int64_t D = to->head_size, R = to->rope_size ? to->rope_size : D, i = r % D;
  const bool gain = ends_with(name, "attn.q_norm.gain") || ends_with(name, "attn.k_norm.gain");
  const bool qkv = strstr(name, "attn.qkv.") != NULL && r < (to->heads + to->kv_heads) * D;
  if ((!gain && !qkv) || i >= R) return r;
  const int64_t pair = to->rope_pairs == WN_ROPE_HALVES ? i % (R / 2) : i / 2;
  const int64_t half = to->rope_pairs == WN_ROPE_HALVES ? i / (R / 2) : i % 2;
  return r - i + (from->rope_pairs == WN_ROPE_HALVES ? half * (R / 2) + pair : 2 * pair + half);
}

/* The largest rounding error of a type at value x. block: the largest value of its 32. */
static double rounding(wn_gguf_type type, double x, double block) {
  switch (type) {
  case WN_GGUF_F16:
    return fabs(x) / 1024 + 0x1p-24;
  case WN_GGUF_BF16:
    return fabs(x) / 128 + 0x1p-133;
  case WN_GGUF_Q8_0: /* its scale is rounded to a half, maybe to a subnormal one */
    return block / 127 + block / 512 + 128 * 0x1p-24;
  case WN_GGUF_Q4_0:
  case WN_GGUF_Q4_1:
  case WN_GGUF_Q5_0:
  case WN_GGUF_Q5_1: /* uses a search: no weight is off by more than the largest */
    return 2 * block + 32 * 0x1p-24;
  default:
    return 0;
  }
}

static void compare(wn_context *ctx, const wn_model *a, const wn_model *b, bool typed, wn_gguf_type type) {
  const wn_model_config *from = wn_model_config_get(a), *to = wn_model_config_get(b);
  HOLDS(wn_model_tensor_count(a) <= wn_model_tensor_count(b)); /* factors may become a tensor, or a tensor factors */
  for (int i = 0, j = 0; i < wn_model_tensor_count(a); i++, j++) {
    wn_safetensors_entry s, t;
    HOLDS(wn_model_tensor_at(a, i, &s) == WN_OK && wn_model_tensor_at(b, j, &t) == WN_OK);
    if (strcmp(s.name, t.name) != 0 && !strcmp(t.name, "rope.factors")) {
      HOLDS(wn_model_tensor_at(b, ++j, &t) == WN_OK);
    }
    HOLDS(!strcmp(s.name, t.name) && s.bytes == t.bytes);
    const int64_t rows = s.shape[0], K = rows ? (int64_t)(s.bytes / sizeof(float)) / rows : 0;
    const bool matrix = s.ndim == 2;
    for (int64_t r = 0; r < rows; r++) {
      const float *x = (const float *)s.data + source_row(from, to, s.name, r) * K, *y = (const float *)t.data + r * K;
      for (int64_t k = 0; k < K; k++) {
        double block = 0, most;
        for (int64_t n = k / 32 * 32; n < K && n < k / 32 * 32 + 32; n++) block = fmax(block, fabs((double)x[n]));
        most = !typed ? fmax(rounding(WN_GGUF_F16, (double)x[k], 0), rounding(WN_GGUF_BF16, (double)x[k], 0))
                      : fmax(rounding(type, (double)x[k], block), rounding(WN_GGUF_F16, (double)x[k], 0));
        if (strstr(s.name, "norm")) most += 0x1p-8 * (1 + fabs((double)x[k])); /* some formats store a gain as 1 + g */
        if (!matrix && typed && type >= WN_GGUF_Q8_0) most = 0x1p-22 * (1 + fabs((double)x[k]));
        if (!(fabs((double)x[k] - (double)y[k]) <= most)) {
          fprintf(stderr, "%s, row %lld, element %lld: %a became %a\n", s.name, (long long)r, (long long)k,
                  (double)x[k], (double)y[k]);
          abort();
        }
      }
    }
  }
  (void)ctx;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const wn_gguf_type types[] = {WN_GGUF_F32,  WN_GGUF_F16,  WN_GGUF_BF16, WN_GGUF_Q8_0,
                                       WN_GGUF_Q4_0, WN_GGUF_Q4_1, WN_GGUF_Q5_0, WN_GGUF_Q5_1};
  static const char *const outs[] = {"winnow", "hf", "out.gguf", "own.gguf"};
  wn_context *ctx = fuzz_context();
  if (size < 2) return 0;
  const unsigned mode = data[0];
  wn_convert_options o = {.size = sizeof o, .to = (wn_convert_form)(mode % 4), .overwrite = true};
  o.typed = mode / 4 % 9 > 0;
  o.type = o.typed ? types[mode / 4 % 9 - 1] : WN_GGUF_F32;
  data++, size--;
  const char *from = fuzz_path("in.gguf");
  if (size >= 4 && !memcmp(data, "GGUF", 4)) {
    fuzz_put("in.gguf", data, size);
  } else {
    const uint8_t *config;
    const size_t n = fuzz_part(&data, &size, &config);
    from = fuzz_path("in");
    mkdir(from, 0777);
    fuzz_put("in/config.json", config, n);
    fuzz_put("in/model.safetensors", data, size);
  }
  struct wn_import import;
  wn_status status = wn_import_open(ctx, from, &import);
  /* Rotary tables for long contexts would take seconds without testing anything of the file. */
  const bool large = status == WN_OK && import.config.context * import.config.head_size > 1 << 16;
  wn_import_clear(&import);
  if (status != WN_OK) fuzz_refused(ctx);
  if (status != WN_OK || large) return 0;
  wn_model *model = NULL, *again = NULL;
  const char *out = fuzz_path(outs[mode % 4]);
  status = wn_model_load(ctx, from, WN_OPTIONS(wn_model_load_options, .as_float = true), &model);
  if (status != WN_OK) fuzz_refused(ctx);
  const wn_status converted = wn_model_convert(ctx, from, out, &o, NULL);
  if (converted != WN_OK) fuzz_refused(ctx);
  HOLDS(status == WN_OK || converted != WN_OK); /* a model that does not load must not convert */
  if (converted == WN_OK) {
    if (wn_model_load(ctx, out, WN_OPTIONS(wn_model_load_options, .as_float = true), &again) != WN_OK) {
      fprintf(stderr, "what was converted does not load: %s\n", wn_context_error(ctx));
      abort();
    }
    compare(ctx, model, again, o.typed, o.type);
  }
  wn_model_destroy(again);
  wn_model_destroy(model);
  return 0;
}
