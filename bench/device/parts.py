"""The parts of bench/gpu. Each gets a Run, adds its measures one by one and returns, or raises Failed or Skipped with
one line. What is there already (--resume) is not measured again."""
import atexit
import concurrent.futures
import filecmp
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

from store import Failed, Peer, Skipped, command, end_group, first_line

PEERS = {}
# bench_device as it is, and with launches of a call one after the other; by their environments.
WINNOW = {"winnow": {}, "without overlap": {"WINNOW_CUDA_OVERLAP": "0"}}


def close(run):
    for peer in PEERS.values():
        peer.close()
    PEERS.clear()


# ---- building and testing ----

def nvcc():
    return shutil.which("nvcc") or next((p for p in ["/usr/local/cuda/bin/nvcc"] if os.access(p, os.X_OK)), None)


def build(run):
    if run.only_use:
        for name in ("winnow", "bench_device"):
            run.program(name)
        warm(run)
        return f"{run.build} as it is"
    if not nvcc():
        raise Failed("nvcc is not installed")
    warm(run)
    architecture = run.capability.replace(".", "")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DWINNOW_TESTS=ON", "-DWINNOW_CUDA=ON", "-DWINNOW_CUDA_TESTS=ON",
               f"-DWINNOW_CUDA_ARCHITECTURES={architecture}"]
    options += [f"-DWINNOW_{part}=AUTO" for part in ("ONEDNN", "LIBXSMM", "SENTENCEPIECE", "MICROHTTPD")]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    code, out, _ = command(["cmake", "-S", run.root, "-B", run.build] + options, run.box)
    if code:
        raise Failed("cmake: " + first_line(out))
    code, out, seconds = command(["cmake", "--build", run.build, "--parallel", run.jobs], run.box)
    if code:
        raise Failed("the build: " + first_line(out))
    run.add("build", value=seconds, unit="s", spread=None)
    return None


def tap(text):
    """Passed, failed, skipped of what a test program says; the first failure's name."""
    passed = len(re.findall(r"^ok (?!.*# SKIP)", text, re.M | re.I))
    bad = re.findall(r"^not ok (.*)", text, re.M)
    skips = re.findall(r"^ok (.*# SKIP.*)", text, re.M | re.I)
    return passed, bad, skips


def tested(run, name, arguments, env, times=1, limit=600):
    """A test program's measure; its failure in one line, or None. A skip is a failure: nothing here may be left out."""
    if run.has(name) and "why" not in run.store.measures(run.part)[name]:
        return None
    why, passed, seconds = None, 0, 0
    for _ in range(times):
        try:
            code, out, took = command(arguments, run.box, limit, env={"CMOCKA_MESSAGE_OUTPUT": "TAP",
                                                                       "OMP_WAIT_POLICY": "passive", **env})
        except Failed as e:
            why = str(e).split(": ", 1)[-1]
            break
        passed, bad, skips = tap(out)
        seconds = max(seconds, took)
        if bad or skips or code or not passed:
            why = bad[0] if bad else f"skipped: {skips[0]}" if skips else f"exit code {code}: {first_line(out)}"
            run.keep(f"{name.replace('/', '-')}.txt", out)
            break
    measure = {"value": passed, "unit": "tests", "seconds": round(seconds, 1)}
    run.add(name, **measure, **({"why": why[:300]} if why else {}))
    return f"{name}: {why[:200]}" if why else None


def failures(list_of_lines):
    lines = [x for x in list_of_lines if x]
    if lines:
        raise Failed(lines[0] + (f"; and {len(lines) - 1} more" if len(lines) > 1 else ""))


def tests(run):
    programs = sorted(p for p in glob.glob(os.path.join(run.build, "device_test_*" if run.gpu else "test_cuda_*"))
                      if os.access(p, os.X_OK) and not p.endswith((".c", ".d")))
    if run.a.tiny and not run.gpu:
        programs = [p for p in programs if p.endswith(("_sums", "_memory"))]
    if not programs:
        raise (Failed if run.gpu else Skipped)(f"no test programs of the device in {run.build} (cmake -DWINNOW_CUDA_TESTS=ON)")
    times = 1 if run.a.visit else 2
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        failures(list(pool.map(lambda p: tested(run, os.path.basename(p), [p], {}, times), programs)))


def module(run):
    """winnow-cuda.so: the real one, or in a rehearsal the emulated one."""
    path = os.path.join(run.build, "winnow-cuda.so" if run.gpu else "emulated/winnow-cuda.so")
    if not os.path.exists(path):
        raise (Failed if run.gpu else Skipped)(f"{path} is not there")
    return path


def same_bytes(run, folder):
    """Two trainings of the same recipe: the same parameters, to the bit."""
    name = "trained twice, the same bytes"
    if run.has(name):
        return None
    recipe = os.path.join(run.root, "recipes", "copy-selective.json")
    for which in "ab":
        code, out, _ = command([run.program("winnow"), "train", "--quiet", "--config", recipe, "--set", "train.steps=30",
                                "--set", "train.warmup=3", "--set", "train.precision=bfloat16", "--backend", run.backend,
                                "--out", os.path.join(folder, which)], run.box)
        if code:
            return f"{name}: {first_line(out)}"
    one = os.path.join(folder, "a", "model.safetensors")
    same = filecmp.cmp(one, one.replace("/a/", "/b/"), shallow=False)
    run.add(name, value=os.path.getsize(one), unit="bytes", **({} if same else {"why": "they differ"}))
    return None if same else f"{name}: they differ"


def models(run):
    env = {"WINNOW": run.program("winnow"), "WINNOW_BUILD": run.build}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        lines.append(same_bytes(run, folder))
    env["WINNOW_CUDA_MODULE"] = module(run)
    lines.append(tested(run, "tests/emulated", [os.path.join(run.root, "tests/emulated/run")], env))
    failures(lines)


def guard(run):
    if run.backend == "cuda":
        module(run)
    if run.a.visit and not glob.glob(os.path.join(run.build, "test_*")):
        raise Skipped("the kit has no test programs of the suite")
    env = {"WINNOW": run.program("winnow"), "WINNOW_BUILD": run.build, "WINNOW_GUARD_BACKEND": run.backend,
           "JOBS": str(max(2, int(run.jobs) // 4))}
    failures([tested(run, "tests/guard", [os.path.join(run.root, "tests/guard/run")], env)])


def small_questions(run):
    D = (16,) if run.a.tiny else (64, 128)
    return [{"do": "error", "T": 130, "H": 2, "Hkv": 1, "D": d, "type": t, "kind": k}
            for d in D for t in ("f32", "bf16") for k in ("standard", "selective", "mem", "exclusive", "dead")]


def sanitize(run):
    sanitized(run, ("memcheck", "racecheck", "synccheck", "initcheck"), lambda tool: small_questions(run))


# Of how many hazards it keeps account; it names none beyond.
RACECHECK = {"NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS": "4194304"}
# Hazards that racecheck reports and that are none: words of its line, and why.
BENIGN = {}


def hazards(said):
    """Lines of racecheck that are not known to be benign; how many are."""
    lines = [x for x in said if "ace reported" in x or "hazard" in x.lower() and "ERROR SUMMARY" not in x and "RACECHECK SUMMARY" not in x]
    bad = [x for x in lines if not any(words in x for words in BENIGN)]
    return bad, len(lines) - len(bad)


def sanitized(run, tools, questions_of):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not tool:
        raise Failed("compute-sanitizer is not installed")
    lines = []
    for name in tools:
        questions = questions_of(name)
        if run.has(name) and "why" not in run.store.measures(run.part)[name]:
            continue
        why, benign = None, 0
        with tempfile.NamedTemporaryFile("w", suffix=".questions") as f:
            f.write("".join(json.dumps(q) + "\n" for q in questions))
            f.flush()
            script = f'exec "$0" --tool {name} --error-exitcode 9 "$1" "$2" <"$3"'
            try:
                code, out, seconds = command(["sh", "-c", script, tool, run.program("bench_device"), run.backend, f.name],
                                             run.box, run.box.left() / 2 if name != tools[-1] else 600, RACECHECK)
                answers = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
                wrong = [x["error_line"] for x in answers if "error_line" in x]
                said = re.findall(r"^=+ (.*)", out, re.M)
                bad, benign = hazards(said) if name == "racecheck" else ([], 0)
                if code and (bad or not benign):
                    why = next((x for x in bad + said if "reported" in x or "ERROR SUMMARY" in x), first_line(out))
                elif wrong or len(answers) != len(questions):
                    why = wrong[0] if wrong else f"{len(answers)} of {len(questions)} answers"
                if why:
                    run.keep(f"{name}.txt", out)
            except Failed as e:
                why, seconds, answers = str(e), 0, []
        run.add(name, value=len(answers), unit="calls", seconds=round(seconds, 1), **({"benign": benign} if benign else {}),
                **({"why": why} if why else {}))
        if why:
            lines.append(f"{name}: {why}")
    failures(lines)


# ---- measuring ----

def peer(run, which):
    """bench_device, or PyTorch's program, as a process that stays."""
    if which not in PEERS:
        if which in WINNOW:
            PEERS[which] = Peer([run.program("bench_device"), run.backend], WINNOW[which])
        else:
            script = os.path.join(run.root, "bench/peers/torch_device.py")
            PEERS[which] = Peer([run.python(), script, "--device", "cuda" if run.gpu else "cpu"])
            run.store.data["machine"]["torch"] = PEERS[which].ask({"do": "about"}, run.box)
    return PEERS[which]


def ask(run, which, question, limit=120):
    """The answer; one with error_line where there is none."""
    try:
        return peer(run, which).ask(question, run.box, limit)
    except Skipped as e:
        return {"error_line": str(e)}
    except Failed as e:
        gone = PEERS.pop(which, None)
        if gone:
            gone.close()
        if which in WINNOW:
            raise
        return {"error_line": str(e)}


def shapes(run):
    """The longest and the shortest first, should time run out."""
    if run.a.tiny:
        return [(2, 2, 256, 32)]
    lengths = (512, 16384, 2048) if run.a.visit else (512, 16384, 4096, 2048, 8192, 1024)
    sizes = [(T, H, D) for T in lengths for H, D in ((12, 64), (8, 128))]
    if run.a.visit:
        sizes.sort(key=lambda size: size[2])  # heads of 64 decide
    return [(16384 // T, H, T, D) for T, H, D in sizes]


def training_shapes(run):
    batches = (2,) if run.a.tiny else (64,) if run.a.visit else (64, 128, 256)
    return [(kind, batch) for batch in batches for kind in ("standard", "selective")]


def compiled_questions(run):
    return [{"do": "time", "kind": "compiled", "B": B, "T": T, "H": H, "D": D, "backward": backward}
            for B, H, T, D in shapes(run) for backward in (False, True)]


def warm(run, asked=None):
    """Begins to fill the compiler's cache on disk, beside the build and the tests, which nobody times."""
    try:
        python = run.python()
    except Skipped:
        return
    script = os.path.join(run.root, "bench/peers/torch_device.py")
    asked = asked or compiled_questions(run)
    count = min(8, (os.cpu_count() or 2) // 2, len(asked))
    questions = tempfile.NamedTemporaryFile("w", suffix=".questions", delete=False)
    with questions as f:
        f.write("".join(json.dumps(q) + "\n" for q in asked))
    atexit.register(os.unlink, questions.name)
    for i in range(count):
        with open(questions.name) as f:
            p = subprocess.Popen([python, script, "--warm", str(i), str(count)], stdin=f, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True,
                                 env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"})
        WARMING.append(p)
        atexit.register(end_group, p)


WARMING = []


def warmed(run):
    """Before anything is timed nothing else may compute: what still compiles is ended."""
    for p in WARMING:
        try:
            p.wait(min(45, run.box.left() / 2) if run.a.visit else min(30, run.box.left() / 4))
        except subprocess.TimeoutExpired:
            end_group(p)
    WARMING.clear()


NAMES = {"mem": "selective with L_mem"}
# How fast beside cuDNN's standard attention: forward, and forward and backward.
TARGETS = {"standard": (0.9, 0.9), "selective": (0.8, 0.6), "mem": (0.78, 0.58), "exclusive": (0.9, 0.9)}
# The same of pruned models: selective, so many keys of all dead and left out.
PRUNED = {0.5: (1.0, 0.6), 0.9: (1.5, 0.8)}
EXCLUSIVE = 0.98  # beside winnow's own standard attention: 2% over it


def pruned(run, T):
    """Shares of dead keys that are measured: they are left out from the second window of rows on."""
    return PRUNED if T >= 2048 or run.a.tiny else {}


def dead(share):
    return {"kind": "dead", "dead": share}


def overlapped(run, T, backward):
    """What has launches that run beside each other: several windows of rows, or the last kernels of backward."""
    return ["selective"] * (backward or T > 4096) + [0.5] * (T > 2048) if not run.a.tiny else ["selective", 0.5]


def attention_at(run, B, H, T, D, backward):
    where = f"{'forward and backward' if backward else 'forward'}, T {T}, D {D}, "
    names = {**{kind: where + NAMES.get(kind, kind) for kind in TARGETS},
             **{share: f"{where}selective, {100 * share:.0f}% of keys dead" for share in pruned(run, T)}}
    overlaps = {key: f"{names[key]}, without overlap" for key in overlapped(run, T, backward)}
    if all(run.has(n) for n in [*names.values(), *overlaps.values()]):
        return
    question = {"do": "time", "B": B, "T": T, "H": H, "D": D, "backward": backward, "repeats": 3 if run.a.tiny else 7}
    mine = {**question, "type": "bf16"}
    standard = [ask(run, "torch", {**question, "kind": "cudnn"})]
    ours = {kind: ask(run, "winnow", {**mine, "kind": kind}) for kind in TARGETS}
    if "seconds" in standard[0]:
        standard.append(ask(run, "torch", {**question, "kind": "cudnn"}))
    for kind, targets in TARGETS.items():
        add_attention(run, names[kind], "cuDNN, standard", ours[kind], standard, targets[backward])
    if not run.a.visit:
        compiled = ask(run, "torch", {**question, "kind": "compiled"})
        add_attention(run, names["selective"] + " (compiled)", "torch.compile, selective", ours["selective"], [compiled], 1)
    add_attention(run, names["exclusive"] + " (standard)", "winnow, standard", ours["exclusive"], [ours["standard"]],
                  EXCLUSIVE)
    for share, targets in pruned(run, T).items():
        ours[share] = expected(ask(run, "winnow", {**mine, **dead(share)}), share)
        add_attention(run, names[share], "cuDNN, standard", ours[share], standard, targets[backward])
    for key, name in overlaps.items():
        alone = ask(run, "without overlap", {**mine, **(dead(key) if key in PRUNED else {"kind": key})})
        add_attention(run, name, "winnow, with overlap", alone, [ours[key]], None)


def expected(answer, share):
    """The answer, if as many keys were dead as were to be."""
    if "dead" in answer and abs(answer["dead"] - share) > 0.1:
        return {"error_line": f"{answer['dead']:.2f} of the keys are dead, expected {share:g}"}
    return answer


def add_attention(run, name, peer_name, mine, theirs, target):
    m = {"unit": "ms", "peer": peer_name, "target": target, "sense": "least"}
    if "seconds" in mine:
        m.update(value=1e3 * mine["seconds"], spread=mine["spread"], bytes=mine["bytes"], repeats=mine["repeats"])
    else:
        m["why"] = mine["error_line"]
    good = [x for x in theirs if "seconds" in x]
    if good:
        m.update(peer_value=1e3 * sum(x["seconds"] for x in good) / len(good), peer_bytes=good[0]["bytes"],
                 peer_graph=good[0].get("graph"))
    else:
        m["peer_why"] = theirs[0]["error_line"]
    run.add(name, **m)


def errors(run):
    lines = []
    T, H, D = (100, 2, (32,)) if run.a.tiny else (1000, 2, (64, 128))
    for d in D:
        for kind in ("standard", "selective", "mem", "exclusive"):
            for bf16 in (True,) if run.a.visit else (False, True):
                name = f"error, T {T}, D {d}, {NAMES.get(kind, kind)}, {'bf16' if bf16 else 'float'}"
                if run.has(name):
                    continue
                x = ask(run, "winnow", {"do": "error", "T": T, "H": H, "D": d, "kind": kind,
                                        "type": "bf16" if bf16 else "f32"})
                if "error_line" in x:
                    run.add(name, why=x["error_line"])
                    lines.append(f"{name}: {x['error_line']}")
                    continue
                each = {k: v / x["naive"][k] for k, v in x["error"].items()} if bf16 and "naive" in x else x["error"]
                limit = 2.0 if bf16 and "naive" in x else 5e-6 if not bf16 else 1e-2
                worst = max(each, key=each.get)
                run.add(name, value=each[worst], unit="naive errors" if limit == 2 else "of the norm", of=worst, all=x,
                        target=limit, sense="most")
                if not each[worst] <= limit:
                    lines.append(f"{name}: {worst} is off by {each[worst]:.2g}, at most {limit:g}")
    return lines


def attention(run):
    warmed(run)
    lines = errors(run)
    for B, H, T, D in shapes(run):
        for backward in (False, True):
            attention_at(run, B, H, T, D, backward)
    lines += [f"{n}: {m['why']}" for n, m in run.store.measures(run.part).items() if m.get("why") and "peer" in m]
    failures(lines)


def winnow_json(run, arguments, limit=120, env=None):
    """What a command of winnow says as JSON; its one line where it fails."""
    code, out, _ = command([run.program("winnow")] + arguments + ["--json", "--backend", run.backend], run.box, limit, env)
    if code:
        return {"error_line": first_line(out)}
    return json.loads(out[out.index("{"):])


def train_name(kind, batch):
    return f"d12 {kind}, batch {batch}"


def train_arguments(run, kind, batch):
    recipe = os.path.join(run.root, "recipes", f"selective-paper-d12-{kind}.json")
    sets = [f"model.vocab_size={64 if run.a.tiny else 8192}", f"train.batch={batch}", "train.accumulate=1",
            "train.precision=bfloat16"]
    if run.a.tiny:
        sets += ["model.layers=1", "model.width=32", "model.heads=2", "model.context=16"]
    return ["--config", recipe] + [x for s in sets for x in ("--set", s)]


def train_at(run, kind, batch):
    name = train_name(kind, batch)
    if run.has(name):
        return None
    mine = winnow_json(run, ["bench", "train", "--warmup", "2", "--repeats", "2" if run.a.tiny else "7"] +
                       train_arguments(run, kind, batch))
    m = {"unit": "tokens/s", "peer": f"torch.compile, {kind}", "target": 1.0 if kind == "standard" else 1.4,
         "sense": "least"}
    if "error_line" in mine:
        run.add(name, **m, why=mine["error_line"])
        return f"{name}: {mine['error_line']}"
    m.update(value=mine["tokens_per_second"], spread=mine["step"]["spread_iqr_over_median"],
             bytes=mine["backend_peak_bytes"], repeats=mine["step"]["repeats"], model=mine["model"])
    run.add(name, **m)
    return None


def train_peer(run, kind, batch):
    """Of a step that has been measured: PyTorch, which compiles for half a minute first."""
    name = train_name(kind, batch)
    m = dict(run.store.measures(run.part)[name]) if run.has(name) else {}
    if "model" not in m or "peer_value" in m or "peer_why" in m:
        return
    theirs = ask(run, "torch", {"do": "train", "kind": kind, "model": m["model"], "batch": batch,
                                "context": 16 if run.a.tiny else 512, "repeats": m["repeats"]})
    if "error_line" in theirs:
        m["peer_why"] = theirs["error_line"]
    else:
        m.update(peer_value=theirs["tokens_per_second"], peer_bytes=theirs["bytes"])
    run.add(name, **m)


def train(run):
    """winnow's steps first, should time run out."""
    warmed(run)
    lines = []
    for kind, batch in training_shapes(run):
        lines.append(train_at(run, kind, batch))
    for kind, batch in training_shapes(run):
        train_peer(run, kind, batch)
    failures(lines)


def find_model(run):
    if run.a.model:
        if not os.path.exists(run.a.model):
            raise Failed(f"{run.a.model} is not there")
        return run.a.model
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    for folder in (run.root, os.path.join(run.root, "data"), os.path.join(run.root, "models"), os.path.join(cache, "winnow")):
        for path in sorted(glob.glob(os.path.join(folder, "*.gguf"))):
            if "smollm2" in os.path.basename(path).lower():
                return path
    raise Skipped("no SmolLM2*.gguf: give --model FILE")


def llama(run, model, streams):
    """llama.cpp's tokens/s with all layers on the GPU, or why there are none."""
    name = "llama-bench" if streams == 1 else "llama-batched-bench"
    program = shutil.which(name)
    if not program or not run.gpu:
        return None, f"{name} is not in PATH" if not program else "on a GPU alone"
    common = ["-m", model, "-ngl", "99", "-fa", "1"]
    if streams == 1:
        arguments = common + ["-p", "0", "-n", "64", "-d", "4096", "-o", "json"]
    else:
        arguments = common + ["-npp", "4096", "-ntg", "64", "-npl", str(streams), "-c", str(streams * 4224),
                              "--output-format", "jsonl"]
    code, out, _ = command([program] + arguments, run.box, keep_errors=False)
    try:
        if code:
            return None, f"{name}: exit code {code}"
        if streams == 1:
            x = json.loads(out[out.index("["):])[0]
            if "CUDA" not in json.dumps(x.get("backends", "")):
                return None, f"{name} has no CUDA"
            return x["avg_ts"], None
        line = next(x for x in out.splitlines() if x.startswith("{"))
        return json.loads(line)["speed_tg"], None
    except (ValueError, KeyError, IndexError, StopIteration):
        return None, f"{name}: not understood"


def without_graphs(run, name, arguments, graphs, lines):
    """The same, launch by launch: what CUDA graphs gain."""
    name += ", without CUDA graphs"
    if run.has(name):
        return
    x = winnow_json(run, arguments, env={"WINNOW_CUDA_GRAPHS": "0"})
    if "error_line" in x:
        run.add(name, unit="tokens/s", why=x["error_line"])
        lines.append(f"{name}: {x['error_line']}")
        return
    x = x["results"][0]
    run.add(name, unit="tokens/s", value=x["tokens_per_second"], spread=x["step"]["spread_iqr_over_median"], peer="with graphs",
            peer_value=graphs, repeats=x["step"]["repeats"])


def decode(run):
    warmed(run)
    model = find_model(run)
    context = 32 if run.a.tiny else 4096
    lines = []
    for streams in (1, 2 if run.a.tiny else 32):
        full = None
        for budget in (None, 8 if run.a.tiny else 512):
            name = f"{streams} stream{'s' * (streams > 1)} behind {context} tokens" + (f", budget {budget}" if budget else "")
            arguments = ["bench", "decode", model, "--contexts", str(context), "--batch", str(streams), "--repeats", "32"]
            if budget:
                arguments += ["--budgets", str(budget), "--policy", "streaming"]
            if run.has(name):
                known = run.store.measures(run.part)[name].get("value")
                full = full or known
                if known:
                    without_graphs(run, name, arguments, known, lines)
                continue
            mine = winnow_json(run, arguments)
            m = {"unit": "tokens/s", "target": 1.0, "sense": "least", "peer": "the full cache" if budget else "llama.cpp"}
            if "error_line" in mine:
                run.add(name, **m, why=mine["error_line"])
                lines.append(f"{name}: {mine['error_line']}")
                continue
            x = mine["results"][0]
            m.update(value=x["tokens_per_second"], spread=x["step"]["spread_iqr_over_median"], bytes=x["kv_bytes"],
                     prefill=x["prefill_tokens_per_second"], repeats=x["step"]["repeats"])
            if budget:
                m["peer_value"] = full
            else:
                full = x["tokens_per_second"]
                value, why = llama(run, model, streams)
                m.update({"peer_value": value} if value else {"peer_why": why})
            run.add(name, **m)
            without_graphs(run, name, arguments, x["tokens_per_second"], lines)
    failures(lines)
