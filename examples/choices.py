#!/usr/bin/env python3
"""choices.py MODEL CONTEXT CHOICE CHOICE...: how probable each continuation is, as a whole and by token."""
import sys

import winnow_lm

if len(sys.argv) < 4:
    sys.exit(__doc__)
path, context, *choices = sys.argv[1:]
with winnow_lm.Model.load(path) as model:
    scores = model.score_choices(context, [" " + choice for choice in choices])
for score, choice in sorted(zip(scores, choices), key=lambda pair: -pair[0].log_probability):
    print(f"{score.log_probability:9.3f} {score.log_probability / score.tokens:9.3f}  {choice}")
