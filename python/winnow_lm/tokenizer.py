"""Tokenizers: text to tokens and back."""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._library import Context, Handle, PathLike, copied, decoded, encoded, ffi, int32, lib, path_bytes, pointer
from .errors import ArgumentError


class Tokenizer:
    """A tokenizer: "bytes", a SentencePiece .model file, a tokenizer.json, a GGUF file, or a folder that has one.

    A model has its own (Model.tokenizer); Tokenizer.load is for one without a model. One thread at a time computes with
    it, others wait."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._context = handle.context

    @classmethod
    def load(cls, spec: PathLike, *, pre: Optional[str] = None) -> "Tokenizer":
        """Loads a tokenizer by itself. pre: how a GGUF file's byte-pair tokenizer splits texts, if the file does not say it
        ("llama-bpe", "qwen2", ...)."""
        return cls._load(Context(threads=1, pre=pre), spec)

    @classmethod
    def _load(cls, context: Context, spec: PathLike) -> "Tokenizer":
        return cls(context.make(lib.wn_tokenizer_load, ffi.new("char[]", path_bytes(spec)), what="tokenizer"))

    # --- what it is ---

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return int(self._context.value(lib.wn_tokenizer_vocab_size, self._handle))

    @property
    def kind(self) -> str:
        """"bytes", "sentencepiece" or "bpe"."""
        return self._context.value(lambda: decoded(lib.wn_tokenizer_kind(self._handle.raw)))

    @property
    def bos(self) -> Optional[int]:
        """The token that is put before every text, if there is one."""
        found = int(self._context.value(lib.wn_tokenizer_bos, self._handle))
        return found if found >= 0 else None

    @property
    def eos(self) -> Optional[int]:
        """The token that ends a text, if there is one."""
        found = int(self._context.value(lib.wn_tokenizer_eos, self._handle))
        return found if found >= 0 else None

    @property
    def chat_template(self) -> Optional[str]:
        """The chat template (Jinja) in the model's files."""

        def read() -> Optional[str]:
            text = lib.wn_tokenizer_chat_template(self._handle.raw)
            return decoded(text) if text else None

        return self._context.value(read)

    def is_end(self, token: int) -> bool:
        """Does this token end a text, or a turn of a chat?"""
        return bool(self._context.value(lib.wn_tokenizer_is_end, self._handle, token))

    def is_control(self, token: int) -> bool:
        """Is it a control token, one without text of its own?"""
        return bool(self._context.value(lib.wn_tokenizer_is_control, self._handle, token))

    def control_tokens(self) -> NDArray[np.int32]:
        """All control tokens."""
        count = self.vocab_size

        def look() -> list[int]:
            return [i for i in range(count) if lib.wn_tokenizer_is_control(self._handle.raw, i)]

        return np.array(self._context.value(look), np.int32)

    def find(self, text: str) -> Optional[int]:
        """A special or added token by its name, such as "<|im_end|>"."""
        raw = encoded(text)
        found = int(self._context.value(lib.wn_tokenizer_find, self._handle, raw, len(raw)))
        return found if found >= 0 else None

    # --- text and tokens ---

    def encode(
        self, text: Union[str, bytes], *, bos: Optional[bool] = None, eos: bool = False, special: bool = False
    ) -> NDArray[np.int32]:
        """The tokens of a text.

        bos: with the token that begins a text; None: if the tokenizer has one. eos: with the one that ends it. special:
        names of special tokens in the text ("<|im_end|>") are those tokens and not plain text."""
        raw = encoded(text)
        begin = self.bos is not None if bos is None else bos
        ids, count = ffi.new("int32_t **"), ffi.new("size_t *")
        data = ffi.from_buffer(raw)
        part = ffi.new("wn_text_part *", {"text": data, "bytes": len(raw), "special": special})
        self._context.call(lib.wn_tokenizer_encode_parts, self._handle, part, 1, begin, eos, ids, count)
        return _taken_ids(ids[0], count[0])

    def prompt(self, text: Union[str, bytes]) -> NDArray[np.int32]:
        """The tokens of a text for a model to continue: as encode, but at least one."""
        raw = encoded(text)
        ids, count = ffi.new("int32_t **"), ffi.new("size_t *")
        self._context.call(lib.wn_prompt_encode, self._handle, ffi.from_buffer(raw), len(raw), ids, count)
        return _taken_ids(ids[0], count[0])

    def decode(self, tokens: ArrayLike) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decode_bytes(self, tokens: ArrayLike) -> bytes:
        """The same as the bytes that it stands for."""
        ids = int32(tokens).reshape(-1)
        text, count = ffi.new("char **"), ffi.new("size_t *")
        self._context.call(lib.wn_tokenizer_decode, self._handle, pointer("int32_t", ids), ids.size, text, count)
        try:
            return bytes(ffi.buffer(text[0], count[0]))
        finally:
            lib.wn_text_free(text[0])

    def align(self, tokens: ArrayLike, text: Union[str, bytes]) -> NDArray[np.int64]:
        """Where in the text each token stands: [T,2], the bytes from begin to end; -1: nowhere."""
        ids, raw = int32(tokens).reshape(-1), encoded(text)
        out = np.empty((2, ids.size), np.int64)
        self._context.call(
            lib.wn_tokens_align,
            self._handle,
            pointer("int32_t", ids),
            ids.size,
            ffi.from_buffer(raw),
            len(raw),
            pointer("int64_t", out[0]),
            pointer("int64_t", out[1]),
        )
        return np.ascontiguousarray(out.T)

    def token_bytes(self, token: int, *, begins: bool = False) -> bytes:
        """The bytes that a token adds to a text, maybe a part of a character. begins: it is the text's first token."""
        return self._of_token(lib.wn_tokenizer_token_bytes, token, begins)

    def name(self, token: int) -> str:
        """What to show for a token: its text, the name of a special one, or "bytes:\\xe6" where it is a part of a character."""
        return self._of_token(lib.wn_tokenizer_token_label, token, True).decode()

    def _of_token(self, function: Any, token: int, begins: bool) -> bytes:
        text, count = ffi.new("char **"), ffi.new("size_t *")
        self._context.call(function, self._handle, token, begins, text, count)
        try:
            return bytes(ffi.buffer(text[0], count[0]))
        finally:
            lib.wn_text_free(text[0])

    def close(self) -> None:
        """Frees the tokenizer; a model's own is freed with the model."""
        self._handle.close()

    def __enter__(self) -> "Tokenizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Tokenizer, closed>" if self._handle.closed else f"<Tokenizer {self.kind}, {self.vocab_size} tokens>"


def _taken_ids(raw: Any, count: int) -> NDArray[np.int32]:
    try:
        return copied(raw, count, np.int32)
    finally:
        lib.wn_tokens_free(raw)


def require(tokenizer: Optional[Tokenizer], why: Optional[str]) -> Tokenizer:
    """The tokenizer of a model that may have none."""
    if tokenizer is None:
        raise ArgumentError(f"a text needs a tokenizer, and this model has none ({why}): pass tokenizer= to Model.load")
    return tokenizer
