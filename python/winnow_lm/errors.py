"""The library's failures as exceptions: one class for each status of the C API, below WinnowError."""

from __future__ import annotations


class WinnowError(Exception):
    """Something that the library could not do; its text is one line that names the file, the field, what was expected and
    what was found."""

    #: The name of the C API's status, such as "WN_ERR_FORMAT".
    status = ""


class ArgumentError(WinnowError, ValueError):
    """An argument is out of range or does not go with another one."""

    status = "WN_ERR_ARGUMENT"


class OutOfMemoryError(WinnowError, MemoryError):
    """An allocation failed; the message says for what."""

    status = "WN_ERR_MEMORY"


class FileError(WinnowError, OSError):
    """A file could not be opened, read, written or synced."""

    status = "WN_ERR_IO"


class FormatError(WinnowError, ValueError):
    """A file's content is malformed, truncated or damaged."""

    status = "WN_ERR_FORMAT"


class ConfigError(WinnowError, ValueError):
    """A key of a configuration or recipe is unknown, or its value out of range."""

    status = "WN_ERR_CONFIG"


class ShapeError(WinnowError, ValueError):
    """Shapes of tensors or vocabularies do not agree."""

    status = "WN_ERR_SHAPE"


class UnsupportedError(WinnowError, NotImplementedError):
    """This build, backend or model cannot do it; the message names what is in the way."""

    status = "WN_ERR_UNSUPPORTED"


class DivergedError(WinnowError, ArithmeticError):
    """A loss became NaN or infinite; the last checkpoint is kept."""

    status = "WN_ERR_DIVERGED"


class CancelledError(WinnowError):
    """cancel() was called while the library computed."""

    status = "WN_ERR_CANCELLED"


#: The class of each status.
BY_STATUS: dict[str, type[WinnowError]] = {
    kind.status: kind
    for kind in (
        ArgumentError,
        OutOfMemoryError,
        FileError,
        FormatError,
        ConfigError,
        ShapeError,
        UnsupportedError,
        DivergedError,
        CancelledError,
    )
}
