#!/usr/bin/env python3
"""Makes tests/golden/methods.safetensors: what kvpress's presses say of one layer's keys, values and queries.

Inputs are not stored: tests/kv/test_once.c computes the same numbers from the same integers. Presses run in double
precision (where they ask for float32 they get float64), and a sketch that is random there is given. R-KV, which kvpress
lacks, is computed here from its paper (arXiv 2505.24133) and the constants of its authors' code. Needs kvpress
(tools/python-env kvpress). Usage: tools/make-method-goldens.py [FILE]

Tensors: CASE/METHOD, float64 [Hkv,n]: the importance of every token, infinite for tokens that the method always keeps;
CASE/METHOD/kept, int32 [Hkv,kept], where the choice of the best has a margin; CASE/ada-METHOD, int32 [Hkv], how many
tokens each head keeps under AdaKV; pyramid, float64 [rows,7]: n, ratio, window, beta, layers, layer and the tokens kept.
The cases' settings are in the metadata, which the test reads.
"""
import math, os, sys, types

sys.dont_write_bytecode = True
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
from python_env import need
need("kvpress", "torch", "safetensors", "kvpress")
import numpy, torch
from safetensors.torch import save_file
import kvpress
from kvpress.presses import (compactor_press, kvzip_press, leverage_press, non_causal_attention_press, pyramidkv_press,
                             snapkv_press)

F64 = torch.float64
torch.set_default_dtype(F64)
RATIO = 0.5
CASES = {  # rope: 0 means that nothing is rotated; chunk: 138 = 3 * 46 leaves no rest
    "first": dict(seed=1, n=70, H=4, Hkv=2, D=8, C=12, rope=1, magnitude=1.0, lag=16, rows=8, chunk=32, sketch=6),
    "grouped": dict(seed=2, n=150, H=6, Hkv=2, D=12, C=20, rope=1, magnitude=1.25, lag=32, rows=16, chunk=46, sketch=16),
    "short": dict(seed=3, n=45, H=3, Hkv=1, D=10, C=7, rope=1, magnitude=1.0, lag=32, rows=32, chunk=64, sketch=12),
    "still": dict(seed=4, n=97, H=2, Hkv=2, D=7, C=9, rope=0, magnitude=1.0, lag=16, rows=5, chunk=16, sketch=5),
}
REPEATED = (0, 20), (20, 37)  # KVzip's chunks
FUTURE = 40                   # Expected Attention's next positions


class Double:
    """torch, whose float32 is float64 and whose normal random numbers are given."""
    float32 = F64
    def __init__(self): self.given = None
    def __getattr__(self, name): return getattr(torch, name)
    def randn(self, *shape, **_): return self.given.view(*shape).clone()


double = Double()
for m in (leverage_press, non_causal_attention_press, snapkv_press): m.torch = double


def draw(seed, count):
    """Uniform in [-1,1), 24 bits, by splitmix64 of seed 2^32 + i."""
    with numpy.errstate(over="ignore"):
        z = (numpy.uint64(seed) << numpy.uint64(32)) + numpy.arange(count, dtype=numpy.uint64)
        z = z * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(40)).astype(numpy.float64) * 2.0**-23 - 1


def single(x):
    return torch.from_numpy(x.astype(numpy.float32).astype(numpy.float64))


def inputs(c, rows):
    """q [rows,H,D], k, v [rows,Hkv,D] before rotation, W_o [C,H D], sketch [Hkv,D,sketch]."""
    H, G, D, s = c["H"], c["Hkv"], c["D"], 8 * c["seed"]
    q = 1.2 * draw(s, rows * H * D).reshape(rows, H, D) + 0.8 * draw(s + 1, H * D).reshape(H, D)
    centre = draw(s + 2, 11 * G * D).reshape(11, G, D)[numpy.arange(rows) * 7 % 11]
    k = 1.5 * centre + 0.7 * draw(s + 3, rows * G * D).reshape(rows, G, D)
    v = draw(s + 4, rows * G * D).reshape(rows, G, D) * (1 + 0.125 * (numpy.arange(rows) % 13))[:, None, None]
    wo = draw(s + 5, c["C"] * H * D).reshape(c["C"], H * D)
    sketch = draw(s + 6, G * D * c["sketch"]).reshape(G, D, c["sketch"])
    return [single(x) for x in (q, k, v, wo, sketch)]


class Rotary:
    def __init__(self, c):
        self.c = c
    def __call__(self, _, positions):
        D = self.c["D"]
        if not self.c["rope"]:
            return torch.ones(1, positions.shape[1], D, dtype=F64), torch.zeros(1, positions.shape[1], D, dtype=F64)
        f = 10000.0 ** (-torch.arange(0, D, 2, dtype=F64) / D)
        a = positions[0].to(F64)[:, None] * torch.cat([f, f])
        return (a.cos() * self.c["magnitude"])[None], (a.sin() * self.c["magnitude"])[None]


def rotate(x, cos, sin):
    """x [heads,n,D]"""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def module_of(c, wo):
    H, G, D = c["H"], c["Hkv"], c["D"]
    m = types.SimpleNamespace(head_dim=D, num_key_value_groups=H // G, layer_idx=0, rotary_emb=Rotary(c))
    m.config = types.SimpleNamespace(num_attention_heads=H, num_key_value_heads=G, head_dim=D, hidden_size=c["C"],
                                     num_hidden_layers=1, _attn_implementation="sdpa")
    m.q_proj = lambda h: h[..., :H * D]  # the hidden state of a row is its q and its k
    m.k_proj = lambda h: h[..., H * D:]
    m.o_proj = types.SimpleNamespace(weight=wo)
    return m


def rkv(q, k, rows, neighbours=3, mix=0.1, similar=0.5):
    """q [H,n,D], k [Hkv,n,D], both rotated."""
    G, n, D = k.shape
    group, out = q.shape[0] // G, torch.full((G, n), math.inf, dtype=F64)
    for g in range(G):
        logits = torch.stack([q[h, n - rows:] @ k[g, :n - rows].T / math.sqrt(D)
                              for h in range(g * group, (g + 1) * group)]).amax(0)
        weight = logits.softmax(-1).mean(0)
        importance = torch.stack([weight[max(0, j - neighbours):j + neighbours + 1].max() for j in range(n - rows)])
        unit = k[g] / (k[g].norm(dim=-1, keepdim=True) + 1e-8)
        C = unit @ unit.T
        C.fill_diagonal_(0)
        for i in range(n):
            like = [j for j in range(n) if C[i, j] > similar]
            C[i, like[-1] if like else 0] = 0
        redundancy = C.mean(0).softmax(-1)
        out[g, :n - rows] = mix * importance - (1 - mix) * redundancy[:n - rows]
    return out


def kvzip(c, module, q, k, cos_sin):
    """q, k before rotation [rows,heads,D], the rows of the repetitions after the n of the context."""
    n, G = c["n"], c["Hkv"]
    press = kvpress.KVzipPress(RATIO)
    press.score_val = torch.zeros(1, 1, G, n, dtype=F64)
    press.context_length = n
    at = n
    for press.start_idx, press.end_idx in REPEATED:
        T = press.end_idx - press.start_idx + 3  # a request of three tokens
        cos, sin = (x[:, n:n + T] for x in cos_sin)  # each repetition follows the context
        hidden = torch.cat([q[at:at + T].flatten(1), k[at:at + T].flatten(1)], -1)[None]
        own = rotate(k[at:at + T].transpose(0, 1), cos, sin)
        keys = torch.cat([rotate(k[:n].transpose(0, 1), cos_sin[0][:, :n], cos_sin[1][:, :n]), own], 1)[None]
        press.score_kvzip(module, hidden, keys, keys, None, {"position_embeddings": (cos, sin)})
        at += T
    out = press.score_val[0, 0].clone()
    out[:, :press.n_sink] = math.inf
    return out


def presses(c):
    """Name -> press, and how many first and last tokens always stay."""
    K, w, always = kvpress, c["rows"], (0, 0)
    snap = K.SnapKVPress(RATIO, window_size=w)
    lag = c["n"] - 4 - ((c["n"] - 4) // c["lag"] - 1) * c["lag"] if c["n"] >= 4 + 2 * c["lag"] else 0
    out = {
        "lagkv": (K.LagKVPress(RATIO, lag_size=c["lag"]), 4, lag),
        "lagkv-cross": (K.LagKVPress(RATIO, lag_size=c["lag"], cross_scoring=True), 4, lag),
        "observed": (K.ObservedAttentionPress(RATIO), 0, 0),
        "snapkv": (snap, 0, w),
        "tova": (K.TOVAPress(RATIO), 0, 1),
        "leverage": (K.LeverageScorePress(RATIO, sketch_dimension=c["sketch"]), 0, 0),
        "compactor": (K.CompactorPress(RATIO, chunk_size=c["chunk"], sketch_dimension=c["sketch"]), 8, 4),
        "critical-snapkv": (K.CriticalKVPress(snap), 0, w),
        "critical-observed": (K.CriticalKVPress(K.ObservedAttentionPress(RATIO)), 0, 0),
    }
    if c["rope"]:  # the press's rotation does not divide an odd head
        expected = lambda **o: K.ExpectedAttentionPress(RATIO, n_future_positions=FUTURE, **o)
        out["expected"] = (expected(), 4, 0)
        out["expected-mean"] = (expected(use_covariance=False, use_vnorm=False), 4, 0)
        out["expected-epsilon"] = (expected(epsilon=0.02), 4, 0)
    return out


class Given(kvpress.ScorerPress):
    """A press whose scores are given."""
    def score(self, *_):
        return self.scores.clone()


def run(name, c, out):
    n, H, G, D = c["n"], c["H"], c["Hkv"], c["D"]
    rows = n + sum(b - a + 3 for a, b in REPEATED)
    q, k, v, wo, sketch = inputs(c, rows)
    module = module_of(c, wo)
    cos_sin = module.rotary_emb(None, torch.arange(rows)[None])
    cos, sin = (x[:, :n] for x in cos_sin)
    hidden = torch.cat([q[:n].flatten(1), k[:n].flatten(1)], -1)[None]
    queries, keys = rotate(q[:n].transpose(0, 1), cos, sin), rotate(k[:n].transpose(0, 1), cos, sin)
    logits = queries @ keys.repeat_interleave(H // G, 0).transpose(1, 2) / math.sqrt(D)
    attention = (logits + torch.full((n, n), -math.inf, dtype=F64).triu(1)).softmax(-1)
    values = v[:n].transpose(0, 1).contiguous()
    double.given = sketch
    found = {"rkv": rkv(queries, keys, 8), "kvzip": kvzip(c, module, q, k, cos_sin)}
    for method, (press, first, last) in presses(c).items():
        eager = "observed" in method
        score = press.score(module, hidden, keys[None].contiguous(), values[None], attention[None] if eager else None,
                            {"position_embeddings": (cos, sin)})[0]
        score = torch.where(score == torch.finfo(score.dtype).max, math.inf, score.double())
        score[:, :first] = math.inf
        score[:, n - last:] = math.inf
        found[method] = score
    kept = kvpress.utils.compute_n_kept(n, RATIO)
    for method, score in found.items():
        out[f"{name}/{method}"] = score.contiguous()
        order = score.sort(dim=-1, descending=True)
        gap = order.values[:, kept - 1] - order.values[:, kept]
        if kept < n and bool((gap > 1e-6 * order.values[:, kept].abs()).all()):
            out[f"{name}/{method}/kept"] = order.indices[:, :kept].sort(dim=-1).values.to(torch.int32).contiguous()
        if method in ("snapkv", "observed", "expected", "rkv"):
            press = kvpress.AdaKVPress(Given(RATIO))
            press.press.scores = torch.where(score.isinf(), 1e30, score)[None]
            press.compress(module, hidden, keys[None], values[None], None, {})
            gone = torch.bincount(module.masked_key_indices[1], minlength=G)
            out[f"{name}/ada-{method}"] = (n - gone).to(torch.int32)


def pyramid():
    rows = []
    for n, ratio, window, beta, layers in [(1000, 0.5, 32, 20, 30), (1000, 0.75, 8, 20, 30), (777, 0.9, 3, 5, 12),
                                           (100, 0.5, 64, 20, 4), (500, 0.25, 4, 2, 7), (300, 0.5, 5, 3, 1)]:
        press = kvpress.PyramidKVPress(ratio, window_size=window, beta=beta)
        for layer in range(layers):
            m = types.SimpleNamespace(layer_idx=layer, config=types.SimpleNamespace(num_hidden_layers=layers))
            rows.append([n, ratio, window, beta, layers, layer, press.get_layer_budget(m, n)])
    return torch.tensor(rows, dtype=F64)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "tests", "golden", "methods.safetensors")
    out = {"pyramid": pyramid()}
    for name, c in CASES.items():
        run(name, c, out)
    settings = {f"{name}/{key}": str(value) for name, c in CASES.items() for key, value in c.items()}
    save_file(out, path, metadata=settings | {"cases": " ".join(CASES), "future": str(FUTURE)})
    print(f"{path}: {len(out)} tensors, {os.path.getsize(path)} bytes")


main()
