#!/usr/bin/env python3
"""chat.py MODEL [BUDGET [POLICY]]: a conversation; with a budget it keeps so many tokens of it in each layer."""
import sys

import winnow_lm

if len(sys.argv) < 2:
    sys.exit(__doc__)
model = winnow_lm.Model.load(sys.argv[1])
budget = int(sys.argv[2]) if len(sys.argv) > 2 else None
policy = sys.argv[3] if len(sys.argv) > 3 else "h2o" if budget else None
with model.chat(budgets=budget, policy=policy) as chat:
    for line in sys.stdin if not sys.stdin.isatty() else iter(lambda: input("> "), ""):
        for piece in chat.say(line.strip(), max_tokens=200):
            print(piece, end="", flush=True)
        print()
