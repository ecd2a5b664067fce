"""The long runs of bench/gpu: Variable Assignment with 1,000 values and 128 assignments at a batch of 2,048, and the
d = 12 models with the budget searches on them. Each call works for its box of time; what is stopped has saved, and the
same command goes on. The folder of the runs holds everything (--runs)."""
import json
import os
import signal
import subprocess

from store import Failed, Skipped, end_group

SAVING = 45  # seconds that a run may take to save when it is stopped


def stoppable(run, arguments, log):
    """True: it ended well; False: it was stopped at the end of the box and has saved."""
    run.box.need(arguments[1])
    with open(log, "a") as f:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    try:
        code = process.wait(max(1.0, run.box.left() - SAVING * run.a.patience))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SAVING)
        except subprocess.TimeoutExpired:
            end_group(process)
            raise Failed(f"{' '.join(arguments[1:3])} did not save in {SAVING} s: see {log}") from None
        return False
    if code:
        with open(log) as f:
            lines = [x.strip() for x in f if x.strip()]
        raise Failed(f"{' '.join(arguments[1:3])}: {lines[-1][:200] if lines else f'exit code {code}'}")
    return True


def last_line(folder):
    """The last evaluation and step of a run's log."""
    step, evaluation = {}, {}
    try:
        with open(os.path.join(folder, "log.jsonl")) as f:
            for line in f:
                x = json.loads(line)
                if "loss" in x:
                    step = x
                if any(k.startswith("val_") for k in x):
                    evaluation = x
    except (OSError, ValueError):
        pass
    return step, evaluation


def trained(run, name, recipe, sets):
    folder = os.path.join(runs(run), name)
    done = os.path.join(folder, "done")
    if os.path.exists(done):
        return folder
    arguments = [run.program("winnow"), "train", "--out", folder, "--backend", run.backend, "--quiet"]
    if os.path.exists(os.path.join(folder, "log.jsonl")):
        arguments += ["--resume"]
    else:
        os.makedirs(runs(run), exist_ok=True)
        arguments += ["--config", os.path.join(run.root, "recipes", recipe)]
        arguments += [x for s in sets for x in ("--set", s)]
    ended = stoppable(run, arguments, os.path.join(runs(run), f"{name}.log"))
    step, evaluation = last_line(folder)
    steps = step.get("step", 0)
    words = {k: evaluation[k] for k in evaluation if k.startswith("val_")}
    run.add(name, value=steps, unit="steps", evaluation=words, **({} if ended else {"why": f"{steps} steps so far"}))
    if not ended:
        return None
    with open(done, "w"):
        pass
    return folder


def searched(run, name, model, standard, data):
    out = os.path.join(runs(run), f"{name}-budgets")
    done = os.path.join(out, "done")
    if os.path.exists(done):
        return True
    arguments = [run.program("winnow"), "prune", "search", model, "--search", os.path.join(data, "val.bin"), "--report",
                 os.path.join(data, "test.bin"), "--target-checkpoint", standard, "--out", out, "--backend", run.backend,
                 "--quiet"]
    if os.path.isdir(out):
        arguments += ["--resume"]
    ended = stoppable(run, arguments, out + ".log")
    run.add(f"{name}, budgets", value=1 if ended else 0, unit="searches", **({} if ended else {"why": "not done yet"}))
    if ended:
        with open(done, "w"):
            pass
    return ended


def runs(run):
    return os.path.abspath(run.a.runs or os.path.splitext(run.store.path)[0] + "-runs")


def run(run):
    """Returns what is left, in one line, or nothing."""
    tiny = ["train.steps=6", "train.warmup=1", "train.eval_every=3", "train.save_every=3", "data.assignments=4",
            "data.values=8", "train.batch=2", "train.accumulate=1", "train.eval_batches=1"]
    batch = ["train.batch=2048", "train.accumulate=1", "train.precision=bfloat16"]
    for kind in ("standard", "selective"):
        name = f"variable-assignment-{kind}"
        if not trained(run, name, f"variable-assignment-paper-{kind}.json", tiny if run.a.tiny else batch):
            return f"{name} goes on with the same command"
    data = os.path.abspath(run.a.data or os.path.join(run.root, "data"))
    files = [os.path.join(data, x) for x in ("train.bin", "val.bin", "test.bin", "tokenizer.model")]
    lacking = [x for x in files if not os.path.exists(x)]
    if lacking:
        raise Skipped(f"the d = 12 models: {lacking[0]} is not there")
    sets = ["train.batch=64", "train.accumulate=4", "train.precision=bfloat16"] + [
        f"data.{key}={path}" for key, path in zip(("train", "val"), files)] + [f"data.tokenizer={files[3]}"]
    models = {}
    for kind in ("standard", "selective", "mem"):
        models[kind] = trained(run, f"d12-{kind}", f"selective-paper-d12-{kind}.json", sets)
        if not models[kind]:
            return f"d12-{kind} goes on with the same command"
    for kind in ("selective", "mem"):
        if not searched(run, f"d12-{kind}", models[kind], models["standard"], data):
            return f"the search on d12-{kind} goes on with the same command"
    return None
