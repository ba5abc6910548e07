"""A SIMD vector as a numba type: ``LANES`` numbers that one instruction processes at the same time.

A *lane* is one position in a vector; here it always belongs to one child. numba lets LLVM decide which loops use SIMD
instructions, and LLVM does not vectorise most loops over a few children, because arrays might overlap. This type makes
the vectors explicit. On a processor with narrower registers, LLVM uses several registers per vector.

Apart from ``compiler``, only this file uses internals of numba and llvmlite (IR builder, data models,
``numba.core.cgutils``). Read from numba 0.68 and llvmlite 0.50; tested by ``tests/kernels/cpu/test_simd.py``.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.ir
import numba.extending
from numba import types
from numba.core import cgutils
from numba.extending import models, overload, register_model

intrinsic: Any = numba.extending.intrinsic

LANES = 16  # ours: float32 numbers in the widest registers (AVX-512)
# allows reordered sums and fused products, but keeps the rules for NaN
FAST_MATH = ("reassoc", "contract", "nsz")


class SimdVector(types.Type):
    """LANES numbers of one floating type."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(name=f"SimdVector({dtype})")
        self.dtype = dtype


@register_model(SimdVector)
class _SimdVectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: SimdVector) -> None:
        element = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, llvmlite.ir.VectorType(element, LANES))


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return a pointer to LANES numbers of a contiguous one-dimensional array at an index, and their type."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    vector = context.get_value_type(SimdVector(signature.args[0].dtype))
    return builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer()), vector


def _alignment(vector: Any) -> int:
    """Return the bytes of one number, to which arrays are at least aligned."""
    return 8 if isinstance(vector.element, llvmlite.ir.DoubleType) else 4


@intrinsic
def load(_: Any, array: Any, at: Any) -> Any:
    """Load ``array[at : at + LANES]``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, vector = _pointer(context, builder, signature, args)
        return builder.load(pointer, align=_alignment(vector))

    return SimdVector(array.dtype)(array, types.intp), generate


@intrinsic
def store(_: Any, array: Any, at: Any, vector: Any) -> Any:
    """Store ``array[at : at + LANES] = vector``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, kind = _pointer(context, builder, signature, args)
        builder.store(args[2], pointer, align=_alignment(kind))
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic
def broadcast(_: Any, number: Any) -> Any:
    """Return a vector with ``number`` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        undefined = llvmlite.ir.Constant(vector, llvmlite.ir.Undefined)
        zero = context.get_constant(types.int32, 0)
        first = builder.insert_element(undefined, args[0], zero)
        mask = llvmlite.ir.Constant(llvmlite.ir.VectorType(llvmlite.ir.IntType(32), LANES), None)
        return builder.shuffle_vector(first, undefined, mask)

    return SimdVector(number)(number), generate


@intrinsic
def insert(_: Any, vector: Any, lane: Any, number: Any) -> Any:
    """Return ``vector`` with a new number in one lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.insert_element(args[0], args[2], args[1])

    return vector(vector, types.intp, vector.dtype), generate


@intrinsic
def extract(_: Any, vector: Any, lane: Any) -> Any:
    """Return the number in one lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return vector.dtype(vector, types.intp), generate


@intrinsic
def reduce_add(_: Any, vector: Any) -> Any:
    """Return the sum of all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.args[0])
        number = kind.element
        name = f"llvm.vector.reduce.fadd.v{LANES}f{64 if isinstance(number, llvmlite.ir.DoubleType) else 32}"
        reduce = cgutils.get_or_insert_function(
            builder.module, llvmlite.ir.FunctionType(number, [number, kind]), name
        )
        return builder.call(reduce, [llvmlite.ir.Constant(number, 0), args[0]], fastmath=FAST_MATH)

    return vector.dtype(vector), generate


def _elementwise(instruction: str) -> Any:
    @intrinsic
    def apply(_: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args, flags=FAST_MATH)

        return a(a, b), generate

    return apply


def _overload(symbol: Any, instruction: str) -> None:
    operation = _elementwise(instruction)

    @overload(symbol)
    def for_vectors(a: Any, b: Any) -> Any:
        def apply(a: Any, b: Any) -> Any:
            return operation(a, b)

        return apply if isinstance(a, SimdVector) and a == b else None


_overload(operator.add, "fadd")
_overload(operator.sub, "fsub")
_overload(operator.mul, "fmul")
