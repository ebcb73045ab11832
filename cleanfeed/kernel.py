"""A Python function goes in; a compiled one that only compiled code calls comes out, and some instructions for it.

The instructions are written in the compiler's language: spelled out in Python, eight bytes put together or a loop
over bits take it a good part of its time to see through.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.extending import intrinsic

inner = njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without the ways in from Python, which take a good part of the time a small function needs to compile, and without
the counts of who uses an array, which nobody here makes: they would change at each call.

Nothing of it is kept on disk by itself, but only as a part of what calls it. numba looks at one file when it decides
whether what it has is still good, so a caller that is kept takes :func:`fingerprint` of all parts it holds code of into
its key: a loop in a closure, a function that Python calls as well by :func:`outer`.
"""


@intrinsic
def load_8(typing: Any, data: Any, at: Any) -> Any:
    """Read the 8 bytes that begin at ``at`` as one number, the first byte lowest; all of them must be in ``data``."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return types.uint64(data, types.int64), emit


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """Count the zero bits below the lowest set bit of a number; 64 for 0."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


@intrinsic
def leading_zeros(typing: Any, word: Any) -> Any:
    """Count the zero bits above the highest set bit of a number; 64 for 0."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), emit


@intrinsic
def ones(typing: Any, word: Any) -> Any:
    """Count the set bits of a number."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


@intrinsic
def at_least_64(typing: Any, numbers: Any, at: Any, least: Any) -> Any:
    """Tell of each of 64 numbers of 32 bits, the first at ``at``, whether it is ``least`` or more: one bit each."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = ir.VectorType(ir.IntType(32), 64)
        place = builder.gep(array.data, [arguments[1]])
        row = builder.load(builder.bitcast(place, vector.as_pointer()), align=4)
        found = builder.icmp_signed(
            ">=", row, _spread(builder, builder.trunc(arguments[2], ir.IntType(32)), 64)
        )
        return _bits(builder, found, 64)

    return types.uint64(numbers, types.int64, types.int64), emit


@intrinsic
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Let the processor fetch what is at a place of an array, which will be read and written soon."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(found.data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(fetch, [place, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.uint64), emit


@intrinsic
def copy_bytes(typing: Any, address: Any, size: Any, out: Any, at: Any) -> Any:
    """Copy ``size`` bytes from an address to the place ``at`` of an array of bytes."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[2])(context, builder, arguments[2])
        place = builder.gep(array.data, [arguments[3]])
        cgutils.raw_memcpy(builder, place, builder.inttoptr(arguments[0], place.type), arguments[1], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, out, types.int64), emit


@intrinsic
def copy_64(typing: Any, data: Any, at: Any, out: Any, to: Any) -> Any:
    """Copy the 64 bytes that begin at ``at`` to the place ``to`` of another array; both must hold them."""
    vector = ir.VectorType(ir.IntType(8), 64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            builder.bitcast(builder.gep(array.data, [arguments[place]]), vector.as_pointer())
            for array, place in (
                (context.make_array(signature.args[i])(context, builder, arguments[i]), i + 1) for i in (0, 2)
            )
        )
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, out, types.int64), emit


def bytes_in(size: int, *ranges: tuple[int, int], folded: bool = False) -> Any:
    """Make an instruction that tells of each of ``size`` bytes whether it lies in one of some ranges: one bit each.

    Args:
        size: How many bytes; all of them must be in the text.
        ranges: First and last byte of each.
        folded: Take the bytes with the bit set that makes ASCII letters lower case.
    """
    vector = ir.VectorType(ir.IntType(8), size)

    @intrinsic
    def mark(typing: Any, data: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def each(byte: int) -> Any:
                return ir.Constant(vector, [byte] * size)

            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            row = builder.load(builder.bitcast(place, vector.as_pointer()), align=1)
            row = builder.or_(row, each(0x20)) if folded else row
            found = ir.Constant(ir.VectorType(ir.IntType(1), size), [0] * size)
            for low, high in ranges:
                inside = builder.icmp_unsigned("<=", builder.sub(row, each(low)), each(high - low))
                found = builder.or_(found, inside)
            word = _bits(builder, found, size)
            return word if size == 64 else builder.zext(word, ir.IntType(64))

        return types.uint64(data, types.int64), emit

    return mark


def same_as_next(size: int) -> Any:
    """Make an instruction that tells of each of ``size`` bytes whether the byte after it is equal: one bit each."""
    vector = ir.VectorType(ir.IntType(8), size)

    @intrinsic
    def mark(typing: Any, data: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            after = builder.gep(place, [ir.Constant(ir.IntType(64), 1)])
            row, moved = (
                builder.load(builder.bitcast(start, vector.as_pointer()), align=1) for start in (place, after)
            )
            return builder.zext(_bits(builder, builder.icmp_unsigned("==", row, moved), size), ir.IntType(64))

        return types.uint64(data, types.int64), emit

    return mark


def _spread(builder: Any, number: Any, size: int) -> Any:
    """Emit a vector of ``size`` times the same number."""
    vector = ir.VectorType(number.type, size)
    none = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(none, number, ir.Constant(ir.IntType(32), 0))
    first = ir.Constant(ir.VectorType(ir.IntType(32), size), [0] * size)
    return builder.shuffle_vector(one, none, first)


def _bits(builder: Any, truths: Any, size: int) -> Any:
    """Emit the number whose lowest bit is the first of a vector of truths."""
    word = builder.bitcast(truths, ir.IntType(size))
    return word if sys.byteorder == "little" else builder.bitreverse(word)


@lru_cache
def fingerprint(*parts: str) -> int:
    """Return a number that changes with any file of some parts of cleanfeed, and with this one.

    numba looks only at the file of a kernel when it decides whether what it has on disk is still good. A loop that
    holds code of other files takes this number in a closure, which makes it a part of the loop's key.
    """
    digest = hashlib.blake2b(digest_size=7)
    here = Path(__file__)
    for path in (here, *(path for part in parts for path in sorted((here.parent / part).glob("*.py")))):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest(), "little")


def outer(function: Any) -> Any:
    """Compile a function that Python calls as well, and keep it on disk under a name that changes with its part."""
    part = function.__module__.split(".")[1]
    function.__qualname__ = f"{function.__qualname__}_{fingerprint(part):x}"
    return kept(function)


def kept(function: Any, *signatures: Any, nogil: bool = True) -> Any:
    """Compile a function and keep on disk what comes of it.

    Args:
        function: What it calls of other files is compiled into it and not looked at again: see :func:`outer`.
        signatures: Types of the arguments to compile it for now, and no others ever; without any, those it is called
            with, when it is.
        nogil: Let other threads of Python go on while it runs.
    """
    compiled = njit(nogil=nogil)(function)
    compiled._cache = FunctionCache(function)
    compiled._cache.load_overload = partial(_load, compiled._cache)
    compiled._cache.save_overload = partial(_save, compiled._cache)
    for signature in signatures:
        compiled.compile(signature)
    if signatures:
        compiled.disable_compile()
    return compiled


def _load(cache: FunctionCache, signature: Any, context: Any) -> Any:
    """Load what is on disk, or return None.

    numba would first load what it knows of all types and functions, for 0.2 s: only compiling needs that, and does it.
    """
    rtsys.initialize(context)
    return cache._load_overload(signature, context)


def _save(cache: FunctionCache, signature: Any, found: Any) -> None:
    """Keep on disk what was compiled, where there is room and leave to; elsewhere it is compiled again each time."""
    with suppress(OSError):
        FunctionCache.save_overload(cache, signature, found)
