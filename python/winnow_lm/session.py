"""Sessions: key-value caches that are fed token by token, forked, kept as snapshots and looked into."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._library import (
    Handle, PathLike, Text, choice, ffi, first_of, int32, lib, options_of, path_bytes, pointer, put, rows_of,
)
from .budgets import BudgetSpec, Options, PolicyLike, Room
from .errors import ArgumentError

if TYPE_CHECKING:
    from .generation import Generation
    from .model import Model

POOLINGS = ("mean", "last")


@dataclass(frozen=True)
class Scores:
    """Scores of tokens; arrays are [T], or [B,T] where tokens were."""

    log_probability: NDArray[np.float64]  #: natural logarithm of the softmax over the whole vocabulary
    greedy: NDArray[np.bool_]  #: no token is more probable
    top: Optional[NDArray[np.int32]] = None  #: with top_k: [..., K] the most probable tokens
    top_log_probability: Optional[NDArray[np.float64]] = None  #: [..., K] and how probable they are


@dataclass(frozen=True)
class Counts:
    """Tokens that a threshold kept for the last token."""

    kept: NDArray[np.int32]  #: [layers, heads] the fewest content tokens that reach tau
    context: int  #: tokens of the text so far
    content: int  #: those of them that are no control tokens


class Session:
    """A key-value cache of `sequences` texts that advance together.

    capacity: the longest text; 0: the model's context. budgets, policy, policy_options: what each layer holds at most
    (Model.budgets). cache: "float", "half", "auto", "q8_0" or "q4_0". tau: of meaningful attention; None: as the model
    says; -1: no threshold. counts: Session.counts is wanted. control_marks: Session.mark_control is wanted.

    Use it from any thread; calls of one model take turns. Close it, or use `with`: a cache is large."""

    def __init__(
        self,
        model: "Model",
        sequences: int = 1,
        *,
        capacity: int = 0,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        cache: str = "auto",
        tau: Optional[float] = None,
        counts: bool = False,
        control_marks: bool = False,
    ) -> None:
        room = Room(model, budgets, policy, policy_options, cache)
        self._open(model, sequences, capacity, room, 0.0 if tau is None else tau, counts, control_marks)

    def _open(
        self, model: "Model", sequences: int, capacity: int, room: Room, tau: float, counts: bool, control_marks: bool
    ) -> None:
        self._model, self._sequences = model, sequences
        self._like = (capacity, room, tau, counts, control_marks)
        self._generation: Optional[weakref.ref["Generation"]] = None
        options = options_of("wn_session_options")
        put(options, sequences=sequences, capacity=capacity)
        options.budgets, options.cache = room.raw, room.cache
        options.tau, options.counts, options.control_marks = tau, counts, control_marks
        made_of = (model._handle,)
        self._handle = model._context.make(lib.wn_session_create, *made_of, options, what="session", uses=made_of)

    @property
    def model(self) -> "Model":
        return self._model

    @property
    def sequences(self) -> int:
        """Texts that advance together."""
        return self._sequences

    @property
    def _raw(self) -> Handle:
        generation = self._generation() if self._generation is not None else None
        if generation is not None and not generation.finished:
            raise ArgumentError("a text is being generated in this session: finish it, or close() the Generation")
        return self._handle

    def _call(self, function: Any, *arguments: Any) -> None:
        self.model._context.call(function, self._raw, *arguments)

    def _rows(self, tokens: Text, what: str = "tokens") -> tuple[NDArray[np.int32], bool]:
        """Tokens as [B,T], and whether they were given as one row [T]."""
        if isinstance(tokens, (str, bytes)):
            tok = self.model.tokenizer
            tokens = tok.prompt(tokens) if self.position == 0 else tok.encode(tokens, bos=False)
        ids = rows_of(tokens, what)
        if ids.shape[0] != self.sequences:
            raise ArgumentError(f"{what}: {ids.shape[0]} rows, the session has {self.sequences} sequences")
        return ids, np.ndim(tokens) == 1

    # --- feeding ---

    def feed(self, tokens: Text, *, logits: bool = True) -> NDArray[np.float32]:
        """Feeds tokens [T], or [B,T] of B sequences, or a text; the logits of the last position, [V] or [B,V].

        A text begins with the tokenizer's first token where the session is empty. logits=False: none are computed, and the
        result is empty."""
        ids, row = self._rows(tokens)
        B, T = ids.shape
        out = np.empty((B, self.model.vocab_size if logits else 0), np.float32)
        self._call(lib.wn_session_feed, pointer("int32_t", ids), T, 0, pointer("float", out))
        return first_of(out, row)

    def encode(self, inputs: ArrayLike, count: Optional[ArrayLike] = None) -> None:
        """Encoder-decoder: runs the encoder over inputs [B,S], of which row b has count[b] tokens, before the decoder is fed.
        What was fed is forgotten."""
        read, _ = self._rows(inputs, "inputs")
        counts = None if count is None else int32(count, "count").reshape(-1)
        if counts is not None and counts.size != self.sequences:
            raise ArgumentError(f"count: {counts.size} numbers for {self.sequences} sequences")
        self._call(lib.wn_session_encode, pointer("int32_t", read), pointer("int32_t", counts), read.shape[1])

    def score(self, tokens: ArrayLike, targets: ArrayLike, *, top_k: int = 0) -> Scores:
        """Feeds tokens [T] or [B,T] and scores targets of the same shape: targets[t] as the token after tokens[t]; -1: not
        scored. top_k: also the K most probable tokens of each position."""
        ids, row = self._rows(tokens)
        wanted = rows_of(targets, "targets")
        if wanted.shape != ids.shape:
            raise ArgumentError(f"targets: {list(wanted.shape)} for tokens {list(ids.shape)}")
        out, found = self._scores(ids.shape, top_k)
        self._call(lib.wn_session_score, pointer("int32_t", ids), pointer("int32_t", wanted), ids.shape[1], out)
        return found(row)

    def score_next(self, targets: ArrayLike, *, top_k: int = 0) -> Scores:
        """Scores candidates [n] or [B,n], each as the token that follows what the session has seen, and feeds none."""
        wanted = rows_of(targets, "targets")
        if wanted.shape[0] != self.sequences:
            raise ArgumentError(f"targets: {wanted.shape[0]} rows, the session has {self.sequences} sequences")
        out, found = self._scores(wanted.shape, top_k)
        self._call(lib.wn_session_score_next, pointer("int32_t", wanted), wanted.shape[1], out)
        return found(np.ndim(targets) == 1)

    def _scores(self, shape: tuple[int, ...], top_k: int) -> tuple[Any, Callable[[bool], Scores]]:
        if top_k < 0 or top_k > self.model.vocab_size:
            raise ArgumentError(f"top_k is {top_k}; expected 0 to {self.model.vocab_size}")
        out = options_of("wn_scores")
        log_probability, greedy = np.empty(shape, np.float64), np.empty(shape, np.uint8)
        top, tops = np.empty((*shape, top_k), np.int32), np.empty((*shape, top_k), np.float64)
        out.log_probability, out.greedy = pointer("double", log_probability), pointer("uint8_t", greedy)
        out.top_k = top_k
        out.top, out.top_log_probability = pointer("int32_t", top), pointer("double", tops)

        def found(row: bool) -> Scores:
            arrays = [log_probability, greedy.astype(np.bool_), top, tops]
            a, b, c, d = (first_of(x, row) for x in arrays)
            return Scores(a, b, c, d) if top_k else Scores(a, b)

        return out, found

    def states(self, tokens: Text) -> NDArray[np.float32]:
        """Feeds tokens and returns the output of the final norm for each: [T,C], or [B,T,C]."""
        ids, row = self._rows(tokens)
        out = np.empty((*ids.shape, self.model._width), np.float32)
        self._call(lib.wn_session_states, pointer("int32_t", ids), ids.shape[1], pointer("float", out))
        return first_of(out, row)

    def embed(self, tokens: Text, *, pooling: str = "mean", raw: bool = False) -> NDArray[np.float32]:
        """Feeds tokens and returns their embedding, [C] or [B,C]: the mean of their states, or the last one ("last"), divided
        by its length unless `raw`."""
        ids, row = self._rows(tokens)
        options = options_of("wn_embed_options")
        put(options, pooling=choice(POOLINGS, pooling, "pooling"), raw=raw)
        out = np.empty((ids.shape[0], self.model._width), np.float32)
        self._call(lib.wn_session_embed, pointer("int32_t", ids), ids.shape[1], options, pointer("float", out))
        return first_of(out, row)

    def generate(self, prompt: Optional[Text] = None, **options: Any) -> "Generation":
        """Continues the session's text: an iterator of pieces of text. prompt: what is fed first; needed where the session is
        empty. Options: Generation. The session belongs to it until it is finished or closed."""
        from .generation import Generation

        if self.sequences != 1:
            raise ArgumentError(f"generate: the session has {self.sequences} sequences; texts are generated one at a time")
        if prompt is None:
            raise ArgumentError("generate: a prompt of at least one token is needed, such as the last one")
        ids, _ = self._rows(prompt)
        generation = Generation(self, ids[0], **options)
        self._generation = weakref.ref(generation)
        return generation

    # --- compression ---

    def read_context(self, tokens: Text) -> NDArray[np.float32]:
        """feed and compress, with the same bits: reads a whole context, which ends here, and returns its last logits. An empty
        session reads layer by layer and holds one layer at a time in full."""
        ids, row = self._rows(tokens)
        out = np.empty((ids.shape[0], self.model.vocab_size), np.float32)
        self._request()
        self._call(lib.wn_session_read_context, pointer("int32_t", ids), ids.shape[1], pointer("float", out))
        return first_of(out, row)

    def compress(self) -> None:
        """The context has been read and ends here: with policy_options={"when": "prompt"} or "hold" each layer keeps its budget of
        it, chosen all at once, and frees the rest. Questions follow at their own positions. Otherwise nothing happens."""
        self._request()
        self._call(lib.wn_session_compress)

    def _request(self) -> None:
        """kvzip's, if there is a tokenizer for it."""
        if self.model.has_tokenizer:
            self._call(lib.wn_session_repeat_with, self.model.tokenizer._handle, ffi.NULL)

    # --- forks and snapshots ---

    def _another(self, sequences: int) -> "Session":
        other = Session.__new__(Session)
        other._open(self.model, sequences, *self._like)
        return other

    def fork(self, ways: int = 1, *, rows: Optional[ArrayLike] = None) -> "Session":
        """A new session that has seen the same: of `ways` sequences for each of this one's, side by side; or sequence b of it
        as number rows[b] of this one."""
        if rows is not None:
            numbers = int32(rows, "rows").reshape(-1).astype(np.int64)
            other = self._another(int(numbers.size))
            self._copy(other, lib.wn_session_copy, pointer("int64_t", numbers))
        else:
            if ways < 1:
                raise ArgumentError(f"fork: {ways} ways")
            other = self._another(self.sequences * ways)
            self._copy(other, lib.wn_session_copy, ffi.NULL)
        return other

    def _copy(self, to: "Session", function: Any, *arguments: Any) -> None:
        try:
            self.model._context.call(function, to._raw, self._raw, *arguments)
        except BaseException:
            to.close()
            raise

    def snapshot(self) -> "Session":
        """A snapshot of what the session has seen, for restore(); it is a fork."""
        return self.fork()

    def restore(self, snapshot: "Session") -> None:
        """Goes back (or over) to a snapshot of the same model, budgets and cache; what was fed since is forgotten."""
        self.model._context.call(lib.wn_session_copy, self._raw, snapshot._raw, ffi.NULL)

    def save(self, path: PathLike) -> None:
        """Writes what the session holds to a file, for load()."""
        self._call(lib.wn_session_save, path_bytes(path))

    def load(self, path: PathLike) -> None:
        """Takes over a state that save() wrote: of the same model, loaded in the same way, and a session with the same options.
        What was fed is forgotten. A file that is damaged or of another session is refused, and changes nothing."""
        self._call(lib.wn_session_load, path_bytes(path))

    def cut(self, position: int) -> None:
        """Takes back all tokens from `position` on; not after evictions, nor with selective attention."""
        self._call(lib.wn_session_cut, position)

    def reset(self) -> None:
        """Forgets everything."""
        self.model._context.value(lib.wn_session_reset, self._raw)

    # --- looking into it ---

    @property
    def position(self) -> int:
        """Tokens seen so far."""
        return int(self.model._context.value(lib.wn_session_position, self._handle))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches, all that is allocated."""
        return int(self.model._context.value(lib.wn_session_kv_bytes, self._handle))

    @property
    def held_bytes(self) -> int:
        """The share of cache_bytes that the tokens held now take."""
        return int(self.model._context.value(lib.wn_session_held_bytes, self._handle))

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the caches have had together."""
        return int(self.model._context.value(lib.wn_session_peak_bytes, self._handle))

    def kept_by(self, layer: int, kv_head: int, sequence: int = 0) -> NDArray[np.int32]:
        """The positions that a key-value head of a layer holds, ascending."""
        with self.model._context.alone():  # no token is fed in between
            out, count = np.zeros(max(self.position, 1), np.int32), ffi.new("int64_t *")
            self._call(lib.wn_session_kept, sequence, layer, kv_head, pointer("int32_t", out), count)
        return out[: count[0]]

    def kept(self, sequence: int = 0) -> NDArray[np.int32]:
        """[layers, position] how many key-value heads of each layer hold each token; 0: the layer has dropped it."""
        with self.model._context.alone():  # no token is fed in between
            out = np.zeros((self.model.layers, self.position), np.int32)
            for layer in range(self.model.layers if out.size else 0):
                self._call(lib.wn_session_held, sequence, layer, pointer("int32_t", out[layer]))
        return out

    def counts(self, sequence: int = 0) -> Counts:
        """Tokens that the threshold kept for the last token fed; for sessions made with counts=True."""
        out = np.zeros((self.model.layers, self.model.heads), np.int32)
        context, content = ffi.new("int64_t *"), ffi.new("int64_t *")
        self._call(lib.wn_session_counts, sequence, pointer("int32_t", out), context, content)
        return Counts(out, context[0], content[0])

    def mark_control(self, first: int, count: int, sequence: int = 0) -> None:
        """Positions first to first+count-1, still to be fed, are control tokens of the threshold; for sessions made with
        control_marks=True."""
        self._call(lib.wn_session_mark_control, sequence, first, count)

    def pin(self, first: int, count: int) -> None:
        """Tokens at positions first to first+count-1 stay in every layer, whatever the policy; they count against the budgets,
        which must be larger. reset() forgets pins."""
        self._call(lib.wn_session_pin, first, count)

    def close(self) -> None:
        """Frees the cache."""
        generation = self._generation() if self._generation is not None else None
        if generation is not None:
            generation.close()
        self._handle.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle.closed:
            return "<Session, closed>"
        return f"<Session of {self.sequences}: {self.position} tokens seen, {self.cache_bytes} bytes>"
