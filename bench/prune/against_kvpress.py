#!/usr/bin/env python3
"""Compares winnow with kvpress: same weights, prompt length, budget and threads; peak memory and tokens per second.

Usage: bench/prune/against_kvpress.py [--python PYTHON] [--library build/libwinnow.so]
           [--work FOLDER] [--prompt 4096] [--tokens 256] [--budgets 256,512] [--threads 1,2] [--rounds 3] [--only
           TEXT,TEXT]
           [--folder FOLDER [--quantised FILE] [--bfloat16]] [--realtime] [--out FILE.json]
       bench/prune/against_kvpress.py [--python PYTHON] --quality CHECKPOINT --data VAL.bin [--prompt 384] [--tokens
       128]
           [--budgets 64,128] [--texts 32] [--library ...] [--only TEXT,TEXT] [--out FILE.json]

PYTHON is that of an environment with kvpress (default: tools/python-env kvpress). A quick look: --prompt 512 --tokens
32 --budgets 128 --threads 1 --rounds 1 --only full,tova. The script makes a Llama with 8 layers, width 512, 8 heads in
4 groups and random weights, exports it (tools/export-llama.py) and compares its logits. Then each method of each side
runs in its own process. The sides alternate, and medians over the rounds are printed. Both sides are called from
Python: winnow through its C API, kvpress as its own pipeline does. The prompt goes through the decoder without the
output layer, then one token at a time follows with its position in the text. "peak": the most memory that the process
holds (VmHWM) after the model is loaded and has seen a short text; "over the model": the same minus the memory held at
that time.
--quality: takes a trained checkpoint of Llama's shape and texts of a token file (llm.c), and measures the perplexity of
the given tokens after the prompt with the same methods.
--folder: a folder of transformers' files in place of the random weights, which both sides load. --only once has what is
published as one compression at the context's end: the same tokens stay on both sides. --quantised: winnow also runs
another file of the same model, a GGUF file with quantised weights; --bfloat16: kvpress also runs in bfloat16.
--realtime: runs the methods at real-time priority (root), on a machine with other work.
"""
import argparse, json, math, os, statistics, subprocess, sys, time
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
from python_env import need

MODEL = dict(vocab_size=8192, layers=8, width=512, heads=8, kv_heads=4, head_size=64, ffn_width=1368, norm="rmsnorm",
             position="rope", ffn="swiglu", qk_norm=False, bias=False, tied=False, attention={})
# kvpress's methods: (name, press for the prompt, press for decoding, tokens between reductions, attention)
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
OURS = {"full": None, **{name: {"policy": name} for name in ("tova", "streaming", "h2o", "window")}}
ONCE = {"policy": "knorm", "when": "prompt", "per_kv_head": True}
for name, own in {"knorm": ONCE, "keydiff": {**ONCE, "policy": "keydiff"}, **{m: {**ONCE, "method": m} for m in ("snapkv", "tova", "expected")}}.items():
    WAYS[name + "-once"], OURS[name + "-once"] = (name, None, 0, "sdpa"), own

def make_model(folder, context):
    """A checkpoint of random weights, scaled like a new model's."""
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
        p[at + "attn.qkv.weight"] = 4 * new((c["heads"] + 2 * c["kv_heads"]) * D, C)  # weights of different sizes
        p[at + "attn.out.weight"] = new(C, c["heads"] * D)
        p[at + "ffn.in.weight"], p[at + "ffn.out.weight"] = new(2 * F, C), new(C, F)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f: json.dump(c, f, indent=2)
    save_file(p, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})

def hurry():
    """Gives every thread of this process real-time priority."""
    for task in os.listdir("/proc/self/task"): os.sched_setscheduler(int(task), os.SCHED_RR, os.sched_param(20))

def resident(which):
    with open("/proc/self/status") as f: return next(int(line.split()[1]) * 1024 for line in f if line.startswith(which))

def forget_peak():
    """Resets VmHWM to the memory held now, which is returned."""
    with open("/proc/self/clear_refs", "w") as f: f.write("5")
    return resident("VmRSS")

def texts(a):
    """The first `texts` pieces of prompt + tokens tokens in a token file, [texts, prompt + tokens]."""
    import numpy
    words = numpy.fromfile(a.data, dtype=numpy.uint16, offset=1024)
    n = a.prompt + a.tokens
    if len(words) < n * a.texts: sys.exit(f"{a.data}: {len(words)} tokens, {n * a.texts} are needed")
    return words[:n * a.texts].reshape(a.texts, n).astype(numpy.int64)

def our_child(a):
    """Runs one of winnow's methods in this process. JSON on standard output."""
    import ctypes, numpy
    lib, ctx, model, session = ctypes.CDLL(os.path.abspath(a.library)), *(ctypes.c_void_p() for _ in range(3))
    lib.wn_context_error.restype, lib.wn_model_config_get.restype = ctypes.c_char_p, ctypes.c_void_p
    lib.wn_session_kv_bytes.restype = ctypes.c_size_t
    with open(os.path.join(a.folder or a.model, "config.json")) as f: c = json.load(f)
    number, budgets = ctypes.c_int64, (ctypes.c_char * 1024)()
    def ok(status):
        if status: sys.exit(lib.wn_context_error(ctx).decode())
    class Options(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("backend", ctypes.c_char_p), ("log", ctypes.c_void_p),
                    ("user", ctypes.c_void_p), ("dead_keys", ctypes.c_double), ("exact_rows", number), ("pre", ctypes.c_char_p)]
    options = Options(size=ctypes.sizeof(Options), threads=a.thread, backend=b"cpu")
    ok(lib.wn_context_create(ctypes.byref(options), ctypes.byref(ctx)))
    ok(lib.wn_model_load(ctx, a.model.encode(), None, ctypes.byref(model)))
    class SessionOptions(ctypes.Structure): # the first fields; the others have their defaults
        _fields_ = [("size", ctypes.c_size_t), ("sequences", number), ("capacity", number), ("budgets", ctypes.c_void_p)]
    def open_session(capacity):
        if OURS[a.way]:
            path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"winnow-budgets-{os.getpid()}.json")
            with open(path, "w") as f: json.dump({**OURS[a.way], "tokens": [a.budget] * c.get("layers", c.get("num_hidden_layers"))}, f)
            lib.wn_budgets_init(budgets, None)
            ok(lib.wn_budgets_load(ctx, path.encode(), budgets))
            os.remove(path)
        options = SessionOptions(ctypes.sizeof(SessionOptions), 1, capacity, ctypes.addressof(budgets) if OURS[a.way] else None)
        ok(lib.wn_session_create(ctx, model, ctypes.byref(options), ctypes.byref(session)))
    logits = numpy.empty(c["vocab_size"], dtype=numpy.float32)
    where = logits.ctypes.data_as(ctypes.c_void_p)
    def feed(tokens):
        tokens = numpy.ascontiguousarray(tokens, dtype=numpy.int32)
        ok(lib.wn_session_feed(ctx, session, tokens.ctypes.data_as(ctypes.c_void_p), number(tokens.size), number(0), where))
    if a.quality:
        total = 0.0
        open_session(a.prompt + a.tokens)
        for text in texts(a):
            lib.wn_session_reset(session)
            feed(text[:a.prompt])
            for n in range(a.prompt, len(text)):
                top = logits.max()
                total += float(top + numpy.log(numpy.exp(logits - top, dtype=numpy.float64).sum()) - logits[text[n]])
                feed(text[n:n + 1])
        return print(json.dumps({"loss": total / (a.texts * a.tokens), "tokens": a.texts * a.tokens}))
    open_session(32)
    for _ in range(2): feed(numpy.arange(16))
    lib.wn_session_destroy(session)
    loaded, tokens = forget_peak(), numpy.random.default_rng(1).integers(c["vocab_size"], size=a.prompt)
    if a.realtime: hurry()
    start = time.perf_counter()
    open_session(a.prompt + a.tokens)
    context = numpy.ascontiguousarray(tokens, dtype=numpy.int32)
    ok(lib.wn_session_read_context(ctx, session, context.ctypes.data_as(ctypes.c_void_p), number(context.size), where))
    prefill, steps = time.perf_counter() - start, []
    for n in range(a.tokens):
        start = time.perf_counter()
        feed([int(logits.argmax())])
        steps.append(time.perf_counter() - start)
    print(json.dumps({"prefill_seconds": prefill, "tokens_per_second": 1 / statistics.median(steps), "loaded": loaded,
                      "peak": resident("VmHWM"),
                      "held_at_end": a.prompt + a.tokens if not OURS[a.way] else a.budget + (a.tokens if "once" in a.way else 0),
                      "kv_bytes": lib.wn_session_kv_bytes(session)}))

def child(a):
    """Runs one of kvpress's methods in this process. JSON on standard output."""
    os.environ["OMP_NUM_THREADS"] = str(a.thread)
    import contextlib, logging, numpy, torch
    logging.disable(logging.WARNING)
    torch.set_num_threads(a.thread)
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging as hf
    hf.disable_progress_bar()
    import kvpress as kv
    prompt_press, decoding_press, interval, attention = WAYS[a.way]
    ratio = 1 - a.budget / a.prompt
    def press(name, ratio):
        once = {"tova": kv.TOVAPress, "knorm": kv.KnormPress, "keydiff": kv.KeyDiffPress, "expected": kv.ExpectedAttentionPress}
        if name in once: return once[name](compression_ratio=ratio)
        if name == "snapkv": return kv.SnapKVPress(compression_ratio=ratio, window_size=32, kernel_size=5)
        if name == "streaming": return kv.StreamingLLMPress(compression_ratio=ratio, n_sink=4)
        if name == "rotated": return kv.KeyRerotationPress(press=kv.StreamingLLMPress(compression_ratio=ratio, n_sink=4))
        return kv.ObservedAttentionPress(compression_ratio=ratio)
    whole = press(prompt_press, ratio) if prompt_press else None
    if decoding_press:
        decoding = kv.DecodingPress(base_press=press(decoding_press, 0.0), compression_interval=interval,
                                    target_size=a.budget, hidden_states_buffer_size=interval)
        whole = kv.PrefillDecodingPress(prefilling_press=whole, decoding_press=decoding)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.bfloat16 if "bfloat16" in a.child else torch.float32, attn_implementation=attention)
    model.eval()
    def follow(tokens, given):
        """Feeds the prompt, then single tokens: the given ones, or the most likely. Returns each token's loss, or its seconds."""
        nonlocal cache, prefill, after_prompt, after
        cache, out = DynamicCache(), []
        start = time.perf_counter()
        with during(True): hidden = model.model(input_ids=tokens, past_key_values=cache).last_hidden_state[:, -1:]
        logits = model.lm_head(hidden)
        prefill, after_prompt, after = time.perf_counter() - start, resident("VmHWM"), cache.get_seq_length()
        place = after if prompt_press == "rotated" else a.prompt
        with during(decoding_press is not None):
            for n in range(a.tokens):
                if given is not None: out.append(-float(torch.log_softmax(logits[0, -1].double(), -1)[given[n]]))
                start = time.perf_counter()
                token = logits[:, -1].argmax(-1, keepdim=True) if given is None else given[n].view(1, 1)
                logits = model(input_ids=token, past_key_values=cache, position_ids=torch.tensor([[place + n]]),
                               logits_to_keep=1).logits
                if given is None: out.append(time.perf_counter() - start)
        return out
    cache = prefill = after_prompt = after = None
    during = (lambda on: whole(model) if whole and on else contextlib.nullcontext())
    with torch.inference_mode():
        if a.quality:
            losses = [follow(t[None, :a.prompt], t[a.prompt:]) for t in torch.from_numpy(texts(a))]
            return print(json.dumps({"loss": statistics.fmean(map(statistics.fmean, losses)), "tokens": a.texts * a.tokens}))
        for _ in range(2): model(torch.arange(16)[None], logits_to_keep=1)
        loaded = forget_peak()
        tokens = torch.from_numpy(numpy.random.default_rng(1).integers(model.config.vocab_size, size=(1, a.prompt)))
        if a.realtime: hurry()
        steps = follow(tokens, None)
        held = max(cache.get_seq_length(l) for l in range(len(cache)))
        kv_bytes = sum(l.keys.nbytes + l.values.nbytes for l in cache.layers)
    print(json.dumps({"prefill_seconds": prefill, "tokens_per_second": 1 / statistics.median(steps), "loaded": loaded,
                      "peak": resident("VmHWM"), "peak_of_prompt": after_prompt, "held_after_prompt": after, "held_at_end": held, "kv_bytes": kv_bytes}))

def run(a, side, model, way, budget, threads):
    command = [a.python, os.path.abspath(__file__), "--child", side, "--model", model, "--way", way, "--budget", str(budget),
               "--thread", str(threads), "--prompt", str(a.prompt), "--tokens", str(a.tokens), "--library", a.library,
               "--texts", str(a.texts), "--folder", a.folder] + (["--quality", a.quality, "--data", a.data] if a.quality else [])
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")
    done = subprocess.run(command + ["--realtime"] * a.realtime, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode: sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"python": "", "library": os.path.join(ROOT, "build", "libwinnow.so"), "work": "",
                        "budgets": "256,512", "threads": "1,2", "only": "", "out": "", "model": "", "way": "", "quality": "", "data": "", "folder": "", "quantised": ""}.items():
        p.add_argument("--" + name, default=value)
    for name, value in {"prompt": 4096, "tokens": 256, "rounds": 3, "budget": 0, "thread": 1, "texts": 32}.items():
        p.add_argument("--" + name, type=int, default=value)
    for name in "realtime", "bfloat16": p.add_argument("--" + name, action="store_true")
    p.add_argument("--child", default="", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child and a.realtime: hurry()
    if a.child: return our_child(a) if a.child.startswith("winnow") else child(a)
    for path in [a.library] + ([a.quality, a.data] if a.quality else []):
        if not os.path.exists(path): sys.exit(f"against_kvpress.py: {path or '--data'} is not there")
    if a.python and not os.environ.get("WINNOW_PYTHON_ENV"):  # once: a virtual environment is a link to the same Python
        os.environ["WINNOW_PYTHON_ENV"] = "kvpress"
        os.execv(a.python, [a.python] + sys.argv)
    need("kvpress", "kvpress", "torch", "transformers", "numpy", "safetensors")
    a.python = sys.executable
    work = a.work or os.path.join(os.environ.get("TMPDIR", "/tmp"), "winnow-against-kvpress")
    model, exported = os.path.join(work, "model"), os.path.join(work, "llama")
    here = os.path.dirname(os.path.abspath(__file__))
    if a.quality: model, a.rounds, a.threads = a.quality, 1, a.threads.split(",")[0]
    elif a.folder: model = exported = a.folder
    else: make_model(model, a.prompt + a.tokens + 8)
    if not a.folder:
        check = subprocess.run([a.python, os.path.join(here, "../../tools/export-llama.py"), model, exported, "--check", a.library],
                               stdout=subprocess.PIPE, text=True)
        print(check.stdout.strip())
        if check.returncode: return sys.exit("the models differ")
    rows = []
    for threads in map(int, a.threads.split(",")):
        for budget in map(int, a.budgets.split(",")):
            jobs = [("winnow", w, model) for w in OURS] + [("kvpress", w, exported) for w in WAYS]
            if a.quantised: jobs += [("winnow-quantised", w, a.quantised) for w in OURS]
            if a.bfloat16: jobs += [("kvpress-bfloat16", w, exported) for w in WAYS]
            jobs = [j for j in jobs if any(o in f"{j[0]} {j[1]} " for o in a.only.split(","))]
            if budget != int(a.budgets.split(",")[0]): jobs = [j for j in jobs if j[1] != "full"]
            samples = {j[:2]: [] for j in jobs}
            for _ in range(a.rounds):
                for side, way, folder in jobs: samples[side, way].append(run(a, side, folder, way, budget, threads))
            for (side, way), s in samples.items():
                middle = {k: statistics.median(x[k] for x in s) for k in s[0]}
                rows.append(dict(middle, side=side, way=way, budget=budget, threads=threads, rounds=s))
                if a.quality:
                    print(f"budget {budget:4d}: {side:8s} {way:26s} perplexity {math.exp(middle['loss']):8.3f} of "
                          f"{middle['tokens']} tokens", flush=True)
                    continue
                print(f"{threads} threads, budget {budget:4d}: {side:16s} {way:26s} {middle['tokens_per_second']:8.1f} tok/s  "
                      f"prompt {middle['prefill_seconds']:6.2f} s  peak {middle['peak'] / 2**20:7.1f} MiB  over the model "
                      f"{(middle['peak'] - middle['loaded']) / 2**20:7.1f} MiB  cache {middle['kv_bytes'] / 2**20:6.1f} MiB",
                      flush=True)
    if a.out:
        with open(a.out, "w") as f: json.dump({"model": a.quality or a.folder or MODEL, "prompt": a.prompt, "tokens": a.tokens, "rows": rows}, f, indent=1); f.write("\n")

if __name__ == "__main__": main()
