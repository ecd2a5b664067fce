#!/usr/bin/env python3
"""The peer of `winnow bench train`: training steps of the same model in PyTorch on the CPU.

Variants
  sdpa-eager         standard attention with torch.nn.functional.scaled_dot_product_attention, eager mode
  sdpa-compile       the same under torch.compile
  selective-eager    selective attention, written directly: the listing of arXiv 2410.02703 applied to the logits of all
                     heads, with H x T x T arrays
  selective-compile  the same under torch.compile
  ...-bf16           each of them under torch.autocast(dtype=torch.bfloat16): products and attention in bf16;
  parameters,
                     norms' statistics, the loss and the optimizer in float32

A step is the same as in winnow: forward, cross-entropy, backward, clipping of the global norm, AdamW. Everything that
speeds PyTorch up is on: fused AdamW, fused projections for q,k,v and gate/up, no copies of heads, gradients set to
None, an allocator that keeps memory between steps (see bench/train). The model's shape is read from the JSON that
winnow prints.

With --serve it reads lines "VARIANT WARMUP REPEATS" and answers each with one line of JSON, so that a driver can
alternate between programs in one run.
"""
import argparse
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    def __init__(self, model):
        get = model.get
        self.V, self.T = get("vocab_size"), get("context")
        self.L, self.C, self.H = get("layers"), get("width"), get("heads")
        self.Hkv = get("kv_heads") or self.H
        self.D = get("head_size") or self.C // self.H
        self.ffn = get("ffn", "swiglu")
        self.F = get("ffn_width") or (8 * self.C // 3 if self.ffn == "swiglu" else 4 * self.C)
        self.rms = get("norm", "rmsnorm") == "rmsnorm"
        self.eps = get("norm_eps", 1e-6)
        self.position = get("position", "learned")
        self.qk_norm, self.bias, self.tied = get("qk_norm", False), get("bias", False), get("tied", False)
        self.std = get("init_std", 0.02)
        if self.position == "rope" or self.Hkv != self.H:
            sys.exit("torch_train.py: rotary positions and grouped heads are not in this peer")


def norm(c, width):
    return nn.RMSNorm(width, eps=c.eps) if c.rms else nn.LayerNorm(width, eps=c.eps, bias=c.bias)


def selective(q, k, v, scale):
    """The paper's listing: S from head 0, shifted down by a row, summed down the columns, subtracted in all heads."""
    T = q.shape[2]
    logits = (q @ k.transpose(-1, -2)) * scale
    causal = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    logits = logits.masked_fill(~causal, float("-inf"))
    S = logits[:, 0]
    S = F.relu(S)
    S = S * (1 - torch.eye(T, device=q.device))  # no selection of itself
    column = torch.ones(T, device=q.device)
    column[0] = 0
    S = S * column  # no selection of the first token
    S = torch.roll(S, 1, -2)
    row = torch.ones(T, 1, device=q.device)
    row[0] = 0
    S = S * row
    logits = logits - torch.cumsum(S, dim=-2)[:, None]
    return torch.softmax(logits, dim=-1) @ v


class Block(nn.Module):
    def __init__(self, c, is_selective):
        super().__init__()
        self.c, self.is_selective = c, is_selective
        self.norm1, self.norm2 = norm(c, c.C), norm(c, c.C)
        self.qkv = nn.Linear(c.C, 3 * c.H * c.D, bias=c.bias)
        self.out = nn.Linear(c.H * c.D, c.C, bias=c.bias)
        self.inner = nn.Linear(c.C, (2 if c.ffn == "swiglu" else 1) * c.F, bias=c.bias)
        self.outer = nn.Linear(c.F, c.C, bias=c.bias)
        if c.qk_norm:
            self.q_norm, self.k_norm = norm(c, c.D), norm(c, c.D)

    def forward(self, x):
        c = self.c
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, c.H, c.D).unbind(2)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scale = 1 / math.sqrt(c.D)
        if self.is_selective:
            y = selective(q, k, v, scale)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, c.H * c.D))
        h = self.inner(self.norm2(x))
        if c.ffn == "swiglu":
            gate, up = h.chunk(2, dim=-1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(h, approximate="tanh") if c.ffn == "gelu" else F.relu(h)
        return x + self.outer(h)


class Model(nn.Module):
    def __init__(self, c, is_selective):
        super().__init__()
        self.embed = nn.Embedding(c.V, c.C)
        self.pos = nn.Embedding(c.T, c.C) if c.position == "learned" else None
        self.blocks = nn.ModuleList(Block(c, is_selective) for _ in range(c.L))
        self.norm = norm(c, c.C)
        self.head = nn.Linear(c.C, c.V, bias=False)
        if c.tied:
            self.head.weight = self.embed.weight
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=c.std)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if self.pos is not None:
            x = x + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.weight.shape[0]), targets.view(-1))


class Runner:
    def __init__(self, c, variant, batch, context, clip):
        kind, mode, *precision = variant.split("-")
        torch.manual_seed(1)
        self.c, self.batch, self.context, self.clip = c, batch, context, clip
        self.model = Model(c, kind == "selective")
        decay = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), fused=True)
        self.loss = torch.compile(self.model) if mode == "compile" else self.model
        self.autocast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=precision == ["bf16"])
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def step(self):
        tokens = torch.randint(self.c.V, (self.batch, self.context))
        targets = torch.randint(self.c.V, (self.batch, self.context))
        start = time.perf_counter()
        with self.autocast():
            loss = self.loss(tokens, targets)
        loss.backward()
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        return time.perf_counter() - start, value


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="JSON file: winnow's model object")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--context", type=int, required=True)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--variants", default="sdpa-eager,sdpa-compile,selective-eager")
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--serve", action="store_true")
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    with open(a.model) as f:
        c = Config(json.load(f))
    runners = {}

    def run(variant, warmup, repeats):
        try:
            if variant not in runners:
                runners[variant] = Runner(c, variant, a.batch, a.context, a.clip)
            for _ in range(warmup):
                runners[variant].step()
            taken = [runners[variant].step() for _ in range(repeats)]
        except Exception as e:  # what PyTorch cannot run here is reported and not fatal
            return {"variant": variant, "error": f"{type(e).__name__}: {str(e)[:300]}"}
        return {
            "variant": variant,
            "seconds": [s for s, _ in taken],
            "loss": taken[-1][1],
            "parameters": runners[variant].parameters,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    if a.serve:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            variant, warmup, repeats = line.split()
            print(json.dumps(run(variant, int(warmup), int(repeats))), flush=True)
    else:
        for variant in a.variants.split(","):
            print(json.dumps(run(variant, a.warmup, a.repeats)), flush=True)


if __name__ == "__main__":
    main()
