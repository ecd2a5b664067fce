"""Figures with their errors over rows (winnow/estimate.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._library import copied, decoded, ffi, lib
from .errors import ArgumentError


@dataclass(frozen=True)
class Estimate:
    """A figure, its standard error and its 95% interval over rows; nan where they are not known, as for one row."""

    value: float
    error: float
    low: float
    high: float
    rows: int

    def verdict(self, margin: float) -> str:
        """Of a difference: "equal" where the interval lies within `margin` of 0, "lower" or "higher" where it lies on one side of
        0, else "open"."""
        raw = ffi.new("wn_estimate *", {"low": self.low, "high": self.high})
        return decoded(lib.wn_verdict_name(lib.wn_estimate_verdict(raw, margin)))


def estimate(raw: Any) -> Estimate:
    return Estimate(raw.value, raw.error, raw.low, raw.high, raw.rows)


def row_sums(raw: Any, count: int) -> NDArray[np.float64]:
    """[rows, 3] of a C array of wn_row_sums."""
    return copied(ffi.cast("double *", raw), (count, 3), np.float64)


def difference(rows: ArrayLike, base: ArrayLike) -> Estimate:
    """The mean loss of `rows` minus that of `base`, paired row by row. Each is EvalResult.rows, of evaluations of the same data in
    the same order: row i of both has the same number of tokens."""
    a, b = (np.ascontiguousarray(x, np.float64) for x in (rows, base))
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] != 3:
        raise ArgumentError(f"difference: rows of shapes {a.shape} and {b.shape}, expected two of [rows, 3]")
    out = ffi.new("wn_estimate *")
    pointers = (ffi.cast("wn_row_sums *", ffi.from_buffer("double[]", x)) for x in (a, b))
    if lib.wn_rows_difference(*pointers, len(a), out) != lib.WN_OK:
        raise ArgumentError("difference: a row has another number of tokens in the one than in the other")
    return estimate(out)
