"""The options of a method and of Panda by name, for callers that have them as text: the command line, and records."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import METHODS, MethodName
from tta_panda.methods.base import PROTOCOLS, Method
from tta_panda.models.base import Classifier
from tta_panda.panda import Panda

Options = dict[str, Any]

_NOT_OPTIONS = {"self", "classifier", "debias", "seed"}


def default_options(name: MethodName) -> Options:
    """Every option of a method with its default, Panda's included where the name asks for it."""
    signature = inspect.signature(METHODS.get(name.base).__init__)
    options = {key: p.default for key, p in signature.parameters.items() if key not in _NOT_OPTIONS}
    return options | (panda_options() if name.panda else {})


def resolve_options(name: MethodName, settings: Mapping[str, Any]) -> Options:
    """The defaults, overridden by `settings`; values are checked against the declared types."""
    defaults = default_options(name)
    types = typing.get_type_hints(METHODS.get(name.base).__init__) | typing.get_type_hints(Panda)
    for key, value in settings.items():
        if key not in defaults:
            raise UnknownNameError(f"option of {name}", key, defaults)
        defaults[key] = _checked(key, value, types[key])
    return defaults


def build_method(name: MethodName, classifier: Classifier, options: Options, seed: int) -> Method:
    """The method with resolved options."""
    panda_keys = set(panda_options()) if name.panda else set()
    debias = Panda(**{key: value for key, value in options.items() if key in panda_keys}) if name.panda else None
    own = {key: value for key, value in options.items() if key not in panda_keys}
    return METHODS.get(name.base)(classifier, debias=debias, seed=seed, **own)


def parse_setting(text: str) -> tuple[str, Any]:
    """`"beta=0.4"` as `("beta", 0.4)`; values are read as JSON where they are JSON, and as plain text otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidInputError(f"A setting is written name=value, as in beta=0.4; got {text!r}.")
    try:
        return key.strip(), json.loads(value)
    except json.JSONDecodeError:
        return key.strip(), value.strip()


def panda_options() -> Options:
    """Every option of Panda with its default."""
    return {field.name: field.default for field in dataclasses.fields(Panda)}


def protocol_options(protocol: str) -> Options:
    """What a protocol means for methods and for Panda. The authors' code draws its negatives in another way, too."""
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    return {"protocol": protocol} | ({"sampler": "same_cell"} if protocol == "reference" else {})


def _checked(key: str, value: Any, annotation: Any) -> Any:
    try:
        return pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError as error:
        expected = getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")
        raise InvalidInputError(f"The option {key} cannot be {value!r}; expected {expected}.") from error
