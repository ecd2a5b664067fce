/* OLMo 2 (Team OLMo 2025, arXiv 2501.00656, section 2.1): Llama's shape with norms on the branches' outputs instead of
 * before the branches, one norm over all heads of q together and one over those of k. */
#include "formats/families/llama_shape.h"

static const struct wn_names olmo2_hf_names = {
    .title = "Hugging Face OLMo 2", .prefix = "model.", .base = &wn_llama_hf_names};

static void olmo2_shape(wn_model_config *c) {
  c->norm_place = WN_NORM_BRANCH;
  c->qk_norm = c->qk_norm_whole = true;
}

static wn_status olmo2_read(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read(k, 0, 0, c));
  WN_TRY(wn_hf_real(k, "rms_norm_eps", 1e-5, &c->norm_eps));
  WN_TRY(wn_hf_not(k, "attention_bias", "it is not supported"));
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
    .hf = WN_FAMILY_HF("olmo2", "Olmo2ForCausalLM", olmo2, &olmo2_hf_names),
    .gguf = WN_FAMILY_GGUF("olmo2", HALVES, olmo2_gguf_read, wn_llama_gguf_write, &wn_llama_gguf_names),
    .is = olmo2_is,
    .keys = olmo2_keys,
    .mechanisms = olmo2_mechanisms,
    .lacks = olmo2_lacks,
};
