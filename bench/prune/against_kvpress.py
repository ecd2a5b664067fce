#!/usr/bin/env python3
"""winnow beside kvpress: the same weights, prompt length, budget and threads; peak memory and tokens per second.

Usage: bench/prune/against_kvpress.py --python PYTHON [--winnow build/winnow] [--library build/libwinnow.so]
           [--work FOLDER] [--prompt 4096] [--tokens 256] [--budgets 256,512] [--threads 1,2] [--rounds 3] [--only TEXT]
           [--out FILE.json]

PYTHON is of an environment with kvpress (bench/peers/setup.sh --kvpress). A Llama of 8 layers, width 512, 8 heads in 4
groups, with random weights is made, exported (tools/export-llama.py) and its logits compared; then each way of each side
is run in a process of its own, the sides taking turns, and medians over the rounds are shown. "over the model" is the
peak less what the process holds after loading the model and one short text. kvpress is called as its own pipeline calls
it: the prompt through the decoder without the output layer, then one token at a time with its place in the text.
"""
import argparse, json, os, resource, statistics, subprocess, sys, time

MODEL = dict(vocab_size=8192, layers=8, width=512, heads=8, kv_heads=4, head_size=64, ffn_width=1368, norm="rmsnorm",
             position="rope", ffn="swiglu", qk_norm=False, bias=False, tied=False, attention={})
# kvpress's ways: (name, press of the prompt, press of decoding, tokens between reductions, attention)
WAYS = {
    "full": (None, None, 0, "sdpa"),
    "tova-prompt": ("tova", None, 0, "sdpa"),
    "tova-each-token": ("tova", "tova", 1, "sdpa"),
    "tova-each-64": ("tova", "tova", 64, "sdpa"),
    "streaming-prompt": ("streaming", None, 0, "sdpa"),
    "streaming-each-token": ("streaming", "streaming", 1, "sdpa"),
    "streaming-rotated-prompt": ("rotated", None, 0, "sdpa"),
    "observed-prompt": ("observed", None, 0, "eager"),
}
OURS = {"full": None, "tova": "tova", "streaming": "streaming", "h2o": "h2o", "window": "window"}

def make_model(folder, context):
    """A checkpoint of random weights, scaled as a fresh model's."""
    import numpy
    from safetensors.numpy import save_file
    c, rng = dict(MODEL, context=context), numpy.random.default_rng(7)
    new = lambda *shape: (0.02 * rng.standard_normal(shape)).astype(numpy.float32)
    V, C, D, F = c["vocab_size"], c["width"], c["head_size"], c["ffn_width"]
    ones = numpy.ones(C, dtype=numpy.float32)
    p = {"embed.weight": new(V, C), "final_norm.gain": ones, "output.weight": new(V, C)}
    for l in range(c["layers"]):
        at = f"layers.{l}."
        p[at + "norm1.gain"], p[at + "norm2.gain"] = ones.copy(), ones.copy()
        p[at + "attn.qkv.weight"] = 4 * new((c["heads"] + 2 * c["kv_heads"]) * D, C)  # weights that are not all alike
        p[at + "attn.out.weight"] = new(C, c["heads"] * D)
        p[at + "ffn.in.weight"], p[at + "ffn.out.weight"] = new(2 * F, C), new(C, F)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(c, f, indent=2)
    save_file(p, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def child(a):
    """One way of kvpress in this process; JSON on standard output."""
    os.environ["OMP_NUM_THREADS"] = str(a.thread)
    import contextlib, logging, torch
    logging.disable(logging.WARNING)
    torch.set_num_threads(a.thread)
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging as hf
    hf.disable_progress_bar()
    import kvpress as kv
    prompt_press, decoding_press, interval, attention = WAYS[a.way]
    ratio = 1 - a.budget / a.prompt
    def press(name, ratio):
        if name == "tova": return kv.TOVAPress(compression_ratio=ratio)
        if name == "streaming": return kv.StreamingLLMPress(compression_ratio=ratio, n_sink=4)
        if name == "rotated": return kv.KeyRerotationPress(press=kv.StreamingLLMPress(compression_ratio=ratio, n_sink=4))
        return kv.ObservedAttentionPress(compression_ratio=ratio)
    whole = press(prompt_press, ratio) if prompt_press else None
    if decoding_press:
        decoding = kv.DecodingPress(base_press=press(decoding_press, 0.0), compression_interval=interval,
                                    target_size=a.budget, hidden_states_buffer_size=interval)
        whole = kv.PrefillDecodingPress(prefilling_press=whole, decoding_press=decoding)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation=attention)
    model.eval()
    during = (lambda on: whole(model) if whole and on else contextlib.nullcontext())
    with torch.inference_mode():
        for _ in range(2): model(torch.arange(16)[None], logits_to_keep=1)
        loaded = peak()
        tokens = torch.randint(MODEL["vocab_size"], (1, a.prompt), generator=torch.Generator().manual_seed(1))
        cache = DynamicCache()
        start = time.perf_counter()
        with during(True): model.model(input_ids=tokens, past_key_values=cache)
        prefill, after_prompt, steps = time.perf_counter() - start, peak(), []
        after = cache.get_seq_length()
        place = cache.get_seq_length() if prompt_press == "rotated" else a.prompt
        token = tokens[:, -1:]
        with during(decoding_press is not None):
            for n in range(a.tokens):
                start = time.perf_counter()
                out = model(input_ids=token, past_key_values=cache, position_ids=torch.tensor([[place + n]]), logits_to_keep=1)
                token = out.logits[:, -1].argmax(-1, keepdim=True)
                steps.append(time.perf_counter() - start)
        held = max(cache.get_seq_length(l) for l in range(len(cache)))
        kv_bytes = sum(l.keys.nbytes + l.values.nbytes for l in cache.layers)
    print(json.dumps({"prefill_seconds": prefill, "tokens_per_second": 1 / statistics.median(steps), "loaded": loaded,
                      "peak": peak(), "held_after_prompt": after, "held_at_end": held, "kv_bytes": kv_bytes}))

def run(command, threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode: sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1] if command[0].endswith("python") else done.stdout)

def ours(a, model, way, budget, threads):
    base = [a.winnow, "bench", "decode", "--model", model, "--json", "--quiet", "--threads", str(threads), "--warmup", "0"]
    loaded = run(base + ["--contexts", "16", "--repeats", "2"], threads)["peak_resident_bytes"]
    command = base + ["--contexts", str(a.prompt), "--repeats", str(a.tokens)]
    if OURS[way]: command += ["--budgets", str(budget), "--policy", OURS[way]]
    r = run(command, threads)
    s = r["results"][0]
    return {"prefill_seconds": s["prefill_seconds"], "tokens_per_second": s["tokens_per_second"], "loaded": loaded,
            "peak": r["peak_resident_bytes"], "held_at_end": budget if OURS[way] else a.prompt + a.tokens,
            "kv_bytes": s["kv_bytes"]}

def theirs(a, model, way, budget, threads):
    return run([a.python, os.path.abspath(__file__), "--child", "--model", model, "--way", way, "--budget", str(budget),
                "--thread", str(threads), "--prompt", str(a.prompt), "--tokens", str(a.tokens)], threads)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"python": sys.executable, "winnow": "build/winnow", "library": "build/libwinnow.so", "work": "",
                        "budgets": "256,512", "threads": "1,2", "only": "", "out": "", "model": "", "way": ""}.items():
        p.add_argument("--" + name, default=value)
    for name, value in {"prompt": 4096, "tokens": 256, "rounds": 3, "budget": 0, "thread": 1}.items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child: return child(a)
    work = a.work or os.path.join(os.environ.get("TMPDIR", "/tmp"), "winnow-against-kvpress")
    model, exported = os.path.join(work, "model"), os.path.join(work, "llama")
    here = os.path.dirname(os.path.abspath(__file__))
    make_model(model, a.prompt + a.tokens + 8)
    check = subprocess.run([a.python, os.path.join(here, "../../tools/export-llama.py"), model, exported, "--check", a.library],
                           stdout=subprocess.PIPE, text=True)
    print(check.stdout.strip())
    if check.returncode: return sys.exit("the models differ")
    rows = []
    for threads in map(int, a.threads.split(",")):
        for budget in map(int, a.budgets.split(",")):
            jobs = [("winnow", w, ours, model) for w in OURS] + [("kvpress", w, theirs, exported) for w in WAYS]
            jobs = [j for j in jobs if a.only in f"{j[0]} {j[1]}"]
            if budget != int(a.budgets.split(",")[0]): jobs = [j for j in jobs if j[1] != "full"]
            samples = {j[:2]: [] for j in jobs}
            for _ in range(a.rounds):
                for side, way, do, folder in jobs: samples[side, way].append(do(a, folder, way, budget, threads))
            for (side, way), s in samples.items():
                middle = {k: statistics.median(x[k] for x in s) for k in s[0]}
                rows.append(dict(middle, side=side, way=way, budget=budget, threads=threads, rounds=s))
                print(f"{threads} threads, budget {budget:4d}: {side:8s} {way:26s} {middle['tokens_per_second']:8.1f} tok/s  "
                      f"prompt {middle['prefill_seconds']:6.2f} s  peak {middle['peak'] / 2**20:7.1f} MiB  over the model "
                      f"{(middle['peak'] - middle['loaded']) / 2**20:7.1f} MiB  cache {middle['kv_bytes'] / 2**20:6.1f} MiB",
                      flush=True)
    if a.out:
        with open(a.out, "w") as f: json.dump({"model": MODEL, "prompt": a.prompt, "tokens": a.tokens, "rows": rows}, f, indent=1); f.write("\n")

if __name__ == "__main__": main()
