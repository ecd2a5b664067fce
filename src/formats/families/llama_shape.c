/* Names, keys and limits that families of Llama's shape share. */
#include "formats/families/llama_shape.h"

#include <math.h>
#include <stdio.h>

#include "attention/registry.h"
#include "base/error.h"
#include "base/number.h"

static const struct wn_name llama_hf_rows[] = {
    WN_NAME("embed.weight", "embed_tokens.weight"),
    WN_NAME("final_norm.gain", "norm.weight"),
    WN_NAME("output.weight", "=lm_head.weight"),
    WN_NAME("norm1.gain", "layers.%lld.input_layernorm.weight"),
    WN_NAME("attn.qkv.weight", "layers.%lld.self_attn.q_proj.weight", "layers.%lld.self_attn.k_proj.weight",
            "layers.%lld.self_attn.v_proj.weight"),
    WN_NAME("attn.qkv.bias", "layers.%lld.self_attn.q_proj.bias", "layers.%lld.self_attn.k_proj.bias",
            "layers.%lld.self_attn.v_proj.bias"),
    WN_NAME("attn.q_norm.gain", "layers.%lld.self_attn.q_norm.weight"),
    WN_NAME("attn.k_norm.gain", "layers.%lld.self_attn.k_norm.weight"),
    WN_NAME("attn.fade.hidden.weight", "layers.%lld.self_attn.retention_gate.linear1.weight"),
    WN_NAME("attn.fade.hidden.bias", "layers.%lld.self_attn.retention_gate.linear1.bias"),
    WN_NAME("attn.fade.weight", "layers.%lld.self_attn.retention_gate.linear2.weight"),
    WN_NAME("attn.fade.bias", "layers.%lld.self_attn.retention_gate.bias"),
    WN_NAME("attn.write.key.gain", "layers.%lld.self_attn.g_predictors.pre_key_norm.weight",
            "layers.%lld.self_attn.g_predictors.post_key_norm.weight"),
    WN_NAME("attn.write.hidden.weight", "layers.%lld.self_attn.g_predictors.conv1.weight"),
    WN_NAME("attn.write.hidden.bias", "layers.%lld.self_attn.g_predictors.conv1.bias"),
    WN_NAME("attn.write.weight", "layers.%lld.self_attn.g_predictors.conv2.weight"),
    WN_NAME("attn.write.bias", "layers.%lld.self_attn.g_predictors.conv2.bias"),
    WN_NAME("attn.out.weight", "layers.%lld.self_attn.o_proj.weight"),
    WN_NAME("attn.out.bias", "layers.%lld.self_attn.o_proj.bias"),
    /* the norm before the second branch, or on the output of the first where there are norms on outputs */
    WN_NAME("norm2.gain", "layers.%lld.post_attention_layernorm.weight"),
    WN_NAME("post_norm1.gain", "layers.%lld.post_attention_layernorm.weight"),
    WN_NAME("post_norm2.gain", "layers.%lld.post_feedforward_layernorm.weight"),
    WN_NAME("ffn.in.weight", "layers.%lld.mlp.gate_proj.weight", "layers.%lld.mlp.up_proj.weight"),
    WN_NAME("ffn.in.bias", "layers.%lld.mlp.gate_proj.bias", "layers.%lld.mlp.up_proj.bias"),
    WN_NAME("ffn.out.weight", "layers.%lld.mlp.down_proj.weight"),
    WN_NAME("ffn.out.bias", "layers.%lld.mlp.down_proj.bias"),
};
static const char *const llama_hf_ignored[] = {".rotary_emb.inv_freq", NULL};

static const struct wn_name llama_gguf_rows[] = {
    WN_NAME("embed.weight", "token_embd.weight"),
    WN_NAME("rope.factors", "rope_freqs.weight"),
    WN_NAME("final_norm.gain", "output_norm.weight"),
    WN_NAME("output.weight", "output.weight"),
    WN_NAME("norm1.gain", "blk.%lld.attn_norm.weight"),
    WN_NAME("attn.qkv.weight", "blk.%lld.attn_q.weight", "blk.%lld.attn_k.weight", "blk.%lld.attn_v.weight"),
    WN_NAME("attn.qkv.bias", "blk.%lld.attn_q.bias", "blk.%lld.attn_k.bias", "blk.%lld.attn_v.bias"),
    WN_NAME("attn.q_norm.gain", "blk.%lld.attn_q_norm.weight"),
    WN_NAME("attn.k_norm.gain", "blk.%lld.attn_k_norm.weight"),
    WN_NAME("attn.out.weight", "blk.%lld.attn_output.weight"),
    WN_NAME("attn.out.bias", "blk.%lld.attn_output.bias"),
    WN_NAME("post_norm1.gain", "blk.%lld.post_attention_norm.weight"),
    WN_NAME("norm2.gain", "blk.%lld.ffn_norm.weight"),
    WN_NAME("ffn.in.weight", "blk.%lld.ffn_gate.weight", "blk.%lld.ffn_up.weight"),
    WN_NAME("ffn.in.bias", "blk.%lld.ffn_gate.bias", "blk.%lld.ffn_up.bias"),
    WN_NAME("ffn.out.weight", "blk.%lld.ffn_down.weight"),
    WN_NAME("ffn.out.bias", "blk.%lld.ffn_down.bias"),
    WN_NAME("post_norm2.gain", "blk.%lld.post_ffw_norm.weight"),
    WN_NAME("router.weight", "blk.%lld.ffn_gate_inp.weight"),
    {.ours = "experts.%lld.in.weight",
     .theirs = {"blk.%lld.ffn_gate_exps.weight", "blk.%lld.ffn_up_exps.weight"},
     .stacked = true},
    {.ours = "experts.%lld.out.weight", .theirs = {"blk.%lld.ffn_down_exps.weight"}, .stacked = true},
    WN_NAME("shared.in.weight", "blk.%lld.ffn_gate_shexp.weight", "blk.%lld.ffn_up_shexp.weight"),
    WN_NAME("shared.out.weight", "blk.%lld.ffn_down_shexp.weight"),
    WN_NAME("shared.gate.weight", "blk.%lld.ffn_gate_inp_shexp.weight"),
};
static const char *const llama_gguf_ignored[] = {".attn_rot_embd", NULL};

const struct wn_names wn_llama_hf_names = {
    .title = "Hugging Face Llama", .prefix = "model.", WN_NAME_ROWS(llama_hf_rows), .ignored = llama_hf_ignored};
const struct wn_names wn_llama_gguf_names = {
    .title = "GGUF", .prefix = "", WN_NAME_ROWS(llama_gguf_rows), .ignored = llama_gguf_ignored};

const char *const wn_llama_keys[] = {"position", "rope_scaling", "rope_factors", "rope_size", "bias",
                                     "qkv_bias", "out_bias",     "qk_norm",      NULL};
const char *const wn_llama_mechanisms[] = {"window", NULL};

/* ---- Hugging Face ---- */

wn_status wn_llama_hf_read_sizes(const struct wn_hf_keys *k, int64_t kv_heads, int64_t head_size, wn_model_config *c) {
  const char *act;
  c->norm = WN_NORM_RMS;
  c->ffn = WN_FFN_SWIGLU;
  WN_TRY(wn_hf_sizes(k, kv_heads, head_size, c));
  WN_TRY(wn_hf_flag(k, "tie_word_embeddings", false, &c->tied));
  WN_TRY(wn_hf_text(k, "hidden_act", "silu", &act));
  if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED, "%s: \"hidden_act\" is \"%.60s\"; only silu is supported", k->where,
                   act);
  return WN_OK;
}

wn_status wn_llama_hf_read(const struct wn_hf_keys *k, int64_t kv_heads, int64_t head_size, wn_model_config *c) {
  WN_TRY(wn_llama_hf_read_sizes(k, kv_heads, head_size, c));
  return wn_hf_rope(k, WN_HF_ROPE_THETA, c);
}

/* TRIM-KV's retention gates: "retention_gate". */
static wn_status trimkv_hf_read(const struct wn_hf_keys *k, wn_model_config *c) {
  const char *gate;
  int64_t hidden;
  char text[96];
  WN_TRY(wn_hf_text(k, "retention_gate", "", &gate));
  if (!*gate) return WN_OK;
  if (strcmp(gate, "rg") != 0)
    return wn_fail(
        k->ctx, WN_ERR_UNSUPPORTED,
        "%s: \"retention_gate\" is \"%.60s\"; of TRIM-KV's gates only rg, on the layer's input, is supported", k->where,
        gate);
  WN_TRY(wn_hf_int(k, "retention_gate_intermediate_size", 512, &hidden));
  snprintf(text, sizeof text, "{\"fade\":{\"hidden\":%lld,\"training_only\":true}}", (long long)hidden);
  return wn_attention_config_add(k->ctx, text, &c->attention);
}

/* WG-KV's write gates: "g_expand", hidden units a number of a key. The other keys have the defaults of its code. */
static wn_status wgkv_hf_read(const struct wn_hf_keys *k, wn_model_config *c) {
  double expand, least;
  int64_t window;
  const char *act;
  bool normed;
  char text[160];
  const json_t *inputs = wn_hf_find(k, "g_inputs");
  WN_TRY(wn_hf_real(k, "g_expand", 0, &expand));
  WN_TRY(wn_hf_real(k, "g_epsilon", 1e-3, &least));
  WN_TRY(wn_hf_text(k, "g_act_fn", "gelu", &act));
  WN_TRY(wn_hf_flag(k, "g_rms", true, &normed));
  WN_TRY(wn_hf_int(k, "local_window_size", 256, &window));
  if (!(expand > 0)) return WN_OK;
  json_t *keys = json_pack("[s,s]", "pre_k", "post_k");
  const bool known = !strcmp(act, "gelu") && normed && (!inputs || json_equal(inputs, keys));
  json_decref(keys);
  if (!known)
    return wn_fail(
        k->ctx, WN_ERR_UNSUPPORTED,
        "%s: \"g_expand\": of WG-KV's gates only those with gelu on the normed pre_k and post_k are supported",
        k->where);
  const int64_t D = c->head_size > 0 ? c->head_size : c->width / (c->heads > 0 ? c->heads : 1);
  wn_print(text, sizeof text,
           "{\"write\":{\"keys\":true,\"hidden\":%.0f,\"floor\":%.17g,\"window\":%lld,\"training_only\":true}}",
           floor((double)D * expand + 1e-6), least, (long long)window);
  return wn_attention_config_add(k->ctx, text, &c->attention);
}

/* DMS's decisions, as write gates: "dms_window_size", which leaves out the row's own token. They are published as
 * numbers of queries, which tools/join-gates turns into gates ("dms_gates"): another reader's queries must be without
 * them. */
static wn_status dms_hf_read(const struct wn_hf_keys *k, wn_model_config *c) {
  int64_t window;
  const char *gates;
  char text[96];
  if (!wn_hf_find(k, "dms_window_size")) return WN_OK;
  WN_TRY(wn_hf_int(k, "dms_window_size", 0, &window));
  WN_TRY(wn_hf_text(k, "dms_gates", "", &gates));
  if (strcmp(gates, "joined") != 0)
    return wn_fail(
        k->ctx, WN_ERR_UNSUPPORTED,
        "%s: \"dms_window_size\": decisions of DMS that are not gates yet: tools/join-gates FOLDER FOLDER OUT "
        "makes a folder of gates of a Llama",
        k->where);
  snprintf(text, sizeof text, "{\"write\":{\"window\":%lld,\"training_only\":true}}", (long long)window + 1);
  return wn_attention_config_add(k->ctx, text, &c->attention);
}

wn_status wn_llama_hf_read_gates(const struct wn_hf_keys *k, wn_model_config *c) {
  WN_TRY(trimkv_hf_read(k, c));
  WN_TRY(dms_hf_read(k, c));
  return wgkv_hf_read(k, c);
}

void wn_llama_hf_write(struct wn_hf_object *o, const wn_model_config *c) {
  wn_hf_put_sizes(o, c);
  wn_hf_put(o, "hidden_act", json_string("silu"));
  wn_hf_put(o, "max_position_embeddings", json_integer(c->context));
  wn_hf_put(o, "rms_norm_eps", json_real(c->norm_eps));
  wn_hf_put(o, "rope_theta", json_real(c->rope_theta));
  wn_hf_put(o, "rope_scaling", wn_hf_rope_scaling(c));
  wn_hf_put(o, "attention_dropout", json_real(0));
}

wn_status wn_llama_hf_read_biases(const struct wn_hf_keys *k, wn_model_config *c) {
  bool attention, mlp;
  WN_TRY(wn_hf_flag(k, "attention_bias", false, &attention));
  WN_TRY(wn_hf_flag(k, "mlp_bias", false, &mlp));
  if (mlp && !attention)
    return wn_fail(k->ctx, WN_ERR_UNSUPPORTED,
                   "%s: \"mlp_bias\" is true and \"attention_bias\" false; biases on all projections, on those of "
                   "attention or on none are known",
                   k->where);
  c->bias = mlp;
  c->qkv_bias = c->out_bias = attention && !mlp;
  return WN_OK;
}

void wn_llama_hf_write_biases(struct wn_hf_object *o, const wn_model_config *c) {
  wn_hf_put(o, "attention_bias", json_boolean(c->bias || c->out_bias));
  wn_hf_put(o, "mlp_bias", json_boolean(c->bias));
}

struct qwen_windows {
  bool use;
  int64_t full; /* layers below it have no window */
};

static bool qwen_is_windowed(const void *user, int64_t layer) {
  const struct qwen_windows *w = user;
  return w->use && layer >= w->full;
}

wn_status wn_qwen_hf_read_windows(const struct wn_hf_keys *k, wn_model_config *c) {
  struct qwen_windows w;
  int64_t window;
  WN_TRY(wn_hf_flag(k, "use_sliding_window", false, &w.use));
  WN_TRY(wn_hf_int(k, "sliding_window", 0, &window));
  WN_TRY(wn_hf_int(k, "max_window_layers", 28, &w.full));
  if (w.use && window == 0 && !json_object_get(k->object, "sliding_window")) window = 4096; /* the class's default */
  return wn_hf_window(k, window, qwen_is_windowed, &w, c);
}

void wn_qwen_hf_write_windows(struct wn_hf_object *o, const wn_model_config *c) {
  const bool window = c->attention.window > 0;
  wn_hf_put(o, "use_sliding_window", json_boolean(window));
  wn_hf_put(o, "sliding_window", window ? json_integer(c->attention.window) : json_null());
  wn_hf_put(o, "max_window_layers", json_integer(window ? 0 : c->layers));
  wn_hf_put_layer_types(o, c);
}

/* ---- GGUF ---- */

wn_status wn_llama_gguf_read(const struct wn_gguf_keys *k, wn_model_config *c) {
  int64_t window;
  c->norm = WN_NORM_RMS;
  c->ffn = WN_FFN_SWIGLU;
  c->bias = wn_gguf_keys_has_tensor(k, "blk.0.ffn_up.bias");
  c->qkv_bias = !c->bias && wn_gguf_keys_has_tensor(k, "blk.0.attn_q.bias");
  c->out_bias = !c->bias && wn_gguf_keys_has_tensor(k, "blk.0.attn_output.bias");
  WN_TRY(wn_gguf_keys_real(k, "attention.layer_norm_rms_epsilon", 1e-5, &c->norm_eps));
  WN_TRY(wn_gguf_keys_int(k, "attention.sliding_window", 0, &window));
  if (window > 0 && window < c->context) c->attention.window = window;
  return wn_gguf_keys_rope(k, c);
}

void wn_llama_gguf_write(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_gguf_out_int(out, "attention.head_count_kv", c->kv_heads);
  wn_gguf_out_real(out, "attention.layer_norm_rms_epsilon", c->norm_eps);
  if (c->head_size * c->heads != c->width) {
    wn_gguf_out_int(out, "attention.key_length", c->head_size);
    wn_gguf_out_int(out, "attention.value_length", c->head_size);
  }
  wn_gguf_out_rope(out, c);
}

wn_status wn_llama_gguf_read_experts(const struct wn_gguf_keys *k, bool normalize, wn_model_config *c) {
  WN_TRY(wn_gguf_keys_int(k, "expert_count", 0, &c->experts.count));
  WN_TRY(wn_gguf_keys_int(k, "expert_used_count", 0, &c->experts.active));
  if (c->experts.count == 0) {
    c->experts.active = 0; /* some converters write it for dense models */
    return WN_OK;
  }
  c->experts.normalize = normalize;
  return wn_gguf_keys_int(k, "expert_feed_forward_length", c->ffn_width, &c->ffn_width);
}

void wn_llama_gguf_write_experts(const struct wn_gguf_out *out, const wn_model_config *c) {
  wn_gguf_out_int(out, "expert_count", c->experts.count);
  wn_gguf_out_int(out, "expert_used_count", c->experts.active);
}

/* ---- limits ---- */

bool wn_llama_turns_as_phi3(const wn_model_config *c) {
  return c->rope_scaling.type == WN_ROPE_LONG || c->rope_size > 0;
}

static const char *llama_rope_lacks(const wn_model_config *c, enum wn_model_form form) {
  const int64_t first = c->rope_scaling.context;
  const bool dynamic = c->rope_scaling.type == WN_ROPE_DYNAMIC;
  if (c->rope_size) return "\"rope_size\"";
  if (form == WN_FORM_HF && dynamic && first && first != c->context)
    return "\"rope_scaling.context\" of type dynamic that is not \"context\"";
  if (form == WN_FORM_HF) return NULL;
  if (dynamic) return "\"rope_scaling\" of type dynamic";
  return c->rope_scaling.type == WN_ROPE_YARN && !c->rope_scaling.truncate ? "\"rope_scaling.truncate\": false" : NULL;
}

const char *wn_llama_lacks(const wn_model_config *c, enum wn_model_form form) {
  if (!wn_config_scale_is_plain(c)) return "\"attention.scale\"";
  if (c->norm != WN_NORM_RMS) return "\"norm\": \"layernorm\" with rotary positions";
  if (c->ffn != WN_FFN_SWIGLU) return "an \"ffn\" other than \"swiglu\" with rotary positions";
  if (!c->bias && c->out_bias && !c->qkv_bias) return "\"out_bias\" without \"qkv_bias\"";
  if (c->qk_norm && (form == WN_FORM_GGUF || c->bias || !c->out_bias) && (c->bias || c->qkv_bias))
    return "\"qk_norm\" with biases";
  if (c->attention.window > 0 && form == WN_FORM_GGUF) return "\"attention.window\"";
  return llama_rope_lacks(c, form);
}

const char *wn_qwen2_gguf_lacks(const wn_model_config *c, enum wn_model_form form) {
  if (form != WN_FORM_GGUF || c->head_size * c->heads == c->width) return NULL;
  return "a \"head_size\" other than width/heads with \"qkv_bias\"";
}
