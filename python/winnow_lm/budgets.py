"""Budgets of the key-value cache: how many tokens each layer holds, and which policy chooses the token to evict."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ._library import CACHE_FORMATS, Borrowed, Context, Handle, PathLike, choice, copied, decoded, ffi, int32, lib, named, path_bytes
from .errors import ArgumentError

if TYPE_CHECKING:
    from .model import Model

#: 64 tokens in every layer; a number for each layer; 0.25 of the context; "64", "64,32", "64:16" (by key-value head), "2MiB";
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
        self._raw = raw
        self._clear = lib.wn_budgets_clear

    def __del__(self) -> None:
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


def make(
    context: Context,
    model: Handle,
    spec: BudgetSpec,
    policy: Optional[str] = None,
    options: Optional[Options] = None,
    cache: int = CACHE_FORMATS.index("auto"),
) -> Budgets:
    """Makes budgets for a model; the arguments are applied in the same order as the command line's options."""
    if isinstance(spec, Budgets):
        if policy is not None or options is not None:
            raise ArgumentError("Budgets have their policy: give none beside them")
        return spec
    raw = ffi.new("wn_budgets *")
    lib.wn_budgets_init(raw)
    budgets = Budgets(raw)
    number = ffi.new("wn_policy *")
    if policy is not None and not lib.wn_policy_find(named(policy, "policy"), number):
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
        policy: Optional[str],
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
