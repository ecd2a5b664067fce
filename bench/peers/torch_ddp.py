#!/usr/bin/env python3
"""The peer of `mpirun winnow train`: the same steps with PyTorch's DistributedDataParallel over gloo, one process for
each rank.

  python -m torch.distributed.run --nproc_per_node N bench/peers/torch_ddp.py --model MODEL.json --batch ROWS --context
  T

ROWS: the sequences of one rank. Buckets are exchanged during the backward pass, DistributedDataParallel's default. The
model, the optimizer and the variants are those of torch_train.py. Rank 0 prints one line of JSON for each variant."""
import argparse, json, os, sys, time

import torch
import torch.distributed as dist
import torch.nn as nn

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_train import Config, Runner

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--model", required=True), p.add_argument("--batch", type=int, required=True)
p.add_argument("--context", type=int, required=True), p.add_argument("--threads", type=int, default=1)
p.add_argument("--variants", default="sdpa-eager,sdpa-eager-bf16"), p.add_argument("--steps", type=int, default=3)
a = p.parse_args()
torch.set_num_threads(a.threads)
dist.init_process_group("gloo")
with open(a.model) as f:
    c = Config(json.load(f))
for variant in a.variants.split(","):
    r = Runner(c, variant, a.batch, a.context, 1.0)
    r.model = nn.parallel.DistributedDataParallel(r.model, gradient_as_bucket_view=True)
    r.loss = torch.compile(r.model) if "-compile" in variant else r.model
    r.step()
    dist.barrier()
    taken = []
    for _ in range(a.steps):
        start = time.perf_counter()
        r.step()
        taken.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(json.dumps({"variant": variant, "seconds": taken, "torch": torch.__version__, "ranks": dist.get_world_size()}), flush=True)
    del r
dist.destroy_process_group()
