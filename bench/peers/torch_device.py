#!/usr/bin/env python3
"""PyTorch's side of bench/gpu: attention and training steps on a GPU. Each line of standard input is a question in
JSON, each line of standard output its answer.

  torch_device.py [--device cuda|cpu]
  {"do": "time", "kind": "cudnn", "B": 1, "T": 16384, "H": 12, "D": 64, "backward": true, "repeats": 9}
     kinds: cudnn, flash: standard attention by scaled_dot_product_attention with that backend; compiled: selective
     attention of arXiv 2410.02703 under torch.compile, F in float
  {"do": "train", "kind": "standard" | "selective", "model": {...}, "batch": 64, "context": 512, "repeats": 5}
     a step of the model under torch.compile in bf16 (autocast), fused AdamW and clipping: peers/torch_train.py's model
  torch_device.py --warm I N < QUESTIONS
     runs every Nth question once, starting with the Ith, to fill the compiler's cache on disk

Inputs are bf16, normalised as after QK-norm; the selecting head's queries are scaled by 0.15. On a GPU a sample is a
replay of a CUDA graph with enough passes to take 20 ms, timed by events: at small T, calls from Python take longer than
kernels.
"""
import argparse
import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_train

DEVICE = "cuda"


def selective(q, k, v, scale):
    """The paper's listing with the fewest possible T x T arrays: S from head 0, no selection of the first token or of
    itself, F as the sum of S over earlier rows."""
    T = q.shape[-2]
    logits = (q @ k.transpose(-1, -2)) * scale
    S = torch.relu(logits[:, 0]).float().tril(-1)
    S = torch.cat([torch.zeros_like(S[..., :1]), S[..., 1:]], -1)
    total = torch.cumsum(S, -2)
    total = torch.cat([torch.zeros_like(total[..., :1, :]), total[..., :-1, :]], -2)
    logits = logits - total[:, None].to(logits.dtype)
    causal = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(logits.masked_fill(causal, float("-inf")), -1) @ v


torch_train.selective = selective
selective_compiled = torch.compile(selective, dynamic=False)


def standard(q, k, v, backend):
    if DEVICE == "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    which = SDPBackend.CUDNN_ATTENTION if backend == "cudnn" else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(which):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def inputs(o):
    g = torch.Generator(device=DEVICE).manual_seed(1)
    q, k, v, dy = (torch.randn(o["B"], o["H"], o["T"], o["D"], device=DEVICE, generator=g) for _ in range(4))
    q, k = (F.normalize(x, dim=-1) * math.sqrt(o["D"]) for x in (q, k))
    q[:, 0] *= 0.15
    return [x.to(torch.bfloat16) for x in (q, k, v, dy)]


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def once(f):
    begin = time.perf_counter()
    f()
    wait()
    return time.perf_counter() - begin


def graph_of(f, passes):
    """The passes as one graph, or None if that is impossible."""
    try:
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(passes):
                f()
        return g
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def samples(f, repeats, graphs):
    """Seconds of each sample, the number of passes in a sample, and whether it is a graph."""
    for _ in range(3):
        once(f)
    each = once(f)
    passes = max(1, min(100, math.ceil(0.02 / each))) if DEVICE == "cuda" else 1
    graph = graph_of(f, passes) if DEVICE == "cuda" and graphs else None
    run = graph.replay if graph else lambda: [f() for _ in range(passes)]
    once(run)
    taken = []
    for _ in range(repeats):
        if DEVICE == "cuda":
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            run()
            b.record()
            torch.cuda.synchronize()
            taken.append(a.elapsed_time(b) / 1e3 / passes)
        else:
            taken.append(once(run) / passes)
    return taken, passes, graph is not None


def memory(reset=False):
    if DEVICE != "cuda":
        return 0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


def summary(taken):
    taken = sorted(taken)
    n, median = len(taken), taken[len(taken) // 2]
    return {"seconds": median, "spread": (taken[(3 * (n - 1) + 2) // 4] - taken[(n - 1) // 4]) / median, "repeats": n}


def attention_pass(o):
    q, k, v, dy = inputs(o)
    scale = o["D"] ** -0.5
    forward = (lambda: selective_compiled(q, k, v, scale)) if o["kind"] == "compiled" else \
              (lambda: standard(q, k, v, o["kind"]))
    if not o.get("backward"):
        def run():
            with torch.no_grad():
                forward()
        return run
    for x in (q, k, v):
        x.requires_grad_()
    return lambda: torch.autograd.grad(forward(), (q, k, v), dy)


def answer_time(o):
    run = attention_pass(o)
    run()
    base = memory(reset=True)
    run()
    bytes_taken = memory() - base
    taken, passes, graph = samples(run, o.get("repeats", 9), o["kind"] != "compiled")
    return {**summary(taken), "passes": passes, "graph": graph, "bytes": bytes_taken}


class Training:
    def __init__(self, o):
        torch._dynamo.reset()
        torch.manual_seed(1)
        c = torch_train.Config(o["model"])
        self.batch, self.context, self.V = o["batch"], o["context"], c.V
        self.model = torch_train.Model(c, o["kind"] == "selective").to(DEVICE)
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
        self.loss = torch.compile(self.model, dynamic=False)
        self.tokens = torch.randint(self.V, (2, self.batch, self.context), device=DEVICE)

    def step(self):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.loss(self.tokens[0], self.tokens[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def answer_train(o):
    memory(reset=True)
    t = Training(o)
    for _ in range(3):
        once(t.step)
    s = summary([once(t.step) for _ in range(o.get("repeats", 5))])
    return {**s, "tokens_per_second": o["batch"] * o["context"] / s["seconds"], "bytes": memory(),
            "parameters": sum(p.numel() for p in t.model.parameters())}


def answer(o):
    try:
        return {"time": answer_time, "train": answer_train}[o["do"]](o)
    except Exception as e:  # what PyTorch cannot run here is reported and not fatal
        return {"error_line": f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e) else ''}"}
    finally:
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def main():
    global DEVICE
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--warm", nargs=2, type=int, metavar=("I", "N"))
    a = p.parse_args()
    DEVICE = a.device
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 256
    for i, line in enumerate(sys.stdin):
        o = json.loads(line)
        if a.warm:
            if i % a.warm[1] == a.warm[0]:
                answer({**o, "repeats": 1})
            continue
        if o["do"] == "about":
            about = {"torch": torch.__version__}
            if DEVICE == "cuda":
                about.update(device=torch.cuda.get_device_name(), cudnn=torch.backends.cudnn.version(),
                             cuda=torch.version.cuda)
            print(json.dumps(about), flush=True)
        else:
            print(json.dumps(answer(o)), flush=True)


if __name__ == "__main__":
    main()
