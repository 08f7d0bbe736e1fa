"""Types of command-line options: each turns a word into a value or says what was expected."""

from argparse import ArgumentTypeError
from collections.abc import Callable

VIDEO_ROOT_HELP = "where relative paths in a CSV, list or JSON file begin; default: the folder of that file"


def positive_int(word: str) -> int:
    """A whole number of at least 1."""
    return _checked(int, word, lambda value: value >= 1, "a whole number of at least 1")


def non_negative_int(word: str) -> int:
    """A whole number of at least 0."""
    return _checked(int, word, lambda value: value >= 0, "a whole number of at least 0")


def positive_float(word: str) -> float:
    """A finite number above 0."""
    return _checked(float, word, lambda value: 0 < value < float("inf"), "a number above 0")


def fraction(word: str) -> float:
    """A number from 0 on, below 1."""
    return _checked(float, word, lambda value: 0 <= value < 1, "a number from 0 on, below 1")


def open_fraction(word: str) -> float:
    """A number strictly between 0 and 1."""
    return _checked(float, word, lambda value: 0 < value < 1, "a number between 0 and 1")


def _checked(convert: Callable, word: str, accept: Callable[..., bool], expected: str):
    try:
        value = convert(word)
    except ValueError:
        value = None
    if value is None or not accept(value):
        raise ArgumentTypeError(f"expected {expected}, got {word!r}")
    return value
