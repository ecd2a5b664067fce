"""winnow from Python: transformer language models that keep only the context they need.

    import winnow_lm
    model = winnow_lm.Model.load("models/SmolLM2-135M-Instruct.Q4_1.gguf")
    for piece in model.chat(budgets=256, policy="h2o").say("Why is the sky blue?"):
        print(piece, end="", flush=True)

docs/python.md describes the whole package. Threads: calls of one model take turns, whichever thread they come from, and let other
threads of Python run meanwhile; two models do not wait for each other. A process that has loaded a model must not be forked
(multiprocessing: the start method "spawn")."""

from ._library import version as _version
from .attention import NEVER, AttentionMaps, HeadReport
from .budgets import Budgets, OwnPolicy, Policy, PolicyView, policies
from .chat import Chat, templates
from .convert import convert, prepare_data
from .errors import (
    ArgumentError,
    CancelledError,
    ConfigError,
    DivergedError,
    FileError,
    FormatError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedError,
    WinnowError,
)
from .estimate import Estimate, difference
from .generation import Generation, Piece
from .model import EvalResult, Model, ScoredChoice
from .search import Search, SearchPoint
from .session import Counts, Scores, Session
from .tokenizer import Tokenizer
from .training import Step, TrainLog, load_log, resolve_recipe, train

__version__ = _version
__all__ = [
    "ArgumentError",
    "AttentionMaps",
    "Budgets",
    "CancelledError",
    "Chat",
    "ConfigError",
    "Counts",
    "DivergedError",
    "Estimate",
    "EvalResult",
    "FileError",
    "FormatError",
    "Generation",
    "HeadReport",
    "Model",
    "NEVER",
    "OutOfMemoryError",
    "OwnPolicy",
    "Piece",
    "Policy",
    "PolicyView",
    "ScoredChoice",
    "Scores",
    "Search",
    "SearchPoint",
    "Session",
    "ShapeError",
    "Step",
    "Tokenizer",
    "TrainLog",
    "UnsupportedError",
    "WinnowError",
    "convert",
    "difference",
    "load_log",
    "policies",
    "prepare_data",
    "resolve_recipe",
    "templates",
    "train",
]
