#!/usr/bin/env python3
"""Makes tests/golden: small attention cases and tiny whole models with expected results in double precision.

Written from the equations row by row, with its own loops, so that it shares no code with the engine or any other check.
Needs torch (tools/python-env torch). The test suite reads the committed files.
Usage: tools/make-goldens.py [FOLDER]

An attention file has q, k, v, dy and the mechanisms' arrays (sq, sk, z, zt, p, sink_k, sink_v, gate, output_gate,
doc_start, key_count) as float32 and int32; y, F, M, mem_loss and the gradient of every array as float64; count as
int32; and the metadata key "case": {"B","T","H","Hkv","D","attention"}, as `winnow op attention` reads it. A folder
model-NAME is a checkpoint (config.json, model.safetensors) with expected.safetensors: tokens, targets, doc_start as
int32; logits and loss (sum over counted positions, plus L_mem) as float64; the gradients of that sum, under the
parameters' names, as float32.
"""
import json, math, os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("torch", "torch", "safetensors")
import torch
from safetensors.torch import save_file

CASES = {
    "dense": dict(B=2, T=19, H=3, Hkv=3, D=16, attention={}),
    "dense-grouped-scale": dict(B=1, T=17, H=6, Hkv=2, D=20, attention={"scale": 0.3}),
    "dense-packed": dict(B=2, T=24, H=2, Hkv=1, D=16, attention={}, documents=[[0, 7, 8, 20], [0, 13]]),
    "one-token": dict(B=2, T=1, H=2, Hkv=2, D=8, attention={"selective": {"mem": {"eps": 0.1, "tau": 1.0}}}),
    "selective": dict(B=2, T=27, H=3, Hkv=3, D=12, attention={"selective": {}}),
    "selective-grouped-head": dict(B=1, T=29, H=6, Hkv=3, D=16, attention={"selective": {"head": 3}}),
    "selective-no-relu": dict(B=1, T=23, H=2, Hkv=2, D=16, attention={"selective": {"relu": False}}),
    "selective-open-first": dict(B=1, T=23, H=2, Hkv=1, D=16, attention={"selective": {"protect_first": False}}),
    "selective-open-self": dict(B=1, T=23, H=2, Hkv=2, D=16, attention={"selective": {"protect_self": False}}),
    "selective-no-shift": dict(B=1, T=23, H=2, Hkv=2, D=16, attention={"selective": {"shift": False}}),
    "selective-open-no-shift": dict(B=1, T=23, H=3, Hkv=1, D=16, attention={
        "selective": {"shift": False, "protect_self": False, "protect_first": False, "head": 2}}),
    "selective-bilinear": dict(B=2, T=21, H=2, Hkv=2, D=16, attention={"selective": {"bilinear": True}}),
    "selective-mem": dict(B=1, T=37, H=4, Hkv=2, D=16, gain=1.5, attention={
        "selective": {"mem": {"eps": 0.5, "tau": 0.7}}}),
    "selective-packed-mem": dict(B=2, T=40, H=2, Hkv=2, D=8, gain=1.5, documents=[[0, 1, 18, 33], [0, 25]], attention={
        "selective": {"mem": {"eps": 0.3, "tau": 1.0}}}),
    "selective-bilinear-packed": dict(B=1, T=31, H=4, Hkv=2, D=12, documents=[[0, 11, 12]], attention={
        "selective": {"bilinear": True, "relu": False, "mem": {"eps": 0.2, "tau": 2.0}}}),
    "selective-long": dict(B=1, T=131, H=2, Hkv=1, D=8, attention={"selective": {}}, keep_F=False),
    "selective-per-kv-head": dict(B=2, T=18, H=4, Hkv=2, D=8, attention={
        "selective": {"per_kv_head": True, "head": 1, "mem": {"eps": 0.2, "tau": 0.9}}}),
    "selective-per-kv-head-bilinear": dict(B=1, T=17, H=4, Hkv=2, D=8, documents=[[0, 9]], attention={
        "selective": {"per_kv_head": True, "bilinear": True, "shift": False}}),
    "span": dict(B=2, T=19, H=3, Hkv=3, D=8, attention={"span": {"limit": 16, "ramp": 5}}),
    "span-open-relative": dict(B=1, T=21, H=4, Hkv=2, D=8, attention={
        "span": {"limit": 12, "ramp": 4, "exclude_self": True}, "relative": True}),
    "span-dynamic": dict(B=2, T=17, H=2, Hkv=2, D=8, attention={"span": {"limit": 40, "ramp": 3, "dynamic": True}}),
    "relative-window": dict(B=1, T=23, H=2, Hkv=2, D=8, attention={"relative": {"length": 9}, "window": 9}),
    "relative-packed": dict(B=1, T=20, H=4, Hkv=1, D=8, documents=[[0, 3, 11]], attention={"relative": True}),
    "buckets": dict(B=2, T=26, H=4, Hkv=2, D=8, attention={"scale": 1.0, "buckets": {"count": 12, "farthest": 17}}),
    "buckets-selective-packed": dict(B=1, T=22, H=2, Hkv=2, D=8, documents=[[0, 13]], attention={
        "selective": {"head": 1, "mem": {"eps": 0.2, "tau": 1.0}}, "buckets": {"count": 8, "farthest": 11}, "sinks": 1}),
    "bidirectional-buckets": dict(B=2, T=21, H=4, Hkv=1, D=8, attention={
        "bidirectional": True, "buckets": {"count": 12, "farthest": 9}}),
    "bidirectional-selective": dict(B=2, T=23, H=3, Hkv=3, D=12, gain=0.6, attention={
        "bidirectional": True, "selective": {}}),
    "bidirectional-selective-padded": dict(B=3, T=22, H=4, Hkv=2, D=8, gain=0.6, counts=[22, 13, 1], attention={
        "bidirectional": True, "selective": {"head": 2}, "buckets": {"count": 12, "farthest": 9}}),
    "bidirectional-selective-per-kv-head-bilinear": dict(B=2, T=17, H=4, Hkv=2, D=8, gain=0.6, counts=[9, 17], attention={
        "bidirectional": True, "selective": {"per_kv_head": True, "bilinear": True, "shift": False, "protect_self": False}}),
    "bidirectional-selective-no-relu-first": dict(B=1, T=19, H=2, Hkv=1, D=8, gain=0.6, attention={
        "bidirectional": True, "scale": 0.2, "selective": {"head": 1, "relu": False, "protect_first": False}}),
    "alibi": dict(B=2, T=19, H=3, Hkv=1, D=8, attention={"alibi": {}}),
    "alibi-selective-packed": dict(B=1, T=24, H=4, Hkv=2, D=8, gain=1.5, documents=[[0, 15]], attention={
        "alibi": {"max_bias": 4}, "selective": {"head": 1, "mem": {"eps": 0.2, "tau": 1.0}}, "sinks": 1}),
    "forget": dict(B=2, T=21, H=4, Hkv=2, D=8, attention={"forget": {}}),
    "write-selective-packed": dict(B=1, T=24, H=4, Hkv=4, D=8, gain=1.5, documents=[[0, 15]], attention={
        "write": {"window": 5}, "selective": {"head": 1, "mem": {"eps": 0.2, "tau": 1.0}}, "sinks": 1}),
    "fade-forget-alibi": dict(B=2, T=19, H=2, Hkv=1, D=8, attention={"fade": {}, "forget": {}, "alibi": {}}),
    "window-packed": dict(B=2, T=17, H=2, Hkv=1, D=8, documents=[[0, 9], [0, 1]], attention={"window": 4}),
    "strided": dict(B=1, T=22, H=2, Hkv=2, D=8, attention={"strided": 4}),
    "sqrt": dict(B=1, T=27, H=2, Hkv=1, D=8, attention={"sqrt": {"buffer": 3, "density": 1.3}}),
    "sinks": dict(B=2, T=15, H=4, Hkv=2, D=8, attention={"sinks": 2}),
    "off-by-one": dict(B=2, T=19, H=4, Hkv=2, D=8, gain=1.5, attention={"off_by_one": True}),
    "off-by-one-selective-packed": dict(B=1, T=21, H=3, Hkv=3, D=8, documents=[[0, 9]], attention={
        "off_by_one": True, "selective": {"mem": {"eps": 0.2, "tau": 1.0}}, "relative": True, "exclusive": True}),
    "exclusive": dict(B=1, T=18, H=4, Hkv=1, D=8, attention={"exclusive": True}),
    "exclusive-gate-packed": dict(B=1, T=18, H=4, Hkv=2, D=8, documents=[[0, 7]],
                                  attention={"exclusive": {"gate": True}}),
    "gate-elementwise": dict(B=2, T=19, H=4, Hkv=2, D=8, attention={"gate": "elementwise"}),
    "gate-head-packed": dict(B=2, T=17, H=3, Hkv=1, D=8, documents=[[0, 9], [0, 1]], attention={"gate": "head"}),
    "gate-selective-span-sinks-exclusive": dict(B=1, T=20, H=4, Hkv=2, D=8, attention={
        "gate": "elementwise", "selective": {"mem": {"eps": 0.3, "tau": 1.0}}, "span": {"limit": 24, "ramp": 6}, "sinks": 2,
        "exclusive": True}),
    "threshold": dict(B=1, T=24, H=3, Hkv=3, D=8, gain=1.5, attention={"threshold": {"tau": 0.75, "control": [0, 5]}}),
    "threshold-sinks": dict(B=2, T=16, H=2, Hkv=1, D=8,
                            attention={"threshold": {"tau": 0.6, "control": [2]}, "sinks": 3}),
    "selective-span-sinks-exclusive": dict(B=1, T=20, H=4, Hkv=2, D=8, attention={
        "selective": {"mem": {"eps": 0.3, "tau": 1.0}}, "span": {"limit": 24, "ramp": 6}, "sinks": 2, "exclusive": True}),
    "selective-relative-sqrt-threshold": dict(B=1, T=21, H=2, Hkv=2, D=8, attention={
        "selective": {"head": 1}, "relative": True, "sqrt": {"buffer": 4, "density": 2.0}, "threshold": {"tau": 0.9}}),
    "budget": dict(B=2, T=23, H=4, Hkv=2, D=8, budget=6, attention={"selective": {}}),
    "budget-packed": dict(B=2, T=21, H=2, Hkv=2, D=8, documents=[[0, 9], [0]], budget=4, attention={
        "selective": {"head": 1, "shift": False, "mem": {"eps": 0.2, "tau": 1.0}}, "window": 12, "sinks": 1}),
    "budget-heads": dict(B=2, T=20, H=4, Hkv=2, D=8, budget=5, attention={
        "selective": {"per_kv_head": True, "bilinear": True}, "relative": True, "exclusive": True}),
    "all": dict(B=2, T=19, H=4, Hkv=2, D=8, documents=[[0, 12], [0]], attention={
        "scale": 0.4, "selective": {"mem": {"eps": 0.3, "tau": 0.8}}, "span": {"limit": 30, "ramp": 7, "dynamic": True},
        "relative": True, "window": 15, "strided": 6, "sqrt": {"buffer": 6, "density": 1.7}, "sinks": 2,
        "exclusive": {"gate": True}, "threshold": {"tau": 0.85, "control": [1, 4]}}),
}

def seen(a, x):
    """Whether a row sees the key x tokens before it, by the keep rules other than causality, documents and the ends of spans."""
    if "window" in a and x >= a["window"]: return False
    if "strided" in a and x >= a["strided"] and x % a["strided"]: return False
    if "sqrt" in a and x >= a["sqrt"]["buffer"]:
        far, density, m = x - a["sqrt"]["buffer"] + 1, a["sqrt"]["density"], 1
        while math.floor((m / density) ** 2) < far: m += 1
        if math.floor((m / density) ** 2) != far: return False
    return not (x == 0 and a.get("span", {}).get("exclude_self"))

def bucket(a, x):
    """T5's buckets (Raffel et al. 2020), as their program's _relative_position_bucket computes them."""
    n, far, first = a["buckets"]["count"], a["buckets"]["farthest"], 0
    if a.get("bidirectional"):
        n //= 2
        if x < 0: first, x = n, -x
    if x < n // 2: return first + x
    return first + min(n - 1, n // 2 + int(math.log(x / (n // 2)) / math.log(far / (n // 2)) * (n - n // 2)))

def slope(case, h):
    """ALiBi's slopes (Press, Smith, Lewis 2022, §3); for numbers of heads that are not powers of two, as in its program."""
    H, most = case["H"], case["attention"]["alibi"].get("max_bias", 8)
    whole = 2 ** int(math.log2(H))
    of = lambda n: [2 ** (-most * (k + 1) / n) for k in range(n)]
    return (of(whole) + of(2 * whole)[0::2])[h]

def gated(a, x, b, g, i, j, logit):
    """Numbers of the keys: forget gates (Lin et al. 2025, section 3) as running sums, write gates, retention gates."""
    if "forget" in a: logit = logit + x["forget"][b, i, g] - x["forget"][b, j, g]
    if "write" in a and i - j >= a["write"]["window"]: logit = logit + x["write"][b, j, g]
    return logit * torch.exp((i - j) * x["fade"][b, j, g]) if "fade" in a else logit

def thresholded(a, keys, weights):
    """The keys (None: a learned sink) that the threshold keeps, and how many of them are content."""
    control = set(a["threshold"].get("control", []))
    content = [n for n, j in enumerate(keys) if j is not None and j not in control]
    whole = sum(float(weights[n]) for n in content)
    chosen, mass = set(), 0.0
    for n in sorted(content, key=lambda n: (-float(weights[n]), keys[n])):
        if mass >= a["threshold"]["tau"] * whole or float(weights[n]) == 0: break
        mass += float(weights[n])
        chosen.add(n)
    return [n for n in range(len(keys)) if n in chosen or n not in content], len(chosen)

def keys_of(case, b):
    """The keys of sequence b that are not padding."""
    return case["counts"][b] if "counts" in case else case["T"]

def selected(case, x, b, group, i, j):
    """The value with which row i selects key j, before ReLU and rules."""
    a, H, Hkv = case["attention"], case["H"], case["Hkv"]
    s, scale = a["selective"], a.get("scale", 1 / math.sqrt(case["D"]))
    h = group * (H // (Hkv if s.get("per_kv_head") else 1)) + s.get("head", 0)
    if s.get("bilinear"):
        of_row, of_key = (x["sq"][b, i, group], x["sk"][b, j, group]) if s.get("per_kv_head") else (x["sq"][b, i], x["sk"][b, j])
        return scale * of_row.dot(of_key)
    key = x["k"][b, h * Hkv // H, j]
    value = scale * x["q"][b, h, i].dot(key + x["p"][i - j] if a.get("relative") else key)
    if "alibi" in a: value = value - slope(case, h) * (i - j)
    if "buckets" in a: value = value + x["bias"][bucket(a, i - j), h]
    return gated(a, x, b, h * Hkv // H, i, j, value)

def open_selections(case, x, b, group):
    """F [T,T] of rows that see and select in both directions: for every row the sum over all other rows."""
    s, T, n = case["attention"]["selective"], case["T"], keys_of(case, b)
    zero = torch.zeros((), dtype=torch.float64)
    S = [[zero] * T for _ in range(T)]  # padding neither selects nor is selected
    for k in range(n):
        for j in range(n):
            if (s.get("protect_first", True) and j == 0) or (s.get("protect_self", True) and j == k): continue
            value = selected(case, x, b, group, k, j)
            S[k][j] = value if value > 0 or not s.get("relu", True) else zero
    return torch.stack([torch.stack([sum((S[k][j] for k in range(T) if k != i or not s.get("shift", True)), zero)
                                     for j in range(T)]) for i in range(T)])

def head_row(case, x, b, h, i, first, F, held):
    """y [D] for one head and row, and the content keys kept. F: [T] or None. held: the keys not evicted."""
    a, D = case["attention"], case["D"]
    g = h * case["Hkv"] // case["H"]
    scale, q, zero = a.get("scale", 1 / math.sqrt(D)), x["q"][b, h, i], torch.zeros(D, dtype=torch.float64)
    keys, values, logits, masks = [], [], [], []
    for n in range(a.get("sinks", 0)):
        keys.append(None); values.append(x["sink_v"][g, n])
        logits.append(scale * q.dot(x["sink_k"][g, n])); masks.append(None)
    for j in range(first, keys_of(case, b) if a.get("bidirectional") else i + 1):
        mask = None
        if j not in held and j <= i: continue
        if "span" in a:
            z, ramp = (x["zt"][b, h, i] if a["span"].get("dynamic") else x["z"][h]), a["span"]["ramp"]
            mask = (ramp + a["span"]["limit"] * z - (i - j)) / ramp
            if mask <= 0: continue
            if mask >= 1: mask = None
        if not seen(a, i - j): continue
        key = x["k"][b, g, j] + x["p"][i - j] if a.get("relative") else x["k"][b, g, j]
        logit = scale * q.dot(key) + (x["bias"][bucket(a, i - j), h] if "buckets" in a else 0)
        if "alibi" in a: logit = logit - slope(case, h) * (i - j)
        logit = gated(a, x, b, g, i, j, logit)
        keys.append(j); values.append(x["v"][b, g, j]); masks.append(mask)
        logits.append(logit - F[j] if F is not None else logit)
    y, kept = zero, 0
    if keys:
        top = max(float(l.detach()) for l in logits)
        e = [torch.exp(l - top) * (1 if m is None else m) for l, m in zip(logits, masks)]
        one = math.exp(-top) if a.get("off_by_one") else 0  # the 1 in the denominator, scaled by the subtracted maximum
        total = sum(e) + one
        stay = range(len(keys))
        if "threshold" in a: stay, kept = thresholded(a, keys, [(w / total).detach() for w in e])
        total = sum(e[n] for n in stay) + one
        y = sum((e[n] / total * values[n] for n in stay), zero)
    if a.get("exclusive"):
        v = x["v"][b, g, i]
        removed = y.dot(v) / v.dot(v) * v
        y = y - (x["gate"][h] * removed if "gate" in x else removed)
    if "gate" in a: y = y * x["output_gate"][b, i, h]
    return y, kept

def documents(x, b, T):
    """[first, end) of the documents in sequence b. Padding may follow the last."""
    T = x["lengths"][b] if "lengths" in x else T
    starts = sorted({int(t) for t in x["doc_start"][b]}) if "doc_start" in x else [0]
    return zip(starts, starts[1:] + [T])

def rows(case, x):
    """y [B,H,T,D], F [B,(G,)T,T], M [B,(G,)T], the memory loss, counts [B,H,T], and under a budget the
    row before which each key goes, T + 1 for never, [B,G,T]: one query row after another."""
    B, H, Hkv, T, D = (case[n] for n in ("B", "H", "Hkv", "T", "D"))
    a = case["attention"]
    s = a.get("selective")
    apart = s is not None and s.get("per_kv_head", False)  # each key-value head has its own selection
    G = Hkv if apart else 1
    gone = torch.full((B, G, T), T + 1, dtype=torch.int32)
    ys, Fs, Ms, counts, loss = [], [], [], [], torch.zeros((), dtype=torch.float64)
    for b in range(B):
        taken = [[torch.zeros((), dtype=torch.float64) for _ in range(T)] for _ in range(G)]  # selections so far
        y_b, F_b, M_b, count_b = [], [[] for _ in range(G)], [[] for _ in range(G)], []
        held = [[] for _ in range(G)]
        if s is not None and a.get("bidirectional"): everywhere = [open_selections(case, x, b, g) for g in range(G)]
        for i in range(T):
            first = int(x["doc_start"][b, i]) if "doc_start" in x else 0
            for group in range(G):  # the most selected token is evicted; ties: the oldest; a document's first only when alone
                if i == first: held[group] = []
                if "budget" in case and len(held[group]) == case["budget"]:
                    some = [j for j in held[group] if j != first] or held[group]
                    out = max(some, key=lambda j: (float(taken[group][j].detach()), -j))
                    held[group].remove(out)
                    gone[b, group, out] = i
                held[group].append(i)
            for group in range(G if s is not None else 0):
                if a.get("bidirectional"):
                    F_b[group].append(everywhere[group][i])
                    continue
                before = list(taken[group])
                for j in range(first, i + 1):
                    if s.get("protect_first", True) and j == first: continue
                    if s.get("protect_self", True) and j == i: continue
                    value = selected(case, x, b, group, i, j)
                    if s.get("relu", True) and value <= 0: continue
                    taken[group][j] = taken[group][j] + value
                F = torch.stack(before if s.get("shift", True) else taken[group])
                F_b[group].append(F)
                if "mem" in s:
                    tau = s["mem"]["tau"]
                    M_b[group].append(sum(1 - torch.clamp(F[j], max=tau) / tau for j in range(first, i + 1)))
            row = [head_row(case, x, b, h, i, first, F_b[h * G // H][-1] if s is not None else None, held[h * G // H]) for h in range(H)]
            y_b.append(torch.stack([y for y, _ in row]))
            count_b.append(torch.tensor([n for _, n in row], dtype=torch.int32))
        ys.append(torch.stack(y_b, 1))
        counts.append(torch.stack(count_b, 1))
        if s is not None: Fs.append(torch.stack([torch.stack(f) for f in F_b]))
        if s is not None and "mem" in s:
            M = torch.stack([torch.stack(m) for m in M_b])
            Ms.append(M)
            for f, e in documents(x, b, T):  # a document's longest row over its length
                loss = loss + s["mem"]["eps"] * sum(m[f + int(m[f:e].argmax())] for m in M) / (G * (e - f))
    F, M = torch.stack(Fs) if Fs else None, torch.stack(Ms) if Ms else None
    if not apart: F, M = F[:, 0] if Fs else None, M[:, 0] if Ms else None
    return torch.stack(ys), F, M, loss, torch.stack(counts), gone

def make(name, case, folder):
    gen = torch.Generator().manual_seed(sum(ord(c) * (n + 1) for n, c in enumerate(name)))
    B, H, Hkv, T, D = (case[n] for n in ("B", "H", "Hkv", "T", "D"))
    new = lambda *shape: (torch.randn(*shape, generator=gen) * case.get("gain", 1.0)).float()
    given = {"q": new(B, H, T, D), "k": new(B, Hkv, T, D), "v": new(B, Hkv, T, D), "dy": new(B, H, T, D)}
    a = case["attention"]
    if a.get("selective", {}).get("bilinear"):
        shape = (B, T, Hkv, D) if a["selective"].get("per_kv_head") else (B, T, D)
        given["sq"], given["sk"] = new(*shape), new(*shape)
    if "span" in a:  # the span's end is within the context
        shape = (B, H, T) if a["span"].get("dynamic") else (H,)
        given["zt" if len(shape) > 1 else "z"] = torch.rand(*shape, generator=gen) * min(1, T / a["span"]["limit"])
    if a.get("relative"): given["p"] = new(a["relative"]["length"] if isinstance(a["relative"], dict) else T, D)
    if "buckets" in a: given["bias"] = new(a["buckets"]["count"], H)
    if "sinks" in a: given["sink_k"], given["sink_v"] = new(Hkv, a["sinks"], D), new(Hkv, a["sinks"], D)
    if isinstance(a.get("exclusive"), dict) and a["exclusive"].get("gate"): given["gate"] = 0.7 + 0.3 * new(H)
    if "gate" in a:
        given["output_gate"] = torch.sigmoid(new(*((B, T, H, D) if a["gate"] == "elementwise" else (B, T, H))))
    for gate, bias in ("forget", 1), ("write", 0), ("fade", 3):
        if gate in a: given[gate] = torch.nn.functional.logsigmoid(new(B, T, Hkv) + bias)
    if "forget" in a: given["forget"] = given["forget"].double().cumsum(1).float()
    x = {n: t.double().requires_grad_(n != "dy") for n, t in given.items()}
    if "documents" in case:
        starts = [[max(f for f in d if f <= t) for t in range(T)] for d in case["documents"]]
        given["doc_start"] = x["doc_start"] = torch.tensor(starts, dtype=torch.int32)
    if "counts" in case: given["key_count"] = x["key_count"] = torch.tensor(case["counts"], dtype=torch.int32)
    y, F, M, loss, count, gone = rows(case, x)
    ((y * x["dy"]).sum() + loss).backward()
    out = dict(given, y=y)
    if F is not None and case.get("keep_F", True): out["F"] = F
    if M is not None: out["M"], out["mem_loss"] = M, loss.reshape(1)
    if "threshold" in a: out["count"] = count
    if "budget" in case: out["evicted_at"] = gone[:, 0] if gone.shape[1] == 1 else gone
    for n, t in x.items():
        if t.dtype == torch.float64 and n != "dy": out["d" + n] = torch.zeros_like(t) if t.grad is None else t.grad
    public = {n: case[n] for n in ("B", "T", "H", "Hkv", "D", "attention", "budget") if n in case}
    path = os.path.join(folder, f"attention-{name}.safetensors")
    save_file({n: t.detach().contiguous() for n, t in out.items()}, path, metadata={"case": json.dumps(public)})
    print(f"{os.path.getsize(path):8d}  {path}")
    return os.path.getsize(path)

MODELS = {
    "selective": dict(vocab_size=19, context=21, layers=2, width=24, heads=4, kv_heads=4, head_size=6, ffn_width=20,
                      norm="rmsnorm", position="learned", ffn="swiglu", qk_norm=True, bias=False, tied=False,
                      attention={"selective": {"enabled": True, "mem": {"enabled": True, "eps": 0.1, "tau": 1.0}}}),
    "gpt2": dict(vocab_size=17, context=18, layers=2, width=16, heads=2, kv_heads=2, head_size=8, ffn_width=64,
                 norm="layernorm", norm_eps=1e-5, position="learned", ffn="gelu", qk_norm=False, bias=True, tied=True,
                 attention={}),
    "packed": dict(vocab_size=13, context=19, layers=2, width=20, heads=4, kv_heads=2, head_size=8, ffn_width=28,
                   norm="rmsnorm", position="rope", ffn="swiglu", qk_norm=True, bias=False, tied=False,
                   documents=[[0, 6, 14], [0, 11]],
                   attention={"selective": {"enabled": True, "bilinear": True, "mem": {"enabled": True, "eps": 0.4, "tau": 0.5}}}),
    "padded": dict(vocab_size=15, context=17, layers=2, width=16, heads=2, kv_heads=2, head_size=8, ffn_width=20,
                   norm="rmsnorm", position="rope", ffn="swiglu", qk_norm=True, bias=False, tied=False, lengths=[5, 16],
                   attention={"selective": {"enabled": True, "mem": {"enabled": True, "eps": 0.4, "tau": 0.5}}}),
}

def parameters(c, gen):
    new = lambda *shape: (torch.randn(*shape, generator=gen) * 0.25).float()
    V, C, D, F = c["vocab_size"], c["width"], c["head_size"], c["ffn_width"]
    N, inner = (c["heads"] + 2 * c["kv_heads"]) * D, 2 * F if c["ffn"] == "swiglu" else F
    p = {"embed.weight": new(V, C)}
    if c["position"] == "learned": p["pos.weight"] = new(c["context"], C)
    def norm(name, n):
        p[name + ".gain"] = 1 + new(n)
        if c["norm"] == "layernorm" and c["bias"]: p[name + ".shift"] = new(n)
    def linear(name, rows, columns):
        p[name + ".weight"] = new(rows, columns)
        if c["bias"]: p[name + ".bias"] = new(rows)
    for l in range(c["layers"]):
        at = f"layers.{l}."
        norm(at + "norm1", C)
        linear(at + "attn.qkv", N, C)
        if c["qk_norm"]: p[at + "attn.q_norm.gain"], p[at + "attn.k_norm.gain"] = 1.5 + new(D), 1.5 + new(D)
        if c["attention"].get("selective", {}).get("bilinear"):
            p[at + "attn.select_q.weight"], p[at + "attn.select_k.weight"] = new(D, C), new(D, C)
        linear(at + "attn.out", C, c["heads"] * D)
        norm(at + "norm2", C)
        linear(at + "ffn.in", inner, C)
        linear(at + "ffn.out", C, F)
    norm("final_norm", C)
    if not c["tied"]: p["output.weight"] = new(V, C)
    return p

def forward(c, p, tokens, starts, lengths):
    """Logits [B,T,V] and L_mem, with rows() as attention."""
    B, T = tokens.shape
    H, Hkv, D, eps = c["heads"], c["kv_heads"], c["head_size"], c.get("norm_eps", 1e-6)
    place = torch.arange(T)[None, :] - starts
    def norm(x, name):
        if c["norm"] == "layernorm": x = x - x.mean(-1, keepdim=True)
        y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * p[name + ".gain"]
        return y + p[name + ".shift"] if name + ".shift" in p else y
    def linear(x, name):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y
    def turn(x):  # [B,T,heads,D]: rotates the pair (d, d + D/2) as one complex number
        angle = place[..., None].double() * c.get("rope_theta", 10000.0) ** (-2 * torch.arange(D // 2).double() / D)
        z = torch.complex(x[..., :D // 2], x[..., D // 2:]) * torch.polar(torch.ones_like(angle), angle)[:, :, None]
        return torch.cat([z.real, z.imag], -1)
    x, mem = p["embed.weight"][tokens], torch.zeros((), dtype=torch.float64)
    if c["position"] == "learned": x = x + p["pos.weight"][place]
    for l in range(c["layers"]):
        at = f"layers.{l}."
        n = norm(x, at + "norm1")
        q, k, v = linear(n, at + "attn.qkv").view(B, T, H + 2 * Hkv, D).split([H, Hkv, Hkv], 2)
        if c["qk_norm"]: q, k = norm(q, at + "attn.q_norm"), norm(k, at + "attn.k_norm")
        if c["position"] == "rope": q, k = turn(q), turn(k)
        given = {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.transpose(1, 2), "doc_start": starts}
        if lengths: given["lengths"] = lengths
        if at + "attn.select_q.weight" in p:
            given["sq"], given["sk"] = linear(n, at + "attn.select_q"), linear(n, at + "attn.select_k")
        y, _, _, loss, _, _ = rows(dict(B=B, H=H, Hkv=Hkv, T=T, D=D, attention=c["attention"]), given)
        mem = mem + loss / (sum(len(list(documents(given, b, T))) for b in range(B)) * c["layers"])
        x = x + linear(y.transpose(1, 2).reshape(B, T, H * D), at + "attn.out")
        h = linear(norm(x, at + "norm2"), at + "ffn.in")
        if c["ffn"] == "swiglu":
            gate, up = h.chunk(2, -1)
            h = torch.nn.functional.silu(gate) * up
        else: h = torch.nn.functional.gelu(h, approximate="tanh")
        x = x + linear(h, at + "ffn.out")
    return norm(x, "final_norm") @ p["embed.weight" if c["tied"] else "output.weight"].T, mem

def make_model(name, c, folder):
    gen = torch.Generator().manual_seed(sum(ord(x) * (n + 1) for n, x in enumerate(name)))
    B, T = 2, c["context"] - 1
    p32 = parameters(c, gen)
    tokens = torch.randint(c["vocab_size"], (B, T), generator=gen)
    targets = torch.randint(-1, c["vocab_size"], (B, T), generator=gen)
    targets[0, 0] = -1
    documents, lengths = c.pop("documents", None), c.pop("lengths", None)
    for b, n in enumerate(lengths or ()):  # what follows a sequence's last target is padding
        targets[b, n - 1], targets[b, n:] = targets[b, n - 1].clamp(min=0), -1
    starts = torch.zeros(B, T, dtype=torch.int64)
    if documents: starts = torch.tensor([[max(f for f in d if f <= t) for t in range(T)] for d in documents])
    p = {n: t.double().requires_grad_() for n, t in p32.items()}
    logits, mem = forward(c, p, tokens, starts, lengths)
    loss = -(torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0] * (targets >= 0)).sum()
    (loss + mem).backward()
    here = os.path.join(folder, "model-" + name)
    os.makedirs(here, exist_ok=True)
    with open(os.path.join(here, "config.json"), "w") as f: json.dump(c, f, indent=2); f.write("\n")
    save_file(p32, os.path.join(here, "model.safetensors"), metadata={"format": "pt"})
    out = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(),
           "loss": torch.stack([loss, mem]).detach()}
    if documents: out["doc_start"] = starts.int()
    out.update({n: t.grad.float() for n, t in p.items()})
    save_file(out, os.path.join(here, "expected.safetensors"))
    size = sum(os.path.getsize(os.path.join(here, f)) for f in os.listdir(here))
    print(f"{size:8d}  {here}")
    return size

if __name__ == "__main__":
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "tests", "golden")
    os.makedirs(folder, exist_ok=True)
    total = sum(make(n, c, folder) for n, c in CASES.items()) + sum(make_model(n, c, folder) for n, c in MODELS.items())
    print(f"{total:8d}  total")
