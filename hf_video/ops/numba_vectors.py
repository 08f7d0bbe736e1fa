"""
Vectors of 16 float32 for kernels that numba compiles: one AVX-512 register, or several smaller ones.

By itself, the compiler vectorises a loop only behind checks that its arrays do not overlap. The checks cost more than
the few steps that most loops have here: a scan in plain loops took 8.3 times as long. `load`, `store`, `+`, `-`,
`*`, `/` and the functions below need no checks. Numbers that meet a vector, and arrays, must be float32.

What is compiled is kept in the user's cache folder. numba itself keeps it beside the sources. There it would outlive a
package that pip removes, and the folder that stays would hide an editable installation. `NUMBA_CACHE_DIR` is taken if
the user has set it; to set it here would move the files of other packages too.
"""

import contextlib
import hashlib
import operator
import pickle
from pathlib import Path

import numpy as np

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils, config
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
    from numba.extending import intrinsic, models, overload, register_model
    from numba.misc.appdirs import user_cache_dir
except ImportError as error:
    raise ImportError("The kernels for the CPU need numba: `pip install numba`.") from error

from hf_video.version import __version__

from .numba_threads import LANES

ZERO = np.float32(0.0)
ONE = np.float32(1.0)
LOG2_E = np.float32(1.4426950408889634)
LN_2 = np.float32(0.6931471805599453)
# 2^-96. Products of it with weights and activations are still normal numbers.
NEGLIGIBLE = np.float32(2.0**-96)
# Bounds of the exponents of normal numbers.
SMALLEST, LARGEST = np.float32(-126.0), np.float32(127.0)
# 1.5 * 2^23: adding it to a float32 rounds that to a whole number, which is then in the lowest bits.
ROUNDER = np.float32(12582912.0)
# Minimax polynomials in rising order: (2^f - 1) / f for |f| <= 1/2, relative to 2^f, and log(1 + e) / e for
# 0 <= e <= 1.
E0, E1, E2, E3, E4 = (np.float32(c) for c in (0.6931469776, 0.2402224208, 0.05550733747, 0.009671512723, 0.0013264726))
L0, L1, L2, L3, L4 = (np.float32(c) for c in (0.9999999699, -0.4999949311, 0.3331909622, -0.2484297755, 0.1910598849))
L5, L6, L7, L8 = (np.float32(c) for c in (-0.1366320693, 0.07822549374, -0.02950495745, 0.005232624063))

BITS = ir.VectorType(ir.IntType(32), LANES)
REGISTER = ir.VectorType(ir.FloatType(), LANES)
# Sums keep their order, but a product may be fused with the sum that it goes into.
FLAGS = ("contract",)

# Kernels of other modules hold the code of the functions that they take from here.
VECTORS = Path(__file__)


class UserCacheLocator(InTreeCacheLocator):
    """A folder for each version of hf_video, and in it for each folder of sources."""

    def get_cache_path(self) -> str:
        folder = Path(config.CACHE_DIR or user_cache_dir(), "hf_video", __version__)
        return str(folder / self.get_suitable_cache_subpath(self._py_file))

    def get_source_stamp(self) -> str:
        return hashlib.sha256(Path(self._py_file).read_bytes() + VECTORS.read_bytes()).hexdigest()


class UserCacheImplementation(CompileResultCacheImpl):
    _locator_classes = [UserCacheLocator]


class UserCache(FunctionCache):
    _impl_class = UserCacheImplementation

    def _guard_against_spurious_io_errors(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds reading and writing. A full disk or a damaged file costs the time to compile, not the result."""
        return contextlib.suppress(OSError, EOFError, pickle.UnpicklingError)


class VectorType(types.Type):
    def __init__(self):
        super().__init__(name=f"{__name__}.float32x{LANES}")


vector = VectorType()


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector_type):
        super().__init__(manager, vector_type, REGISTER)


def compiled(function):
    """Compile a kernel at its first call, to run without the GIL; the result is kept if its folder can be written."""
    kernel = numba.njit(nogil=True, error_model="numpy")(function)
    with contextlib.suppress(RuntimeError):
        kernel._cache = UserCache(kernel.py_func)
    return kernel


def _spread(builder, value, value_type):
    """A vector of one repeated number; a vector stays unchanged."""
    if value_type is vector:
        return value
    single = builder.insert_element(ir.Constant(REGISTER, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, ir.Constant(REGISTER, ir.Undefined), ir.Constant(BITS, [0] * LANES))


def _define(emit):
    """Defines an intrinsic of two vectors, or of a vector and a number, with one instruction or a few."""

    @intrinsic
    def function(typing_context, a, b):
        def codegen(context, builder, signature, arguments):
            left, right = (_spread(builder, *pair) for pair in zip(arguments, signature.args, strict=True))
            return emit(builder, left, right)

        return vector(a, b), codegen

    return function


def _overload(functions, instruction):
    def implementation(a, b):
        if vector in (a, b) and {a, b} <= {vector, types.float32}:
            return lambda a, b: instruction(a, b)

    for function in functions:
        overload(function)(implementation)


def _maximum(builder, a, b):
    return builder.select(builder.fcmp_unordered(">", a, b), a, b)


def _minimum(builder, a, b):
    return builder.select(builder.fcmp_unordered("<", a, b), a, b)


def _flush(builder, value, bound):
    size = builder.bitcast(
        builder.and_(builder.bitcast(value, BITS), ir.Constant(BITS, [0x7FFFFFFF] * LANES)), REGISTER
    )
    return builder.select(builder.fcmp_ordered("<", size, bound), ir.Constant(REGISTER, [0.0] * LANES), value)


def _scale(builder, value, rounded):
    exponent = builder.shl(builder.bitcast(rounded, BITS), ir.Constant(BITS, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(value, BITS), exponent), REGISTER)


_overload((operator.add, operator.iadd), _define(lambda builder, a, b: builder.fadd(a, b, flags=FLAGS)))
_overload((operator.sub,), _define(lambda builder, a, b: builder.fsub(a, b, flags=FLAGS)))
_overload((operator.mul, operator.imul), _define(lambda builder, a, b: builder.fmul(a, b, flags=FLAGS)))
_overload((operator.truediv,), _define(lambda builder, a, b: builder.fdiv(a, b, flags=FLAGS)))
# Both are NaN where the first argument is.
maximum, minimum = _define(_maximum), _define(_minimum)
# Zero where a value is smaller than a bound, whatever its sign. Gradients that fade along a clip would become
# subnormal numbers, with which processors compute a hundred times more slowly.
flush = _define(_flush)
# A value times 2 to a whole number, which stands in the lowest bits of the second vector.
scale = _define(_scale)


@intrinsic
def splat(typing_context, number):
    """A vector of one repeated float32."""

    def codegen(context, builder, signature, arguments):
        return _spread(builder, arguments[0], signature.args[0])

    return vector(types.float32), codegen


@intrinsic
def multiply_add(typing_context, a, b, c):
    """a * b + c, rounded once where the processor can."""

    def codegen(context, builder, signature, arguments):
        values = [_spread(builder, *pair) for pair in zip(arguments, signature.args, strict=True)]
        kind = ir.FunctionType(REGISTER, [REGISTER] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return builder.call(function, values)

    return vector(a, b, c), codegen


def _pointer(context, builder, signature, arguments):
    array_type, indices_type = signature.args[:2]
    array = context.make_array(array_type)(context, builder, arguments[0])
    indices = cgutils.unpack_tuple(builder, arguments[1], len(indices_type))
    indices = [context.cast(builder, i, t, types.intp) for i, t in zip(indices, indices_type, strict=True)]
    pointer = cgutils.get_item_pointer(context, builder, array_type, array, indices)
    return builder.bitcast(pointer, REGISTER.as_pointer())


@intrinsic
def load(typing_context, array, indices):
    """The 16 numbers of a contiguous array from an element on."""

    def codegen(context, builder, signature, arguments):
        return builder.load(_pointer(context, builder, signature, arguments), align=4)

    return vector(array, indices), codegen


@intrinsic
def store(typing_context, array, indices, value):
    """Write a vector over the 16 numbers from an element on."""

    def codegen(context, builder, signature, arguments):
        builder.store(arguments[2], _pointer(context, builder, signature, arguments), align=4)
        return context.get_dummy_value()

    return types.void(array, indices, value), codegen


@intrinsic
def total(typing_context, value):
    """Sum over the lanes, a float32."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), REGISTER])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [ir.Constant(ir.FloatType(), 0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(value), codegen


@compiled
def exp2_of_product(x, y):
    """2^(x * y) for products between -126 and 127, with a relative error below 2e-7, and exactly 1 at 0, so that a
    state that does not fade does not drift."""
    rounded = multiply_add(x, y, ROUNDER)
    f = multiply_add(x, y, ROUNDER - rounded)
    return scale(f * (f * (f * (f * (f * E4 + E3) + E2) + E1) + E0) + ONE, rounded)


@compiled
def exp2(x):
    """2^x as `exp2_of_product` has it. Beyond float32 it stays at 2^-126 or 2^127."""
    return exp2_of_product(minimum(maximum(x, SMALLEST), LARGEST), ONE)


@compiled
def sigmoid(x):
    return ONE / (exp2(x * -LOG2_E) + ONE)


@compiled
def silu(x):
    return x * sigmoid(x)


@compiled
def silu_slope(x):
    """Two factors whose product is the derivative of `silu`; the first is `sigmoid(x)`."""
    share = sigmoid(x)
    return share, ONE + x * (ONE - share)


@compiled
def softplus(x):
    """log(1 + e^x), with a small relative error for small results, too."""
    e = exp2(minimum(x, ZERO - x) * LOG2_E)
    tail = e * (e * (e * (e * (e * (e * (e * (e * L8 + L7) + L6) + L5) + L4) + L3) + L2) + L1) + L0
    return maximum(x, ZERO) + e * tail
