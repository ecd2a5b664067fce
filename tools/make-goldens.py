#!/usr/bin/env python3
"""Makes tests/golden: small attention cases and tiny whole models with expected results in double precision.

Written from the equations row by row, with its own loops, so that it shares nothing with the engine or with any other
check. Needs torch; the committed files are what the test suite reads. Usage: tools/make-goldens.py [FOLDER]

A file holds q, k, v, dy (and sq, sk, doc_start), float32; y, dq, dk, dv, F, M, mem_loss, dsq, dsk, float64; and the
metadata key "case": {"B","T","H","Hkv","D","attention"}, as `winnow op attention` reads it. A folder model-NAME is a
checkpoint (config.json, model.safetensors) with expected.safetensors: tokens, targets, doc_start, int32; logits, loss
(sum over counted positions and L_mem), float64; the gradients of their sum, under the parameters' names, float32.
"""
import json, math, os, sys
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
}

def rows(case, x):
    """y [B,H,T,D], F [B,T,T], M [B,T], the memory loss: one query row after another."""
    B, H, Hkv, T, D = (case[n] for n in ("B", "H", "Hkv", "T", "D"))
    a = case["attention"]
    s = a.get("selective")
    scale = a.get("scale", 1 / math.sqrt(D))
    ys, Fs, Ms, loss = [], [], [], torch.zeros((), dtype=torch.float64)
    for b in range(B):
        count = [torch.zeros((), dtype=torch.float64) for _ in range(T)]  # selections of each key so far
        y_b, F_b, M_b = [], [], []
        for i in range(T):
            first = int(x["doc_start"][b, i]) if "doc_start" in x else 0
            if s is not None:
                h = s.get("head", 0)
                before = list(count)
                for j in range(first, i + 1):
                    if s.get("protect_first", True) and j == first: continue
                    if s.get("protect_self", True) and j == i: continue
                    if s.get("bilinear"): value = scale * x["sq"][b, i].dot(x["sk"][b, j])
                    else: value = scale * x["q"][b, h, i].dot(x["k"][b, h * Hkv // H, j])
                    if s.get("relu", True) and value <= 0: continue
                    count[j] = count[j] + value
                F = torch.stack(before if s.get("shift", True) else count)
                F_b.append(F)
                if "mem" in s:
                    tau = s["mem"]["tau"]
                    M_b.append(sum(1 - torch.clamp(F[j], max=tau) / tau for j in range(first, i + 1)))
            y_row = []
            for h in range(H):
                g = h * Hkv // H
                logits = scale * x["k"][b, g, first:i + 1] @ x["q"][b, h, i]
                if s is not None: logits = logits - F[first:i + 1]
                y_row.append(torch.softmax(logits, 0) @ x["v"][b, g, first:i + 1])
            y_b.append(torch.stack(y_row))
        ys.append(torch.stack(y_b, 1))
        if F_b: Fs.append(torch.stack(F_b))
        if M_b:
            M = torch.stack(M_b)
            Ms.append(M)
            loss = loss + s["mem"]["eps"] * M[int(M.argmax())] / T
    return torch.stack(ys), torch.stack(Fs) if Fs else None, torch.stack(Ms) if Ms else None, loss

def make(name, case, folder):
    gen = torch.Generator().manual_seed(sum(ord(c) * (n + 1) for n, c in enumerate(name)))
    B, H, Hkv, T, D = (case[n] for n in ("B", "H", "Hkv", "T", "D"))
    new = lambda *shape: (torch.randn(*shape, generator=gen) * case.get("gain", 1.0)).float()
    given = {"q": new(B, H, T, D), "k": new(B, Hkv, T, D), "v": new(B, Hkv, T, D), "dy": new(B, H, T, D)}
    if case["attention"].get("selective", {}).get("bilinear"): given["sq"], given["sk"] = new(B, T, D), new(B, T, D)
    x = {n: t.double().requires_grad_(n != "dy") for n, t in given.items()}
    if "documents" in case:
        starts = [[max(f for f in d if f <= t) for t in range(T)] for d in case["documents"]]
        given["doc_start"] = x["doc_start"] = torch.tensor(starts, dtype=torch.int32)
    y, F, M, loss = rows(case, x)
    ((y * x["dy"]).sum() + loss).backward()
    out = dict(given, y=y)
    if F is not None and case.get("keep_F", True): out["F"] = F
    if M is not None: out["M"], out["mem_loss"] = M, loss.reshape(1)
    for n, t in x.items():
        if t.dtype == torch.float64 and n != "dy": out["d" + n] = torch.zeros_like(t) if t.grad is None else t.grad
    public = {n: case[n] for n in ("B", "T", "H", "Hkv", "D", "attention")}
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

def forward(c, p, tokens, starts):
    """logits [B,T,V] and L_mem, with the attention of rows()."""
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
    def turn(x):  # [B,T,heads,D]: the pair (d, d + D/2) as one complex number
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
        if at + "attn.select_q.weight" in p:
            given["sq"], given["sk"] = linear(n, at + "attn.select_q"), linear(n, at + "attn.select_k")
        y, _, _, loss = rows(dict(B=B, H=H, Hkv=Hkv, T=T, D=D, attention=c["attention"]), given)
        mem = mem + loss / (B * c["layers"])
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
    documents = c.pop("documents", None)
    starts = torch.zeros(B, T, dtype=torch.int64)
    if documents: starts = torch.tensor([[max(f for f in d if f <= t) for t in range(T)] for d in documents])
    p = {n: t.double().requires_grad_() for n, t in p32.items()}
    logits, mem = forward(c, p, tokens, starts)
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
