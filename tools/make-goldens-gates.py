#!/usr/bin/env python3
"""Makes tests/golden/hf/trimkv-*: tiny random models with TRIM-KV's retention gates (arXiv 2512.03324), in the names of its code.

Usage: tools/make-goldens-gates.py [OUT]          needs tools/python-env transformers

A folder holds a model as `transformers` saves it, its gates in a second file (tools/join-gates lays out published ones so), and
TRIM-KV's keys in config.json. Beside it NAME.logits.safetensors, computed in double: tokens [B,T]; logits [B,T,V] of plain attention,
as TRIM-KV decodes; faded [B,T,V], as it trains; kept [L,B,Hkv,K] int32, the K tokens of largest beta^age that a head keeps where
the text ends. A gate is log beta = log sigmoid(W2 silu(W1 x + b1) + b2), x the input of the layer's attention behind its norm; the
ages are those at the next token.
"""
import json, os, shutil, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "torch", "transformers", "safetensors")
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, Qwen3Config

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/golden/hf")
B, T, V, C, HIDDEN, K = 2, 24, 48, 32, 12, 9
SHAPE = dict(vocab_size=V, hidden_size=C, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GATE = "model.layers.%d.self_attn.retention_gate."

def faded(module, q, k, v, mask, scaling, **others):
    """Attention whose logits are multiplied by beta^age, [B,H,T,D]; module.beta [B,Hkv,T] are logs."""
    k, v, beta = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v, module.beta))
    age = torch.arange(T)[:, None] - torch.arange(T)
    logits = scaling * (q @ k.transpose(2, 3)) * (age.clamp(min=0) * beta[:, :, None]).exp()
    return (logits.masked_fill(age < 0, -torch.inf).softmax(-1) @ v).transpose(1, 2), None

AttentionInterface.register("faded", faded)

def beta_of(p, layer, x):
    hidden = torch.nn.functional.silu(x @ p[GATE % layer + "linear1.weight"].T + p[GATE % layer + "linear1.bias"])
    return torch.nn.functional.logsigmoid(hidden @ p[GATE % layer + "linear2.weight"].T + p[GATE % layer + "bias"]).transpose(1, 2)

def make(name, config, seed):
    g = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters(): p.copy_(torch.randn(p.shape, generator=g) * 0.3 + ("norm" in key))
    folder, gates = os.path.join(out, name), {}
    for l in range(config.num_hidden_layers):
        shapes = {"linear1.weight": (HIDDEN, C), "linear1.bias": (HIDDEN,), "linear2.weight": (2, HIDDEN), "bias": (2,)}
        for key, shape in shapes.items(): gates[GATE % l + key] = torch.randn(shape, generator=g) * 0.5 + 2 * (key == "bias")
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    shards = ["model-%05d-of-00002.safetensors" % n for n in (1, 2)]
    os.rename(os.path.join(folder, "model.safetensors"), os.path.join(folder, shards[0]))
    save_file(gates, os.path.join(folder, shards[1]))
    where = {key: shards[key in gates] for key in [*load_file(os.path.join(folder, shards[0])), *gates]}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f: json.dump({"weight_map": where}, f, indent=1)
    with open(os.path.join(folder, "config.json")) as f: keys = json.load(f)
    keys |= dict(retention_gate="rg", retention_gate_intermediate_size=HIDDEN, memory_size=K, buffer_size=4)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(keys, f, indent=2)

    tokens = torch.randint(0, V, (B, T), generator=g)
    p, kept, file = {key: w.double() for key, w in gates.items()}, [], {"tokens": tokens.to(torch.int32)}
    for form, attention in ("logits", "eager"), ("faded", "faded"):
        double = AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()
        double.load_state_dict(model.state_dict())
        for l, layer in enumerate(double.model.layers):
            def before(module, args, given, l=l, form=form):
                module.beta = beta_of(p, l, given["hidden_states"])
                if form == "logits":
                    score = (T - torch.arange(T)) * module.beta
                    order = score.sort(-1, descending=True).values
                    assert (order[..., K - 1] - order[..., K] > 1e-3).all()  # single precision keeps the same
                    kept.append(score.topk(K).indices.sort().values)
            layer.self_attn.register_forward_pre_hook(before, with_kwargs=True)
        with torch.no_grad(): file[form] = double(tokens).logits.float()
    file["kept"] = torch.stack(kept).to(torch.int32)
    assert (file["logits"] - file["faded"]).abs().max() > 0.5
    save_file({key: x.contiguous() for key, x in file.items()}, os.path.join(out, name + ".logits.safetensors"))

make("trimkv-llama", LlamaConfig(**SHAPE), 4)
make("trimkv-qwen3", Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True), 5)
