/* OLMo 2 (Team OLMo 2025, arXiv 2501.00656, section 2.1): Llama's shape with norms on the branches' outputs instead of
 * before the branches, one norm over all heads of q together and one over those of k. */
#include "base/error.h"
#include "formats/families/llama_shape.h"

static const struct wn_name olmo2_hf_rows[] = {
    {.ours = "embed.weight", .theirs = {"embed_tokens.weight"}},
    {.ours = "final_norm.gain", .theirs = {"norm.weight"}},
    {.ours = "output.weight", .theirs = {"=lm_head.weight"}},
    {.ours = "attn.qkv.weight",
     .theirs = {"layers.%lld.self_attn.q_proj.weight", "layers.%lld.self_attn.k_proj.weight",
                "layers.%lld.self_attn.v_proj.weight"}},
    {.ours = "attn.q_norm.gain", .theirs = {"layers.%lld.self_attn.q_norm.weight"}},
    {.ours = "attn.k_norm.gain", .theirs = {"layers.%lld.self_attn.k_norm.weight"}},
    {.ours = "attn.out.weight", .theirs = {"layers.%lld.self_attn.o_proj.weight"}},
    {.ours = "post_norm1.gain", .theirs = {"layers.%lld.post_attention_layernorm.weight"}},
    {.ours = "ffn.in.weight", .theirs = {"layers.%lld.mlp.gate_proj.weight", "layers.%lld.mlp.up_proj.weight"}},
    {.ours = "ffn.out.weight", .theirs = {"layers.%lld.mlp.down_proj.weight"}},
    {.ours = "post_norm2.gain", .theirs = {"layers.%lld.post_feedforward_layernorm.weight"}},
};
static const char *const olmo2_ignored[] = {".rotary_emb.inv_freq", NULL};

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
static const struct wn_names olmo2_hf_names = {.title = "Hugging Face OLMo 2",
                                               .prefix = "model.",
                                               .rows = olmo2_hf_rows,
                                               .count = COUNT(olmo2_hf_rows),
                                               .ignored = olmo2_ignored};

static void olmo2_shape(wn_model_config *c) {
  c->norm_place = WN_NORM_BRANCH;
  c->qk_norm = c->qk_norm_whole = true;
}

static wn_status olmo2_read(const struct wn_hf_keys *k, wn_model_config *c) {
  bool bias;
  WN_TRY(wn_llama_hf_read(k, 0, 0, c));
  WN_TRY(wn_hf_real(k, "rms_norm_eps", 1e-5, &c->norm_eps));
  WN_TRY(wn_hf_flag(k, "attention_bias", false, &bias));
  if (bias) return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"attention_bias\" is true; it is not supported", k->where);
  olmo2_shape(c);
  return WN_OK;
}

static void olmo2_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_llama_hf_write(o, c);
  wn_hf_put(o, "attention_bias", json_false());
}

static wn_status olmo2_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_gguf_read(k, c));
  if (c->attention.window > 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"olmo2.attention.sliding_window\" is %lld; OLMo 2 has no windows, and OLMo 3 is not supported",
                   k->where, (long long)c->attention.window);
  olmo2_shape(c);
  return WN_OK;
}

static bool olmo2_is(const wn_model_config *c, enum wn_model_form form) {
  (void)form;
  return c->norm_place == WN_NORM_BRANCH;
}

static const char *olmo2_lacks(const wn_model_config *c, enum wn_model_form form) {
  if (c->position != WN_POS_ROPE) return "\"norm_place\": \"branch\" without rotary positions";
  if (!c->qk_norm_whole) return "\"norm_place\": \"branch\" without \"qk_norm_whole\"";
  const char *what = wn_llama_lacks(c, form);
  if (what) return what;
  if (form == WN_FORM_HF) return NULL;
  if (c->tied) return "\"tied\": true with \"norm_place\": \"branch\"";
  return c->head_size * c->heads != c->width ? "a \"head_size\" other than width/heads with \"norm_place\": \"branch\""
                                             : NULL;
}

static const char *const olmo2_keys[] = {"norm_place",   "position",     "qk_norm", "qk_norm_whole",
                                         "rope_scaling", "rope_factors", NULL};
static const char *const olmo2_mechanisms[] = {NULL};

const struct wn_family wn_family_olmo2 = {
    .hf = {.model_type = "olmo2",
           .class_name = "Olmo2ForCausalLM",
           .names = &olmo2_hf_names,
           .read = olmo2_read,
           .write = olmo2_write},
    .gguf = {.architecture = "olmo2",
             .names = &wn_llama_gguf_names,
             .pairs = WN_ROPE_HALVES,
             .read = olmo2_gguf_read,
             .write = wn_llama_gguf_write},
    .is = olmo2_is,
    .keys = olmo2_keys,
    .mechanisms = olmo2_mechanisms,
    .lacks = olmo2_lacks,
};
