"""Checks of arguments that users set."""

from __future__ import annotations

import functools
import math
import types
import typing
from typing import Any, Literal

import pydantic

from tta_panda.errors import InvalidInputError


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a number outside of [low, high], and NaN."""
    if not low <= value <= high:
        expected = f"a number >= {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"
        raise InvalidInputError(f"{name} must be {expected}, got {value!r}.")


def check_type(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value that is not of the declared type. Nothing is converted, but whole numbers pass as floats."""
    try:
        _adapter(annotation).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        raise InvalidInputError(f"{name} must be {_in_words(annotation)}, got {value!r}.") from error


@functools.cache
def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(annotation)


_WORDS = {float: "a number", int: "a whole number", str: "a string", bool: "True or False", type(None): "None"}


def _in_words(annotation: Any) -> str:
    """`float | Literal["auto"]` as "a number or 'auto'"."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(annotation)))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, typing.get_args(annotation)))
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))
