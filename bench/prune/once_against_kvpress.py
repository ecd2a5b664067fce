#!/usr/bin/env python3
"""A context that is compressed once, in winnow and in kvpress: memory and speed beside each other.

    bench/prune/once_against_kvpress.py FOLDER TEXT [--methods knorm,snapkv,keydiff] [--ratio 0.75] [--tokens 4096]
        [--answer 32] [--threads 1] [--rounds 3] [--python PYTHON] [--winnow FILE] [--out FILE.json]

FOLDER is a Hugging Face folder in float32, which both load (winnow convert --to hf), TEXT any text of more than
`tokens` tokens. Both read the same tokens, keep 1 - ratio of them in each layer and key-value head, read a question and
write `answer` tokens. The sides alternate; medians over the rounds are printed, and the processor time of whole
processes. "peak" is the most memory that a process holds after the model is loaded (VmHWM), the model included; "full"
compresses nothing. PYTHON is that of tools/python-env kvpress."""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import python_env

QUESTION = "\nWhat is said above, in one sentence?"


def theirs(a):
    """kvpress's side, in this process."""
    import contextlib
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    import kvpress
    torch.set_num_threads(a.threads)
    presses = {"knorm": kvpress.KnormPress, "snapkv": kvpress.SnapKVPress, "keydiff": kvpress.KeyDiffPress}
    options = {"snapkv": {"window_size": 32, "kernel_size": 5}}.get(a.child, {})
    press = presses[a.child](compression_ratio=a.ratio, **options) if a.child in presses else None
    model = AutoModelForCausalLM.from_pretrained(a.folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    with open(a.text, encoding="utf-8") as f:
        ids = json.load(f)
    context, question = torch.tensor([ids["context"]]), torch.tensor([ids["question"]])
    with torch.inference_mode():
        model(context[:, :16], logits_to_keep=1)
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        cache, start = DynamicCache(), time.perf_counter()
        with press(model) if press else contextlib.nullcontext():
            model.model(input_ids=context, past_key_values=cache)
        n = context.shape[1]
        at = torch.arange(n, n + question.shape[1])[None]
        logits = model(input_ids=question, past_key_values=cache, position_ids=at, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        first, begin = time.perf_counter() - start, time.perf_counter()
        for step in range(a.answer):
            at = torch.tensor([[n + question.shape[1] + step]])
            token = model(input_ids=token, past_key_values=cache, position_ids=at, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        rest = time.perf_counter() - begin
    with open("/proc/self/status", encoding="utf-8") as f:
        peak = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    print(json.dumps({"first": first, "rate": a.answer / rest, "peak": peak, "cache": held}))


def measured(command):
    """The output, processor seconds and peak memory of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, errors = done.stdout.read(), done.stderr.read()
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{errors[-2000:]}")
    del before
    return json.loads(out.strip() if out.strip().startswith("{") and "\n" in out.strip() else out.strip().splitlines()[-1]), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def ours(a, method, line):
    command = [a.winnow, "eval", a.folder, "--answers", line, "--cache", "float", "--threads", str(a.threads), "--json", "--quiet"]
    if method != "full":
        command += ["--policy", method, "--per-kv-head", "--budgets", f"{100 * (1 - a.ratio):g}%", "--when", "prompt"]
    found, seconds, peak = measured(command)
    row = found["all"]
    return {"first": row["first_seconds"], "rate": row["tokens_per_second"], "peak": peak, "cache": row["cache_final_bytes"], "processor": seconds,
            "answer": row["answer_tokens"]}


def tokens_of(a, text):
    command = [a.winnow, "tokenizer", "encode", a.folder, "--text", text]
    return [int(x) for x in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder"), p.add_argument("text")
    p.add_argument("--methods", type=lambda t: t.split(","), default=["knorm", "snapkv", "keydiff"])
    p.add_argument("--ratio", type=float, default=0.75)
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--answer", type=int, default=32)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--python", default="")
    p.add_argument("--winnow", default=os.path.join(ROOT, "build", "winnow"))
    p.add_argument("--out")
    p.add_argument("--child", default="", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        return theirs(a)
    a.python = a.python or python_env.make("kvpress")
    os.environ.update(OMP_NUM_THREADS=str(a.threads), HF_HUB_OFFLINE="1")
    with open(a.text, encoding="utf-8") as f:
        text = f.read()
    low, high = 0, min(len(text), 16 * a.tokens)
    while low + 1 < high:  # the longest beginning of at most so many tokens
        middle = (low + high) // 2
        low, high = (middle, high) if len(tokens_of(a, text[:middle])) <= a.tokens else (low, middle)
    context = text[:low]
    both = tokens_of(a, context + QUESTION)
    n = len(tokens_of(a, context))
    with tempfile.TemporaryDirectory() as folder:
        line, ids = os.path.join(folder, "line.jsonl"), os.path.join(folder, "ids.json")
        with open(line, "w", encoding="utf-8") as f:
            f.write(json.dumps({"context": context, "question": QUESTION, "references": ["x"], "scorer": "any", "max_tokens": a.answer + 1}))
        with open(ids, "w", encoding="utf-8") as f:
            json.dump({"context": both[:n], "question": both[n:]}, f)
        samples = {}
        for _ in range(a.rounds):
            for method in ["full", *a.methods]:
                samples.setdefault((method, "winnow"), []).append(ours(a, method, line))
                command = [a.python, os.path.abspath(__file__), a.folder, ids, "--child", method, "--ratio", str(a.ratio)]
                found, seconds, _ = measured(command + ["--answer", str(a.answer), "--threads", str(a.threads)])
                samples.setdefault((method, "kvpress"), []).append({**found, "processor": seconds})
    rows = []
    print(f"{len(both)} tokens read, {n} of them the context")
    for (method, side), of in samples.items():
        row = {name: statistics.median(x[name] for x in of) for name in ("first", "rate", "peak", "cache", "processor")}
        rows.append({"method": method, "side": side, **row, "rounds": of})
        print(f"{method:8} {side:8} first token {row['first']:7.2f} s  {row['rate']:7.2f} tokens/s  peak {row['peak'] / 2**20:7.0f} MiB"
              f"  cache at the end {row['cache'] / 2**20:6.1f} MiB  processor {row['processor']:7.1f} s")
    if a.out:
        with open(a.out, "w", encoding="utf-8") as f:
            json.dump({"tokens": n, "ratio": a.ratio, "threads": a.threads, "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
