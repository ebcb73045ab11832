"""A Python function goes in; what stands for the compiled one comes out, and instructions for compiled code.

numba, which takes 0.3 s to load, is loaded when something is called or compiled, not when it is declared: who plans a
build, or reads one, calls nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any


class Deferred:
    """Stands for what compiled code is made of, or is, until that is needed.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Any:
        """What it stands for."""
        return self._make()

    def __call__(self, *arguments: Any) -> Any:
        """Call what it stands for."""
        return self.made(*arguments)


def _instruction(name: str, *arguments: Any, **options: Any) -> Deferred:
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


def inner(function: Any) -> Deferred:
    """Compile a function that only compiled code calls.

    Without the ways in from Python, which take a good part of the time a small function needs to compile, and without
    the counts of who uses an array, which nobody here makes: they would change at each call.

    Nothing of it is kept on disk by itself, but only as a part of what calls it. numba looks at one file when it
    decides whether what it has is still good, so a caller that is kept takes :func:`fingerprint` of all parts it holds
    code of into its key: a loop in a closure, a function that Python calls as well by :func:`outer`.
    """

    def make() -> Any:
        from numba import njit

        _put_in_place(function)
        return njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)

    return Deferred(make)


def _put_in_place(function: Any) -> None:
    """Replace what stands for something by it, in all that a function names: numba takes names as they are."""
    names = function.__globals__
    for name in _names_of(function.__code__):
        if isinstance(names.get(name), Deferred):
            names[name] = names[name].made


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_of(part)


@lru_cache
def fingerprint(*parts: str) -> int:
    """Return a number that changes with any file of some parts of cleanfeed, and with this one and its instructions.

    numba looks only at the file of a kernel when it decides whether what it has on disk is still good. A loop that
    holds code of other files takes this number in a closure, which makes it a part of the loop's key.
    """
    digest = hashlib.blake2b(digest_size=7)
    here = Path(__file__)
    own = (here, here.with_name("kernel_instructions.py"))
    for path in (*own, *(path for part in parts for path in sorted((here.parent / part).glob("*.py")))):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


def outer(function: Any) -> Deferred:
    """Compile a function that Python calls as well, and keep it on disk under a name that changes with its part."""
    part = function.__module__.split(".")[1]
    function.__qualname__ = f"{function.__qualname__}_{fingerprint(part):x}"
    return kept(function)


def kept(function: Any, *signatures: Any, nogil: bool = True) -> Deferred:
    """Compile a function and keep on disk what comes of it.

    Args:
        function: What it calls of other files is compiled into it and not looked at again: see :func:`outer`.
        signatures: Types of the arguments to compile it for, and no others ever; without any, those it is called with.
        nogil: Let other threads of Python go on while it runs.
    """

    def make() -> Any:
        from numba import njit
        from numba.core.caching import FunctionCache

        compiled = njit(nogil=nogil)(function)
        compiled._cache = cache = FunctionCache(function)
        cache.save_overload = partial(_save, cache.save_overload)
        cache.load_overload = partial(_load, function, cache)
        for signature in signatures:
            compiled.compile(signature)
        if signatures:
            compiled.disable_compile()
        return compiled

    return Deferred(make)


def _load(function: Any, cache: Any, signature: Any, context: Any) -> Any:
    """Load what is on disk of a function, or make it ready to be compiled and return None.

    numba would first load what it knows of all types and functions, for 0.2 s: only compiling needs that, and does it.
    """
    from numba.core.runtime import rtsys

    rtsys.initialize(context)
    found = cache._load_overload(signature, context)
    if found is None:
        _put_in_place(function)
    return found


def _save(save: Callable[[Any, Any], None], signature: Any, found: Any) -> None:
    """Keep on disk what was compiled, where there is room and leave to; elsewhere it is compiled again each time."""
    with suppress(OSError):
        save(signature, found)
