"""Searching for budgets: how many tokens each layer needs (winnow/prune.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from . import budgets as _budgets
from ._library import Callback, PathLike, copied, decoded, ffi, lib, options_of, path_bytes, put
from ._library import callback as _callback
from .budgets import Budgets, Options
from .estimate import Estimate, estimate

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class SearchPoint:
    """The budgets after a step of a search, and their losses."""

    layer: int  #: whose budget the step lowered; -1: before the first step
    tokens: NDArray[np.int64]  #: [layers]
    total: int
    search_loss: float  #: nats a token
    report_loss: float
    saving: float  #: layers * context / total
    search_rows: Estimate  #: search_loss and report_loss with their errors over rows
    report_rows: Estimate
    report_change: Estimate  #: report_loss minus that of the first point, paired row by row
    report_row_loss: Optional[NDArray[np.float64]]  #: [report rows] the sum of each row's losses; None: too many rows to keep


@dataclass(frozen=True)
class Search:
    """The result of a search."""

    points: list[SearchPoint]  #: the first is the model without budgets
    end: str  #: "target", "floor" or "steps"
    budgets: Budgets  #: of the last point: an argument budgets= wherever there is one
    target_loss: float  #: the search loss that was not to be exceeded
    report_saving: Estimate  #: at the target on the report set, by a bootstrap over its rows with the budgets held fixed
    report_saving_open: float  #: the share of bootstrap samples that pass the target nowhere: their savings are lower bounds
    report_row_tokens: Optional[NDArray[np.float64]]  #: [report rows] counted tokens of each row


@_callback("void(void *, const wn_prune_progress *)")
def _on_search(user: Any, progress: Any) -> None:
    ffi.from_handle(user)(progress)


def _row_numbers(raw: Any, curve: Any) -> Optional[NDArray[np.float64]]:
    return copied(raw, curve.report_rows, np.float64) if raw else None


def _point(curve: Any, i: int) -> SearchPoint:
    raw = curve.points[i]
    return SearchPoint(
        raw.layer,
        copied(raw.tokens, curve.layers, np.int64),
        raw.total,
        raw.search_loss,
        raw.report_loss,
        raw.saving,
        estimate(raw.search_rows),
        estimate(raw.report_rows),
        estimate(raw.report_change),
        _row_numbers(raw.report_row_loss, curve),
    )


def search(
    model: "Model",
    *,
    search: PathLike,
    report: PathLike,
    out: PathLike,
    policy: Optional[str] = None,
    policy_options: Optional[Options] = None,
    tolerance: float = 0.0,
    target: float = 0.0,
    step: int = 8,
    context: int = 0,
    read: int = 0,
    rows: int = 0,
    report_rows: int = 0,
    batch: int = 0,
    max_steps: int = 0,
    long_only: bool = False,
    document_token: int = -1,
    lazy: bool = False,
    race: float = 0.0,
    memory: int = 0,
    resume: bool = False,
    callback: Optional[Callable[[SearchPoint], Any]] = None,
) -> Search:
    """Finds each layer's budget (Model.search): begins at the whole context, and each step takes `step` tokens from the layer
    where that costs least on the token file `search`, until its perplexity would exceed `target`, or the model's own by more
    than the part `tolerance`. The token file `report` is measured after every step.

    With the option when "prompt" or "hold" among policy_options the first `read` tokens of a row (0: half) are its context, which
    is compressed once; losses are those behind it. rows, report_rows: at most so many rows of the files. long_only, document_token: as in Model.evaluate. race: layers that are
    worse by t tests on a part of the rows are not evaluated on all, and some step differs from the exact search with at most this
    probability. callback: called after every step with a SearchPoint; an exception that it raises ends the search, which
    resume=True continues from the folder `out`."""
    options = options_of("wn_prune_options", lib.wn_prune_options_init)
    ctx = model._context
    searched, reported = ffi.new("char[]", path_bytes(search)), ffi.new("char[]", path_bytes(report))
    document_token = model._document_token(document_token)
    for data, path, most in (options.search, searched, rows), (options.report, reported, report_rows):
        data.path, data.long_only = path, long_only
        put(data, rows=most, document_token=document_token)
    if policy is not None or policy_options is not None:
        # Only the policy and its options are looked at; the tokens stay with `chosen`.
        chosen = _budgets.make(ctx, model._handle, model.context, policy, policy_options)
        options.budgets = chosen._raw[0]
    put(options, context=context, read=read, step=step, batch=batch, max_steps=max_steps, memory=memory)
    options.tolerance, options.target, options.lazy, options.race = tolerance, target, lazy, race
    curve = ffi.new("wn_prune_curve *")

    def told(progress: Any) -> None:
        c = progress.curve
        if callback is not None and progress.stepped:
            callback(_point(c, c.count - 1))

    user = ffi.new_handle(Callback(ctx, told))
    try:
        ctx.call(lib.wn_prune_search, model._handle, options, path_bytes(out), resume, _on_search, user, curve)
        points = [_point(curve, i) for i in range(curve.count)]
        raw = ffi.new("wn_budgets *")
        ctx.call(lib.wn_prune_curve_budgets, curve, curve.count - 1, raw)
        end = decoded(lib.wn_prune_end_name(curve.end))
        return Search(
            points,
            end,
            Budgets(raw),
            curve.target_loss,
            estimate(curve.report_saving),
            curve.report_saving_open,
            _row_numbers(curve.report_row_tokens, curve),
        )
    finally:
        lib.wn_prune_curve_clear(curve)
