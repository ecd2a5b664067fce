"""The shared library: finding it, calling it, and what Python has to do so that a call is safe.

A Context is one wn_context with a lock: its calls take turns, whatever thread they come from, and cffi lets go of the
interpreter's lock while C computes. Everything that is made from it stands in a table until it is destroyed, in which its
pointers are looked up with the lock held, so that objects can be closed and dropped in any order and by any thread, also by the
garbage collector in the middle of a call."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._api import ffi as ffi
from .errors import BY_STATUS, ArgumentError, WinnowError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
#: A text, its bytes, or tokens.
Text = Union[str, bytes, ArrayLike]
PathLike = Union[str, "os.PathLike[str]"]


def _open() -> Any:
    path = os.environ.get("WINNOW_LIBRARY") or str(Path(__file__).with_name("libwinnow.so"))
    try:
        library = ffi.dlopen(path, ffi.RTLD_NOW)
    except OSError as e:
        raise ImportError(f"winnow_lm: {path} cannot be loaded: {e}") from None
    built = library.WN_VERSION_MAJOR * 10000 + library.WN_VERSION_MINOR * 100 + library.WN_VERSION_PATCH
    if library.wn_version_number() != built:
        found = ffi.string(library.wn_version()).decode()
        raise ImportError(f"winnow_lm: {path} is version {found}; this package was built for {built}")
    return library


lib = _open()
version: str = ffi.string(lib.wn_version()).decode()
_OK: int = lib.WN_OK

# Generated kernels use the stack pointer as a general register, so a signal handler must not run on the ordinary stack
# (winnow/context.h). Python's own handlers ask for another stack (SA_ONSTACK), which the main thread does not have unless
# somebody gives it one.
_STACK_BYTES = 64 << 10
_SS_DISABLE = 2


class _Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


_stack: Optional[Any] = None


def prepare_signals() -> None:
    """Gives the main thread a stack for signal handlers, once, unless it has one."""
    global _stack
    if _stack is not None or threading.current_thread() is not threading.main_thread():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    old = _Stack()
    if libc.sigaltstack(None, ctypes.byref(old)) or not old.flags & _SS_DISABLE:
        return
    memory = ctypes.create_string_buffer(_STACK_BYTES)
    new = _Stack(ctypes.cast(memory, ctypes.c_void_p), 0, _STACK_BYTES)
    if libc.sigaltstack(ctypes.byref(new), None) == 0:
        _stack = memory


prepare_signals()


def encoded(text: Union[str, bytes]) -> bytes:
    """A text as bytes for C."""
    if not isinstance(text, str):
        if not isinstance(text, (bytes, bytearray, memoryview)):  # bytes(5) is five zeros
            raise TypeError(f"a text is a str or bytes, not a {type(text).__name__}")
        return bytes(text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise ArgumentError(f"a text has U+{ord(text[e.start]):04X}, half a pair, at {e.start}: no character") from None


def named(text: Union[str, bytes], what: str) -> bytes:
    """A text as bytes for a C string; a NUL byte in it is an ArgumentError."""
    raw = encoded(text)
    if b"\0" in raw:
        raise ArgumentError(f"{what}: {text!r} has a NUL byte in it")
    return raw


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise ArgumentError(f"JSON has nothing for a {type(value).__name__}: {value!r}")


def json_text(value: Any) -> str:
    """A value as JSON; it may contain numpy's numbers and arrays."""
    return json.dumps(value, default=_plain)


def decoded(text: Any, count: Optional[int] = None) -> str:
    """A C string, or `count` bytes, as a str; bytes that are not UTF-8 become U+FFFD."""
    raw = ffi.string(text) if count is None else ffi.buffer(text, count)[:]
    return bytes(raw).decode("utf-8", "replace")


def path_bytes(path: PathLike) -> bytes:
    """A path as bytes for C."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise ArgumentError(f"the path {path!r} has half a pair of UTF-16 in it: no character") from None
    if b"\0" in raw:
        raise ArgumentError("a path has a NUL byte in it")
    return raw


def int32(values: ArrayLike, what: str = "tokens") -> NDArray[np.int32]:
    """Whole numbers as a contiguous array of int32, a copy, which nobody changes while C reads it; others are an ArgumentError."""
    try:
        array = np.array(values)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise ArgumentError(f"{what}: expected whole numbers of at most 32 bits, found {array.dtype}")
        # Checked before the cast to int64, which changes large uint64 numbers.
        if array.size and (int(array.min()) < -(2**31) or int(array.max()) >= 2**31):
            raise ArgumentError(f"{what}: a number does not fit into 32 bits")
        return np.ascontiguousarray(array, dtype=np.int32)
    except ArgumentError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{what}: expected whole numbers in rows of one length") from None


def rows_of(tokens: ArrayLike, what: str = "tokens") -> NDArray[np.int32]:
    """Tokens [B,T]; one row [T] becomes [1,T]."""
    array = int32(tokens, what)
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or 0 in array.shape:
        raise ArgumentError(f"{what}: expected [T] or [B,T] with at least one token, found {list(array.shape)}")
    return array


def pointer(kind: str, array: Optional["NDArray[Any]"]) -> Any:
    """A C pointer to an array's memory: kind is "int32_t", "float", ...; None is NULL."""
    if array is None:
        return ffi.NULL
    return ffi.cast(kind + " *", ffi.from_buffer(array)) if array.size else ffi.NULL


def strings(values: Iterable[Union[str, bytes]], what: str) -> tuple[Any, Any]:
    """(array of C strings, what must be kept alive)."""
    kept = [ffi.new("char[]", named(v, what)) for v in values]
    return ffi.new("char *[]", kept) if kept else ffi.NULL, kept


def options_of(kind: str, init: Optional[Callable[..., Any]] = None) -> Any:
    """A struct of options with its size and its defaults."""
    options = ffi.new(kind + " *")
    if init is not None:
        init(options, ffi.sizeof(kind))
    else:
        options.size = ffi.sizeof(kind)
    return options


def put(struct: Any, **fields: Any) -> None:
    """Sets fields of a struct to numbers; one that does not fit is an ArgumentError with its name."""
    for name, value in fields.items():
        try:
            setattr(struct, name, value)
        except OverflowError as e:
            raise ArgumentError(f"{name} is {value}: {e}") from None


def choice(names: Sequence[str], value: str, what: str) -> int:
    """The index of a name in a list."""
    if value not in names:
        raise ArgumentError(f"{what} {value!r} is not one of {', '.join(names)}")
    return list(names).index(value)


CACHE_FORMATS = ("float", "half", "auto", "q8_0", "q4_0")


class Handle:
    """An object of the C API that belongs to a Context, until close(). Context.make makes it."""

    def __init__(self, context: "Context", number: int, what: str) -> None:
        self.context = context
        self.what = what
        self.number = number
        self._closed = False

    @property
    def raw(self) -> Any:
        """The C pointer, for as long as the context's lock is held; an ArgumentError once this object, or what it was made
        from, is closed."""
        found = None if self._closed else self.context.find(self.number)
        if found is None:
            raise ArgumentError(f"this {self.what} is closed")
        return found

    @property
    def closed(self) -> bool:
        return self._closed or self.context.find(self.number) is None

    def close(self) -> None:
        self._closed = True
        self.context.release(self.number)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


class Borrowed:
    """An argument that is only known, or only lives, while the context's lock is held: `read` returns it."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read


@dataclass
class _Owned:
    """What C has made, and the numbers of the objects that work with it and are destroyed before it."""

    raw: Any
    destroy: Callable[[Any], Any]
    uses: tuple[int, ...]
    users: set[int] = field(default_factory=set)


def callback(signature: str) -> Callable[[F], F]:
    """Decorator: lets C call a function. The function must not raise; an exception is a bug of this package and is printed."""
    made: Callable[[F], F] = ffi.callback(signature)
    return made


class Context:
    """A wn_context, used by one thread at a time."""

    def __init__(
        self,
        threads: int = 0,
        backend: Optional[str] = None,
        log: Optional[Callable[[str, str], None]] = None,
        pre: Optional[str] = None,
        exact_rows: int = 0,
    ) -> None:
        prepare_signals()
        self._lock = threading.RLock()
        self._depth = 0  # calls of C that this thread is in: more than one only from within callbacks
        self._held = 0  # alone(), in this thread
        self._texts = 0  # Generations that are not at their end
        self._asking = threading.RLock()  # held for a moment: a request to stop finds a call, or there is none
        self._doomed: deque[int] = deque()
        self._owned: dict[int, _Owned] = {}  # changed with the lock held
        self._numbers = itertools.count()
        self._raised: Optional[BaseException] = None
        self._raw: Optional[Any] = None
        self._process = os.getpid()
        self._log = log
        self._self = ffi.new_handle(_Logger(self, log)) if log else None
        options = options_of("wn_context_options")
        name = ffi.new("char[]", named(backend, "backend")) if backend else ffi.NULL
        put(options, threads=threads, exact_rows=exact_rows)
        options.backend = name
        split = ffi.new("char[]", named(pre, "pre")) if pre else ffi.NULL
        options.pre = split
        if log:
            options.log, options.log_user = _on_log, self._self
        out = ffi.new("wn_context **")
        status = lib.wn_context_create(options, out)
        if status != _OK:
            message = decoded(lib.wn_context_error(out[0])) if out[0] else "a context could not be created"
            lib.wn_context_destroy(out[0])
            raise error_of(status, message)
        self._raw = out[0]

    @property
    def raw(self) -> Any:
        if self._raw is None:
            raise ArgumentError("this model is closed")
        if self._process != os.getpid():  # the library's threads are not there: a call would wait for them for ever
            raise ArgumentError("a model cannot be used in a process forked after it was loaded: start it with \"spawn\"")
        return self._raw

    @property
    def closed(self) -> bool:
        return self._raw is None

    # --- calls ---

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Several calls between which no other thread's come, and nothing is destroyed."""
        with self._lock:
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1
                self._bury()

    def _pointer_of(self, argument: Any) -> Any:
        if isinstance(argument, Borrowed):
            return argument.read()
        if not isinstance(argument, Handle):
            return argument
        if argument.context is not self:
            raise ArgumentError(f"this {argument.what} belongs to another model")
        return argument.raw

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls a function that returns a status; its wn_context is left out of the arguments. A status other than WN_OK, or
        an exception of a callback, is raised. A Handle stands for its pointer and a Borrowed for what it reads, when no other
        thread can close it."""
        self.run(lambda raw: function(raw, *map(self._pointer_of, arguments)))

    def run(self, work: Callable[[Any], int]) -> None:
        """Runs work(wn_context), which returns a status, with the lock held."""
        with self._lock:
            raw = self.raw
            self._depth += 1
            try:
                status = work(raw)
            except OverflowError as e:  # an argument, which cffi names: what callbacks raise does not come here
                raise ArgumentError(f"an argument does not fit: {e}") from None
            finally:
                self._leave()
            raised, self._raised = self._raised, None
            if raised is not None or status == lib.WN_ERR_CANCELLED:
                lib.wn_context_resume(raw)
            message = decoded(lib.wn_context_error(raw)) if status != _OK and raised is None else ""
            self._bury()
        if raised is not None:
            raise raised
        if status != _OK:
            raise error_of(status, message)

    def value(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function without a status, with the lock held."""
        with self._lock:
            self.raw  # open
            self._depth += 1
            try:
                return function(*map(self._pointer_of, arguments))
            except OverflowError as e:
                raise ArgumentError(f"an argument does not fit: {e}") from None
            finally:
                self._leave()
                self._bury()

    def _leave(self) -> None:
        with self._asking:
            self._depth -= 1
            self._forget()

    def _forget(self) -> None:
        """Withdraws a request to stop that came too late, so that it does not stop the next call."""
        if self._depth == 0 and self._texts == 0 and self._raw is not None:
            lib.wn_context_resume(self._raw)

    def text(self, begins: bool) -> None:
        """Counts texts that are being generated, which can also be stopped between their steps."""
        if self._process != os.getpid():
            return  # as for close
        with self._asking:
            self._texts += 1 if begins else -1
            self._forget()

    def answered(self) -> None:
        """Withdraws a request to stop that has ended a text."""
        with self._lock:
            if self._raw is not None and self._process == os.getpid():
                lib.wn_context_resume(self._raw)

    def guard(self, work: Callable[[], T], otherwise: T) -> T:
        """The body of a callback: what it raises ends the C call as soon as that may be, and is raised after it."""
        if self._raised is not None:
            return otherwise
        try:
            return work()
        except BaseException as e:  # KeyboardInterrupt too
            self._raised = e
            self.cancel()
            return otherwise

    def cancel(self) -> None:
        """From any thread, without the lock: asks the call that runs now, or the text that is not at its end, to stop."""
        with self._asking:
            if self._raw is not None and (self._depth or self._texts):
                lib.wn_context_cancel(self._raw)

    # --- what is destroyed when ---

    def make(self, function: Callable[..., int], *arguments: Any, what: str, uses: Iterable[Optional[Handle]] = ()) -> Handle:
        """Calls a function whose last argument is a wn_WHAT **; uses: what the object works with, and is destroyed before."""
        out = ffi.new(f"wn_{what} **")
        with self.alone():
            self.call(function, *arguments, out)
            number, used = next(self._numbers), tuple(h.number for h in uses if h is not None)
            self._owned[number] = _Owned(out[0], getattr(lib, f"wn_{what}_destroy"), used)
            for one in used:
                self._owned[one].users.add(number)
            return Handle(self, number, what)

    def find(self, number: int) -> Any:
        owned = self._owned.get(number)
        return None if owned is None else owned.raw

    def release(self, number: int) -> None:
        if self._process != os.getpid():
            return  # another process's
        self._doomed.append(number)
        if self._lock.acquire(blocking=False):  # else the thread that has it does it after its call
            try:
                self._bury()
            finally:
                self._lock.release()

    def end_users(self, handle: Handle) -> None:
        """Destroys all that works with an object."""
        with self._lock:
            if self._depth:
                raise ArgumentError("a model cannot be changed from within one of its own callbacks")
            handle.raw  # open
            for user in sorted(self._owned[handle.number].users, reverse=True):
                self._end(user)

    def _bury(self) -> None:
        while self._depth == 0 and self._held == 0 and self._doomed:
            self._end(self._doomed.popleft())

    def _end(self, number: int) -> None:
        """Destroys an object, after all that works with it."""
        found = self._owned.get(number)
        for user in sorted(found.users, reverse=True) if found is not None else ():
            self._end(user)
        found = self._owned.pop(number, None)  # the garbage collector may have come in between
        if found is None:
            return
        for one in found.uses:
            if one in self._owned:
                self._owned[one].users.discard(number)
        found.destroy(found.raw)

    def close(self) -> None:
        """Destroys everything that was made from it, the last first, and then the context."""
        if self._process != os.getpid():
            return  # the parent's, with a lock that nobody may ever let go
        with self._lock:
            if self._raw is None:
                return
            if self._depth:
                raise ArgumentError("a model cannot be closed from within one of its own callbacks")
            self._bury()
            for number in sorted(self._owned, reverse=True):
                self._end(number)
            with self._asking:
                raw, self._raw = self._raw, None
            lib.wn_context_destroy(raw)

    def __del__(self) -> None:
        if getattr(self, "_raw", None) is not None:
            self.close()


class _Logger:
    """The user pointer of the log's callback. It does not keep the context alive."""

    def __init__(self, context: Context, log: Callable[[str, str], None]) -> None:
        import weakref

        self.context = weakref.ref(context)
        self.log = log


LOG_LEVELS = ("debug", "info", "warning")


@callback("void(void *, wn_log_level, const char *)")
def _on_log(user: Any, level: int, line: Any) -> None:
    logger: _Logger = ffi.from_handle(user)
    context = logger.context()
    if context is not None:
        context.guard(lambda: logger.log(LOG_LEVELS[level], decoded(line)), None)


class Callback:
    """A Python function that C calls with a pointer to this object as `user`."""

    def __init__(self, context: Context, function: Optional[Callable[..., Any]]) -> None:
        self.context, self.function = context, function

    def __call__(self, *arguments: Any) -> None:
        """Calls the function. Without one it only lets Python handle Ctrl-C."""
        function = self.function or _nothing
        self.context.guard(lambda: function(*arguments), None)


def _nothing(*_: object) -> None:
    pass


class Progress:
    """A callback (done, total), for the structs of options that have one; kept alive by whoever made it."""

    def __init__(self, context: Context, function: Optional[Callable[[int, int], None]]) -> None:
        self.user = ffi.new_handle(Callback(context, function))

    def put(self, options: Any) -> None:
        options.progress, options.user = on_progress, self.user


@callback("void(void *, uint64_t, uint64_t)")
def on_progress(user: Any, done: int, total: int) -> None:
    ffi.from_handle(user)(done, total)


def error_of(status: int, message: str) -> WinnowError:
    """The exception for a status."""
    name = decoded(lib.wn_status_name(status))
    return BY_STATUS.get(name, WinnowError)(message or name)


def taken_text(raw: Any, count: Optional[int] = None) -> str:
    """The text in a buffer that C allocated; frees the buffer."""
    try:
        return decoded(raw, count)
    finally:
        lib.wn_text_free(raw)


def first_of(array: "NDArray[Any]", row: bool) -> "NDArray[Any]":
    """The first row of an array if there is only one to return (`row`), else the array."""
    found: "NDArray[Any]" = array[0] if row else array
    return found


def copied(raw: Any, shape: Union[int, tuple[int, ...]], dtype: Any) -> "NDArray[Any]":
    """A copy of a C array that is only borrowed."""
    size = int(np.prod(shape))
    dtype = np.dtype(dtype)
    if not size:
        return np.zeros(shape, dtype)
    return np.frombuffer(ffi.buffer(raw, size * dtype.itemsize), dtype=dtype).reshape(shape).copy()
