"""Generating text, piece by piece."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._library import (
    Borrowed,
    callback,
    Context,
    Handle,
    Text,
    decoded,
    encoded,
    ffi,
    int32,
    json_text,
    lib,
    options_of,
    pointer,
    put,
    strings,
)
from .errors import ArgumentError

if TYPE_CHECKING:
    from .model import Model
    from .session import Session

END_NAMES = ("length", "end", "stop", "context", "interrupt")
RESULT = (
    "end", "prompt_tokens", "tokens", "steps", "end_token", "unfed", "prompt_seconds", "token_seconds", "drafted", "accepted"
)  # fmt: skip
#: Options of Model.generate that are the session's.
SESSION_OPTIONS = ("budgets", "policy", "policy_options", "cache", "tau")


@dataclass(frozen=True)
class Piece:
    """The text that one token adds."""

    text: str  #: "" where a character is not complete yet, or a stop string may have begun
    token: Optional[int]  #: None: text that had been held back, at the end
    log_probability: Optional[float] = None  #: with log_probabilities=True


class _Inbox:
    """What passes between the callbacks of a step and the Generation, which it does not keep alive."""

    def __init__(
        self, context: Context, scored: bool, logits: Optional[Callable[[int, "NDArray[np.float32]"], None]]
    ) -> None:
        self.context, self.scored, self.logits = context, scored, logits
        self.pieces: list[Piece] = []

    def take(self, piece: Any) -> bool:
        token = None if piece.id < 0 else int(piece.id)
        scored = float(piece.log_probability) if self.scored and token is not None else None
        self.pieces.append(Piece(decoded(piece.text, piece.bytes), token, scored))
        return True

    def change(self, index: int, logits: Any, V: int) -> None:
        assert self.logits is not None
        memory = np.frombuffer(ffi.buffer(logits, V * 4), np.float32)
        own = memory.copy()  # one that is kept must not outlive the session's memory
        self.logits(index, own)
        memory[:] = own


class Generation:
    """A text that grows: an iterator of its pieces. Every step computes one token, when it is asked for.

    max_tokens: at most so many (256). temperature: 0 is greedy (0.8). top_k, top_p, min_p: which tokens are drawn among (0:
    all, 0.95, 0). None for these and for repetition_penalty (1): what the model declares (Model.declared), else the number in
    brackets. seed: the same seed draws the same text. stop: texts that end it. stop_tokens: tokens that do, besides the
    tokenizer's. ignore_end: goes on after those. schema: only JSON that fits this schema (a dict or its text; True: any
    object). logit_bias: {token: what is added to its logit}. repetition_penalty, presence_penalty, frequency_penalty: as in
    winnow/generate.h. log_probabilities: pieces have them. first_step: sampling steps before this text, of a conversation.
    logits: called with (index, logits [V]) before each token is drawn; what it leaves in the array is drawn from, and the array
    is its own to keep. draft_tokens: guess so many tokens at a time from what followed earlier in the text (0); the text is the
    same, faster where it repeats itself. draft_model: a smaller Model with the same vocabulary, which guesses them (3 unless
    draft_tokens says otherwise) where nothing earlier does. (owns_session and turn are for Model.generate and Chat.)

    Afterwards `end` says why it ended, `tokens` what was drawn. close(), or `with`, ends it early."""

    def __init__(
        self,
        session: "Session",
        prompt: ArrayLike,
        *,
        max_tokens: int = 256,
        temperature: Optional[float] = None,
        top_k: Optional[int] = None,
        top_p: Optional[float] = None,
        min_p: Optional[float] = None,
        seed: int = 0,
        stop: Union[None, str, Sequence[str]] = None,
        stop_tokens: Optional[ArrayLike] = None,
        ignore_end: bool = False,
        schema: Union[None, bool, str, Mapping[str, Any]] = None,
        logit_bias: Optional[Mapping[int, float]] = None,
        repetition_penalty: Optional[float] = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        log_probabilities: bool = False,
        first_step: int = 0,
        logits: Optional[Callable[[int, "NDArray[np.float32]"], None]] = None,
        owns_session: bool = False,
        turn: bool = False,
        draft_tokens: Optional[int] = None,
        draft_model: "Optional[Model]" = None,
    ) -> None:
        self.session = session
        self.text = ""  #: all of it so far
        self._owns = owns_session
        self._context = session.model._context
        self._inbox, self._queue = _Inbox(self._context, log_probabilities, logits), list[Piece]()
        self._more = True
        self._ending = threading.Lock()  # taken once, by who ends it
        self._result: dict[str, Any] = {}
        user = ffi.new_handle(self._inbox)
        if max_tokens < 0:
            raise ArgumentError(f"max_tokens is {max_tokens}")
        model = session.model
        tok = model.tokenizer if model.has_tokenizer else None
        o = options_of("wn_generate_options", lib.wn_generate_options_init)
        ids = int32(prompt, "prompt").reshape(-1)
        o.prompt, o.prompt_count = pointer("int32_t", ids), ids.size
        drafts = draft_tokens if draft_tokens is not None else 3 if draft_model is not None else 0
        put(o, max_tokens=max_tokens, first_step=first_step, draft_tokens=drafts)
        if draft_model is not None:
            if {draft_model.backend, model.backend} != {"cpu"}:
                raise ArgumentError("draft_model: each Model has a device of its own, so both must be on the cpu")
            o.draft_model = draft_model._handle.raw
        self._draft_model = draft_model  # must outlive the generation
        self._context.value(lib.wn_generate_options_declared, model._handle, o)
        drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        put(o.sampling, seed=seed, **{name: value for name, value in drawn.items() if value is not None})
        self._drawn = np.zeros(max(max_tokens, 1), np.int32)
        o.drawn = pointer("int32_t", self._drawn)
        ends = [] if stop_tokens is None else int32(stop_tokens, "stop_tokens").reshape(-1).tolist()
        if tok is not None and not ignore_end and not turn and tok.bos is not None:
            ends.append(tok.bos)  # another text begins: the end of this one
        end_ids = np.array(ends, np.int32)
        o.stop_tokens, o.stop_token_count = pointer("int32_t", end_ids), end_ids.size
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        texts, kept = strings(stops, "stop")
        o.stop_strings, o.stop_string_count = texts, len(stops)
        biased = int32(list(logit_bias or ()), "logit_bias").tolist()
        biases = ffi.new("wn_logit_bias[]", [(i, float(b)) for i, b in zip(biased, (logit_bias or {}).values())] or 1)
        o.biases, o.bias_count = biases, len(logit_bias or {})
        o.ignore_end, o.log_probabilities = ignore_end, log_probabilities
        if repetition_penalty is not None:
            o.repetition_penalty = repetition_penalty
        o.presence_penalty, o.frequency_penalty = presence_penalty, frequency_penalty
        o.piece, o.user = _on_piece, user
        if logits is not None:
            o.logits = _on_logits
        self._constraint = None if not schema else _constraint(model, schema)
        self._kept = (user, ids, end_ids, texts, kept, biases, o)  # borrowed by C until the end

        def options() -> Any:
            o.tok = ffi.NULL if tok is None else tok._handle.raw
            o.constraint = ffi.NULL if self._constraint is None else self._constraint.raw
            return o

        uses = (session._handle, None if tok is None else tok._handle, self._constraint)
        create = lib.wn_generation_create
        self._handle = self._context.make(create, session._raw, Borrowed(options), what="generation", uses=uses)
        self._context.text(begins=True)

    # --- steps ---

    def _step(self) -> None:
        more = ffi.new("bool *")
        try:
            self._context.call(lib.wn_generation_step, self._handle, more)
        except BaseException:
            self._finish()
            raise
        self._queue += self._inbox.pieces
        self._inbox.pieces = []
        if not more[0]:
            self._finish()

    def _read(self) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            r = lib.wn_generation_result(self._handle.raw)
            return {name: getattr(r, name) for name in RESULT}

        with self._context.alone():
            return self._context.value(read) if self._more and not self._handle.closed else self._result

    def _finish(self) -> bool:
        """False: it has ended already."""
        with self._context.alone():
            if not self._ending.acquire(blocking=False):
                return False
            self._result = self._read()
            if END_NAMES[self._result.get("end", 0)] == "interrupt":
                self._context.answered()
            self._free()
            return True

    def _free(self) -> None:
        self._more = False
        self._context.text(begins=False)
        self._handle.close()
        if self._constraint is not None:
            self._constraint.close()
        if self._owns:
            self.session.close()

    def _next(self) -> Optional[Piece]:
        with self._context.alone():  # threads that share it take turns
            while not self._queue and self._more:
                self._step()
            if not self._queue:
                return None
            piece = self._queue.pop(0)
            self.text += piece.text
            return piece

    def pieces(self) -> Iterator[Piece]:
        """Iterates over all pieces with their tokens, also pieces without text."""
        while (piece := self._next()) is not None:
            yield piece

    def __iter__(self) -> Iterator[str]:
        return (piece.text for piece in self.pieces() if piece.text)

    def read(self) -> str:
        """Generates the rest and returns the whole text."""
        for _ in self.pieces():
            pass
        return self.text

    # --- what came of it ---

    @property
    def finished(self) -> bool:
        """True when nothing more will be computed."""
        return not self._more

    @property
    def end(self) -> Optional[str]:
        """Why it ended: "length", "end" (of the text), "stop", "context" (the session is full), "interrupt"; None: not yet."""
        return None if self._more else END_NAMES[self._result.get("end", 4)]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Tokens drawn so far, without the one that ended the text."""
        return self._drawn[: self._read().get("tokens", 0)].copy()

    @property
    def unfed(self) -> Optional[int]:
        """The last token if it was not fed to the session, so that the next prompt must begin with it."""
        found = self._read().get("unfed", -1)
        return None if found < 0 else int(found)

    @property
    def steps(self) -> int:
        """Sampling steps used."""
        return int(self._read().get("steps", 0))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt that were fed."""
        return int(self._read().get("prompt_tokens", 0))

    @property
    def tokens_per_second(self) -> float:
        r = self._read()
        return float(r["tokens"] / r["token_seconds"]) if r.get("token_seconds") else 0.0

    @property
    def drafts(self) -> tuple[int, int]:
        """Tokens guessed ahead (draft_tokens), and those of them that were drawn."""
        r = self._read()
        return int(r.get("drafted", 0)), int(r.get("accepted", 0))

    def close(self) -> None:
        """Ends the text where it is."""
        if getattr(self, "_handle", None) is not None and self._finish():
            self._result["end"] = END_NAMES.index("interrupt")

    def __enter__(self) -> "Generation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._ending.acquire(blocking=False):
            self._free()

    def __repr__(self) -> str:
        return f"<Generation, {'ended: ' + str(self.end) if self.finished else 'unfinished'}: {self.text[-40:]!r}>"


@callback("bool(void *, const wn_generate_piece *)")
def _on_piece(user: Any, piece: Any) -> bool:
    inbox: _Inbox = ffi.from_handle(user)
    return inbox.context.guard(lambda: inbox.take(piece), False)


@callback("void(void *, int64_t, float *, int64_t)")
def _on_logits(user: Any, index: int, logits: Any, V: int) -> None:
    inbox: _Inbox = ffi.from_handle(user)
    inbox.context.guard(lambda: inbox.change(index, logits, V), None)


def _constraint(model: "Model", schema: Union[bool, str, Mapping[str, Any]]) -> Handle:
    text = None if schema is True else encoded(schema if isinstance(schema, str) else json_text(schema))
    data, size = (ffi.NULL, 0) if text is None else (ffi.from_buffer(text), len(text))
    tok = model.tokenizer._handle
    return model._context.make(lib.wn_constraint_create_json, tok, data, size, what="constraint", uses=(tok,))


def generate(model: "Model", prompt: Text, options: dict[str, Any]) -> Generation:
    """A Generation in a session of its own, as long as prompt and max_tokens: as wn_generate and `winnow generate` do."""
    ids = model._tokens(prompt)
    room = {name: options.pop(name) for name in SESSION_OPTIONS if name in options}
    capacity = int(ids.size) + max(index(options.get("max_tokens", 256)), 0)
    if model._configured(lambda c: c.position == lib.WN_POS_LEARNED):
        if ids.size > model.context:
            raise ArgumentError(f"the prompt has {ids.size} tokens, the model learned positions for {model.context}")
        capacity = min(capacity, model.context)
    session = model.session(capacity=capacity, **room)
    try:
        return Generation(session, ids, owns_session=True, **options)
    except BaseException:
        session.close()
        raise
