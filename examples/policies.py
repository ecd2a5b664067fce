#!/usr/bin/env python3
"""policies.py MODEL TEXT.txt BUDGET...: the perplexity of a text under each policy that the model supports and each budget."""
import math
import sys

import winnow_lm

if len(sys.argv) < 4:
    sys.exit(__doc__)
path, file, *budgets = sys.argv[1:]
with open(file, encoding="utf-8") as f:
    text = f.read()
with winnow_lm.Model.load(path) as model:
    print(f"{'policy':12}{'all':>9}" + "".join(f"{b:>9}" for b in budgets))
    whole = math.exp(model.loss(text))
    for policy in winnow_lm.policies():
        row = []
        for budget in budgets:
            try:
                row.append(f"{math.exp(model.loss(text, budgets=budget, policy=policy.name)):9.3f}")
            except winnow_lm.ConfigError:  # "selective" and "gates" are for models that have these
                break
        else:
            print(f"{policy.name:12}{whole:9.3f}" + "".join(row))
