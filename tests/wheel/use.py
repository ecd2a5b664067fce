"""An installed winnow-lm at work: a model of an earlier release is loaded and goes on with a text, and ten steps are trained.

  use.py MODEL FOLDER      FOLDER: an empty place to work in; prints JSON

Fails where a shared library comes from outside the package, other than those that every manylinux system has."""
import json
import os
import re
import sys

import cffi
import numpy

EVERYWHERE = r"(ld-linux-.+|libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libz)\.so[.0-9]*"


def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split(None, 5)[5].strip() for line in maps if re.search(r"\.so[.0-9]*$", line.strip())}


cffi.FFI().dlopen(None)
numpy.linalg.norm(numpy.ones(3))
before = mapped()
import winnow_lm  # noqa: E402

model, folder = sys.argv[1:]
with winnow_lm.Model.load(model, threads=2) as loaded:
    text = "".join(loaded.generate("the river", max_tokens=24, temperature=0))
assert len(text) > 8, text

os.chdir(folder)
with open("corpus.txt", "w") as f:
    f.write("".join(f"the cat sees the sea and the ship {i % 7}\n" for i in range(400)))
winnow_lm.prepare_data("corpus.txt", "data", tokenizer="bytes", document_break="line")
recipe = {
    "model": {"context": 64, "layers": 2, "width": 64, "heads": 4},
    "data": {"train": "data/train.bin", "val": "data/val.bin", "tokenizer": "bytes"},
    "train": {"steps": 10, "batch": 4, "lr": 0.01, "warmup": 2, "eval_every": 10, "eval_batches": 1, "seed": 3},
}
steps = []
winnow_lm.train(recipe, "run", callback=steps.append, threads=2)
losses = [step.loss for step in steps]
assert len(losses) == 10 and losses[-1] < 0.8 * losses[0], losses

package = os.path.dirname(os.path.realpath(winnow_lm.__file__))
inside = (package + os.sep, package + ".libs" + os.sep)
taken = {os.path.realpath(path) for path in mapped() - before}
outside = sorted(path for path in taken if not path.startswith(inside) and not re.fullmatch(EVERYWHERE, os.path.basename(path)))
assert not outside, f"from outside the wheel: {outside}"
assert any(path.startswith(inside[0]) for path in taken), taken
carried = sorted(os.path.basename(path) for path in taken if path.startswith(inside[1]))
print(json.dumps({"version": winnow_lm.__version__, "text": text, "losses": losses, "carried": carried}))
