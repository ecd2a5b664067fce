#!/usr/bin/env python3
"""Writes a checkpoint as a Hugging Face folder (config.json, model.safetensors): Llama, or Qwen3 if it has QK-norm.

Usage: tools/export-llama.py CHECKPOINT OUT [--check LIBWINNOW.so]

For checkpoints of this shape: RMSNorm before each block, rotary positions, SwiGLU, no biases, standard attention. Heads
may be grouped and the output tied; a norm after the embedding is folded into the embedding's table. Anything else is
refused with the field that prevents it. Both sides rotate the pair (d, d + D/2), so the other weights are only split
and renamed. Needs numpy and safetensors (tools/python-env torch). --check loads both models, with transformers
(tools/python-env transformers) and with the library, and compares the logits of random tokens. The exit code is 1 if
they differ by more than 1e-4 of the largest.
"""
import ctypes, json, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
if "--check" in sys.argv: need("transformers", "numpy", "safetensors", "torch", "transformers")
else: need("torch", "numpy", "safetensors")
import numpy
from safetensors.numpy import load_file, save_file

NEEDED = {"norm": "rmsnorm", "norm_place": "pre", "position": "rope", "ffn": "swiglu", "bias": False,
          "memory": 0}
DEFAULTS = {"norm": "rmsnorm", "norm_place": "pre", "embed_norm": False, "position": "learned", "ffn": "swiglu",
            "bias": False, "memory": 0, "norm_eps": 1e-6, "rope_theta": 10000.0, "qk_norm": False, "tied": False}

def is_on(mechanism):
    return bool(mechanism.get("enabled", False)) if isinstance(mechanism, dict) else bool(mechanism)

def export(source, out):
    with open(os.path.join(source, "config.json")) as f: c = {**DEFAULTS, **json.load(f)}
    for key, value in NEEDED.items():
        if c[key] != value: sys.exit(f"{source}: {key} is {c[key]!r}, Llama needs {value!r}")
    for name, mechanism in c.get("attention", {}).items():
        if name != "scale" and is_on(mechanism): sys.exit(f"{source}: Llama has no {name} attention")
    if c.get("attention", {}).get("scale"): sys.exit(f"{source}: Llama has no attention.scale")
    p = load_file(os.path.join(source, "model.safetensors"))
    if c["embed_norm"]:
        if c["tied"]: sys.exit(f"{source}: embed_norm with a tied output is not in Llama")
        e = p["embed.weight"].astype(numpy.float64)
        e = e / numpy.sqrt((e * e).mean(-1, keepdims=True) + c["norm_eps"]) * p["embed_norm.gain"]
        p["embed.weight"] = e.astype(numpy.float32)
    H, L, C = c["heads"], c["layers"], c["width"]
    Hkv = c.get("kv_heads") or H
    D = c.get("head_size") or C // H
    q = {"model.embed_tokens.weight": p["embed.weight"], "model.norm.weight": p["final_norm.gain"]}
    if not c["tied"]: q["lm_head.weight"] = p["output.weight"]
    for l in range(L):
        ours, theirs = f"layers.{l}.", f"model.layers.{l}."
        q[theirs + "input_layernorm.weight"] = p[ours + "norm1.gain"]
        q[theirs + "post_attention_layernorm.weight"] = p[ours + "norm2.gain"]
        parts = numpy.split(p[ours + "attn.qkv.weight"], [H * D, (H + Hkv) * D])
        for name, part in zip("qkv", parts): q[theirs + f"self_attn.{name}_proj.weight"] = part
        q[theirs + "self_attn.o_proj.weight"] = p[ours + "attn.out.weight"]
        if c["qk_norm"]:
            for name in "qk": q[theirs + f"self_attn.{name}_norm.weight"] = p[ours + f"attn.{name}_norm.gain"]
        gate, up = numpy.split(p[ours + "ffn.in.weight"], 2)
        q[theirs + "mlp.gate_proj.weight"], q[theirs + "mlp.up_proj.weight"] = gate, up
        q[theirs + "mlp.down_proj.weight"] = p[ours + "ffn.out.weight"]
    kind = "Qwen3" if c["qk_norm"] else "Llama"
    config = {
        "architectures": [kind + "ForCausalLM"], "model_type": kind.lower(), "vocab_size": c["vocab_size"],
        "hidden_size": C, "intermediate_size": len(gate), "num_hidden_layers": L, "num_attention_heads": H,
        "num_key_value_heads": Hkv, "head_dim": D, "hidden_act": "silu", "max_position_embeddings": c["context"],
        "rms_norm_eps": c["norm_eps"], "rope_theta": c["rope_theta"], "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": c["tied"], "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None}
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "config.json"), "w") as f: json.dump(config, f, indent=2); f.write("\n")
    save_file({n: numpy.ascontiguousarray(t) for n, t in q.items()}, os.path.join(out, "model.safetensors"),
              metadata={"format": "pt"})
    return c

class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("backend", ctypes.c_char_p), ("log", ctypes.c_void_p),
                ("user", ctypes.c_void_p)]

def our_logits(library, source, tokens, V):
    """Logits [B,T,V] through the public C API."""
    lib, ctx, model = ctypes.CDLL(os.path.abspath(library)), ctypes.c_void_p(), ctypes.c_void_p()
    lib.wn_context_error.restype = ctypes.c_char_p
    def ok(status):
        if status: sys.exit(lib.wn_context_error(ctx).decode())
    ok(lib.wn_context_create(ctypes.byref(Options(ctypes.sizeof(Options), 0, b"cpu", None, None)), ctypes.byref(ctx)))
    ok(lib.wn_model_load(ctx, source.encode(), None, ctypes.byref(model)))
    tokens = numpy.ascontiguousarray(tokens, dtype=numpy.int32)
    logits = numpy.empty((*tokens.shape, V), dtype=numpy.float32)
    ok(lib.wn_model_logits(ctx, model, tokens.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(tokens.shape[0]),
                           ctypes.c_int64(tokens.shape[1]), None, logits.ctypes.data_as(ctypes.c_void_p)))
    lib.wn_model_destroy(model)
    lib.wn_context_destroy(ctx)
    return logits

def check(source, out, library, c):
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()
    tokens = numpy.random.default_rng(1).integers(c["vocab_size"], size=(2, min(c["context"], 200)))
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad(): theirs = model(torch.from_numpy(tokens)).logits.numpy()
    ours = our_logits(library, source, tokens, c["vocab_size"])
    error = float(numpy.abs(ours - theirs).max() / numpy.abs(theirs).max())
    print(f"{out}: logits of {tokens.size} tokens, largest {numpy.abs(theirs).max():.3g}: they differ by {error:.2e} of it")
    return error <= 1e-4

if __name__ == "__main__":
    a = sys.argv[1:]
    if len(a) not in (2, 4) or (len(a) == 4 and a[2] != "--check"): sys.exit(__doc__)
    config = export(a[0], a[1])
    if len(a) == 4: sys.exit(0 if check(a[0], a[1], a[3], config) else 1)
