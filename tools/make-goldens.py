#!/usr/bin/env python3
"""Makes tests/golden/attention-*.safetensors: small attention cases with expected results in double precision.

Written from the equations row by row, with its own loops, so that it shares nothing with the engine or with any other
check. Needs torch; the committed files are what the test suite reads. Usage: tools/make-goldens.py [FOLDER]

A file holds q, k, v, dy (and sq, sk, doc_start), float32; y, dq, dk, dv, F, M, mem_loss, dsq, dsk, float64; and the
metadata key "case": {"B","T","H","Hkv","D","attention"}, as `winnow op attention` reads it.
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

if __name__ == "__main__":
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "tests", "golden")
    os.makedirs(folder, exist_ok=True)
    print(f"{sum(make(n, c, folder) for n, c in CASES.items()):8d}  total")
