"""Create methods and their debiasing from names and settings, as command lines and records have them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import DEBIASES, METHODS, MethodName
from tta_panda.methods.base import PROTOCOLS, SAMPLER, BatchSize, EncoderPasses, Method
from tta_panda.methods.presets import Preset
from tta_panda.models.base import Classifier
from tta_panda.options import Option, check_options, declared_options
from tta_panda.panda import Centering, Debias, Level, Panda

Options = dict[str, Any]

_DEBIASES: dict[str, tuple[Any, Options]] = {
    "panda": (Panda, {}),
    "center": (Centering, {}),
    "running": (Centering, {"half_life": 200.0}),
    "level": (Level, {}),
}
"""The class for each debiasing suffix, and defaults that differ from those of the class."""


def default_options(name: MethodName) -> Options:
    """Return the options of a method and of its debiasing, with their defaults."""
    return {key: option.default for key, option in _declared(name).items()}


def resolve_options(
    name: MethodName, settings: Mapping[str, Any], *, preset: Preset | None = None, protocol: str = "paper"
) -> Options:
    """Return all options of a method, validated: from the settings, else the preset, the protocol, or the default.

    Unknown options and values that are not of the declared type raise an error.
    """
    protocol = settings.get("protocol", protocol)
    if protocol not in PROTOCOLS:
        raise UnknownNameError("protocol", protocol, PROTOCOLS)
    by_protocol: Options = {"protocol": protocol}
    if "panda" in name.debias:
        by_protocol["sampler"] = SAMPLER[protocol]
    by_preset = preset.options(name) if preset else {}
    return check_options(str(name), _declared(name), by_protocol | by_preset | dict(settings))


def build_method(name: MethodName, classifier: Classifier, options: Options, seed: int) -> Method:
    """Create the method with resolved options."""
    shared = debias_options(name.debias)
    own = {key: value for key, value in options.items() if key not in shared}
    return METHODS.get(name.base)(classifier, debias=build_debias(name.debias, options), seed=seed, **own)


def expected_passes(name: MethodName, options: Options, images: int, classes: int, templates: int = 1) -> EncoderPasses:
    """Return the encoder passes of a method with resolved options for one batch; an upper bound."""
    negatives = 0
    if "panda" in name.debias and options["beta"] != 0 and options.get("gamma") != 0:
        share = 1.0 if options["sampler"] == "within_image" else options["ratio"]
        negatives = math.ceil(images * share - 1e-9)
    return METHODS.get(name.base).expected_passes(BatchSize(images, negatives, classes, templates), options)


def build_debias(name: str, options: Options) -> Debias | None:
    """Create the debiasing of a suffix with resolved options; in `panda+level`, Panda is the level's gate."""
    built: Debias | None = None
    for part in name.split("+") if name else []:
        kind, defaults = _DEBIASES[part]
        own = {key: value for key, value in (defaults | options).items() if key in declared_options(kind)}
        built = kind(**own) if built is None else kind(**own, gate=built)
    return built


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `"beta=0.4"` as `("beta", 0.4)`, and `"beta=0.1,0.4"` as `("beta", [0.1, 0.4])`.

    Values that are valid JSON are read as JSON, others as plain text.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidInputError(f"A setting is written name=value, as in beta=0.4; got {text!r}.")
    for written in (value, f"[{value}]") if "," in value else (value,):
        with contextlib.suppress(json.JSONDecodeError):
            return key.strip(), json.loads(written)
    return key.strip(), value.strip()


def debias_options(name: str) -> dict[str, Option]:
    """Return the options of a debiasing suffix."""
    options: dict[str, Option] = {}
    for part in name.split("+") if name else []:
        kind, defaults = _DEBIASES[part]
        declared = {key: option for key, option in declared_options(kind).items() if key != "gate"}
        options |= declared | {key: declared[key]._replace(default=default) for key, default in defaults.items()}
    return options


def check_method_class(cls: object) -> None:
    """Raise `InvalidInputError` unless the class is a method whose options can all be set by name."""
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise InvalidInputError(
            f"A method is a class derived from tta_panda.FrozenMethod or tta_panda.TrainedMethod, got {cls!r}."
        )
    for name, option in declared_options(cls).items():
        if option.default is dataclasses.MISSING:
            raise InvalidInputError(
                f"The option {name} of {cls.__name__} has no default. Give it one, as in `{name}: float = 1.0`, or "
                "annotate it as a ClassVar if users do not set it."
            )
    taken = {key for name in DEBIASES for key in debias_options(name)}
    if shared := sorted(taken.intersection(declared_options(cls))):
        raise InvalidInputError(
            f"{cls.__name__} has options with the same names as options of the debiasing: {', '.join(shared)}. Rename "
            "them, so that settings are unambiguous."
        )


def _declared(name: MethodName) -> dict[str, Option]:
    cls = METHODS.get(name.base)
    check_method_class(cls)
    return declared_options(cls) | debias_options(name.debias)
