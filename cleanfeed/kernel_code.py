"""A function and the kinds of its arguments go in; machine code that is called without the compiler comes out.

numba compiles. What it makes is an object file, which is kept on disk and loaded by llvmlite alone: loading numba as
well would take as long as all else a worker loads. Compiled code gets one block of numbers of 64 bits, so that nothing
depends on how numba hands over arrays: each array is an address and a shape.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cleanfeed.kernel_cache import KeptFile, toolchain

Call = Callable[[int, int, int], int]
"""A compiled function: where it may put what it returns and what it raises, and where its numbers are."""

NUMBER, OPEN, CLOSE = "number", "(", ")"
"""Kinds of arguments, beside those of arrays (``<i8:2`` has two dimensions): a number, and where a tuple lies."""

DONE = (0, -2)
"""What compiled code returns when it raised nothing: numba's codes for a value and for None."""

_engines: list[Any] = []
"""Those that hold what was loaded."""


@lru_cache
def fingerprint(*parts: str) -> int:
    """Return a number that changes with any file of some parts of cleanfeed, and with what compiles them."""
    digest = hashlib.blake2b(digest_size=7)
    here = Path(__file__).parent
    own = sorted(here.glob("kernel*.py"))
    for path in (*own, *(path for part in parts for path in sorted((here / part).glob("*.py")))):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


class CodeFile:
    """The object file of a kernel for some kinds of arguments.

    Args:
        name: The kernel's.
        kinds: Of its arguments.
        version: What its source is told by.
    """

    def __init__(self, name: str, kinds: str, version: int) -> None:
        arguments = hashlib.blake2b(kinds.encode(), digest_size=6).hexdigest()
        self.file = KeptFile(f"{name}-{arguments}-{toolchain()}", version)

    def load(self) -> Call | None:
        """Return the function, or None where the file is not there or not whole."""
        held = self.file.load()
        if held is None:
            return None
        symbol, _, code = held.partition(b"\0")
        return linked(symbol.decode(), code)

    def save(self, symbol: str, code: bytes) -> None:
        """Keep code on disk."""
        self.file.save(symbol.encode() + b"\0" + code)


def compiled(function: Any, kinds: str, *, returns: bool) -> tuple[str, bytes]:
    """Compile a function that calls another; return its name and its code.

    Args:
        function: The other, as numba compiles it into its caller.
        kinds: Of the arguments it is called with.
        returns: Whether it returns a number, which is to lie where the first of the arguments did.
    """
    from numba import njit, types

    source, names = _caller(kinds, returns=returns)
    names["kernel"] = function
    exec(source, names)  # made of kinds of arguments
    caller = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(names["call"])
    signature = types.void(types.CPointer(types.int64))
    caller.compile(signature)
    found = caller.overloads[signature.args]
    _, _, (code, _) = found.library.serialize_using_object_code()
    return found.fndesc.llvm_func_name, code


def linked(symbol: str, code: bytes) -> Call:
    """Put an object file into memory, for good, and return a function of it."""
    from llvmlite import binding

    if not _engines:
        with suppress(RuntimeError):
            # Later versions do this by themselves, and say so.
            binding.initialize()
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    # One engine for each: files that were made by different processes have names in common.
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return kind(engine.get_function_address(symbol))


def _caller(kinds: str, *, returns: bool) -> tuple[str, dict[str, Any]]:
    """Return the source of a function that takes its arguments from a block of numbers, and what it names."""
    from cleanfeed.kernel_instructions import array_of

    names: dict[str, Any] = {}
    numbers = (f"block[{at}]" for at in itertools.count())

    def argument(kind: str) -> str:
        if kind in (OPEN, CLOSE):
            return kind + "," * (kind == CLOSE)
        if kind == NUMBER:
            return next(numbers) + ","
        dtype, _, dimensions = kind.partition(":")
        name = f"array_{len(names)}"
        names[name] = array_of(np.dtype(dtype), int(dimensions))
        return f"{name}(({', '.join(itertools.islice(numbers, 1 + int(dimensions)))})),"

    called = f"kernel({' '.join(map(argument, kinds.split()))})"
    return f"def call(block):\n    {'block[0] = ' * returns}{called}\n", names
