"""What counts as a number in an option."""

from numbers import Integral, Real
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number. `True` and `False` are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number. `True` and `False` are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
