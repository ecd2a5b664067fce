"""Training runs from recipes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ._library import Callback, Context, PathLike, copied, encoded, ffi, json_text, lib, path_bytes, strings, taken_text
from ._library import callback as _callback
from .estimate import Estimate, estimate

#: A recipe's path, or its content: {"model": .., "data": .., "train": ..}.
Recipe = Union[str, "os.PathLike[str]", Mapping[str, Any]]
#: Changes of a recipe: {"train.lr": 0.001} or ["train.lr=0.001"].
Sets = Union[Mapping[str, Any], Sequence[str]]


@dataclass(frozen=True)
class Step:
    """The numbers of one step of a run."""

    step: int  #: steps done
    steps: int  #: in all
    loss: float  #: before the update, nats
    lr: float
    grad_norm: float
    tokens: int  #: seen so far
    tokens_per_second: float
    seconds: float
    budget: float  #: mean of the layers' budgets in force; 0: none
    val_loss: Optional[float]  #: where this step evaluated
    val_accuracy: Optional[float]
    saved: bool
    val_loss_rows: Optional[Estimate]  #: val_loss with its error over rows


@dataclass(frozen=True)
class TrainLog:
    """A run's log: one array [steps] per column, NaN where a step has no value."""

    step: NDArray[np.float64]
    tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]
    loss: NDArray[np.float64]
    lr: NDArray[np.float64]
    grad_norm: NDArray[np.float64]
    val_loss: NDArray[np.float64]
    val_accuracy: NDArray[np.float64]
    tokens_per_second: NDArray[np.float64]
    val_loss_stderr: NDArray[np.float64]  #: over rows; older logs have none


def step_of(progress: Any) -> Step:
    p = progress
    evaluated = bool(p.evaluated)
    return Step(
        step=p.step,
        steps=p.steps,
        loss=p.loss,
        lr=p.lr,
        grad_norm=p.grad_norm,
        tokens=p.tokens,
        tokens_per_second=p.tokens_per_second,
        seconds=p.seconds,
        budget=p.budget,
        val_loss=p.val_loss if evaluated else None,
        val_accuracy=p.val_accuracy if evaluated else None,
        saved=bool(p.saved),
        val_loss_rows=estimate(p.val_loss_rows) if evaluated else None,
    )


@_callback("void(void *, const wn_train_progress *)")
def _on_step(user: Any, progress: Any) -> None:
    ffi.from_handle(user)(progress)


def _tell(step: Callable[[Step], Any], progress: Any) -> None:
    step(step_of(progress))


def _assignments(sets: Optional[Sets]) -> list[str]:
    if sets is None:
        return []
    if isinstance(sets, Mapping):
        return [f"{k}={v if isinstance(v, str) else json_text(v)}" for k, v in sets.items()]
    if isinstance(sets, str):
        return [sets]
    return list(sets)


def read_recipe(context: Context, recipe: Optional[Recipe], sets: Optional[Sets]) -> Any:
    """A wn_recipe, resolved; None: the defaults."""
    out = ffi.new("wn_recipe *")
    texts, kept = strings(_assignments(sets), "set")
    if isinstance(recipe, Mapping):
        raw = encoded(json_text(recipe))
        context.call(lib.wn_recipe_parse, ffi.from_buffer(raw), len(raw), texts, len(kept), out)
    else:
        path = ffi.NULL if recipe is None else ffi.new("char[]", path_bytes(recipe))
        context.call(lib.wn_recipe_load, path, texts, len(kept), out)
    return out


def resolve_recipe(recipe: Optional[Recipe] = None, set: Optional[Sets] = None) -> dict[str, Any]:
    """A recipe with every default and change filled in, as a run would use it; its mistakes are a ConfigError."""
    context = Context(threads=1)
    out = ffi.new("char **")
    context.call(lib.wn_recipe_json, read_recipe(context, recipe, set), out)
    found: dict[str, Any] = json.loads(taken_text(out[0]))
    return found


def train(
    recipe: Optional[Recipe] = None,
    out: Optional[PathLike] = None,
    *,
    set: Optional[Sets] = None,
    callback: Optional[Callable[[Step], Any]] = None,
    resume: bool = False,
    threads: int = 0,
    backend: Optional[str] = None,
    log: Optional[Callable[[str, str], None]] = None,
) -> TrainLog:
    """Trains a model by a recipe into the folder `out`, as `winnow train` does, and returns the run's log.

    recipe: a path, or a dict of "model", "data" and "train"; None: the defaults, with resume the run's own. set: changes of
    single keys of it. callback: called after every step with a Step. An exception that it raises (and Ctrl-C) ends the run after the
    step, with a checkpoint that resume=True continues from to the same bits, and is raised here."""
    if out is None:
        raise TypeError("train: out, the run's folder, is needed")
    context = Context(threads, backend, log)
    try:
        keeps = resume and recipe is None
        if keeps and set and lib.wn_train_can_resume(path_bytes(out)):  # else the folder is refused before any recipe is read
            recipe, keeps = os.path.join(os.fspath(out), "recipe.json"), False
        raw = ffi.NULL if keeps else read_recipe(context, recipe, set)
        user = ffi.new_handle(Callback(context, None if callback is None else partial(_tell, callback)))
        context.call(lib.wn_train_run, raw, path_bytes(out), resume, _on_step, user)
    finally:
        context.close()
    return load_log(out)


def load_log(folder: PathLike) -> TrainLog:
    """The log of a run, finished or not."""
    context = Context(threads=1)
    log = ffi.new("wn_train_log *")
    context.call(lib.wn_train_log_load, path_bytes(folder), log)
    try:
        names = TrainLog.__dataclass_fields__
        return TrainLog(**{name: copied(getattr(log, name), log.count, np.float64) for name in names})
    finally:
        lib.wn_train_log_clear(log)
