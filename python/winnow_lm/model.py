"""Models: loading, logits, losses, scores, and what makes texts with them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import budgets as _budgets
from ._library import (
    CACHE_FORMATS,
    Borrowed,
    Context,
    Handle,
    PathLike,
    Progress,
    Text,
    choice,
    copied,
    decoded,
    encoded,
    ffi,
    first_of,
    int32,
    lib,
    named,
    options_of,
    path_bytes,
    pointer,
    put,
    rows_of,
    taken_text,
)
from .budgets import Budgets, BudgetSpec, Options, PolicyLike, Room
from .errors import ArgumentError, WinnowError
from .estimate import Estimate, estimate, row_sums
from .tokenizer import Tokenizer, require

if TYPE_CHECKING:
    from .attention import AttentionMaps, HeadReport
    from .chat import Chat
    from .generation import Generation
    from .search import Search
    from .session import Scores, Session

WEIGHTS = ("auto", "file", "bfloat16")


@dataclass(frozen=True)
class EvalResult:
    """A loss on a text or a token file."""

    loss: float  #: mean negative log-likelihood of a token, nats
    perplexity: float
    accuracy: float  #: share of tokens that were the most probable ones
    bits_per_byte: float  #: 0 where the number of bytes is unknown
    tokens: int  #: that were predicted
    bytes: int
    seconds: float
    unit: str  #: what a row is: "block" or "document"; consecutive blocks of a text count as independent
    loss_rows: Estimate  #: `loss` with its error over rows
    accuracy_rows: Estimate
    rows: NDArray[np.float64] = field(compare=False)  #: [rows, 3] of each row: the sum of its losses, its tokens, its hits


@dataclass(frozen=True)
class ScoredChoice:
    """A continuation, scored after its context."""

    log_probability: float  #: the sum over its tokens
    greedy: bool  #: each of its tokens is the most probable one
    tokens: int


class Model:
    """A model in memory with its tokenizer: a checkpoint of winnow, a folder of Hugging Face transformers, or a GGUF file.

    Model.load makes one; close(), or `with`, frees it and everything made from it. Calls from several threads are safe and
    take turns, and the interpreter's lock is released while they compute: for work at the same time load the model twice
    (weights="file" shares a file's memory)."""

    _context: Context
    _handle: Handle
    _tokenizer: Optional[Tokenizer]
    _no_tokenizer: Optional[str]  # why
    path: str  #: that it was loaded from

    def __init__(self) -> None:
        raise TypeError("Model.load(path) makes a model")

    @classmethod
    def load(
        cls,
        path: PathLike,
        *,
        tokenizer: Union[None, str, "os.PathLike[str]"] = None,
        threads: int = 0,
        backend: Optional[str] = None,
        weights: str = "auto",
        check: Optional[bool] = None,
        as_float: bool = False,
        adapter: Optional[PathLike] = None,
        log: Optional[Callable[[str, str], None]] = None,
        pre: Optional[str] = None,
        exact_rows: int = 0,
    ) -> "Model":
        """Loads a model of any form.

        tokenizer: another than the model's own. threads: 0 is as many as this process may use CPUs. backend: "cpu",
        "cuda" (a GPU), or "ref" for double accumulation. weights: "auto", "file" (in the file alone, shared with other
        processes) or "bfloat16" ("bf16"): float32 rounded to it.
        check: weights are searched for NaN and infinity; None: files of up to 1 GiB. as_float: every weight in float32.
        adapter: the folder of a low-rank adapter that peft has saved, which is added to the weights. log:
        called with (level, line). pre: as in Tokenizer.load. exact_rows: from so many rows on, products with
        quantised weights do not round activations; 1: never; 0: as the backend chooses."""
        context = Context(threads, backend, log, pre, exact_rows)
        options = options_of("wn_model_load_options")
        options.weights = choice(WEIGHTS, "bfloat16" if weights == "bf16" else weights, "weights")
        options.check_tensors = 0 if check is None else 1 if check else 2
        put(options, as_float=as_float)
        folder = ffi.NULL if adapter is None else ffi.new("char[]", path_bytes(adapter))  # lives as long as the call
        options.adapter = folder
        handle = context.make(lib.wn_model_load, path_bytes(path), options, what="model")
        tok, why = None, None
        try:
            tok = Tokenizer._load(context, path if tokenizer is None else tokenizer)
        except WinnowError as e:
            if tokenizer is not None:
                raise
            why = str(e)
        model = cls.__new__(cls)
        model._context, model._handle = context, handle
        model._tokenizer, model._no_tokenizer = tok, why
        model.path = os.fspath(path)
        model._set_own_control_tokens()
        return model

    # --- what it is ---

    @property
    def _config(self) -> Borrowed:
        return Borrowed(lambda: lib.wn_model_config_get(self._handle.raw))

    def _configured(self, read: Callable[[Any], Any]) -> Any:
        """What `read` takes from the wn_model_config, which belongs to the model."""
        return self._context.value(read, self._config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; an ArgumentError where it has none."""
        return require(self._tokenizer, self._no_tokenizer)

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, as config.json has it."""
        out = ffi.new("char **")
        self._context.call(lib.wn_model_config_json, self._config, out)
        found: dict[str, Any] = json.loads(taken_text(out[0]))
        return found

    @property
    def declared(self) -> dict[str, Any]:
        """What the model's files declare about generating, under the names of generation_config.json: end tokens and tokens
        that are not drawn, which hold always, and sampling, which Generation's options override."""
        out = ffi.new("char **")
        self._context.call(lib.wn_declared_json, Borrowed(lambda: lib.wn_model_declared(self._handle.raw)), out)
        found: dict[str, Any] = json.loads(taken_text(out[0]))
        return found

    @property
    def vocab_size(self) -> int:
        return int(self._configured(lambda c: c.vocab_size))

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that it was made for."""
        return int(self._configured(lambda c: c.context))

    @property
    def layers(self) -> int:
        return int(self._configured(lambda c: c.layers))

    @property
    def heads(self) -> int:
        return int(self._configured(lambda c: c.heads))

    @property
    def kv_heads(self) -> int:
        return int(self._configured(lambda c: c.kv_heads))

    @property
    def _width(self) -> int:
        return int(self._configured(lambda c: c.width))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return int(self._context.value(lib.wn_model_parameter_count, self._handle))

    @property
    def threads(self) -> int:
        return self._context.value(lambda: int(lib.wn_context_threads(self._context.raw)))

    @property
    def backend(self) -> str:
        return self._context.value(lambda: decoded(lib.wn_context_backend(self._context.raw)))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The parameters by name, as copies. Of a model that is used in a file's own types, load it with as_float=True."""
        found: dict[str, NDArray[Any]] = {}
        entry = ffi.new("wn_safetensors_entry *")
        for i in range(self._context.value(lib.wn_model_tensor_count, self._handle)):

            def read(_: Any, i: int = i) -> int:
                status: int = lib.wn_model_tensor_at(self._handle.raw, i, entry)
                if status == lib.WN_OK:
                    shape = tuple(entry.shape[d] for d in range(entry.ndim))
                    found[decoded(entry.name)] = copied(entry.data, shape, np.float32)
                return status

            try:
                self._context.run(read)
            except WinnowError as e:
                raise type(e)(f"tensor {i} is held in the file's own type: load the model with as_float=True") from None
        return found

    def set_attention(self, assignment: str) -> None:
        """Changes the attention, as the option --attention does: "threshold.tau=0.9", "sqrt.buffer=64", "window=0". The
        model's files stay as they are; sessions, chats and texts from before it are closed."""
        with self._context.alone():
            self._context.end_users(self._handle)
            self._context.call(lib.wn_model_set_attention, self._handle, named(assignment, "attention"))
            self._set_own_control_tokens()

    def _set_own_control_tokens(self) -> None:
        if self._tokenizer is not None and self._configured(lambda c: c.attention.threshold.enabled):
            self.set_control_tokens(self._tokenizer.control_tokens())

    def set_control_tokens(self, tokens: ArrayLike) -> None:
        """Tokens that a threshold always keeps and does not count; those of the tokenizer unless this changes it."""
        ids = int32(tokens).reshape(-1)
        self._context.call(lib.wn_model_set_control_tokens, self._handle, pointer("int32_t", ids), ids.size)

    def budgets(self, spec: BudgetSpec, policy: Optional[PolicyLike] = None, options: Optional[Options] = None) -> Budgets:
        """Budgets for this model: see BudgetSpec. Every argument budgets= takes the same, with policy= and policy_options=."""
        return self._budgets(spec, policy, options)

    def _budgets(
        self, spec: BudgetSpec, policy: Optional[PolicyLike], options: Optional[Options], cache: Optional[int] = None
    ) -> Budgets:
        auto = CACHE_FORMATS.index("auto")
        return _budgets.make(self._context, self._handle, spec, policy, options, auto if cache is None else cache)

    # --- text ---

    def tokenize(
        self, text: Union[str, bytes], *, bos: Optional[bool] = None, eos: bool = False, special: bool = False
    ) -> NDArray[np.int32]:
        """The tokens of a text: Tokenizer.encode."""
        return self.tokenizer.encode(text, bos=bos, eos=eos, special=special)

    def detokenize(self, tokens: ArrayLike) -> str:
        """The text of tokens: Tokenizer.decode."""
        return self.tokenizer.decode(tokens)

    def _tokens(self, text: Text) -> NDArray[np.int32]:
        """One row of tokens: a text's, for the model to continue, or those given."""
        if isinstance(text, (str, bytes)):
            return self.tokenizer.prompt(text)
        ids = int32(text)
        if ids.ndim != 1 or ids.size == 0:
            raise ArgumentError(f"tokens: expected [T] with at least one token, found {list(ids.shape)}")
        return ids

    # --- numbers ---

    def logits(
        self,
        tokens: Text,
        *,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        doc_start: Optional[ArrayLike] = None,
        inputs: Optional[ArrayLike] = None,
    ) -> NDArray[np.float32]:
        """The logits of whole sequences: [T,V] for a text or tokens [T], [B,T,V] for tokens [B,T].

        budgets: those in force while the text is read, as in decoding. doc_start [B,T]: where each token's document begins.
        inputs [B,S]: what the encoder of an encoder-decoder reads."""
        if isinstance(tokens, (str, builtin_bytes)):
            tokens = self._tokens(tokens)
        ids, row = rows_of(tokens), np.ndim(tokens) == 1
        (B, T), room = ids.shape, Room(self, budgets, policy, policy_options)
        out = np.empty((B, T, self.vocab_size), np.float32)
        options = options_of("wn_logits_options")
        options.budgets = room.raw
        if inputs is not None:
            if doc_start is not None:
                raise ArgumentError("inputs and doc_start exclude each other")
            read = rows_of(inputs, "inputs")
            if read.shape[0] != B:
                raise ArgumentError(f"inputs: {read.shape[0]} rows for {B} rows of tokens")
            struct = ffi.new("wn_model_inputs *", {"tokens": pointer("int32_t", read), "S": read.shape[1]})
            options.inputs = struct
        start = None if doc_start is None else rows_of(doc_start, "doc_start")
        if start is not None and start.shape != ids.shape:
            raise ArgumentError(f"doc_start: {list(start.shape)} for tokens {list(ids.shape)}")
        options.doc_start = pointer("int32_t", start)
        self._context.call(
            lib.wn_model_logits, self._handle, pointer("int32_t", ids), B, T, options, pointer("float", out)
        )
        return first_of(out, row)

    def evaluate(
        self,
        text: Optional[Text] = None,
        *,
        data: Optional[PathLike] = None,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        batch: int = 0,
        context: int = 0,
        max_batches: int = 0,
        bytes: int = 0,
        long_only: bool = False,
        document_token: int = -1,
        progress: Optional[Callable[[int, int], None]] = None,
    ) -> EvalResult:
        """Loss, perplexity and bits per byte of a text (or tokens [T] of one), or of a token file `data`, in blocks of the
        context: what `winnow eval` says. max_batches: the most batches, of rows spread evenly over the whole (0: all).
        long_only: rows of `data` are its documents that fill at least 90% of the context, each from its document_token on
        (-1: the tokenizer's, or what data.json beside the file says). progress is called with (batches done, in all)."""
        if (text is None) == (data is None):
            raise ArgumentError("evaluate: a text or tokens, or data=FILE, and one of them")
        if long_only and data is None:
            raise ArgumentError("evaluate: long_only is for token files, data=FILE")
        room, told = Room(self, budgets, policy, policy_options), Progress(self._context, progress)
        options = options_of("wn_eval_options")
        put(options, batch=batch, context=context, max_batches=max_batches, bytes=bytes)
        options.budgets = room.raw
        told.put(options)
        result, rows = ffi.new("wn_eval_result *"), ffi.new("wn_eval_rows *")
        options.rows = rows
        try:
            if data is not None:
                self._evaluate_file(data, long_only, document_token, options, result)
            elif isinstance(text, (str, builtin_bytes)):
                raw = encoded(text)
                self._context.call(
                    lib.wn_eval_text, self._handle, self.tokenizer._handle, ffi.from_buffer(raw), len(raw), options, result
                )
            else:
                assert text is not None
                ids = self._tokens(text)
                self._context.call(lib.wn_eval_tokens, self._handle, pointer("int32_t", ids), ids.size, options, result)
            sums = row_sums(rows.sums, rows.count)
        finally:
            lib.wn_eval_rows_clear(rows)
        return EvalResult(
            result.loss,
            result.perplexity,
            result.accuracy,
            result.bits_per_byte,
            result.tokens,
            result.bytes,
            result.seconds,
            decoded(result.unit),
            estimate(result.loss_rows),
            estimate(result.accuracy_rows),
            sums,
        )

    def _document_token(self, given: int) -> int:
        """What starts a document: the given token, else the tokenizer's; -1: the library looks into data.json."""
        if given >= 0 or self._tokenizer is None or self._tokenizer.bos is None:
            return given
        return self._tokenizer.bos

    def _evaluate_file(
        self, path: PathLike, long_only: bool, document_token: int, options: Any, result: Any
    ) -> None:
        recipe = ffi.new("wn_recipe *")
        lib.wn_recipe_init(recipe)
        name = path_bytes(path)
        if len(name) >= ffi.sizeof(recipe.data.val):
            raise ArgumentError("data: the path is too long")
        recipe.data.val = name
        if long_only:
            recipe.data.rows, recipe.data.long_only = lib.WN_ROWS_DOCUMENT, True
            put(recipe.data, document_token=self._document_token(document_token))
        context = options.context or self.context
        data, vocab_size = ffi.addressof(recipe.data), self.vocab_size
        source = self._context.make(lib.wn_data_source_create, data, b"val", context, vocab_size, what="data_source")
        try:
            self._context.call(lib.wn_eval, self._handle, source, options, result)
        finally:
            source.close()

    def loss(
        self,
        text: Optional[Text] = None,
        *,
        data: Optional[PathLike] = None,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
    ) -> float:
        """The mean negative log-likelihood of a token, in nats: evaluate(...).loss."""
        found = self.evaluate(text, data=data, budgets=budgets, policy=policy, policy_options=policy_options)
        return found.loss

    def score(
        self,
        text: Text,
        *,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        top_k: int = 0,
    ) -> "Scores":
        """The log probability of every token of a text after those before it, from the second on."""
        ids = self._tokens(text)
        if ids.size < 2:
            raise ArgumentError("score: one token: nothing to predict")
        with self.session(capacity=ids.size, budgets=budgets, policy=policy, policy_options=policy_options) as s:
            return s.score(ids[:-1], ids[1:], top_k=top_k)

    def score_choices(
        self,
        context: str,
        choices: Sequence[str],
        *,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
    ) -> list[ScoredChoice]:
        """How probable each continuation is after a context, tokenized with it as lm-evaluation-harness does. The choice of
        the largest log_probability is the model's answer."""
        rows = [self.encode_pair(context, text) for text in choices]
        return self.score_requests([rows], budgets=budgets, policy=policy, policy_options=policy_options)[0]

    def encode_pair(self, context: str, continuation: str) -> tuple[NDArray[np.int32], int]:
        """(tokens of both, how many of them are the context's): the whole text is tokenized at once and cut after as many
        tokens as the context alone has; white space at the context's end belongs to the continuation."""
        tok = self.tokenizer
        kept = len(context.rstrip())
        if kept == 0:
            first = tok.bos if tok.bos is not None else tok.eos
            if first is None:
                raise ArgumentError("the context is empty, and the tokenizer has no token that begins a text")
            rest = tok.encode(context + continuation, bos=False)
            return np.concatenate([np.array([first], np.int32), rest]), 1
        return tok.encode(context + continuation), int(tok.encode(context[:kept]).size)

    def score_requests(
        self,
        questions: Sequence[Sequence[tuple[ArrayLike, int]]],
        *,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        cache: str = "auto",
        context: int = 0,
        batch: int = 0,
        progress: Optional[Callable[[int, int], None]] = None,
    ) -> list[list[ScoredChoice]]:
        """Scores many questions, each a list of (tokens, how many of them are the context): questions are read together, and
        what the requests of one begin with is read once. As `winnow eval --task`, with the same bits for the same questions.

        context: longer requests lose their beginning; 0: the model's."""
        flat = [(int32(tokens).reshape(-1), n, q) for q, asked in enumerate(questions) for tokens, n in asked]
        requests = ffi.new("wn_request[]", max(len(flat), 1))
        for request, (ids, n, q) in zip(requests, flat):
            request.tokens, request.count = pointer("int32_t", ids), ids.size
            put(request, context=n, question=q)
        room, told = Room(self, budgets, policy, policy_options, cache), Progress(self._context, progress)
        options = options_of("wn_request_options")
        put(options, context=context, batch=batch)
        options.budgets, options.cache = room.raw, room.cache
        told.put(options)
        self._context.call(lib.wn_score_requests, self._handle, options, requests, len(flat))
        found: list[list[ScoredChoice]] = [[] for _ in questions]
        for request, (ids, n, q) in zip(requests, flat):
            found[q].append(ScoredChoice(request.log_probability, bool(request.greedy), int(ids.size) - n))
        return found

    # --- what is made with it ---

    def session(
        self,
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
    ) -> "Session":
        """A key-value cache that is fed: Session has the arguments."""
        from .session import Session

        return Session(
            self,
            sequences,
            capacity=capacity,
            budgets=budgets,
            policy=policy,
            policy_options=policy_options,
            cache=cache,
            tau=tau,
            counts=counts,
            control_marks=control_marks,
        )

    def generate(self, prompt: Text, **options: Any) -> "Generation":
        """Continues a prompt: an iterator of pieces of text, `for piece in model.generate("Once"): print(piece, end="")`.

        Options are those of Generation (max_tokens, temperature, stop, ...), and budgets, policy, policy_options and cache."""
        from .generation import generate

        return generate(self, prompt, options)

    def chat(self, system: Optional[str] = None, **options: Any) -> "Chat":
        """A conversation: Chat has the arguments."""
        from .chat import Chat

        return Chat(self, system, **options)

    def encode_chat(
        self, messages: Sequence[tuple[str, str]], *, template: Optional[str] = None, opening: bool = True
    ) -> NDArray[np.int32]:
        """The tokens of messages (role, text), "system", "user" or "assistant", up to where the model answers, or
        goes on with the last message if that is the assistant's; template: the name of another than the model's own.
        opening: the conversation begins with them."""
        from .chat import encode_messages, find_template

        return encode_messages(self, find_template(self, template), messages, opening)

    def attention(self, text: Text, **options: Any) -> "AttentionMaps":
        """What every token of a text sees in every layer: winnow_lm.attention.look_at has the arguments."""
        from .attention import look_at

        return look_at(self, text, **options)

    def head_report(self, text: Union[str, bytes], **options: Any) -> "HeadReport":
        """What heads attend to, as `winnow analyze attention`: winnow_lm.attention.report_heads has the arguments."""
        from .attention import report_heads

        return report_heads(self, text, **options)

    def search(self, **options: Any) -> "Search":
        """How many tokens each layer needs: winnow_lm.search.search has the arguments."""
        from .search import search

        return search(self, **options)

    def save(self, folder: PathLike) -> None:
        """Writes a checkpoint: configuration, weights, tokenizer. Needs as_float=True."""
        tok = ffi.NULL if self._tokenizer is None else self._tokenizer._handle
        self._context.call(lib.wn_model_save, self._handle, tok, path_bytes(folder))

    def cancel(self) -> None:
        """From another thread: the call that computes now stops, with CancelledError, or ends its text."""
        self._context.cancel()

    def close(self) -> None:
        """Frees the model, its tokenizer, and all sessions, chats and texts that it made."""
        self._context.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._context.closed:
            return "<Model, closed>"
        return f"<Model {self.path}: {self.layers} layers, {self.parameters:,} parameters>"


builtin_bytes = bytes
