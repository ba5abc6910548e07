"""A vector of LANES numbers as a type of numba's: what an element-wise loop over children becomes, written down.

numba leaves it to the compiler which loops use the processor's vector units, and the compiler gives up on most loops
over a few children, because arrays might overlap. With this type there is nothing to find out. On a processor whose
registers are narrower, the compiler takes several for each vector.
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

LANES = 16  # ours: float32 numbers of the widest vector registers there are
FREE = ("reassoc", "contract", "nsz")  # sums may be reordered, products fused; no rule about NaN is waived


class Lanes(types.Type):
    """LANES numbers of one floating type."""

    def __init__(self, number: Any) -> None:
        super().__init__(name=f"Lanes({number})")
        self.number = number


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        number = manager.lookup(lanes.number).get_value_type()
        super().__init__(manager, lanes, llvmlite.ir.VectorType(number, LANES))


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Where LANES numbers of a contiguous one-dimensional array are, from an element on."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    vector = context.get_value_type(Lanes(signature.args[0].dtype))
    return builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer()), vector


def _alignment(vector: Any) -> int:
    return 8 if isinstance(vector.element, llvmlite.ir.DoubleType) else 4  # bytes: that of one number


@intrinsic
def load(_: Any, array: Any, at: Any) -> Any:
    """``array[at : at + LANES]``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, vector = _address(context, builder, signature, args)
        return builder.load(pointer, align=_alignment(vector))

    return Lanes(array.dtype)(array, types.intp), generate


@intrinsic
def store(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """``array[at : at + LANES] = lanes``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, vector = _address(context, builder, signature, args)
        builder.store(args[2], pointer, align=_alignment(vector))
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def spread(_: Any, number: Any) -> Any:
    """LANES times ``number``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        nothing = llvmlite.ir.Constant(vector, llvmlite.ir.Undefined)
        zero = context.get_constant(types.int32, 0)
        first = builder.insert_element(nothing, args[0], zero)
        everywhere = llvmlite.ir.Constant(llvmlite.ir.VectorType(llvmlite.ir.IntType(32), LANES), None)
        return builder.shuffle_vector(first, nothing, everywhere)

    return Lanes(number)(number), generate


@intrinsic
def with_lane(_: Any, lanes: Any, at: Any, number: Any) -> Any:
    """``lanes``, but for one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.insert_element(args[0], args[2], args[1])

    return lanes(lanes, types.intp, lanes.number), generate


@intrinsic
def lane(_: Any, lanes: Any, at: Any) -> Any:
    """One of the numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return lanes.number(lanes, types.intp), generate


@intrinsic
def total(_: Any, lanes: Any) -> Any:
    """Sum of the numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = context.get_value_type(signature.args[0])
        number = vector.element
        name = f"llvm.vector.reduce.fadd.v{LANES}f{64 if isinstance(number, llvmlite.ir.DoubleType) else 32}"
        reduce = cgutils.get_or_insert_function(
            builder.module, llvmlite.ir.FunctionType(number, [number, vector]), name
        )
        return builder.call(reduce, [llvmlite.ir.Constant(number, 0), args[0]], fastmath=FREE)

    return lanes.number(lanes), generate


def _elementwise(instruction: str) -> Any:
    @intrinsic
    def apply(_: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args, flags=FREE)

        return a(a, b), generate

    return apply


def _overload(symbol: Any, instruction: str) -> None:
    operation = _elementwise(instruction)

    @overload(symbol)
    def for_lanes(a: Any, b: Any) -> Any:
        def apply(a: Any, b: Any) -> Any:
            return operation(a, b)

        return apply if isinstance(a, Lanes) and a == b else None


_overload(operator.add, "fadd")
_overload(operator.sub, "fsub")
_overload(operator.mul, "fmul")
