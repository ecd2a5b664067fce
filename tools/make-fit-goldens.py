#!/usr/bin/env python3
"""Makes tests/golden/fits.json: curves fitted to points by numpy and, if installed, by OLS of statsmodels.

The file includes the points, so the test needs nothing else. Needs tools/python-env transformers, which has numpy, and
statsmodels to check numpy's results.
"""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from python_env import need
need("transformers", "numpy", "statsmodels")
import numpy as np

CURVES = {"square root": np.sqrt, "logarithmic": lambda x: np.log(x + 1), "linear": lambda x: x}


def fit(curve, x, y):
    design = np.stack([np.ones_like(x), CURVES[curve](x)], 1)
    (a, b), *_ = np.linalg.lstsq(design, y, rcond=None)
    rest = y - design @ np.array([a, b])
    n, squares = len(x), float(rest @ rest)
    r2 = 1 - squares / float(((y - y.mean()) ** 2).sum())
    found = {
        "curve": curve, "intercept": a, "slope": b, "r2": r2,
        "adjusted_r2": 1 - (1 - r2) * (n - 1) / (n - 2),
        "aic": n * (np.log(2 * np.pi) + np.log(squares / n) + 1) + 4,
        "mse": squares / n,
    }
    try:
        import statsmodels.api as sm
    except ImportError:
        print("statsmodels is not installed: not checked against it", file=sys.stderr)
        return found
    ols = sm.OLS(y, design).fit()
    for key, value in (("intercept", ols.params[0]), ("slope", ols.params[1]), ("r2", ols.rsquared),
                       ("adjusted_r2", ols.rsquared_adj), ("aic", ols.aic), ("mse", ols.ssr / n)):
        assert abs(found[key] - value) <= 1e-9 * max(1, abs(value)), (curve, key, found[key], value)
    return found


def main():
    random = np.random.default_rng(5)
    sets = []
    for name, x, y in (
        ("square root with noise", np.arange(1, 201, 5.0), None),
        ("powers of two", 2.0 ** np.arange(14), None),
        ("three points", np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.5, 1.75])),
        ("far from the origin", 1e6 + np.arange(50.0), 3 + np.arange(50.0) * 0.25),
    ):
        if y is None:
            y = 9.6179 + 2.3644 * np.sqrt(x)
        if name != "three points":
            y = y + random.normal(0, 2, len(x))
        x, y = np.round(x, 6), np.round(y, 6)
        sets.append({"name": name, "x": x.tolist(), "y": y.tolist(), "fits": [fit(c, x, y) for c in CURVES]})
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/golden/fits.json")
    with open(path, "w") as f:
        json.dump(sets, f, indent=1)
        f.write("\n")


main()
