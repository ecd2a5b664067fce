"""Converting models to other formats, and texts to token files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

from ._library import (
    Context,
    PathLike,
    Progress,
    callback,
    choice,
    decoded,
    ffi,
    lib,
    named,
    options_of,
    path_bytes,
    put,
    strings,
)
from .errors import ArgumentError

FORMS = ("winnow", "hf", "gguf", "winnow-gguf")
MIXTURES = {"q5_k_m": "q5_k", "q4_k_m": "q4_k"}  #: llama.cpp's: the type of most matrices


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote."""

    architecture: str
    tensors: int
    bytes: int  #: of the file with the weights
    tokenizer: str  #: "copied", "written" or "none"


def convert(
    source: PathLike, out: PathLike, to: str, *, type: Optional[str] = None, overwrite: bool = False, check: bool = True
) -> Converted:
    """Writes a model in another format: "winnow", "hf" (a folder of Hugging Face transformers), "gguf" or "winnow-gguf"; type:
    of matrices, such as "f32", "bf16", "q8_0", or llama.cpp's mixtures "q4_k_m" and "q5_k_m"; None: the source's where the format
    has it, "f32" in "winnow". As `winnow convert`."""
    options = options_of("wn_convert_options")
    options.to, options.overwrite = choice(FORMS, to, "to"), overwrite
    options.check_tensors = 0 if check else 2
    if type is not None:
        mixed = MIXTURES.get(type.lower())
        options.typed, options.type, options.mixed = True, _storage_type(mixed or type), mixed is not None
    result = ffi.new("wn_convert_result *")
    context = Context(threads=1)
    context.call(lib.wn_model_convert, path_bytes(source), path_bytes(out), options, result)
    return Converted(
        decoded(result.architecture), result.tensors, result.bytes, decoded(result.tokenizer) if result.tokenizer else ""
    )


def _storage_type(name: str) -> int:
    names = {decoded(lib.wn_gguf_type_name(n)).lower(): n for n in ffi.typeof("wn_gguf_type").elements}
    if name.lower() not in names:
        raise ArgumentError(f"type {name!r} is not one of {', '.join([*names, *MIXTURES])}")
    return int(names[name.lower()])


@dataclass(frozen=True)
class Prepared:
    """Counts of what prepare_data wrote."""

    documents: int
    train_tokens: int
    val_tokens: int
    bytes: int
    test_tokens: int
    train_bytes: int
    val_bytes: int
    test_bytes: int


class _Texts:
    """What on_text reads from: one text at a time, which is kept until the next."""

    def __init__(self, texts: Iterable[Union[str, bytes]]) -> None:
        self.texts: Iterator[Union[str, bytes]] = iter(texts)
        self.number = 0

    def next(self, text: Any, count: Any) -> bool:
        for one in self.texts:
            self.number += 1
            if not isinstance(one, (str, bytes)):
                raise ArgumentError(f"text {self.number} is {type(one).__name__}; str or bytes was expected")
            data = one.encode("utf-8", "surrogatepass") if isinstance(one, str) else one
            self.held = ffi.from_buffer(data)
            text[0], count[0] = ffi.cast("const char *", self.held), len(data)
            return True
        return False


@callback("bool(void *, const char **, size_t *)")
def on_text(user: Any, text: Any, count: Any) -> bool:
    context, texts = ffi.from_handle(user)
    return bool(context.guard(lambda: texts.next(text, count), False))


def prepare_data(
    inputs: Union[PathLike, Sequence[PathLike]] = (),
    out: PathLike = "",
    *,
    tokenizer: PathLike,
    texts: Optional[Iterable[Union[str, bytes]]] = None,
    document_break: str = "file",
    field: str = "text",
    val_fraction: float = 0.05,
    test_fraction: float = 0,
    val_bytes: int = 0,
    test_bytes: int = 0,
    layout: str = "llmc",
    seed: int = 0,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Prepared:
    """Turns texts and JSON lines into train.bin, val.bin and test.bin, as `winnow data prepare`. document_break: what ends a
    document of a text file: "blank" lines, each "line", or the "file". val_fraction, test_fraction: of the documents, by a hash of
    seed and their number. val_bytes, test_bytes: the last bytes, with the tokenizer "bytes". layout: of the token files, "llmc" or
    "nanogpt". texts: what the caller has, read after the inputs one at a time, each a document, as from
    `(row["text"] for row in dataset)`."""
    files = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    context = Context(threads=1)
    options = options_of("wn_data_prepare_options", lib.wn_data_prepare_options_init)
    names, kept = strings([path_bytes(f) for f in files], "inputs")
    chosen = [named(document_break, "document_break"), named(layout, "layout")]
    words = [ffi.new("char[]", one) for one in (named(field, "field"), path_bytes(tokenizer), path_bytes(out), *chosen)]
    options.inputs, options.input_count = names, len(kept)
    options.field, options.tokenizer, options.out_dir, options.document_break, options.layout = words
    options.val_fraction, options.test_fraction = val_fraction, test_fraction
    put(options, seed=seed, val_bytes=val_bytes, test_bytes=test_bytes)
    user = None if texts is None else ffi.new_handle((context, _Texts(texts)))
    if user is not None:
        options.next_text, options.texts = on_text, user
    told = Progress(context, progress)
    told.put(options)
    result = ffi.new("wn_data_prepare_result *")
    context.call(lib.wn_data_prepare, options, result)
    return Prepared(**{name: getattr(result, name) for name in Prepared.__dataclass_fields__})
