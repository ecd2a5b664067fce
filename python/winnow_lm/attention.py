"""What tokens see: attention weights, selections, evictions, and what heads attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._library import Borrowed, callback, Progress, Text, copied, encoded, ffi, int32, lib, options_of, pointer, put
from .budgets import BudgetSpec, Options, PolicyLike, Room

if TYPE_CHECKING:
    from .model import Model

#: evicted_at of a token that is never evicted.
NEVER = 2**31 - 1


@dataclass(frozen=True)
class AttentionMaps:
    """What the tokens of one text see in every layer. Row i is the query, column j the key; entries j > i are 0."""

    tokens: NDArray[np.int32]  #: [T]
    loss: float  #: mean over the text's positions, nats
    weights: NDArray[np.float32]  #: [layers, T, T] mean over the heads; a row sums to 1 minus the weight of learned sinks
    head_weights: Optional[NDArray[np.float32]]  #: [layers, heads, T, T], with heads=True
    F: Optional[NDArray[np.float32]]  #: [layers, T, T] what selection subtracts from row i's logits; None: not selective
    evicted_at: Optional[list[NDArray[np.int32]]]
    """A layer [groups, T]: the first row that no longer sees the token, or NEVER; None: nothing is evicted."""


class _Layers:
    """Receives the layers."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.weights: list[NDArray[Any]] = []
        self.head_weights: list[NDArray[Any]] = []
        self.F: list[NDArray[Any]] = []
        self.evicted_at: list[NDArray[Any]] = []

    def take(self, layer: Any) -> int:
        T = layer.T
        self.weights.append(copied(layer.weights, (T, T), np.float32))
        if layer.head_weights:
            self.head_weights.append(copied(layer.head_weights, (layer.heads, T, T), np.float32))
        if layer.F:
            self.F.append(copied(layer.F, (T, T), np.float32))
        if layer.evicted_at:
            self.evicted_at.append(copied(layer.evicted_at, (layer.groups, T), np.int32))
        return int(lib.WN_OK)


@callback("wn_status(void *, const wn_selection_layer *)")
def _on_layer(user: Any, layer: Any) -> int:
    layers: _Layers = ffi.from_handle(user)
    return int(layers.context.guard(lambda: layers.take(layer), lib.WN_ERR_CANCELLED))


def look_at(
    model: "Model",
    text: Text,
    *,
    heads: bool = False,
    budgets: Optional[BudgetSpec] = None,
    policy: Optional[PolicyLike] = None,
    policy_options: Optional[Options] = None,
) -> AttentionMaps:
    """Attention weights, selections and evictions of a text of at most the model's context (Model.attention).

    heads: every head's weights too: 4 T*T bytes a head. budgets: those in force."""
    ids, room = model._tokens(text), Room(model, budgets, policy, policy_options)
    layers = _Layers(model._context)
    user = ffi.new_handle(layers)
    options = options_of("wn_selection_options")
    options.budgets, options.heads, options.layer, options.user = room.raw, heads, _on_layer, user
    loss = ffi.new("double *")
    model._context.call(lib.wn_analyze_selection, model._handle, pointer("int32_t", ids), ids.size, options, loss)
    return AttentionMaps(
        tokens=ids,
        loss=loss[0],
        weights=np.stack(layers.weights),
        head_weights=np.stack(layers.head_weights) if layers.head_weights else None,
        F=np.stack(layers.F) if layers.F else None,
        evicted_at=layers.evicted_at or None,
    )


@dataclass(frozen=True)
class HeadReport:
    """What heads attend to: means over rows. wn_look_head in winnow/analyze.h explains each number."""

    tokens: int  #: rows analysed
    loss: float
    head: dict[str, NDArray[np.float64]]  #: [layers, heads] each; "octave" [layers, heads, octaves]
    layer: dict[str, NDArray[np.float64]]  #: [layers] each: means over heads


def _columns(raw: Any, shape: tuple[int, ...]) -> dict[str, NDArray[np.float64]]:
    names = [(name, f) for name, f in ffi.typeof("wn_look_head").fields]
    width = ffi.sizeof("wn_look_head") // 8
    all_of_it = copied(raw, (*shape, width), np.float64)
    found = {}
    for name, f in names:
        at, size = f.offset // 8, ffi.sizeof(f.type) // 8
        part = all_of_it[..., at] if f.type.kind == "primitive" else all_of_it[..., at : at + size]
        found[name] = np.ascontiguousarray(part)
    return found


def report_heads(
    model: "Model",
    text: Union[str, bytes],
    *,
    early: int = 4,
    control: Optional[ArrayLike] = None,
    batch: int = 0,
    context: int = 0,
) -> HeadReport:
    """What heads attend to on a text: similarity bias, entropy, weight on first and on control tokens, weight by distance; as
    `winnow analyze attention` (Model.head_report). control: ids; None: the tokenizer's control tokens."""
    raw = encoded(text)
    ids = int32(model.tokenizer.control_tokens() if control is None else control).reshape(-1)
    told = Progress(model._context, None)
    evaluation = options_of("wn_eval_options")
    put(evaluation, batch=batch, context=context)
    told.put(evaluation)
    options = options_of("wn_look_options")
    put(options, early=early)
    options.control, options.control_count = pointer("int32_t", ids), ids.size
    where = ffi.new("wn_analysis_input *")
    data = ffi.from_buffer(raw)
    where.text, where.bytes, where.options = data, len(raw), evaluation
    tok = model.tokenizer

    def read() -> Any:
        where.tok = tok._handle.raw
        return where

    out = ffi.new("wn_look_report **")
    model._context.call(lib.wn_analyze_look, model._handle, Borrowed(read), options, out)
    report = out[0]
    try:
        return HeadReport(
            report.tokens,
            report.eval.loss,
            _columns(report.head, (report.layers, report.heads)),
            _columns(report.layer, (report.layers,)),
        )
    finally:
        lib.wn_look_report_destroy(report)
