"""A Python function goes in; what stands for the compiled one comes out, and instructions for compiled code.

numba, which takes 0.3 s to load, is loaded when something is compiled, not when it is declared, and not to call what is
on disk already.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from cleanfeed.kernel_code import CLOSE, DONE, NUMBER, OPEN, Call, CodeFile, compiled, fingerprint, linked


class Deferred:
    """Stands for what compiled code is made of until something is compiled.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Any:
        """What it stands for."""
        return self._make()


def _instruction(name: str, *arguments: Any, **options: Any) -> Any:
    """Return an instruction of :mod:`.kernel_instructions`, or one that is made there of some arguments."""

    def make() -> Any:
        found = getattr(import_module("cleanfeed.kernel_instructions"), name)
        return found(*arguments, **options) if arguments else found

    return Deferred(make)


load_8 = _instruction("load_8")
trailing_zeros = _instruction("trailing_zeros")
leading_zeros = _instruction("leading_zeros")
ones = _instruction("ones")
at_least_64 = _instruction("at_least_64")
prefetch = _instruction("prefetch")
copy_bytes = _instruction("copy_bytes")
copy_64 = _instruction("copy_64")
bytes_in = partial(_instruction, "bytes_in")
same_as_next = partial(_instruction, "same_as_next")


def address_of(array: Any) -> int:
    """Return where an array begins in memory."""
    return int(array.__array_interface__["data"][0])


def inner(function: Any) -> Any:
    """Compile a function that only compiled code calls."""
    return Deferred(partial(_njit, function))


def _njit(function: Any) -> Any:
    """Return what numba compiles into callers.

    Without the ways in from Python, which take a good part of the time a small function needs to compile, and without
    the counts of who uses an array, which nobody here makes: they would change at each call.
    """
    from numba import njit

    return njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(_in_place(function))


def _in_place(function: Any) -> Any:
    """Return a function with what others stand for in place of these: numba takes names as they are."""
    names = dict(function.__globals__)
    for name in _names_of(function.__code__):
        if isinstance(names.get(name), Deferred):
            names[name] = names[name].made
    found = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    found.__qualname__, found.__module__ = function.__qualname__, function.__module__
    return found


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_of(part)


class Kernel(Deferred):
    """A function that Python calls with numbers, contiguous arrays and tuples of these; compiled code may call it too.

    It returns a whole number or None, as its annotation says. Other threads of Python go on meanwhile. For each kind of
    arguments it is compiled at the first call and kept on disk; called from there, it does not need numba.

    Args:
        function: What is compiled.
        parts: Of cleanfeed, where what it calls is written, beside its own.
    """

    def __init__(self, function: Any, parts: Sequence[str] = ()) -> None:
        super().__init__(partial(_njit, function))
        self.name = f"{function.__module__}.{function.__name__}"
        self._returns = function.__annotations__["return"] != "None"
        self._parts = (function.__module__.split(".")[1], *parts)
        self._calls: dict[str, Call] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of arguments it is ready for."""
        return sorted(self._calls)

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled code.

        Raises:
            TypeError: An argument is something else, or an array is not contiguous.
            RuntimeError: Compiled code raised an error.
        """
        numbers: list[int] = []
        kinds = " ".join(_laid_out(arguments, numbers))
        call = self._calls.get(kinds)
        if call is None:
            call = self._calls[kinds] = self._ready(kinds)
        # Behind the arguments is room for what numba's code may return, or say of an error.
        block = array("q", (*numbers, 0, 0))
        start, words = block.buffer_info()
        end = start + block.itemsize * words
        if call(end - 2 * block.itemsize, end - block.itemsize, start) not in DONE:
            raise RuntimeError(f"an error in the kernel {self.name}")
        return block[0] if self._returns else None

    def _ready(self, kinds: str) -> Call:
        """Return the code for some kinds of arguments, from disk or compiled."""
        file = CodeFile(self.name, kinds, fingerprint(*self._parts))
        found = file.load()
        if found is None:
            symbol, code = compiled(self.made, kinds, returns=self._returns)
            file.save(symbol, code)
            found = linked(symbol, code)
        return found


def _laid_out(arguments: tuple[Any, ...], numbers: list[int]) -> Iterator[str]:
    """Yield the kinds of arguments and add what they consist of to ``numbers``."""
    for value in arguments:
        if isinstance(value, np.ndarray) and value.ndim:
            if not value.flags.c_contiguous:
                raise TypeError("an array that is not contiguous")
            numbers += (address_of(value), *value.shape)
            yield f"{value.dtype.str}:{value.ndim}"
        elif isinstance(value, tuple):
            yield OPEN
            yield from _laid_out(value, numbers)
            yield CLOSE
        elif isinstance(value, int | np.integer | np.bool_):
            numbers.append(int(value))
            yield NUMBER
        else:
            raise TypeError(f"{type(value).__name__}, where a number, an array or a tuple is expected")


def kept(function: Any, *signatures: Any, nogil: bool) -> Any:
    """Compile a function for some kinds of arguments now, or load what is on disk of it, and for no others ever.

    For code that is called so often that numba's own way in, which is quicker than that of :class:`Kernel`, pays for
    loading numba.

    Args:
        function: What is compiled; it calls nothing of other files, since numba looks at its own only to tell whether
            what is on disk is still good.
        signatures: Types of the result and the arguments.
        nogil: Let other threads of Python go on while it runs.
    """
    from numba import njit
    from numba.core.caching import FunctionCache

    found = njit(nogil=nogil)(function)
    found._cache = cache = FunctionCache(function)
    cache.save_overload = partial(_save, cache.save_overload)
    for signature in signatures:
        found.compile(signature)
    found.disable_compile()
    return found


def _save(save: Callable[[Any, Any], None], signature: Any, found: Any) -> None:
    """Keep on disk what was compiled, where there is room and leave to; elsewhere it is compiled again each time."""
    with suppress(OSError):
        save(signature, found)
