"""Options: annotated fields with defaults, declared once in their class and validated here.

A range is part of the type, as in `lr: NonNegative = 1e-3`. Command line, presets, records and documentation all use
the same declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, dataclass_transform

import pydantic

from tta_panda.errors import InvalidInputError, UnknownNameError

NonNegative = Annotated[float, pydantic.Field(ge=0)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
Count = Annotated[int, pydantic.Field(ge=1)]
Seed = Annotated[int, pydantic.Field(ge=0, le=2**63 - 1)]
NonNegativeInt = Annotated[int, pydantic.Field(ge=0)]


class Option(NamedTuple):
    default: Any  # dataclasses.MISSING where there is none
    annotation: Any


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
class HasOptions:
    """Base class whose annotated attributes are options, as in a dataclass, validated when an object is created.

    Subclasses inherit options, may add some or change defaults, and do everything else in `__post_init__`.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """Fields that are not options: they are not validated here, and users do not set them by name."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            raise InvalidInputError(
                f"{cls.__name__} defines __init__. Declare its options as annotated attributes, as in "
                "`strength: float = 0.5`, and do the rest in __post_init__, after super().__post_init__()."
            )
        dataclasses.dataclass(eq=False, repr=False, kw_only=True)(cls)
        assign = cls.__init__

        @functools.wraps(assign)
        def initialise(self: Any, *args: Any, **given: Any) -> None:
            settings = {name: value for name, value in given.items() if name not in cls.arguments}
            declared = declared_options(cls)  # type: ignore[arg-type]  # mypy doubts that classes are hashable
            checked = check_options(cls.__name__, declared, settings)
            assign(self, *args, **(given | checked))
            object.__setattr__(self, "_is_complete", True)

        cls.__init__ = initialise  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an existing attribute. After construction, an unknown name is a misspelt option and raises an error."""
        if "_is_complete" in vars(self) and not hasattr(self, name):
            public = [known for known in dir(self) if not known.startswith("_")]
            raise UnknownNameError(f"attribute of {type(self).__name__}", name, public)
        super().__setattr__(name, value)

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        declared = declared_options(type(self))  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in declared}


@functools.cache
def declared_options(cls: type) -> dict[str, Option]:
    """Return every option of a class with its default and type, those of the class itself before inherited ones."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:  # a type that is imported for type checkers only
        hints = {}
    own = set(vars(cls).get("__annotations__", ()))
    fields = sorted(dataclasses.fields(cls), key=lambda field: field.name not in own)
    return {
        field.name: Option(field.default, hints.get(field.name, Any))
        for field in fields
        if field.name not in getattr(cls, "arguments", ())
    }


def check_options(owner: str, declared: Mapping[str, Option], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Validate `settings` and return all declared options, with defaults for the others; see `check_option`."""
    for name in settings:
        if name not in declared:
            raise UnknownNameError(f"option of {owner}", name, declared)
    values = {name: settings.get(name, option.default) for name, option in declared.items()}
    return {
        name: check_option(name, value, declared[name].annotation)
        for name, value in values.items()
        if value is not dataclasses.MISSING
    }


def check_option(name: str, value: Any, annotation: Any) -> Any:
    """Validate a value and return it with exactly the declared type, so that equal settings give equal runs.

    A whole number is accepted for a float. Nothing else is converted.
    """
    try:
        return _adapter(annotation).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        raise InvalidInputError(f"{name} must be {_in_words(annotation)}, got {value!r}.") from error


@functools.cache
def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(annotation)


_LIMITS = {"gt": ">", "ge": ">=", "le": "<="}
_WORDS = {float: "a number", int: "a whole number", str: "a string", bool: "True or False", type(None): "None"}


def _in_words(annotation: Any) -> str:
    """Describe a type: `NonNegative | Literal["auto"]` is "a number >= 0 or 'auto'"."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, parts))
    if origin is Annotated:
        limits = {kind: getattr(each, kind) for each in parts[1].metadata for kind in _LIMITS if hasattr(each, kind)}
        if limits.keys() == {"ge", "le"}:
            return f"{_in_words(parts[0])} from {limits['ge']} to {limits['le']}"
        return f"{_in_words(parts[0])} {' and '.join(f'{_LIMITS[kind]} {limit}' for kind, limit in limits.items())}"
    return _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))
