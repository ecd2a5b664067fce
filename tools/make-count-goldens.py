#!/usr/bin/env python3
"""Makes tests/golden/counts: three documents continued greedily under a threshold. For each generated token, layer and
head it counts the content tokens that the threshold keeps, from full attention matrices in double precision (Fernandez,
Unsal, equations 3 to 5). Every generated token is another pass over the whole text: there is no cache, and no code is
shared with the engine.

Needs torch and safetensors (tools/python-env torch). The tests read the committed files.
Usage: tools/make-count-goldens.py [FOLDER]
"""
import json, os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("torch", "torch", "safetensors")
import torch
from safetensors.torch import save_file

TAU, DRAWN, LENGTHS = 0.75, 12, (9, 23, 40)
C = {"vocab_size": 31, "context": 64, "layers": 3, "width": 24, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn_width": 40,
     "norm": "rmsnorm", "position": "rope", "ffn": "swiglu", "qk_norm": False, "bias": False, "tied": False,
     "attention": {"threshold": {"enabled": True, "tau": TAU}}}
margin = [1.0]  # the smallest distance from another choice, which must exceed float's errors


def parameters(gen):
    new = lambda s, *shape: (torch.randn(*shape, generator=gen) * s).float()
    V, W, H, K, D, F = (C[k] for k in ("vocab_size", "width", "heads", "kv_heads", "head_size", "ffn_width"))
    p = {"embed.weight": new(1, V, W), "final_norm.gain": 1 + new(0.1, W), "output.weight": new(0.4, V, W)}
    for l in range(C["layers"]):
        at = f"layers.{l}."
        p[at + "norm1.gain"], p[at + "norm2.gain"] = 1 + new(0.1, W), 1 + new(0.1, W)
        p[at + "attn.qkv.weight"], p[at + "attn.out.weight"] = new(0.3, (H + 2 * K) * D, W), new(0.2, W, H * D)
        p[at + "ffn.in.weight"], p[at + "ffn.out.weight"] = new(0.2, 2 * F, W), new(0.2, W, F)
    return p


def norm(x, gain):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * gain


def turned(x):  # [T,D]
    T, D = x.shape
    angle = torch.arange(T).double()[:, None] * 10000.0 ** (-2 * torch.arange(D // 2).double() / D)
    a, b = x[:, :D // 2], x[:, D // 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def kept(weights, control):
    """For one row: the keys that the threshold keeps, and how many of them are content."""
    content = [j for j in range(len(weights)) if not control[j]]
    whole, mass, chosen = sum(weights[j] for j in content), 0.0, set()
    for j in sorted(content, key=lambda j: (-weights[j], j)):
        if mass >= TAU * whole: break
        mass += weights[j]
        chosen.add(j)
        margin[0] = min(margin[0], abs(mass - TAU * whole) / whole)
    return [bool(control[j]) or j in chosen for j in range(len(weights))], len(chosen)


def forward(p, ids, control):
    """Logits of the last row, and its counts by layer and head."""
    T, H, K, D = len(ids), C["heads"], C["kv_heads"], C["head_size"]
    x, counts = p["embed.weight"][torch.tensor(ids)], []
    for l in range(C["layers"]):
        at = f"layers.{l}."
        qkv = norm(x, p[at + "norm1.gain"]) @ p[at + "attn.qkv.weight"].T
        part = lambda n: qkv[:, n * D:(n + 1) * D]
        heads, row = [], []
        for h in range(H):
            g = h // (H // K)
            logits = turned(part(h)) @ turned(part(H + g)).T / D ** 0.5
            weights = torch.softmax(logits.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf")), -1)
            for i in range(T):
                keep, n = kept(weights[i, :i + 1].tolist(), control)
                weights[i, :i + 1] *= torch.tensor(keep).double()
            heads.append(weights / weights.sum(-1, keepdim=True) @ part(H + K + g))
            row.append(n)  # the last row
        counts.append(row)
        x = x + torch.cat(heads, -1) @ p[at + "attn.out.weight"].T
        gate, up = (norm(x, p[at + "norm2.gain"]) @ p[at + "ffn.in.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ p[at + "ffn.out.weight"].T
    return norm(x[-1], p["final_norm.gain"]) @ p["output.weight"].T, counts


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "tests", "golden", "counts")
    gen = torch.Generator().manual_seed(20)
    p32 = parameters(gen)
    p = {n: t.double() for n, t in p32.items()}
    prompts = torch.full((3, max(LENGTHS)), -1, dtype=torch.int32)
    control = torch.zeros(3, max(LENGTHS), dtype=torch.int32)
    drawn, counts, content = [], [], []
    for d, n in enumerate(LENGTHS):
        ids = torch.randint(C["vocab_size"], (n,), generator=gen).tolist()
        marks = [int(i < 3 or i >= n - 2 or ids[i] == 7) for i in range(n)]  # an instruction, a delimiter, and one by its id
        prompts[d, :n], control[d, :n] = torch.tensor(ids), torch.tensor(marks)
        for _ in range(DRAWN):
            logits, rows = forward(p, ids, marks)
            two = logits.topk(2)
            margin[0] = min(margin[0], (two.values[0] - two.values[1]).item())
            counts.append(rows)
            content.append(len(ids) - sum(marks))
            ids.append(two.indices[0].item())
            marks.append(int(ids[-1] == 7))
        drawn.append(ids[n:])
    assert margin[0] > 2e-5, margin
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(C, f, indent=2)
        f.write("\n")
    save_file(p32, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file({"prompts": prompts, "control": control, "drawn": torch.tensor(drawn, dtype=torch.int32),
               "counts": torch.tensor(counts, dtype=torch.int32).view(3, DRAWN, C["layers"], C["heads"]),
               "content": torch.tensor(content, dtype=torch.int32).view(3, DRAWN)},
              os.path.join(folder, "expected.safetensors"))
    print(f"{folder}: counts {min(map(lambda r: min(map(min, r)), counts))} to {max(map(lambda r: max(map(max, r)), counts))}, "
          f"smallest margin {margin[0]:.2g}")


if __name__ == "__main__":
    main()
