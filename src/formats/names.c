/* The namings of tensors: Hugging Face Llama (also Qwen2, Qwen3, Mistral) and GPT-2, GGUF's llama (also qwen2, qwen3)
 * and gpt2, and our own. GPT-2's maps are [in, out] at Hugging Face ("Conv1D") and [out, in] in GGUF. */
#include "formats/names.h"

#include <stdio.h>
#include <string.h>

static const struct wn_name hf_llama[] = {
    {"embed.weight", {"embed_tokens.weight"}, false},
    {"final_norm.gain", {"norm.weight"}, false},
    {"output.weight", {"=lm_head.weight"}, false},
    {"norm1.gain", {"layers.%lld.input_layernorm.weight"}, false},
    {"attn.qkv.weight",
     {"layers.%lld.self_attn.q_proj.weight", "layers.%lld.self_attn.k_proj.weight",
      "layers.%lld.self_attn.v_proj.weight"},
     false},
    {"attn.qkv.bias",
     {"layers.%lld.self_attn.q_proj.bias", "layers.%lld.self_attn.k_proj.bias", "layers.%lld.self_attn.v_proj.bias"},
     false},
    {"attn.q_norm.gain", {"layers.%lld.self_attn.q_norm.weight"}, false},
    {"attn.k_norm.gain", {"layers.%lld.self_attn.k_norm.weight"}, false},
    {"attn.out.weight", {"layers.%lld.self_attn.o_proj.weight"}, false},
    {"attn.out.bias", {"layers.%lld.self_attn.o_proj.bias"}, false},
    {"norm2.gain", {"layers.%lld.post_attention_layernorm.weight"}, false},
    {"ffn.in.weight", {"layers.%lld.mlp.gate_proj.weight", "layers.%lld.mlp.up_proj.weight"}, false},
    {"ffn.in.bias", {"layers.%lld.mlp.gate_proj.bias", "layers.%lld.mlp.up_proj.bias"}, false},
    {"ffn.out.weight", {"layers.%lld.mlp.down_proj.weight"}, false},
    {"ffn.out.bias", {"layers.%lld.mlp.down_proj.bias"}, false},
};
static const char *const hf_llama_ignored[] = {".rotary_emb.inv_freq", NULL};

static const struct wn_name hf_gpt2[] = {
    {"embed.weight", {"wte.weight"}, false},
    {"pos.weight", {"wpe.weight"}, false},
    {"final_norm.gain", {"ln_f.weight"}, false},
    {"final_norm.shift", {"ln_f.bias"}, false},
    {"output.weight", {"=lm_head.weight"}, false},
    {"norm1.gain", {"h.%lld.ln_1.weight"}, false},
    {"norm1.shift", {"h.%lld.ln_1.bias"}, false},
    {"attn.qkv.weight", {"h.%lld.attn.c_attn.weight"}, true},
    {"attn.qkv.bias", {"h.%lld.attn.c_attn.bias"}, false},
    {"attn.out.weight", {"h.%lld.attn.c_proj.weight"}, true},
    {"attn.out.bias", {"h.%lld.attn.c_proj.bias"}, false},
    {"norm2.gain", {"h.%lld.ln_2.weight"}, false},
    {"norm2.shift", {"h.%lld.ln_2.bias"}, false},
    {"ffn.in.weight", {"h.%lld.mlp.c_fc.weight"}, true},
    {"ffn.in.bias", {"h.%lld.mlp.c_fc.bias"}, false},
    {"ffn.out.weight", {"h.%lld.mlp.c_proj.weight"}, true},
    {"ffn.out.bias", {"h.%lld.mlp.c_proj.bias"}, false},
};
/* Causal masks that old files carry. */
static const char *const hf_gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL};

static const struct wn_name gguf_llama[] = {
    {"embed.weight", {"token_embd.weight"}, false},
    {"rope.factors", {"rope_freqs.weight"}, false},
    {"final_norm.gain", {"output_norm.weight"}, false},
    {"output.weight", {"output.weight"}, false},
    {"norm1.gain", {"blk.%lld.attn_norm.weight"}, false},
    {"attn.qkv.weight", {"blk.%lld.attn_q.weight", "blk.%lld.attn_k.weight", "blk.%lld.attn_v.weight"}, false},
    {"attn.qkv.bias", {"blk.%lld.attn_q.bias", "blk.%lld.attn_k.bias", "blk.%lld.attn_v.bias"}, false},
    {"attn.q_norm.gain", {"blk.%lld.attn_q_norm.weight"}, false},
    {"attn.k_norm.gain", {"blk.%lld.attn_k_norm.weight"}, false},
    {"attn.out.weight", {"blk.%lld.attn_output.weight"}, false},
    {"attn.out.bias", {"blk.%lld.attn_output.bias"}, false},
    {"norm2.gain", {"blk.%lld.ffn_norm.weight"}, false},
    {"ffn.in.weight", {"blk.%lld.ffn_gate.weight", "blk.%lld.ffn_up.weight"}, false},
    {"ffn.in.bias", {"blk.%lld.ffn_gate.bias", "blk.%lld.ffn_up.bias"}, false},
    {"ffn.out.weight", {"blk.%lld.ffn_down.weight"}, false},
    {"ffn.out.bias", {"blk.%lld.ffn_down.bias"}, false},
};
static const char *const gguf_llama_ignored[] = {".attn_rot_embd", NULL};

static const struct wn_name gguf_gpt2[] = {
    {"embed.weight", {"token_embd.weight"}, false},
    {"pos.weight", {"position_embd.weight"}, false},
    {"final_norm.gain", {"output_norm.weight"}, false},
    {"final_norm.shift", {"output_norm.bias"}, false},
    {"output.weight", {"output.weight"}, false},
    {"norm1.gain", {"blk.%lld.attn_norm.weight"}, false},
    {"norm1.shift", {"blk.%lld.attn_norm.bias"}, false},
    {"attn.qkv.weight", {"blk.%lld.attn_qkv.weight"}, false},
    {"attn.qkv.bias", {"blk.%lld.attn_qkv.bias"}, false},
    {"attn.out.weight", {"blk.%lld.attn_output.weight"}, false},
    {"attn.out.bias", {"blk.%lld.attn_output.bias"}, false},
    {"norm2.gain", {"blk.%lld.ffn_norm.weight"}, false},
    {"norm2.shift", {"blk.%lld.ffn_norm.bias"}, false},
    {"ffn.in.weight", {"blk.%lld.ffn_up.weight"}, false},
    {"ffn.in.bias", {"blk.%lld.ffn_up.bias"}, false},
    {"ffn.out.weight", {"blk.%lld.ffn_down.weight"}, false},
    {"ffn.out.bias", {"blk.%lld.ffn_down.bias"}, false},
};
static const char *const none[] = {NULL};

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
const struct wn_names wn_names_hf_llama = {"Hugging Face Llama", hf_llama, COUNT(hf_llama), hf_llama_ignored};
const struct wn_names wn_names_hf_gpt2 = {"Hugging Face GPT-2", hf_gpt2, COUNT(hf_gpt2), hf_gpt2_ignored};
const struct wn_names wn_names_gguf_llama = {"GGUF llama", gguf_llama, COUNT(gguf_llama), gguf_llama_ignored};
const struct wn_names wn_names_gguf_gpt2 = {"GGUF gpt2", gguf_gpt2, COUNT(gguf_gpt2), none};
const struct wn_names wn_names_own = {"winnow", NULL, 0, none};

/* "layers.12.rest": 12 and "rest"; a name outside the layers: -1 and itself. */
static int64_t layer_of(const char *name, const char **rest) {
  int64_t l = 0;
  *rest = name;
  if (strncmp(name, "layers.", 7) != 0) return -1;
  const char *at = name + 7;
  while (*at >= '0' && *at <= '9' && l < 1 << 20) l = 10 * l + (*at++ - '0');
  *rest = at + 1;
  return l;
}

/* A format of the tables above: at most one "%lld", which stands for the layer. */
static void full_name(char out[WN_NAME_BYTES], const char *prefix, const char *format, int64_t l) {
  const char *mark = strstr(format, "%lld");
  if (*format == '=') prefix = "", format++;
  if (mark)
    snprintf(out, WN_NAME_BYTES, "%s%.*s%lld%s", prefix, (int)(mark - format), format, (long long)l, mark + 4);
  else
    snprintf(out, WN_NAME_BYTES, "%s%s", prefix, format);
}

int wn_names_parts(const struct wn_names *names, const wn_model_config *c, const char *prefix,
                   const struct wn_param *row, struct wn_name_part out[3]) {
  const char *name;
  const int64_t l = layer_of(row->name, &name), all = row->shape[0];
  if (names == &wn_names_own) {
    out[0] = (struct wn_name_part){.first = 0, .rows = all};
    snprintf(out[0].name, sizeof out[0].name, "%s", row->name);
    return 1;
  }
  for (int i = 0; i < names->count; i++) {
    const struct wn_name *n = &names->rows[i];
    if (strcmp(n->ours, name) != 0) continue;
    if ((strstr(n->theirs[0], "%lld") != NULL) != (l >= 0)) continue;
    int parts = 0;
    while (parts < 3 && n->theirs[parts]) parts++;
    const int64_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
    const int64_t sizes[3] = {parts == 1 ? all : parts == 2 ? all / 2 : q, parts == 2 ? all / 2 : kv, kv};
    int64_t first = 0;
    for (int k = 0; k < parts; k++) {
      out[k] = (struct wn_name_part){.first = first, .rows = sizes[k], .transposed = n->transposed};
      full_name(out[k].name, prefix, n->theirs[k], l);
      first += sizes[k];
    }
    return parts;
  }
  return 0;
}

bool wn_names_ignore(const struct wn_names *names, const char *name) {
  const size_t length = strlen(name);
  for (int i = 0; names->ignored[i]; i++) {
    const size_t n = strlen(names->ignored[i]);
    if (length > n && !strcmp(name + length - n, names->ignored[i])) return true;
  }
  return false;
}
