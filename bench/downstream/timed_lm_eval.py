"""lm-evaluation-harness's `hf` backend in one process, for bench/downstream/speed: timed_lm_eval.py FOLDER DEFINITIONS

Reads lines of JSON {"task", "dir", "batch"} and answers the questions in dir/TASK.jsonl with lm-eval's own definition
of the task, in float32 on the CPU with one thread. Only HFLM.loglikelihood is timed: tokens, batches, the model and
log-softmax, without reading the set, building prompts or computing metrics."""
import json, os, sys, time

import torch

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
from lm_eval import evaluator, tasks
from lm_eval.models.huggingface import HFLM

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # lm-eval prints; only answers may go to the real standard output
model = HFLM(pretrained=sys.argv[1], dtype="float32", device="cpu", batch_size=1)
plain = model.loglikelihood
last = {}


def timed(requests, **rest):
    wall, cpu = time.perf_counter(), time.process_time()
    found = plain(requests, **rest)
    last.update(seconds=time.perf_counter() - wall, cpu=time.process_time() - cpu)
    last["answers"] = [[r.doc_id, r.idx, float(ll), bool(greedy)] for r, (ll, greedy) in zip(requests, found)]
    return found


model.loglikelihood = timed
model.loglikelihood([type("R", (), {"args": ("One", " two"), "doc_id": 0, "idx": 0})()])  # the first call sets up kernels
print(json.dumps({"ready": True, "version": __import__("lm_eval").__version__, "torch": torch.__version__}), file=out, flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    os.chdir(ask["dir"])
    model.batch_size_per_gpu = ask["batch"] if ask["batch"] == "auto" else int(ask["batch"])
    model.batch_sizes = {}
    evaluator.simple_evaluate(model=model, tasks=["local_" + ask["task"]], bootstrap_iters=0, log_samples=False,
                              task_manager=tasks.TaskManager(include_path=sys.argv[2], include_defaults=False))
    print(json.dumps(last), file=out, flush=True)
