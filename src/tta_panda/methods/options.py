"""The options of a method and of Panda by name, for callers that have them as text: the command line, and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import METHODS, MethodName
from tta_panda.methods.base import PROTOCOLS, SAMPLER, Method
from tta_panda.methods.presets import Preset
from tta_panda.methods.signatures import Option, check_options, check_signature, declared_options
from tta_panda.models.base import Classifier
from tta_panda.panda import Panda

Options = dict[str, Any]


def default_options(name: MethodName) -> Options:
    """Every option of a method with its default, Panda's included where the name asks for it."""
    return {key: option.default for key, option in _declared(name).items()}


def resolve_options(
    name: MethodName, settings: Mapping[str, Any], *, preset: Preset | None = None, protocol: str = "paper"
) -> Options:
    """Every option of a method: as set, else as the preset, the protocol or the default says.

    Settings that the method does not have, and values that are not of the declared type, are refused.
    """
    protocol = settings.get("protocol", protocol)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    check_options(str(name), _declared(name), settings)
    by_protocol = {"protocol": protocol} | ({"sampler": SAMPLER[protocol]} if name.panda else {})
    return default_options(name) | by_protocol | (preset.options(name) if preset else {}) | dict(settings)


def build_method(name: MethodName, classifier: Classifier, options: Options, seed: int) -> Method:
    """The method with resolved options."""
    panda = {key: value for key, value in options.items() if name.panda and key in declared_options(Panda)}
    own = {key: value for key, value in options.items() if key not in panda}
    debias = Panda(**panda) if name.panda else None
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
    return {key: option.default for key, option in declared_options(Panda).items()}


def check_method_class(cls: object) -> None:
    """Refuse what is no method, or one whose options cannot be read off its constructors."""
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise InvalidInputError(
            f"A method is a class derived from FrozenMethod or TrainedMethod of tta_panda.methods.base, got {cls!r}."
        )
    check_signature(cls)
    if shared := sorted(set(declared_options(cls)) & set(declared_options(Panda))):
        raise InvalidInputError(
            f"{cls.__name__} has options that Panda has, too: {', '.join(shared)}. Rename them, so that a setting "
            "means one thing."
        )


def _declared(name: MethodName) -> dict[str, Option]:
    cls = METHODS.get(name.base)
    check_method_class(cls)
    return declared_options(cls) | (declared_options(Panda) if name.panda else {})
