"""Every property and method of the package's classes, in one thread, against what closes its object, or the model, in another:
each returns or raises a WinnowError, and the process lives.

  test_close.py FOLDER [CLASS]    an empty working folder; WINNOW_ROOT: the repository. Writes TAP.

Members are read from the classes: one that needs arguments and has none below fails. Environment: SEED (1), ROUNDS a member (12)."""
import faulthandler
import inspect
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import winnow_lm as wn

SEED, ROUNDS = int(os.environ.get("SEED", 1)), int(os.environ.get("ROUNDS", 12))
PATH = os.path.join(os.environ["WINNOW_ROOT"], "tests/released/0.2.0/llama")
IDS = np.arange(3, 23, dtype=np.int32)
TEXT = "the cat sees the sea and the ship. "
os.makedirs(sys.argv[1], exist_ok=True)
os.chdir(sys.argv[1])

MAKE = {
    "Model": lambda m: m,
    "Tokenizer": lambda m: m.tokenizer,
    "Session": lambda m: fed(m.session(capacity=400, tau=0.9, counts=True, control_marks=True)),
    "Generation": lambda m: m.generate(IDS[:4], max_tokens=12, ignore_end=True, schema=None),
    "Chat": lambda m: m.chat("", template="chatml", context=400, max_tokens=3),
    "Budgets": lambda m: m.budgets(8, "h2o"),
}
ARGUMENTS = {
    "Model": {
        "attention": (IDS,), "budgets": (8, "h2o"), "detokenize": (IDS,), "encode_chat": lambda o: o.encode_chat([("user", "x")], template="chatml"),
        "encode_pair": ("the", " cat"), "evaluate": (IDS,), "generate": lambda o: o.generate(IDS[:4], max_tokens=3),
        "head_report": (TEXT,), "logits": (IDS,), "loss": (IDS,), "save": ("saved",), "score": (IDS,),
        "chat": lambda o: o.chat("", template="chatml", context=400).ask("x", max_tokens=2),
        "score_choices": ("the", ["a", "b"]), "score_requests": ([[(IDS, 4)]],), "session": lambda o: o.session(capacity=32).feed(IDS),
        "search": lambda o: o.search(search="data.bin", report="data.bin", out=f"found{time.monotonic_ns()}", tolerance=0.5, policy="h2o", rows=2,
                                     report_rows=2, max_steps=1),
        "set_attention": ("window=0",), "set_control_tokens": (IDS[:2],), "tokenize": (TEXT,),
    },
    "Tokenizer": {
        "align": lambda o: o.align(o.encode(TEXT), TEXT), "decode": (IDS,), "decode_bytes": (IDS,), "encode": (TEXT,), "find": ("<s>",),
        "is_control": (1,), "is_end": (1,), "name": (5,), "prompt": (TEXT,), "token_bytes": (5,),
    },
    "Session": {
        "embed": (IDS,), "encode": (IDS,), "feed": (IDS,), "read_context": (IDS,), "generate": lambda o: o.generate(IDS[:2], max_tokens=3).read(),
        "kept_by": (0, 0), "mark_control": lambda o: o.mark_control(o.position, 1), "pin": (0, 1), "restore": lambda o: o.restore(o.fork()), "score": (IDS, IDS), "score_next": (IDS,), "states": (IDS,),
        "save": lambda o: o.save(f"state{threading.get_ident()}"), "cut": (0,),
        "load": lambda o: (o.save(f"loaded{threading.get_ident()}"), o.load(f"loaded{threading.get_ident()}")),
    },
    "Generation": {},
    "Chat": {"ask": ("x",), "pin": lambda o: o.ask("x") and o.pin(0), "say": lambda o: o.say("x").read()},
    "Budgets": {"save": ("budgets.json",)},
}
NOT_HERE = ("Session.encode", "Generation.__del__")  # of models with an encoder; what is called returns at once
SPECIAL = ("__repr__", "__iter__", "__enter__", "__del__")


def fed(session):
    session.feed(IDS)
    return session


def classes():
    """Every public class that is no result (a dataclass) and no exception."""
    for name in wn.__all__:
        one = getattr(wn, name)
        if inspect.isclass(one) and not issubclass(one, Exception) and not hasattr(one, "__dataclass_fields__"):
            yield name, one


def members(name, one):
    """(member's name, what uses it on an object)"""
    for member in sorted(set(dir(one))):
        found = inspect.getattr_static(one, member)
        if (member.startswith("_") and member not in SPECIAL) or isinstance(found, (classmethod, staticmethod)):
            continue
        if not callable(found):
            yield member, lambda o, member=member: getattr(o, member)
            continue
        given = ARGUMENTS[name].get(member)
        required = [p for p in list(inspect.signature(found).parameters.values())[1:]
                    if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if given is None and required:
            raise LookupError(f"{name}.{member} has no arguments in this test: {', '.join(p.name for p in required)}")
        yield member, given if callable(given) else lambda o, member=member, given=given or (): getattr(o, member)(*given)


def use(work, one, found, done):
    try:
        for _ in range(40):
            got = work(one)
            done.append(1)
            if isinstance(got, wn.Generation):
                got.read()
            elif inspect.isgenerator(got):
                list(got)
    except wn.WinnowError:
        pass
    except BaseException as e:
        found.append(e)


def against_close(name, member, work, draw):
    done = []
    for number in range(ROUNDS):
        model = wn.Model.load(PATH, threads=1, as_float=True)
        one, found = MAKE[name](model), []
        threads = [threading.Thread(target=use, args=(work, one, found, done)) for _ in range(2)]
        for t in threads:
            t.start()
        time.sleep(draw.random() ** 3 * 0.004)
        late = time.monotonic() + 5  # on a busy machine no call may have come so far: the second half waits for one
        while number >= ROUNDS // 2 and not done and any(t.is_alive() for t in threads) and time.monotonic() < late:
            time.sleep(0.001)
        if number % 3 == 0 and hasattr(one, "close"):
            one.close()
        elif number % 3 == 1:
            try:
                model.set_attention("window=8")  # closes what was made before
                model.session(capacity=8)
            except wn.WinnowError:
                pass  # the member has closed it
        model.close()
        for t in threads:
            t.join()
        if found:
            raise found[0]
    if not done and ROUNDS >= 12 and f"{name}.{member}" not in NOT_HERE:
        raise AssertionError("not one call succeeded")


def run(name):
    draw, one, bad = random.Random(SEED), dict(classes())[name], 0
    for member, work in members(name, one):
        print(f"# {name}.{member}", flush=True)
        try:
            against_close(name, member, work, draw)
            print(f"ok - {name}.{member} against close", flush=True)
        except BaseException as e:
            bad = 1
            print(f"not ok - {name}.{member} against close\n# seed {SEED}: {type(e).__name__}: {e}", flush=True)
    return bad


if len(sys.argv) > 2:
    faulthandler.enable()
    sys.exit(run(sys.argv[2]))
with open("text.txt", "w") as f:
    f.write(TEXT * 400)
wn.prepare_data("text.txt", "data", tokenizer=PATH, val_fraction=0)
os.rename("data/train.bin", "data.bin")
failed = 0
names = [name for name, _ in classes()]
for lacking in set(names) ^ set(MAKE):
    failed = 1
    print(f"not ok - {lacking} is {'a class without' if lacking in names else 'no class, but has'} a maker in this test")
for name in names:
    done = subprocess.run([sys.executable, __file__, ".", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                          stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines()
    for line in lines:
        if not line.startswith("# " + name):
            print(line)
    if done.returncode:
        failed = 1
    if done.returncode not in (0, 1) or (done.returncode and not any(line.startswith("not ok") for line in lines)):
        last = [line for line in lines if line.startswith("# ")] or ["# nothing"]
        print(f"not ok - {last[-1][2:]} against close\n# seed {SEED}: exit code {done.returncode}")
        print("".join(f"# {line}\n" for line in done.stderr.splitlines()[-30:]), end="")
sys.exit(failed)
