#!/usr/bin/env python3
"""Makes tests/golden/hf/trimkv-*, wgkv-* and dms-*: tiny random models with gates on keys, in the names of their papers' code.

Usage: tools/make-goldens-gates.py [OUT]          needs tools/python-env transformers

A folder holds a model as `transformers` saves it, its gates in a second file (tools/join-gates lays out published ones so), and the
keys of the gates in config.json. Beside it NAME.logits.safetensors, computed in double: tokens [B,T]; logits [B,T,V] of plain
attention; trained [B,T,V], as the gates are trained; kept [L,B,Hkv,T] int32, 1 where a head keeps a token when the text ends.

  trimkv   TRIM-KV (arXiv 2512.03324): retention gates beta = sigmoid(W2 silu(W1 x + b1) + b2), x the input of the layer's attention
           behind its norm. Training multiplies logits by beta^age; kept are the K tokens of largest beta^age at the next token.
  wgkv     WG-KV (arXiv 2512.17452): write gates g = max(sigmoid(conv2(gelu(conv1([norm(k); norm(R k)])))), 0.001), with grouped
           convolutions over a head's key k before rotation and after it. Training adds log g to logits of keys that have left the
           window; kept are these where g is above 0.1, and the window of the next token.
  dms      DMS (arXiv 2506.05345) as FastDMS trains it: decisions alpha = sigmoid(scale q - offset), q the last number of the query of
           a group's first head before rotation, which is 0 in the query itself. Training adds log(1 - alpha) to logits of keys that
           are more than the window away; kept are these where alpha is at most one half, and the window of the next token.
"""
import json, math, os, shutil, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "torch", "transformers", "safetensors")
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, Qwen3Config

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/golden/hf")
B, T, V, C, HKV, HIDDEN, K, WINDOW, EXPAND, THRESHOLD = 2, 24, 48, 32, 2, 12, 9, 5, 1.5, 0.1
SHAPE = dict(vocab_size=V, hidden_size=C, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=HKV,
             max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)
AGE = torch.arange(T)[:, None] - torch.arange(T)
fn = torch.nn.functional

class TrimKV:
    prefix, keys = "retention_gate.", dict(retention_gate="rg", retention_gate_intermediate_size=HIDDEN, memory_size=K, buffer_size=4)

    def shapes(self, D): return {"linear1.weight": (HIDDEN, C), "linear1.bias": (HIDDEN,), "linear2.weight": (HKV, HIDDEN), "bias": (HKV,)}
    def start(self, name): return 2 if name == "bias" else 0

    def gates(self, p, x, before, after):
        hidden = fn.silu(x @ p["linear1.weight"].T + p["linear1.bias"])
        return fn.logsigmoid(hidden @ p["linear2.weight"].T + p["bias"]).transpose(1, 2)

    def trained(self, logits, gates): return logits * (AGE.clamp(min=0) * gates[:, :, None]).exp()

    def kept(self, gates):
        score = (T - torch.arange(T)) * gates
        order = score.sort(-1, descending=True).values
        assert (order[..., K - 1] - order[..., K] > 1e-3).all()  # single precision keeps the same
        return torch.zeros(gates.shape).scatter(-1, score.topk(K).indices, 1)

class WGKV:
    prefix, keys = "g_predictors.", dict(g_inputs=["pre_k", "post_k"], g_act_fn="gelu", g_expand=EXPAND, g_epsilon=1e-3, g_rms=True,
                                         g_threshold=THRESHOLD, local_window_size=WINDOW)

    def shapes(self, D):
        n = HKV * int(D * EXPAND)
        return {"pre_key_norm.weight": (D,), "post_key_norm.weight": (D,), "conv1.weight": (n, 2 * D), "conv1.bias": (n,),
                "conv2.weight": (HKV, n // HKV), "conv2.bias": (HKV,)}
    def start(self, name): return 1 if "norm" in name else -4 if name == "conv2.bias" else 0

    def gates(self, p, x, before, after):
        norm = lambda k, gain: k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6) * gain
        states = torch.cat((norm(before, p["pre_key_norm.weight"]), norm(after, p["post_key_norm.weight"])), -1)
        rows = states.transpose(2, 3).flatten(1, 2)  # [B,Hkv*2D,T]
        hidden = fn.gelu(fn.conv1d(rows, p["conv1.weight"][..., None], p["conv1.bias"], groups=HKV))
        return fn.conv1d(hidden, p["conv2.weight"][..., None], p["conv2.bias"], groups=HKV).sigmoid().clamp(min=1e-3).log()

    def trained(self, logits, gates): return logits + torch.where(AGE >= WINDOW, gates[:, :, None], 0)

    def kept(self, gates):
        assert ((gates - math.log(THRESHOLD)).abs() > 1e-3).all() and (gates < -6.9).any()  # some at the floor
        return ((gates > math.log(THRESHOLD)) | (torch.arange(T) > T - WINDOW)).int()

class DMS:
    prefix, keys = "g_predictors.", dict(dms_window_size=WINDOW, dms_gates="joined")

    def shapes(self, D): return {"conv2.weight": (HKV, C), "conv2.bias": (HKV,)}
    def start(self, name): return 0
    def clear(self, attention):
        rows = torch.arange(HKV) * (attention.q_proj.weight.shape[0] // HKV) + attention.head_dim - 1
        attention.q_proj.weight[rows] = 0

    def gates(self, p, x, before, after): return fn.logsigmoid(x @ p["conv2.weight"].T + p["conv2.bias"]).transpose(1, 2)

    def trained(self, logits, gates): return logits + torch.where(AGE > WINDOW, gates[:, :, None], 0)

    def kept(self, gates):
        assert ((gates + math.log(2)).abs() > 1e-3).all()
        return ((gates > -math.log(2)) | (torch.arange(T) >= T - WINDOW)).int()

def gated(module, q, k, v, mask, scaling, **others):
    """Attention as the gates are trained, or plain; notes what is kept."""
    kind, layer = module.kind, module.layer_idx
    p = {name: w.double() for name, w in kind.of_layer(layer).items()}
    gates = kind.gates(p, module.x, module.before, k)
    if not module.trains: module.kept = kind.kept(gates)
    k, v, gates = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v, gates))
    logits = scaling * (q @ k.transpose(2, 3))
    if module.trains: logits = kind.trained(logits, gates)
    return (logits.masked_fill(AGE < 0, -torch.inf).softmax(-1) @ v).transpose(1, 2), None

AttentionInterface.register("gated", gated)

def make(name, kind, config, seed):
    g = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters(): p.copy_(torch.randn(p.shape, generator=g) * 0.3 + ("norm" in key))
        for layer in model.model.layers: getattr(kind, "clear", lambda attention: None)(layer.self_attn)
    folder, gates = os.path.join(out, name), {}
    at = lambda l: f"model.layers.{l}.self_attn." + kind.prefix
    for l in range(config.num_hidden_layers):
        for key, shape in kind.shapes(model.model.layers[0].self_attn.head_dim).items():
            gates[at(l) + key] = torch.randn(shape, generator=g) * 0.5 + kind.start(key)
            if isinstance(kind, DMS) and key == "conv2.bias": gates[at(l) + key].fill_(1)  # the offset, of all heads
    kind.of_layer = lambda l: {key.removeprefix(at(l)): w for key, w in gates.items() if key.startswith(at(l))}
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    shards = ["model-%05d-of-00002.safetensors" % n for n in (1, 2)]
    os.rename(os.path.join(folder, "model.safetensors"), os.path.join(folder, shards[0]))
    save_file(gates, os.path.join(folder, shards[1]))
    where = {key: shards[key in gates] for key in [*load_file(os.path.join(folder, shards[0])), *gates]}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f: json.dump({"weight_map": where}, f, indent=1)
    with open(os.path.join(folder, "config.json")) as f: keys = json.load(f)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(keys | kind.keys, f, indent=2)

    tokens = torch.randint(0, V, (B, T), generator=g)
    file = {"tokens": tokens.to(torch.int32)}
    for trains, form in (False, "logits"), (True, "trained"):
        double = AutoModelForCausalLM.from_config(config, attn_implementation="gated").double().eval()
        double.load_state_dict(model.state_dict())
        for layer in double.model.layers:
            a = layer.self_attn
            a.kind, a.trains = kind, trains
            a.register_forward_pre_hook(lambda module, args, given: setattr(module, "x", given["hidden_states"]), with_kwargs=True)
            keys = getattr(a, "k_norm", a.k_proj)  # [B,T,Hkv,D] behind the norm, else [B,T,Hkv*D]
            keys.register_forward_hook(lambda module, args, k, a=a: setattr(a, "before", k.view(B, T, HKV, -1).transpose(1, 2)))
        with torch.no_grad(): file[form] = double(tokens).logits.float()
        if not trains: file["kept"] = torch.stack([layer.self_attn.kept for layer in double.model.layers]).to(torch.int32)
    assert (file["logits"] - file["trained"]).abs().max() > 0.5 and 0 < file["kept"].float().mean() < 1
    save_file({key: x.contiguous() for key, x in file.items()}, os.path.join(out, name + ".logits.safetensors"))

make("dms-llama", DMS(), LlamaConfig(**SHAPE), 4)
for kind in TrimKV(), WGKV():
    name = type(kind).__name__.lower()
    make(name + "-llama", kind, LlamaConfig(**SHAPE), 4)
    make(name + "-qwen3", kind, Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True), 5)
