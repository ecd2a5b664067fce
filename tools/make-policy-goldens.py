#!/usr/bin/env python3
"""Makes tests/golden/policy-*: tiny decoders under budgets of the key-value cache, in double precision.

It goes token by token, with one loop over what each layer holds, written from the papers: H2O (Zhang et al. 2023, arXiv
2306.14048, Algorithm 1 and the equal split of §5), TOVA (Oren et al. 2024, arXiv 2401.06104, §3.2), StreamingLLM (Xiao
et al. 2023, arXiv 2309.17453, §3.2), selective attention (arXiv 2410.02703, §3 and §3.4). It shares no code with the
engine or with tools/make-goldens.py. docs/pruning.md says where the authors' code differs. Needs torch
(tools/python-env torch). The tests read the committed files. Usage: tools/make-policy-goldens.py [FOLDER]

The step of token i in a layer with a budget of K: if i >= K, one of the K held tokens is evicted, according to what the
rows before i have left behind. Then i enters and attends to the K tokens held, itself included.

A folder policy-NAME is a checkpoint (config.json, model.safetensors), with its tokens [B,T] in tokens.safetensors and
two files for each case: CASE.json, a budgets.json; and CASE.safetensors, with logits [B,T,V] float64 and evicted_at
[L,B,P,T] int32: the row before which the token is evicted, T for never (P: 1, or the number of key-value heads if each
evicts for itself, under policy selective if each has its own selection).

Every choice is checked to have a margin, since a program in single precision must evict the same tokens.
"""
import json, math, os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("torch", "torch", "safetensors")
import torch
from safetensors.torch import save_file

F64 = torch.float64
MARGIN = 2e-4  # between the evicted token and the next, relative to the larger score; or an exact tie

MODELS = {
    "rope": dict(vocab_size=13, context=32, layers=3, width=16, heads=4, kv_heads=2, head_size=6, ffn_width=20,
                 norm="rmsnorm", position="rope", ffn="swiglu", qk_norm=False, bias=False, tied=False, attention={}),
    "learned": dict(vocab_size=11, context=30, layers=2, width=16, heads=2, kv_heads=2, head_size=8, ffn_width=24,
                    norm="layernorm", norm_eps=1e-5, position="learned", ffn="gelu", qk_norm=False, bias=True, tied=True,
                    attention={}),
    "selective": dict(vocab_size=13, context=32, layers=3, width=16, heads=4, kv_heads=2, head_size=6, ffn_width=20,
                      norm="rmsnorm", position="rope", ffn="swiglu", qk_norm=True, bias=False, tied=False,
                      attention={"selective": {"enabled": True}}),
    "groups": dict(vocab_size=11, context=30, layers=2, width=16, heads=4, kv_heads=2, head_size=6, ffn_width=20,
                   norm="rmsnorm", position="learned", ffn="relu", qk_norm=True, bias=False, tied=False,
                   attention={"selective": {"enabled": True, "per_kv_head": True}}),
}
CASES = {
    "rope": {
        "h2o": dict(policy="h2o", tokens=[6, 9, 13]),
        "h2o-recent": dict(policy="h2o", tokens=[7, 7, 4], recent=0.3),
        "h2o-heads": dict(policy="h2o", tokens=[8, 5, 11], per_kv_head=True),
        "tova": dict(policy="tova", tokens=[6, 9, 13]),
        "tova-heads": dict(policy="tova", tokens=[5, 12, 8], per_kv_head=True),
        "h2o-ragged": dict(policy="h2o", tokens=[[8, 5], [4, 40], [6, 6]], per_kv_head=True),
        "tova-ragged": dict(policy="tova", tokens=[[5, 12], [9, 3], [31, 7]], per_kv_head=True),
        "streaming": dict(policy="streaming", tokens=[8, 6, 10], sinks=4),
        "streaming-places": dict(policy="streaming", tokens=[8, 6, 10], sinks=2, cache_positions=True),
        "window": dict(policy="window", tokens=[8, 1, 31]),
    },
    "learned": {
        "h2o": dict(policy="h2o", tokens=[7, 10]),
        "tova": dict(policy="tova", tokens=[9, 6]),
        "streaming": dict(policy="streaming", tokens=[5, 8], sinks=3),
        "streaming-narrow": dict(policy="streaming", tokens=[3, 5], sinks=4),  # at most K - 1 tokens can be sinks
    },
    "selective": {
        "selective": dict(policy="selective", tokens=[6, 9, 13]),
        "selective-narrow": dict(policy="selective", tokens=[2, 1, 3]),
        "h2o": dict(policy="h2o", tokens=[8, 8, 6]),
        "tova": dict(policy="tova", tokens=[6, 9, 7]),
        "streaming-places": dict(policy="streaming", tokens=[9, 7, 8], sinks=1, cache_positions=True),
    },
    "groups": {
        "selective": dict(policy="selective", tokens=[7, 10]),
        "selective-ragged": dict(policy="selective", tokens=[[7, 3], [26, 9]]),
        "h2o-heads": dict(policy="h2o", tokens=[9, 6], per_kv_head=True),
        "tova": dict(policy="tova", tokens=[6, 8]),
    },
}

def weights(c, gen):
    """As float32, under the engine's parameter names."""
    new = lambda *shape: (torch.randn(*shape, generator=gen) * 0.4).float()
    V, C, D, F = c["vocab_size"], c["width"], c["head_size"], c["ffn_width"]
    p = {"embed.weight": new(V, C) * 2}
    if c["position"] == "learned": p["pos.weight"] = new(c["context"], C) * 2
    def norm(name, n):
        p[name + ".gain"] = 1 + new(n)
        if c["norm"] == "layernorm": p[name + ".shift"] = new(n)
    def linear(name, rows, columns):
        p[name + ".weight"] = new(rows, columns)
        if c["bias"]: p[name + ".bias"] = new(rows)
    for l in range(c["layers"]):
        at = f"layers.{l}."
        norm(at + "norm1", C)
        linear(at + "attn.qkv", (c["heads"] + 2 * c["kv_heads"]) * D, C)
        if c["qk_norm"]: p[at + "attn.q_norm.gain"], p[at + "attn.k_norm.gain"] = 1.5 + new(D), 1.5 + new(D)
        linear(at + "attn.out", C, c["heads"] * D)
        norm(at + "norm2", C)
        linear(at + "ffn.in", 2 * F if c["ffn"] == "swiglu" else F, C)
        linear(at + "ffn.out", C, F)
    norm("final_norm", C)
    if not c["tied"]: p["output.weight"] = new(V, C)
    return p

def rotate(x, place, theta=10000.0):
    """x [D] with the pair (d, d + D/2) rotated by place * theta^(-2d/D)."""
    half = len(x) // 2
    angle = place * theta ** (-2 * torch.arange(half, dtype=F64) / len(x))
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])

class Held:
    """What a group of key-value heads holds in one layer: tokens, oldest first, and the state of each policy."""
    def __init__(self):
        self.tokens = []   # positions in the text
        self.received = {} # h2o: attention that each token has received so far
        self.last = {}     # tova: attention that each received from the last row, mean over heads
        self.selected = {} # F of (selection, token): one for all heads, or one for each key-value head

    def selected_by(self, s):
        return {t: self.selected.get((s, t), 0.0) for t in self.tokens}

    def choose(self, b, K, i, own, notes):
        """The token that is evicted before i enters. own: the selection that this group uses."""
        first = self.tokens[0]
        if b["policy"] == "window": return first
        if b["policy"] == "streaming": return [t for t in self.tokens if t >= min(b["sinks"], K - 1)][0]
        if b["policy"] == "selective":  # the most selected; the text's first token only when alone
            score, open_ = self.selected_by(own), [t for t in self.tokens if t > 0] or self.tokens
        elif b["policy"] == "h2o":      # the least received; the most recent, i among them, stay
            recent = math.floor(b.get("recent", 0.5) * K)
            score, open_ = {t: -self.received[t] for t in self.tokens}, [t for t in self.tokens if t <= i - max(recent, 1)]
        else:                           # tova
            score, open_ = {t: -self.last[t] for t in self.tokens}, self.tokens
        order = sorted(open_, key=lambda t: (-score[t], t))
        if len(order) > 1:
            high, low = score[order[0]], score[order[1]]
            gap = abs(high - low) / max(abs(high), abs(low), 1e-300)
            if high != low: notes["margin"] = min(notes["margin"], gap)
        if order[0] != first: notes["not oldest"] += 1
        return order[0]

def run(c, p, tokens, b, T):
    """One sequence: logits [T,V], evicted_at [L,P,T], and statistics of the choices."""
    L, H, Hkv, D, eps = c["layers"], c["heads"], c["kv_heads"], c["head_size"], c.get("norm_eps", 1e-6)
    selective, places = bool(c["attention"]), b.get("cache_positions", False)
    G = Hkv if selective and c["attention"]["selective"].get("per_kv_head") else 1  # number of selections
    P = G if b["policy"] == "selective" else Hkv if b.get("per_kv_head") else 1
    assert not selective or P == 1 or P == G  # one F for all heads needs the same tokens in all of them
    def norm(x, name):
        if c["norm"] == "layernorm": x = x - x.mean()
        y = x / torch.sqrt((x * x).mean() + eps) * p[name + ".gain"]
        return y + p[name + ".shift"] if name + ".shift" in p else y
    def linear(x, name):
        y = p[name + ".weight"] @ x
        return y + p[name + ".bias"] if name + ".bias" in p else y
    held = [[Held() for _ in range(P)] for _ in range(L)]
    keys, values = [{} for _ in range(L)], [{} for _ in range(L)]  # by position: [Hkv,D], keys before any rotation
    gone = torch.full((L, P, T), T, dtype=torch.int32)
    notes = {"margin": math.inf, "not oldest": 0, "evictions": 0}
    logits = []
    for i in range(T):
        x = p["embed.weight"][tokens[i]]
        if c["position"] == "learned": x = x + p["pos.weight"][i]
        for l in range(L):
            at, K = f"layers.{l}.", b["tokens"][l]
            if not isinstance(K, list): K = [K] * P  # else a budget for each key-value head
            n = norm(x, at + "norm1")
            qkv = linear(n, at + "attn.qkv").view(H + 2 * Hkv, D)
            q, k, v = qkv[:H], qkv[H:H + Hkv], qkv[H + Hkv:]
            if c["qk_norm"]:
                q = torch.stack([norm(r, at + "attn.q_norm") for r in q])
                k = torch.stack([norm(r, at + "attn.k_norm") for r in k])
            keys[l][i], values[l][i] = k, v
            y = [None] * H
            for g in range(P):
                h = held[l][g]
                if i >= K[g]:
                    out = h.choose(b, K[g], i, g, notes)
                    h.tokens.remove(out)
                    gone[l, g, out] = i
                    notes["evictions"] += 1
                h.tokens.append(i)
                h.received[i] = 0.0
                assert len(h.tokens) <= K[g]
            # The logits of all heads for what their group holds.
            raw = {}
            for head in range(H):
                kv = head * Hkv // H
                h = held[l][kv if P > 1 else 0]
                for place, j in enumerate(h.tokens):
                    query, key = q[head], keys[l][j][kv]
                    if c["position"] == "rope":  # its position in the text, or in the cache
                        query = rotate(query, len(h.tokens) - 1 if places else i)
                        key = rotate(key, place if places else j)
                    raw[head, j] = float(query @ key) / math.sqrt(D)
            given = {}
            for head in range(H):
                kv = head * Hkv // H
                h = held[l][kv if P > 1 else 0]
                F = h.selected_by(head * G // H)
                score = torch.tensor([raw[head, j] - (F[j] if selective else 0.0) for j in h.tokens], dtype=F64)
                w = torch.softmax(score, 0)
                y[head] = sum(w[n] * values[l][j][kv] for n, j in enumerate(h.tokens))
                for n, j in enumerate(h.tokens): given[head, j] = float(w[n])
            for g in range(P):
                h, heads = held[l][g], [n for n in range(H) if P == 1 or n * Hkv // H == g]
                h.last = {}
                for j in h.tokens:
                    h.received[j] += sum(given[n, j] for n in heads)
                    h.last[j] = sum(given[n, j] for n in heads) / len(heads)
            for s in range(G if selective else 0):  # the first head of each selection's heads selects, for later rows
                h = held[l][s if P > 1 else 0]
                for j in h.tokens:
                    if 0 < j < i: h.selected[s, j] = h.selected.get((s, j), 0.0) + max(0.0, raw[s * H // G, j])
            x = x + linear(torch.cat(y), at + "attn.out")
            f = linear(norm(x, at + "norm2"), at + "ffn.in")
            if c["ffn"] == "swiglu":
                gate, up = f.chunk(2)
                f = gate / (1 + torch.exp(-gate)) * up
            elif c["ffn"] == "relu": f = torch.relu(f)
            else: f = 0.5 * f * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f ** 3)))
            x = x + linear(f, at + "ffn.out")
        logits.append(p["embed.weight" if c["tied"] else "output.weight"] @ norm(x, "final_norm"))
    return torch.stack(logits), gone, notes

def make(name, folder):
    c = MODELS[name]
    B, T = 2, c["context"] - 3
    here = os.path.join(folder, "policy-" + name)
    os.makedirs(here, exist_ok=True)
    for seed in range(sum(map(ord, name)), 10 ** 6):
        gen = torch.Generator().manual_seed(seed)
        p32 = weights(c, gen)
        tokens = torch.randint(c["vocab_size"], (B, T), generator=gen)
        p = {n: t.double() for n, t in p32.items()}
        results = {}
        for case, b in CASES[name].items():
            parts = [run(c, p, tokens[n].tolist(), b, T) for n in range(B)]
            margin = min(r[2]["margin"] for r in parts)
            results[case] = parts, margin
            if margin < MARGIN: break
        else: break
        print(f"policy-{name}: seed {seed}: {case}: a margin of {margin:.1e}, another seed", flush=True)
    with open(os.path.join(here, "config.json"), "w") as f: json.dump(c, f, indent=2); f.write("\n")
    save_file(p32, os.path.join(here, "model.safetensors"), metadata={"format": "pt"})
    save_file({"tokens": tokens.int()}, os.path.join(here, "tokens.safetensors"))
    for case, (parts, margin) in results.items():
        out = {"logits": torch.stack([r[0] for r in parts]), "evicted_at": torch.stack([r[1] for r in parts], 1).contiguous()}
        save_file(out, os.path.join(here, case + ".safetensors"))
        with open(os.path.join(here, case + ".json"), "w") as f: f.write(json.dumps(CASES[name][case]) + "\n")
        print(f"policy-{name}: {case}: {sum(r[2]['evictions'] for r in parts)} evictions, "
              f"{sum(r[2]['not oldest'] for r in parts)} not of the oldest, margin {margin:.1e}")
    size = sum(os.path.getsize(os.path.join(here, f)) for f in os.listdir(here))
    print(f"{size:8d}  {here}")
    return size

if __name__ == "__main__":
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "tests", "golden")
    print(f"{sum(make(name, folder) for name in MODELS):8d}  total")
