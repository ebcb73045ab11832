"""Nothing goes in; instructions for compiled code come out, written in the compiler's language.

Spelled out in Python, eight bytes put together or a loop over bits take it a good part of its time to see through.
Kernels take them from :mod:`cleanfeed.kernel`, which loads this module, and numba with it, when one must be compiled.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


def array_of(kind: np.dtype[Any], dimensions: int) -> Any:
    """Make an instruction that takes numbers, an address and then a shape, for the contiguous array that is there."""
    array_type = types.Array(from_dtype(kind), dimensions, "C")

    @intrinsic
    def take(typing: Any, numbers: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            found = make_array(array_type)(context, builder)
            address, *shape = cgutils.unpack_tuple(builder, arguments[0])
            steps = [ir.Constant(ir.IntType(64), kind.itemsize)]
            for size in reversed(shape[1:]):
                steps.insert(0, builder.mul(steps[0], size))
            populate_array(
                found,
                data=builder.inttoptr(address, found.data.type),
                shape=shape,
                strides=steps,
                itemsize=kind.itemsize,
                meminfo=None,
            )
            return found._getvalue()

        return array_type(types.UniTuple(types.int64, dimensions + 1)), emit

    return take


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
