/* GPT-2: LayerNorm before the branches, GELU, learned positions, biases everywhere. Its projections are [in, out] in
 * Hugging Face folders ("Conv1D") and [out, in] in GGUF. */
#include <string.h>

#include "formats/families/llama_shape.h"

static const struct wn_name gpt2_hf_rows[] = {
    WN_NAME("embed.weight", "wte.weight"),
    WN_NAME("pos.weight", "wpe.weight"),
    WN_NAME("final_norm.gain", "ln_f.weight"),
    WN_NAME("final_norm.shift", "ln_f.bias"),
    WN_NAME("output.weight", "=lm_head.weight"),
    WN_NAME("norm1.gain", "h.%lld.ln_1.weight"),
    WN_NAME("norm1.shift", "h.%lld.ln_1.bias"),
    {.ours = "attn.qkv.weight", .theirs = {"h.%lld.attn.c_attn.weight"}, .transposed = true},
    WN_NAME("attn.qkv.bias", "h.%lld.attn.c_attn.bias"),
    {.ours = "attn.out.weight", .theirs = {"h.%lld.attn.c_proj.weight"}, .transposed = true},
    WN_NAME("attn.out.bias", "h.%lld.attn.c_proj.bias"),
    WN_NAME("norm2.gain", "h.%lld.ln_2.weight"),
    WN_NAME("norm2.shift", "h.%lld.ln_2.bias"),
    {.ours = "ffn.in.weight", .theirs = {"h.%lld.mlp.c_fc.weight"}, .transposed = true},
    WN_NAME("ffn.in.bias", "h.%lld.mlp.c_fc.bias"),
    {.ours = "ffn.out.weight", .theirs = {"h.%lld.mlp.c_proj.weight"}, .transposed = true},
    WN_NAME("ffn.out.bias", "h.%lld.mlp.c_proj.bias"),
};
/* Causal masks in old files. */
static const char *const gpt2_hf_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};

static const struct wn_name gpt2_gguf_rows[] = {
    WN_NAME("pos.weight", "position_embd.weight"),      WN_NAME("final_norm.shift", "output_norm.bias"),
    WN_NAME("norm1.shift", "blk.%lld.attn_norm.bias"),  WN_NAME("attn.qkv.weight", "blk.%lld.attn_qkv.weight"),
    WN_NAME("attn.qkv.bias", "blk.%lld.attn_qkv.bias"), WN_NAME("norm2.shift", "blk.%lld.ffn_norm.bias"),
    WN_NAME("ffn.in.weight", "blk.%lld.ffn_up.weight"), WN_NAME("ffn.in.bias", "blk.%lld.ffn_up.bias"),
};
static const struct wn_names gpt2_hf_names = {
    .title = "Hugging Face GPT-2", .prefix = "transformer.", WN_NAME_ROWS(gpt2_hf_rows), .ignored = gpt2_hf_ignored};
static const struct wn_names gpt2_gguf_names = {
    .title = "GGUF gpt2", .prefix = "", WN_NAME_ROWS(gpt2_gguf_rows), .base = &wn_llama_gguf_names};

/* Of several names of a kind the first is written. */
static const struct {
  const char *name;
  wn_ffn_kind kind;
} gpt2_activations[] = {{"gelu_new", WN_FFN_GELU},
                        {"gelu_pytorch_tanh", WN_FFN_GELU},
                        {"gelu", WN_FFN_GELU_ERF},
                        {"relu", WN_FFN_RELU},
                        {"relu2", WN_FFN_RELU2}};
enum { GPT2_ACTIVATIONS = sizeof gpt2_activations / sizeof *gpt2_activations };

static void gpt2_shape(wn_model_config *c) {
  c->norm = WN_NORM_LAYER;
  c->position = WN_POS_LEARNED;
  c->bias = true;
}

static wn_status gpt2_read(const struct wn_hf_keys *k, wn_model_config *c) {
  bool scaled;
  const char *act;
  gpt2_shape(c);
  WN_TRY(wn_hf_int(k, "vocab_size", -1, &c->vocab_size));
  WN_TRY(wn_hf_count(k, "n_positions", &c->context));
  WN_TRY(wn_hf_int(k, "n_layer", -1, &c->layers));
  WN_TRY(wn_hf_int(k, "n_embd", -1, &c->width));
  WN_TRY(wn_hf_int(k, "n_head", -1, &c->heads));
  WN_TRY(wn_hf_int(k, "n_inner", 0, &c->ffn_width));
  WN_TRY(wn_hf_real(k, "layer_norm_epsilon", 1e-5, &c->norm_eps));
  WN_TRY(wn_hf_flag(k, "tie_word_embeddings", true, &c->tied));
  WN_TRY(wn_hf_text(k, "activation_function", "gelu_new", &act));
  WN_TRY(wn_hf_flag(k, "scale_attn_weights", true, &scaled));
  int i = 0;
  while (i < GPT2_ACTIVATIONS && strcmp(act, gpt2_activations[i].name) != 0) i++;
  if (i == GPT2_ACTIVATIONS)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"activation_function\" is \"%.60s\"; gelu_new, gelu_pytorch_tanh, gelu and relu are known",
                   k->where, act);
  c->ffn = gpt2_activations[i].kind;
  if (!scaled) c->attention.scale = 1;
  return wn_hf_not(k, "scale_attn_by_inverse_layer_idx", "only one scale for all layers is supported");
}

static void gpt2_write(struct wn_hf_object *o, const wn_model_config *c) {
  int i = 0;
  while (gpt2_activations[i].kind != c->ffn) i++; /* gpt2_lacks has refused all others */
  wn_hf_put(o, "n_embd", json_integer(c->width));
  wn_hf_put(o, "n_layer", json_integer(c->layers));
  wn_hf_put(o, "n_head", json_integer(c->heads));
  wn_hf_put(o, "n_positions", json_integer(c->context));
  wn_hf_put(o, "n_ctx", json_integer(c->context));
  wn_hf_put(o, "n_inner", json_integer(c->ffn_width));
  wn_hf_put(o, "activation_function", json_string(gpt2_activations[i].name));
  wn_hf_put(o, "layer_norm_epsilon", json_real(c->norm_eps));
  wn_hf_put(o, "scale_attn_weights", json_boolean(c->attention.scale != 1));
  wn_hf_put(o, "scale_attn_by_inverse_layer_idx", json_false());
  wn_hf_put(o, "attn_pdrop", json_real(0));
  wn_hf_put(o, "embd_pdrop", json_real(0));
  wn_hf_put(o, "resid_pdrop", json_real(0));
}

static wn_status gpt2_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t window;
  gpt2_shape(c);
  c->ffn = WN_FFN_GELU;
  WN_TRY(wn_gguf_keys_int(k, "attention.sliding_window", 0, &window));
  if (window > 0 && window < c->context) c->attention.window = window;
  return wn_gguf_keys_real(k, "attention.layer_norm_epsilon", 1e-5, &c->norm_eps);
}

static void gpt2_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_gguf_out_real(out, "attention.layer_norm_epsilon", c->norm_eps);
}

static bool gpt2_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->position == WN_POS_LEARNED;
}

static const char *gpt2_lacks(const wn_model_config *c, enum wn_model_form form) {
  bool known = false;
  for (int i = 0; i < GPT2_ACTIVATIONS; i++) known |= gpt2_activations[i].kind == c->ffn;
  if (!wn_config_scale_is_plain(c) && !(form == WN_FORM_HF && c->attention.scale == 1)) return "\"attention.scale\"";
  if (c->norm != WN_NORM_LAYER) return "\"norm\": \"rmsnorm\" with learned positions";
  if (!c->bias) return "\"bias\": false with learned positions";
  if (c->ffn == WN_FFN_SWIGLU) return "\"ffn\": \"swiglu\" with learned positions";
  if (!known) return "this \"ffn\" with learned positions";
  if (c->ffn != WN_FFN_GELU && form == WN_FORM_GGUF) return "an \"ffn\" other than \"gelu\" with learned positions";
  if (c->kv_heads != c->heads || c->heads * c->head_size != c->width)
    return "grouped heads, or a head size other than width/heads, with learned positions";
  return NULL;
}

static const char *const gpt2_keys[] = {"bias", "qkv_bias", NULL};
static const char *const gpt2_mechanisms[] = {NULL};

const struct wn_family wn_family_gpt2 = {
    .hf = WN_FAMILY_HF("gpt2", "GPT2LMHeadModel", gpt2, &gpt2_hf_names),
    .gguf = WN_FAMILY_GGUF("gpt2", HALVES, gpt2_gguf_read, gpt2_gguf_write, &gpt2_gguf_names),
    .is = gpt2_is,
    .keys = gpt2_keys,
    .mechanisms = gpt2_mechanisms,
    .lacks = gpt2_lacks,
};
