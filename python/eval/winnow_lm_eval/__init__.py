"""winnow's models in lm-evaluation-harness, as the model "winnow"."""
