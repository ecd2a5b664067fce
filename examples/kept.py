#!/usr/bin/env python3
"""kept.py MODEL TEXT.txt BUDGET [POLICY]: what is left of a text in a cache: each token by the share of layers that hold it."""
import sys

import winnow_lm

if len(sys.argv) < 4:
    sys.exit(__doc__)
path, file, budget = sys.argv[1:4]
with open(file, encoding="utf-8") as f:
    text = f.read()
model = winnow_lm.Model.load(path)
tokens = model.tokenize(text)[: model.context]
with model.session(budgets=budget, policy=sys.argv[4] if len(sys.argv) > 4 else "h2o", capacity=len(tokens)) as session:
    session.feed(tokens, logits=False)
    share = (session.kept() > 0).mean(axis=0)  # [tokens]
    held, whole = session.held_bytes, session.cache_bytes
for token, part in zip(tokens, share):
    name = model.tokenizer.name(int(token))
    print(name if part > 0.5 else "." * len(name.strip()) + " " * (len(name) - len(name.strip())), end="")
print(f"\n{len(tokens)} tokens, of which a layer holds {share.sum():.0f} on the mean: {held:,} bytes of {whole:,} allocated")
