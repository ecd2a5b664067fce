"""Budgets of the key-value cache: how many tokens each layer holds, and which policy chooses the token to evict."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ._library import (
    CACHE_FORMATS,
    Borrowed,
    Context,
    Handle,
    PathLike,
    callback,
    choice,
    copied,
    decoded,
    ffi,
    int32,
    lib,
    named,
    path_bytes,
)
from .errors import ArgumentError

if TYPE_CHECKING:
    from .model import Model

#: 64 tokens in every layer; a number for each layer; 0.25 of the context; "64", "64,32", "64:16" (by key-value head), "2MiB";
#: "25%" of the tokens read, with policy_options={"when": "prompt"} or "hold"; "tau=0.69", what scores at most that;
#: a budgets.json, or a checkpoint's folder that has one; Budgets.
BudgetSpec = Union[int, float, str, "os.PathLike[str]", Sequence[int], "Budgets"]
Options = Union[str, Mapping[str, Union[int, float, bool, str]]]


@dataclass(frozen=True)
class Policy:
    """An eviction policy."""

    name: str
    summary: str  #: which token it evicts
    per_kv_head: bool  #: each key-value head may evict on its own
    selective: bool  #: only for models with selective attention
    options: dict[str, str]  #: its keys for policy_options, with what they do


def policies() -> list[Policy]:
    """All eviction policies of the library."""
    found = []
    for number in range(lib.wn_policy_count()):
        info, options, i, help_text = lib.wn_policy_at(number), {}, 0, ffi.new("const char **")
        while key := lib.wn_policy_option(number, i, help_text):
            options[decoded(key)] = decoded(help_text[0])
            i += 1
        found.append(Policy(decoded(info.name), decoded(info.summary), info.per_kv_head, info.selective, options))
    return found


#: What an OwnPolicy can ask for, in the order of its bits in C.
NEEDS = ("selections", "sums", "keys", "values")


@dataclass(frozen=True)
class PolicyView:
    """What a layer holds when a token arrives, in order of position. The arrays are winnow's memory: they are valid during the
    call alone. Those that the policy did not ask for are None."""

    layer: int
    group: int  #: the number of the first group of heads
    position: int  #: of the token that arrives
    budget: int
    positions: NDArray[np.int32]  #: [sequences, groups, count]
    keys: Optional[NDArray[np.float32]]  #: [sequences, groups, heads, count, head size], rotated in a rotary model
    values: Optional[NDArray[np.float32]]  #: likewise
    selections: Optional[NDArray[np.float32]]  #: F, [sequences, groups, count]
    sums: Optional[NDArray[np.float32]]  #: attention sums, [sequences, groups, count] or [sequences, groups, rows, count]


@dataclass(frozen=True)
class OwnPolicy:
    """An eviction policy written in Python, for every argument policy=. `score` gets a PolicyView and returns an array
    [sequences, groups, count]: the token with the highest score is evicted, of equal ones the oldest; one with -inf only if
    nothing else is left. It is called once a token and layer, and for whole sequences (logits, loss, search) once a token,
    layer and group: slow, but the tokens are really freed."""

    score: Callable[[PolicyView], Any]
    needs: Sequence[str] = ()  #: of NEEDS
    sinks: int = 0  #: how many first tokens stay
    recent: int = 0  #: how many of the most recent tokens stay
    rows: int = 0  #: sums: 0: of all rows together, else of each of the last rows


PolicyLike = Union[str, OwnPolicy]  #: a name of policies(), or one's own


def _seen(raw: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.frombuffer(ffi.buffer(raw, int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape) if raw else None


class _Own:
    """What C calls for an OwnPolicy."""

    def __init__(self, context: Context, policy: OwnPolicy) -> None:
        unknown = [need for need in policy.needs if need not in NEEDS]
        if unknown or isinstance(policy.needs, str):
            raise ArgumentError(f"needs of a policy: {policy.needs!r}, expected a list of {', '.join(NEEDS)}")
        self.context, self.policy, self.handle = context, policy, ffi.new_handle(self)
        self.raw = ffi.new("wn_own_policy *")
        self.raw.size, self.raw.score, self.raw.user = ffi.sizeof("wn_own_policy"), _on_score, self.handle
        self.raw.needs = sum(1 << NEEDS.index(need) for need in set(policy.needs))
        self.raw.sinks, self.raw.recent, self.raw.rows = policy.sinks, policy.recent, policy.rows

    def fill(self, v: Any) -> bool:
        each = (v.sequences, v.groups, v.count)
        rows = (v.sequences, v.groups, v.heads, v.count, v.head_size)
        sums = each if self.policy.rows == 0 else (v.sequences, v.groups, self.policy.rows, v.count)
        view = PolicyView(
            v.layer,
            v.group,
            v.position,
            v.budget,
            _seen(v.positions, each, np.int32),
            _seen(v.keys, rows, np.float32),
            _seen(v.values, rows, np.float32),
            _seen(v.selections, each, np.float32),
            _seen(v.sums, sums, np.float32),
        )
        scores = np.asarray(self.policy.score(view), np.float64)
        if scores.shape != each:
            raise ArgumentError(f"a policy's scores are an array {list(scores.shape)}, expected {list(each)}")
        _seen(v.scores, each, np.float64)[...] = scores
        return True


@callback("bool(void *, const wn_policy_view *)")
def _on_score(user: Any, view: Any) -> bool:
    own: _Own = ffi.from_handle(user)
    return own.context.guard(lambda: own.fill(view), False)


def _text(spec: Union[int, float, str, "os.PathLike[str]", Sequence[int]], layers: int) -> bytes:
    if isinstance(spec, bool):
        raise ArgumentError("budgets: expected a number of tokens, found a bool")
    if isinstance(spec, (str, os.PathLike)):
        return path_bytes(spec)
    if isinstance(spec, (int, np.integer)):
        return str(int(spec)).encode()
    if isinstance(spec, (float, np.floating)):
        return repr(float(spec)).encode()
    numbers = int32(spec, "budgets")
    if numbers.shape != (layers,):
        found = f"{numbers.size} numbers" if numbers.ndim == 1 else f"an array {list(numbers.shape)}"
        raise ArgumentError(f"budgets: {found}, the model has {layers} layers")
    return ",".join(map(str, numbers)).encode()


def _assignments(options: Options) -> bytes:
    if isinstance(options, str):
        return named(options, "policy_options")
    values = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
    return named(",".join(f"{k}={v}" for k, v in values.items()), "policy_options")


class Budgets:
    """The budgets of every layer of a model, with the policy; made by Model.budgets or by a search. Any argument budgets= takes
    them. They outlive the model, and suit other models of its shape."""

    def __init__(self, raw: Any) -> None:
        if not isinstance(raw, ffi.CData):
            raise TypeError("Budgets are made by Model.budgets or by a search")
        self._raw = raw
        self._own: Optional[_Own] = None
        self._clear = lib.wn_budgets_clear

    def __del__(self) -> None:
        if hasattr(self, "_clear"):
            self._clear(self._raw)

    @property
    def policy(self) -> str:
        """The policy's name."""
        return decoded(lib.wn_policy_name(self._raw.policy))

    @property
    def tokens(self) -> NDArray[np.int64]:
        """[layers] tokens that each layer holds."""
        return copied(self._raw.tokens, self._raw.layers, np.int64)

    @property
    def head_tokens(self) -> Optional[NDArray[np.int64]]:
        """[layers, key-value heads], where they have budgets of their own."""
        raw = self._raw
        return copied(raw.head_tokens, (raw.layers, raw.heads), np.int64) if raw.heads else None

    @property
    def total(self) -> int:
        """Tokens that all layers hold together."""
        return int(lib.wn_budgets_total(self._raw))

    def save(self, path: PathLike) -> None:
        """Writes a budgets.json, which winnow's commands and the argument budgets= read."""
        Context(threads=1).call(lib.wn_budgets_save, self._raw, path_bytes(path))

    def __repr__(self) -> str:
        return f"<Budgets {self.policy} {','.join(map(str, self.tokens))}>"


def _attention_of(config: Any) -> Any:
    return ffi.addressof(config, "attention")


def make(
    context: Context,
    model: Handle,
    spec: BudgetSpec,
    policy: Optional[PolicyLike] = None,
    options: Optional[Options] = None,
    cache: int = CACHE_FORMATS.index("auto"),
) -> Budgets:
    """Makes budgets for a model; the arguments are applied in the same order as the command line's options."""
    if isinstance(spec, Budgets):
        if policy is not None or options is not None:
            raise ArgumentError("Budgets have their policy: give none beside them")
        return spec
    raw = ffi.new("wn_budgets *")
    attention = context.value(_attention_of, Borrowed(lambda: lib.wn_model_config_get(model.raw)))
    lib.wn_budgets_init(raw, attention)
    budgets = Budgets(raw)
    number = ffi.new("wn_policy *")
    if isinstance(policy, OwnPolicy):
        budgets._own = _Own(context, policy)
        raw.own, number[0] = budgets._own.raw, lib.WN_POLICY_OWN
    elif policy is not None and lib.wn_budgets_named(named(policy, "policy"), raw):
        number[0] = raw.policy
    elif policy is not None and lib.wn_policy_find(ffi.NULL, named(policy, "policy"), number) != lib.WN_OK:
        raise ArgumentError(f"policy {policy!r} is not one of {', '.join(p.name for p in policies())}")
    if options is not None:
        context.call(lib.wn_budgets_set, _assignments(options), raw)
    if policy is not None:
        raw.policy = number[0]
    config = Borrowed(lambda: lib.wn_model_config_get(model.raw))
    text = _text(spec, context.value(lambda c: int(c.layers), config))

    def resolve(c: Any) -> int:
        raw.cache = lib.wn_cache_format_resolve(c, model.raw, raw, cache)  # a budget in bytes counts by it
        return int(lib.WN_OK)

    context.run(resolve)
    context.call(lib.wn_budgets_parse, config, text, raw)
    if options is not None:
        context.call(lib.wn_budgets_set, _assignments(options), raw)  # a file has its own
    if policy is not None:
        raw.policy = number[0]
    context.call(lib.wn_budgets_check, raw, config)
    return budgets


class Room:
    """The arguments budgets, policy, policy_options and cache, converted for C."""

    def __init__(
        self,
        model: "Model",
        budgets: Optional[BudgetSpec],
        policy: Optional[PolicyLike],
        options: Optional[Options],
        cache: str = "auto",
    ) -> None:
        if budgets is None and (policy is not None or options is not None):
            raise ArgumentError("policy and policy_options need budgets: nothing is evicted without")
        self.cache = choice(CACHE_FORMATS, cache, "cache")
        self.budgets = None if budgets is None else model._budgets(budgets, policy, options, self.cache)

    @property
    def raw(self) -> Any:
        return ffi.NULL if self.budgets is None else self.budgets._raw
