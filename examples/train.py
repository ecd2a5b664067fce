#!/usr/bin/env python3
"""train.py RECIPE.json RUN [KEY=VALUE...]: trains a model into the folder RUN, and draws the loss as it falls."""
import sys

import winnow_lm

if len(sys.argv) < 3:
    sys.exit(__doc__)
recipe, run, *changes = sys.argv[1:]
WIDTH = 60
highest = 0.0


def draw(step: winnow_lm.Step) -> None:
    """A line for about every fiftieth of the run: the loss as a bar."""
    global highest
    highest = max(highest, step.loss)
    if step.step % max(1, step.steps // 50) == 0 or step.val_loss is not None:
        bar = "#" * round(WIDTH * step.loss / highest)
        print(f"{step.step:7} {step.loss:8.4f} {bar}" + (f" val {step.val_loss:.4f}" if step.val_loss is not None else ""))


log = winnow_lm.train(recipe, run, set=changes, callback=draw)
print(f"{len(log.loss)} steps in {log.seconds[-1]:.1f} s, loss {log.loss[0]:.4f} to {log.loss[-1]:.4f}")
