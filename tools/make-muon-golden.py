#!/usr/bin/env python3
"""Makes tests/golden/muon.safetensors: 20 steps of Muon on two tiny models, in PyTorch in double precision.

The models, their batches and their forward pass are those of tools/make-goldens.py (tests/golden/model-gpt2 and
model-packed). The optimizer is written after Jordan et al. 2024 (kellerjordan.github.io/posts/muon and its listing
`zeropower_via_newtonschulz5`, `muon_update`), one matrix at a time with transposes, and shares no code with the engine.
q, k and v are separate matrices, and so are a gate and what it gates. AdamW updates embeddings, positions, the output,
norms and biases. Needs torch (tools/python-env torch). Usage: tools/make-muon-golden.py [FOLDER]

Tensors: NAME/TENSOR, float32, the parameters after the last step; NAME/loss, float64 [20], the loss of each step before
its update. The settings are in the metadata, which the test reads.
"""
import importlib.util, json, math, os, sys

sys.dont_write_bytecode = True
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
from python_env import need
need("torch", "torch", "safetensors")
import torch
from safetensors.torch import load_file, save_file

spec = importlib.util.spec_from_file_location("goldens", os.path.join(here, "make-goldens.py"))
goldens = importlib.util.module_from_spec(spec)
spec.loader.exec_module(goldens)

STEPS, LR, MUON_LR, DECAY, CLIP = 20, 0.002, 0.01, 0.1, 1.0
BETA1, BETA2, EPS = 0.9, 0.99, 1e-4  # eps: a key bias has no gradient but rounding noise
NESTEROV = {"gpt2": True, "packed": False}
MOMENTUM, NS_STEPS = 0.9, 5

def orthogonal(G):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.T if G.size(0) > G.size(1) else G
    X = X / (X.norm() + 1e-7)
    for _ in range(NS_STEPS):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if G.size(0) > G.size(1) else X

def pieces(c, name, rows):
    """The rows of each matrix in a tensor, or None if AdamW updates it."""
    D = c["head_size"]
    if name.endswith("attn.qkv.weight"): return [c["heads"] * D, c["kv_heads"] * D, c["kv_heads"] * D]
    if name.endswith("ffn.in.weight") and c["ffn"] == "swiglu": return [rows // 2, rows // 2]
    hidden = ("attn.out.weight", "ffn.in.weight", "ffn.out.weight", "attn.select_q.weight", "attn.select_k.weight")
    return [rows] if name.endswith(hidden) else None

def train(name):
    folder = os.path.join(here, "..", "tests", "golden", "model-" + name)
    with open(os.path.join(folder, "config.json")) as f: c = json.load(f)
    given = load_file(os.path.join(folder, "expected.safetensors"))
    p = {n: t.double().requires_grad_() for n, t in load_file(os.path.join(folder, "model.safetensors")).items()}
    tokens, targets = given["tokens"].long(), given["targets"].long()
    starts = given["doc_start"].long() if "doc_start" in given else torch.zeros_like(tokens)
    m = {n: torch.zeros_like(t) for n, t in p.items()}
    v = {n: torch.zeros_like(t) for n, t in p.items()}
    losses = []
    for step in range(1, STEPS + 1):
        logits, mem = goldens.forward(c, p, tokens, starts)
        nll = -torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        loss = (nll * (targets >= 0)).sum() / (targets >= 0).sum()
        grads = dict(zip(p, torch.autograd.grad(loss + mem, list(p.values()))))
        losses.append(loss.item())
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        clip = min(1.0, CLIP / norm)
        with torch.no_grad():
            for n, t in p.items():
                g, split = grads[n] * clip, pieces(c, n, t.size(0))
                if split:
                    m[n].lerp_(g, 1 - MOMENTUM)
                    u = g.lerp(m[n], MOMENTUM) if NESTEROV[name] else m[n]
                    o = torch.cat([orthogonal(x) * math.sqrt(max(1, x.size(0) / x.size(1))) for x in u.split(split)])
                    t.mul_(1 - MUON_LR * DECAY).sub_(MUON_LR * o)
                else:
                    m[n].lerp_(g, 1 - BETA1)
                    v[n].lerp_(g * g, 1 - BETA2)
                    o = (m[n] / (1 - BETA1 ** step)) / ((v[n] / (1 - BETA2 ** step)).sqrt() + EPS)
                    t.mul_(1 - (LR * DECAY if t.dim() > 1 else 0)).sub_(LR * o)
    print(f"{name}: loss {losses[0]:.6f} to {losses[-1]:.6f}")
    out = {f"{name}/{n}": t.detach().float() for n, t in p.items()}
    out[f"{name}/loss"] = torch.tensor(losses, dtype=torch.float64)
    return out

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden")
    out = {}
    for name in NESTEROV: out.update(train(name))
    path = os.path.join(folder, "muon.safetensors")
    save_file(out, path, metadata={"format": "pt", "steps": str(STEPS), "lr": str(LR), "muon_lr": str(MUON_LR),
              "weight_decay": str(DECAY), "clip": str(CLIP), "beta1": str(BETA1), "beta2": str(BETA2), "eps": str(EPS),
              "momentum": str(MOMENTUM), "ns_steps": str(NS_STEPS),
              **{name + "/nesterov": str(n).lower() for name, n in NESTEROV.items()}})
    print(f"{os.path.getsize(path):8d}  {path}")
