#!/usr/bin/env python3
"""Makes tests/golden/hf: tiny random models as `transformers` saves them, and the logits that it computes with them.

Usage: tools/make-goldens-hf.py [OUT]          needs tools/python-env transformers

Each folder has config.json and model.safetensors (or shards with an index), and beside it NAME.logits.safetensors with
tokens [B,T] and logits [B,T,V] in float32, computed in double by eager attention. rope-*.json are other configurations for
the weights of `llama`, act-*.json of `gpt2`. The GGUF files are the same models written by gguf-py as llama.cpp's own
converter lays them out (rows of q and k permuted for the llama architecture), one with llama3's factors as a tensor.
"""
import json, math, os, shutil, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "torch", "transformers", "safetensors", "gguf")
import numpy, torch
import gguf
from gguf import quants
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GPT2Config, GraniteConfig, LlamaConfig,
                          MistralConfig, MixtralConfig, Olmo2Config, Phi3Config, Qwen2Config, Qwen2MoeConfig,
                          Qwen3Config, Qwen3MoeConfig)

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/golden/hf")
B, T, V = 2, 24, 48
LLAMA = dict(vocab_size=V, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)
ROPE = {
    "linear": dict(rope_theta=10000.0, rope_type="linear", factor=3.0),
    "dynamic": dict(rope_theta=10000.0, rope_type="dynamic", factor=2.0),
    "llama3": dict(rope_theta=50000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=24),
    "yarn": dict(rope_theta=10000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "yarn-mscale": dict(rope_theta=500.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=16,
                        beta_fast=8.0, beta_slow=0.5, mscale=1.0, mscale_all_dim=0.5, truncate=False),
}

# Windows of 7 in every second layer, soft-caps small enough to matter, a scale other than the head size's.
GEMMA2 = dict(vocab_size=V, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, max_position_embeddings=64, query_pre_attn_scalar=24, sliding_window=7,
              attn_logit_softcapping=2.0, final_logit_softcapping=5.0, bos_token_id=2, eos_token_id=1)
# Two layers with windows and one without, whose rotary base is different and scaled. bfloat16 can represent the square
# root of the width: transformers rounds the embedding's factor to the weights' type.
GEMMA3 = {**GEMMA2, "hidden_size": 36, "num_hidden_layers": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": None,
          "final_logit_softcapping": None, "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
                                                           "sliding_attention"],
          "rope_parameters": {"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                              "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}}

# All factors differ, and none is a power of two.
GRANITE = dict(embedding_multiplier=5.5, attention_multiplier=0.22, residual_multiplier=0.3, logits_scaling=1.4)

# Half of each head is rotated; two very different sets of divisors, for texts of up to 20 tokens and for longer ones.
PHI3 = {**LLAMA, "original_max_position_embeddings": 20, "sliding_window": 15, "rope_parameters": dict(
    rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5, short_factor=[1.05, 1.4], long_factor=[1.3, 6.0])}
del PHI3["pad_token_id"]

# Four experts, of which two are used, and a shared one of another width.
MOE = dict(moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2)

def logits(model, name, seed=5, T=T):
    tokens = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(seed))
    double = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").double()
    double.load_state_dict(model.state_dict())
    double.config._experts_implementation = "eager" # the other implementations have no products in double
    with torch.no_grad(): y = double.eval()(tokens).logits
    save_file({"tokens": tokens.to(torch.int32).contiguous(), "logits": y.float().contiguous()},
              os.path.join(out, name + ".logits.safetensors"))

def build(config, seed, dtype=torch.float32):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = "norm" in name or "ln_" in name
            p.normal_(0, 0.3)
            if norm and name.endswith("weight") and "gemma" not in config.model_type: p.add_(1)
            p.copy_(p.to(dtype).float())
    return model

def save(model, name, dtype=torch.float32, **how):
    model.to(dtype).save_pretrained(os.path.join(out, name), **how)
    generation = os.path.join(out, name, "generation_config.json")
    if os.path.exists(generation): os.remove(generation)
    model.float()

def write_config(config, name):
    with open(os.path.join(out, name + ".json"), "w") as f: f.write(config.to_json_string())

def make(name, config, seed, dtype=torch.float32, **how):
    model = build(config, seed, dtype)
    save(model, name, dtype, **how)
    logits(model, name)
    return model

def variant(model, name, config):
    """Writes other configurations for a model's weights."""
    write_config(config, name)
    other = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    logits(other, name)

# ---- GGUF ----

def permute(w, heads):
    """Puts rows (i, i + D/2) of each head next to each other."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)

def add(writer, name, w, kind):
    w = numpy.ascontiguousarray(w.astype(numpy.float32))
    if w.ndim == 1 or kind == gguf.GGMLQuantizationType.F32: writer.add_tensor(name, w)
    else: writer.add_tensor(name, quants.quantize(w, kind), raw_dtype=kind)

def write_gguf(model, name, kind, factors=None):
    """Returns the model with the weights that the file stands for."""
    c, p = model.config, {k: v.numpy() for k, v in model.state_dict().items()}
    gpt2 = c.model_type == "gpt2"
    arch = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen2_moe": "qwen2moe",
            "qwen3_moe": "qwen3moe"}.get(c.model_type, c.model_type)
    gemma = "gemma" in arch
    w = gguf.GGUFWriter(os.path.join(out, name), arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_head_count(c.num_attention_heads)
    w.add_feed_forward_length(4 * c.hidden_size if gpt2 else c.intermediate_size)
    if gpt2:
        w.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
        rope = c.rope_parameters.get("full_attention", c.rope_parameters)
        D = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        w.add_rope_dimension_count(int(D * (rope.get("partial_rotary_factor") or 1)))
        w.add_rope_freq_base(rope["rope_theta"])
        if "num_local_experts" in c.to_dict() or "num_experts" in c.to_dict():
            w.add_expert_count(getattr(c, "num_experts", None) or c.num_local_experts)
            w.add_expert_used_count(c.num_experts_per_tok)
            if arch != "llama": w.add_expert_feed_forward_length(c.moe_intermediate_size)
            if arch == "qwen2moe": w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
            if arch == "qwen3moe":
                w.add_key_length(c.head_dim)
                w.add_value_length(c.head_dim)
        if gemma:
            w.add_key_length(c.head_dim)
            w.add_value_length(c.head_dim)
            w.add_sliding_window(c.sliding_window)
            if c.attn_logit_softcapping: w.add_attn_logit_softcapping(c.attn_logit_softcapping)
            if c.final_logit_softcapping: w.add_final_logit_softcapping(c.final_logit_softcapping)
            if rope["rope_type"] == "linear":
                w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
                w.add_rope_scaling_factor(rope["factor"])
        else:
            w.add_vocab_size(V)
        if arch == "granite":
            w.add_embedding_scale(c.embedding_multiplier)
            w.add_attention_scale(c.attention_multiplier)
            w.add_residual_scale(c.residual_multiplier)
            w.add_logit_scale(c.logits_scaling)
        if arch == "phi3":
            N = c.original_max_position_embeddings
            w.add_rope_scaling_orig_ctx_len(N)
            w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(c.max_position_embeddings / N) / math.log(N)))
            for kind_of in "long", "short":
                w.add_tensor(f"rope_factors_{kind_of}.weight", numpy.float32(rope[kind_of + "_factor"]))
    changed = {}
    def weights(key, file_name, turn=None, transpose=False):
        x = p[key].T if transpose else p[key]
        if gemma and "norm" in key: x = 1 + x
        if turn: x = permute(x, turn)
        add(w, file_name, x, kind)
        if x.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            y = quants.dequantize(quants.quantize(numpy.ascontiguousarray(x), kind), kind).reshape(x.shape)
            if turn: y = y.reshape(turn, x.shape[0] // turn // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
            changed[key] = torch.from_numpy(numpy.ascontiguousarray(y.T if transpose else y))
    def experts(l):
        """The router in float32, then one tensor each for all experts' gates, ups and downs."""
        at = f"model.layers.{l}.mlp."
        if at + "gate.weight" not in p: return
        add(w, f"blk.{l}.ffn_gate_inp.weight", p[at + "gate.weight"], gguf.GGMLQuantizationType.F32)
        both, down = p[at + "experts.gate_up_proj"], p[at + "experts.down_proj"]
        F = both.shape[1] // 2
        there = []
        for name, x in (("gate", both[:, :F]), ("up", both[:, F:]), ("down", down)):
            x = numpy.ascontiguousarray(x)
            add(w, f"blk.{l}.ffn_{name}_exps.weight", x, kind)
            if kind != gguf.GGMLQuantizationType.F32: x = quants.dequantize(quants.quantize(x, kind), kind).reshape(x.shape)
            there.append(torch.from_numpy(x))
        changed[at + "experts.gate_up_proj"] = torch.cat(there[:2], 1)
        changed[at + "experts.down_proj"] = there[2]
        if at + "shared_expert.gate_proj.weight" not in p: return
        for name in "gate", "up", "down":
            weights(f"{at}shared_expert.{name}_proj.weight", f"blk.{l}.ffn_{name}_shexp.weight")
        add(w, f"blk.{l}.ffn_gate_inp_shexp.weight", p[at + "shared_expert_gate.weight"][0], gguf.GGMLQuantizationType.F32)
    if gpt2:
        weights("transformer.wte.weight", "token_embd.weight")
        add(w, "position_embd.weight", p["transformer.wpe.weight"], gguf.GGMLQuantizationType.F32)
        names = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
                 "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
        for l in range(c.n_layer):
            for theirs, ours in names.items():
                weights(f"transformer.h.{l}.{theirs}.weight", f"blk.{l}.{ours}.weight", transpose="c_" in theirs)
                weights(f"transformer.h.{l}.{theirs}.bias", f"blk.{l}.{ours}.bias")
        for e in "weight", "bias": weights("transformer.ln_f." + e, "output_norm." + e)
    else:
        weights("model.embed_tokens.weight", "token_embd.weight")
        weights("model.norm.weight", "output_norm.weight")
        if not c.tie_word_embeddings: weights("lm_head.weight", "output.weight")
        if factors is not None: w.add_tensor("rope_freqs.weight", factors)
        names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
                 "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
                 "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
                 "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
        if gemma:
            names |= {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                      "post_feedforward_layernorm": "post_ffw_norm"}
        if arch == "olmo2":
            names |= {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
        for l in range(c.num_hidden_layers):
            experts(l)
            for theirs, ours in names.items():
                turn = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(ours)
                for e in "weight", "bias":
                    key = f"model.layers.{l}.{theirs}.{e}"
                    if key in p: weights(key, f"blk.{l}.{ours}.{e}", turn if arch in ("llama", "granite") else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model.load_state_dict({**model.state_dict(), **changed})
    if c.tie_word_embeddings: model.tie_weights()
    return model

def main():
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    llama = make("llama", LlamaConfig(**LLAMA), 1)
    for name, rope in ROPE.items():
        context = 16 if name == "dynamic" else 64
        variant(llama, "rope-" + name, LlamaConfig(**{**LLAMA, "max_position_embeddings": context}, rope_parameters=rope))
    make("llama-bias", LlamaConfig(**{**LLAMA, "num_hidden_layers": 1}, attention_bias=True, mlp_bias=True,
                                   tie_word_embeddings=True), 2)
    make("mistral", MistralConfig(**LLAMA, sliding_window=7), 3, torch.bfloat16)
    make("qwen2", Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=5, max_window_layers=1), 4, torch.float16)
    make("qwen3", Qwen3Config(**{**LLAMA, "head_dim": 16}, tie_word_embeddings=True), 5, max_shard_size="30KB")
    small = dict(vocab_size=V, n_positions=32, n_embd=24, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None)
    gpt2 = make("gpt2", GPT2Config(**small), 6)
    gemma2 = make("gemma2", Gemma2Config(**GEMMA2), 10)
    gemma3 = make("gemma3", Gemma3TextConfig(**GEMMA3), 11, torch.bfloat16)
    make("granite", GraniteConfig(**LLAMA, **GRANITE, attention_bias=True, mlp_bias=True), 14, torch.bfloat16)
    make("olmo2", Olmo2Config(**LLAMA), 15)
    phi3 = make("phi3", Phi3Config(**PHI3, pad_token_id=0), 18, torch.bfloat16)
    logits(phi3, "phi3-short", T=20)
    make("mixtral", MixtralConfig(**LLAMA, num_local_experts=5, num_experts_per_tok=2, sliding_window=7), 18)
    make("qwen2_moe", Qwen2MoeConfig(**LLAMA, **MOE, shared_expert_intermediate_size=24), 19, torch.bfloat16)
    make("qwen3_moe", Qwen3MoeConfig(**{**LLAMA, **MOE, "num_experts_per_tok": 3}, head_dim=16, norm_topk_prob=True), 20,
         max_shard_size="60KB")
    # The same model with the keys of configurations up to transformers 4.
    old = {k: v for k, v in GEMMA3.items() if k not in ("layer_types", "rope_parameters")}
    old |= dict(rope_theta=1e6, rope_local_base_freq=10000.0, rope_scaling=dict(rope_type="linear", factor=8.0),
                sliding_window_pattern=3)
    same = AutoModelForCausalLM.from_config(Gemma3TextConfig(**old), attn_implementation="eager")
    same.load_state_dict(gemma3.state_dict())
    assert same.config.layer_types == gemma3.config.layer_types
    logits(same, "gemma3-old")
    with open(os.path.join(out, "gemma3-old.json"), "w") as f: json.dump({"model_type": "gemma3_text", **old}, f, indent=2)
    variant(gpt2, "act-gelu", GPT2Config(**small, activation_function="gelu"))
    # GGUF: llama with llama3's factors, as convert_hf_to_gguf writes them; qwen2; gpt2
    rope = ROPE["llama3"]
    llama3 = build(LlamaConfig(**{**LLAMA, "intermediate_size": 64}, rope_parameters=rope), 7)
    D, base, N = 8, rope["rope_theta"], rope["original_max_position_embeddings"]
    f = 1 / base ** (numpy.arange(0, D, 2) / D)
    turns = N * f / (2 * numpy.pi)
    smooth = (turns - 1) / 3
    factors = numpy.where(turns > 4, 1, numpy.where(turns < 1, 8, 1 / ((1 - smooth) / 8 + smooth)))
    logits(write_gguf(llama3, "llama3.gguf", gguf.GGMLQuantizationType.Q8_0, factors.astype(numpy.float32)), "llama3.gguf")
    qwen2 = build(Qwen2Config(**LLAMA), 8)
    logits(write_gguf(qwen2, "qwen2.gguf", gguf.GGMLQuantizationType.F32), "qwen2.gguf")
    gpt2 = build(GPT2Config(**small), 9)
    logits(write_gguf(gpt2, "gpt2.gguf", gguf.GGMLQuantizationType.F16), "gpt2.gguf")
    # llama.cpp takes 1/sqrt(head size) as the scale, and in Gemma 3 every sixth layer as a global one
    gemma2 = build(Gemma2Config(**{**GEMMA2, "query_pre_attn_scalar": 16}), 12)
    logits(write_gguf(gemma2, "gemma2.gguf", gguf.GGMLQuantizationType.F32), "gemma2.gguf")
    sixth = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"]
    gemma3 = build(Gemma3TextConfig(**{**GEMMA3, "num_hidden_layers": 7, "layer_types": sixth}), 13)
    logits(write_gguf(gemma3, "gemma3.gguf", gguf.GGMLQuantizationType.F16), "gemma3.gguf")
    granite = build(GraniteConfig(**LLAMA, **GRANITE, tie_word_embeddings=True), 16)
    logits(write_gguf(granite, "granite.gguf", gguf.GGMLQuantizationType.F16), "granite.gguf")
    olmo2 = build(Olmo2Config(**{**LLAMA, "intermediate_size": 64}), 17)
    logits(write_gguf(olmo2, "olmo2.gguf", gguf.GGMLQuantizationType.Q8_0), "olmo2.gguf")
    phi3 = build(Phi3Config(**{**PHI3, "sliding_window": None}, pad_token_id=0, tie_word_embeddings=True), 19)
    logits(write_gguf(phi3, "phi3.gguf", gguf.GGMLQuantizationType.F16), "phi3.gguf")
    logits(phi3, "phi3-short.gguf", T=20)
    mixtral = build(MixtralConfig(**{**LLAMA, "intermediate_size": 64}, num_local_experts=4, num_experts_per_tok=2), 21)
    logits(write_gguf(mixtral, "mixtral.gguf", gguf.GGMLQuantizationType.Q8_0), "mixtral.gguf")
    qwen2 = build(Qwen2MoeConfig(**LLAMA, **MOE, shared_expert_intermediate_size=24), 22)
    logits(write_gguf(qwen2, "qwen2_moe.gguf", gguf.GGMLQuantizationType.F32), "qwen2_moe.gguf")
    qwen3 = build(Qwen3MoeConfig(**LLAMA, **MOE, head_dim=16, norm_topk_prob=True, tie_word_embeddings=True), 23)
    logits(write_gguf(qwen3, "qwen3_moe.gguf", gguf.GGMLQuantizationType.F16), "qwen3_moe.gguf")

main()
