"""The options of a method, read off the constructors of its class and base classes.

A constructor states its own options as keyword arguments with defaults and hands the rest on as `**common`. What
`classifier`, `debias` and `seed` are is said elsewhere, so these are not options.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from tta_panda.checks import check_type
from tta_panda.errors import InvalidInputError, UnknownNameError

_ARGUMENTS = {"classifier", "debias", "seed"}


class Option(NamedTuple):
    default: Any  # inspect.Parameter.empty where there is none
    annotation: Any


@functools.cache
def declared_options(cls: type) -> dict[str, Option]:
    """Every option with its default and type: those of the class first, which override those of its bases."""
    return {name: option for name, option in _parameters(cls).items() if name not in _ARGUMENTS}


def check_signature(cls: type) -> None:
    """Refuse a class that cannot be made by name: all options need a default, and Panda and seed a way in."""
    parameters = _parameters(cls)
    for name, option in declared_options(cls).items():
        if option.default is inspect.Parameter.empty:
            raise InvalidInputError(
                f"The option {name} of {cls.__name__} has no default. Give it one, as in {name}=1.0, or make it a "
                "class attribute if users do not set it."
            )
    if missing := sorted({*_ARGUMENTS, "protocol"} - set(parameters)):
        raise InvalidInputError(
            f"{cls.__name__} does not take {', '.join(missing)}. End the parameters of its __init__ with **common and "
            "hand these on: super().__init__(classifier, **common)."
        )


def _parameters(cls: type) -> dict[str, Option]:
    """What `cls(...)` takes by keyword: of each constructor, as long as they hand the rest on to the next."""
    found: dict[str, Option] = {}
    for place, owner in enumerate(owner for owner in cls.__mro__ if "__init__" in vars(owner)):
        constructor = vars(owner)["__init__"]
        try:
            hints = typing.get_type_hints(constructor)
        except NameError:  # types that are imported for type checkers alone
            hints = {}
        parameters = list(inspect.signature(constructor).parameters.values())[1:]  # without self
        for parameter in parameters:
            is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            # What a base demands, the classes derived from it may give as they like.
            if is_named and (parameter.default is not parameter.empty or place == 0):
                found.setdefault(parameter.name, Option(parameter.default, hints.get(parameter.name, Any)))
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


class HasOptions:
    """A class whose objects know the options that they were made with. Sub-classes need not do anything for it."""

    options: dict[str, Any]
    """Every option with its value."""

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        declared = declared_options(cls)  # type: ignore[arg-type]
        given = dict(zip(inspect.signature(cls).parameters, args, strict=False)) | keywords
        settings = {name: value for name, value in given.items() if name not in _ARGUMENTS}
        check_options(cls.__name__, declared, settings)
        values = {name: option.default for name, option in declared.items()} | settings
        made = super().__new__(cls)
        made.options = {name: value for name, value in values.items() if value is not inspect.Parameter.empty}
        return made


def check_options(method: str, declared: Mapping[str, Option], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are no options, or not of their declared types."""
    for name, value in settings.items():
        if name not in declared:
            raise UnknownNameError(f"option of {method}", name, declared)
        check_type(name, value, declared[name].annotation)
