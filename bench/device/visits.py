"""What bench/gpu --visit does beyond the usual parts: decoding of models made on the spot, a profile, variants of a build
side by side, a training beside the CPU's, and the models of bench/grown."""
import atexit
import csv
import glob
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

import parts
import synthetic
from store import Failed, Peer, Skipped, command, end_group, first_line

# Bytes a second that a card's memory can bring, by its name: what a step of decoding is held beside.
BANDWIDTH = {"H100 80GB HBM3": 3.35e12, "H200": 4.8e12, "A100-SXM4-80GB": 2.04e12}
MADE, MAKING = {}, {}


def soon(run):
    """Begins what nobody times while the tests run: models, and PyTorch's compiling of training steps."""
    if {"decode", "profile"} & set(run.names):
        for shape in shapes(run):
            make(shape)
    if "train" in run.names:
        parts.warm(run, [{"do": "train", "kind": kind, "model": d12(run), "batch": batch, "context": 512}
                         for kind, batch in parts.training_shapes(run)])


def shapes(run):
    return ["tiny"] if run.a.tiny else ["8b", "135m"]


def d12(run):
    """The model as winnow's own JSON has it, for PyTorch to compile before winnow has run."""
    with open(os.path.join(run.root, "recipes", "selective-paper-d12-standard.json")) as f:
        return {**json.load(f)["model"], "vocab_size": 8192}


def make(shape):
    """Begins to write a model where memory holds it; it is removed at the end."""
    if shape in MAKING:
        return
    if not MADE:
        room = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 16e9 else None
        MADE["folder"] = tempfile.mkdtemp(prefix="winnow-models-", dir=room)
        atexit.register(shutil.rmtree, MADE["folder"], True)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "synthetic.py")
    path = os.path.join(MADE["folder"], shape + ".gguf")
    MAKING[shape] = (subprocess.Popen([sys.executable, script, shape, path], start_new_session=True), path)
    atexit.register(end_group, MAKING[shape][0])


def made(run, shape):
    make(shape)
    process, path = MAKING[shape]
    try:
        code = process.wait(run.box.left())
    except subprocess.TimeoutExpired:
        raise Failed(f"the model {shape} was not written in time") from None
    if code:
        raise Failed(f"the model {shape} could not be written")
    return path


# ---- decoding ----

def floor(run, shape, path, sessions, answer):
    """Seconds that memory needs for what a step reads: weights once, every session's cache; None on an unknown card."""
    name = run.store.data["machine"].get("gpu", {}).get("name", "")
    speed = next((x for card, x in BANDWIDTH.items() if card in name), None)
    s = synthetic.SHAPES[shape]
    weights, size, _ = synthetic.BLOCKS[s["type"]]
    read = os.path.getsize(path) - (0 if s["tied"] else s["width"] * s["vocab"] // weights * size)
    return (read + sessions * answer["cache_bytes"]) / speed if speed else None


def decode(run):
    """Sessions that draw a token each, together, as a server's: tokens/s beside what memory allows."""
    parts.warmed(run)
    context, budget, lines = (32, 16, []) if run.a.tiny else (1024, 512, [])
    for shape in shapes(run):
        path = made(run, shape)
        for sessions in (1, 2) if run.a.tiny else (1, 32, 8):
            for budgets in ("", str(budget)):
                decode_at(run, shape, path, sessions, context, budgets, lines)
    parts.failures(lines)


def decode_at(run, shape, path, sessions, context, budgets, lines):
    where = f"{shape}, {sessions} session{'s' * (sessions > 1)} behind {context} tokens"
    name = where + (f", budget {budgets}" if budgets else "")
    if run.has(name):
        return
    question = {"do": "decode", "model": path, "sessions": sessions, "context": context, "steps": 4 if run.a.tiny else 32}
    if budgets:
        question.update(budgets=budgets, policy="streaming")
    m = {"unit": "tokens/s", "peer": "what memory allows", "target": 0.75 if sessions == 1 else 0.7, "sense": "least"}
    x = parts.ask(run, "winnow", question)
    if "error_line" in x:
        run.add(name, **m, why=x["error_line"])
        lines.append(f"{name}: {x['error_line']}")
        return
    least = floor(run, shape, path, sessions, x)
    m.update({"peer_value": sessions / least} if least else {"peer_why": "an unknown card"})
    run.add(name, **m, value=sessions / x["seconds"], spread=x["spread"], repeats=x["repeats"], bytes=x["cache_bytes"],
            load_seconds=x.get("load_seconds"))
    if sessions == 1:
        run.add(f"{shape}, a prompt of {context} tokens" + (f", budget {budgets}" if budgets else ""), unit="tokens/s",
                value=context / x["prompt_seconds"])


# ---- a profile ----

def profile(run):
    """Time and bytes of every kernel of a training step and of a token, by Nsight Compute."""
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if not run.gpu or not ncu:
        raise Skipped("ncu is not installed" if run.gpu else "on a GPU alone")
    lines = []
    for kind in ("selective", "standard"):
        lines.append(profiled(run, ncu, f"d12 {kind}, batch 64",
                              [run.program("winnow"), "bench", "train", "--backend", "cuda", "--warmup", "0", "--repeats", "1",
                               *parts.train_arguments(run, kind, 64)], None))
    shape = shapes(run)[0]
    question = {"do": "decode", "model": made(run, shape), "sessions": 1, "context": 8, "steps": 1}
    lines.append(profiled(run, ncu, f"{shape}, one session", [run.program("bench_device"), "cuda"], json.dumps(question) + "\n",
                          ["--launch-skip", "2500", "--launch-count", "1000"]))  # two tokens, behind those that nobody times
    parts.failures(lines)


def profiled(run, ncu, name, arguments, said, which=()):
    if run.has(name):
        return None
    log = os.path.join(os.path.dirname(run.store.path), f"ncu-{name.replace(',', '').replace(' ', '-')}.csv")
    with tempfile.NamedTemporaryFile("w", suffix=".questions") as f:
        f.write(said or "")
        f.flush()
        code, out, seconds = command(["sh", "-c", 'q=$1; shift; exec "$@" <"$q"', "sh", f.name, ncu, "--clock-control", "none",
                                      "--metrics", "gpu__time_duration.sum,dram__bytes.sum", "--csv", "--print-units", "base",
                                      "--log-file", log, *which, *arguments], run.box, env={"WINNOW_CUDA_GRAPHS": "0"})
    if code or not os.path.exists(log):
        run.add(name, why=f"ncu: {first_line(out)}")
        return f"{name}: ncu: {first_line(out)}"
    with open(log, errors="replace") as f:
        text = f.read()
    with gzip.open(log + ".gz", "wt") as f:
        f.write(text)
    os.unlink(log)
    kernels = kernel_table(text)
    run.add(name, value=1e3 * sum(k["seconds"] for k in kernels), unit="ms", seconds=seconds, kernels=kernels[:60])
    return None


def kernel_table(text):
    """Calls, seconds and bytes of each kernel in ncu's CSV, the longest first."""
    at, found = text.find('"ID"'), {}
    for row in csv.DictReader(io.StringIO(text[at:])) if at >= 0 else ():
        k = found.setdefault(row["Kernel Name"][:120], {"name": row["Kernel Name"][:120], "calls": 0, "seconds": 0.0, "bytes": 0.0})
        value = float(row["Metric Value"].replace(",", "") or 0)
        if row["Metric Name"] == "gpu__time_duration.sum":
            k["calls"] += 1
            k["seconds"] += value * {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6}.get(row["Metric Unit"], 1e-9)
        else:
            k["bytes"] += value
    return sorted(found.values(), key=lambda k: -k["seconds"])


# ---- variants ----

def prototypes(run):
    """Attention of several builds in turns: bench_device in each of --variant's folders beside the build's own."""
    variants = {"winnow": run.build, **dict(v.split("=", 1) for v in run.a.variant)}
    if len(variants) < 2:
        raise Skipped("no --variant NAME=FOLDER")
    peers, lines = {}, []
    for name, folder in variants.items():
        program = os.path.join(os.path.abspath(folder), "bench_device")
        if not os.access(program, os.X_OK):
            raise Failed(f"--variant {name}: {program} is not there")
        peers[name] = Peer([program, run.backend])
    try:
        for question, where in compared(run):
            answers = {}
            for name, p in list(peers.items()) * 2:  # in turns, each twice: the faster counts
                x = p.ask(question, run.box)
                if "seconds" not in answers.get(name, {}) or x.get("seconds", 9e9) < answers[name]["seconds"]:
                    answers[name] = x
            for name, x in answers.items():
                if name != "winnow":
                    parts.add_attention(run, f"{where}, {name}", "winnow", x, [answers["winnow"]], 1)
                if "error_line" in x:
                    lines.append(f"{where}, {name}: {x['error_line']}")
        for name, p in peers.items():
            for kind in ("standard", "selective", "dead"):
                small = {"do": "error", "T": 100 if run.a.tiny else 1000, "H": 2, "D": 32 if run.a.tiny else 64, "type": "bf16"}
                x = p.ask({**small, "kind": kind}, run.box)
                run.add(f"error of {kind}, {name}", all=x, **({"why": x["error_line"]} if "error_line" in x else {
                    "value": max(x["error"].values()), "unit": "of the norm"}))
    finally:
        for p in peers.values():
            p.close()
    parts.failures(lines)


def compared(run):
    for B, H, T, D in parts.shapes(run):
        for kind in ("standard", "selective", 0.5):
            for backward in (False, True):
                question = {"do": "time", "B": B, "T": T, "H": H, "D": D, "backward": backward, "type": "bf16",
                            "repeats": 3 if run.a.tiny else 7, **({"kind": kind} if kind != 0.5 else parts.dead(kind))}
                yield question, (f"{'forward and backward' if backward else 'forward'}, T {T}, D {D}, "
                                 + (kind if kind != 0.5 else "selective, 50% of keys dead"))


# ---- proof ----

def long_questions(run, tool):
    """Several windows of rows, in two lanes, and keys that are left out: 2,304 tokens are two windows forward with dead
    keys, 4,352 two backward. The order of accesses to shared memory does not depend on how many windows there are."""
    if run.a.tiny:
        return [{"do": "once", "T": 130, "H": 2, "Hkv": 1, "D": 16, "type": "bf16", "kind": "dead", "backward": True}]
    longer = [2304] if tool == "racecheck" else [2304, 4352]
    kinds = [{"kind": k} for k in ("standard", "selective", "mem", "exclusive")] + [parts.dead(0.5), parts.dead(0.9)]
    return [{"do": "once", "T": T, "H": 2, "Hkv": 1, "D": D, "type": "bf16", "backward": True, **kind}
            for D in (64, 128) for T in longer for kind in kinds]


def sanitize(run):
    parts.sanitized(run, ("memcheck", "racecheck", "synccheck"), lambda tool: long_questions(run, tool))


STEPS = {"float": "float32", "bf16": "bfloat16"}


def steps(run):
    """A training of 200 steps beside the CPU's in float. By the law of tolerances losses may be twice as far from these, on
    average over the steps, as the CPU's own: in float those of two micro-steps, another order of the same sums; in bf16
    those in bf16."""
    count, lines = 10 if run.a.tiny else 200, []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("standard", "selective"):
            base = trained(run, folder, kind, "cpu", "float", count)
            for precision, parts_of in (("float", 2), ("bf16", 1)):
                naive = apart(base, trained(run, folder, kind, "cpu", precision, count, parts_of))
                own = trained(run, folder, kind, run.backend, precision, count)
                x, name = apart(base, own), f"{count} steps, {kind}, {precision}: mean distance of losses"
                run.add(name, value=x, unit="nats", target=2 * naive, sense="most", naive=naive, last=own[-1], cpu_last=base[-1])
                if not x <= 2 * naive:
                    lines.append(f"{name} is {x:.2g}, at most {2 * naive:.2g}")
    parts.failures(lines)


def trained(run, folder, kind, backend, precision, count, micro_steps=1):
    out = os.path.join(folder, f"{len(os.listdir(folder))}")
    sizes = ["model.width=64", "model.layers=1", "model.heads=2"] if run.a.tiny else ["model.layers=2"]
    sets = [*sizes, f"train.steps={count}", f"train.warmup={count // 10}", "data.max_length=96",
            f"train.batch={(2 if run.a.tiny else 8) // micro_steps}", f"train.accumulate={micro_steps}",
            f"train.precision={STEPS[precision]}", f"train.eval_every={count}", f"train.save_every={count}", "train.eval_batches=1"]
    code, said, _ = command([run.program("winnow"), "train", "--quiet", "--backend", backend, "--out", out, "--config",
                             os.path.join(run.root, "recipes", f"copy-{kind}.json")] + [x for s in sets for x in ("--set", s)],
                            run.box)
    if code:
        raise Failed(f"{kind}, {precision} on {backend}: {first_line(said)}")
    with open(os.path.join(out, "log.jsonl")) as f:
        losses = [x["loss"] for x in map(json.loads, f) if "loss" in x]
    if len(losses) != count:
        raise Failed(f"{kind}, {precision} on {backend}: {len(losses)} losses of {count}")
    return losses


def apart(x, y):
    return sum(abs(a - b) for a, b in zip(x, y)) / len(x)


# ---- models ----

def grown(run):
    """bench/grown's trainings, as far as they get; the same command goes on."""
    out = os.path.abspath(run.a.runs or os.path.join(os.path.dirname(run.store.path), "grown"))
    arguments = [sys.executable, os.path.join(run.root, "bench/grown/run"), out, "--scale", "toy" if run.a.tiny else "full",
                 "--parts", "train", "--winnow", run.program("winnow"), "--backend", run.backend]
    arguments += ["--data", run.a.data] if run.a.data else []
    why = None
    try:
        code, said, _ = command(arguments, run.box, max(1.0, run.box.left() - 10))
        if code:
            raise Failed(first_line(said))
    except Failed as e:
        if "not done after" not in str(e):
            raise
        why = "goes on with the same command"
    done = len(glob.glob(os.path.join(out, "**", "model.safetensors"), recursive=True))
    run.add("models", value=done, unit="models", **({"why": why} if why else {}))
    return why
