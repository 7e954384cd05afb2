"""Test-time adaptation methods, by name. A suffix selects a debiasing: `tent+panda` is Tent on debiased features."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.methods.base import Method
    from tta_panda.models.base import Classifier

_OF_THE_PAPER = ("CLIP", "Tent", "ETA", "SAR", "DeYO", "TPT", "DMN", "Zero", "TPS", "BAT")
_SINCE = ("TDA", "OGA", "StatA", "Mint", "IM", "VTE", "MTA", "MEMO", "SubTTA", "LAME")
_TRAINING_FREE = ("Latte", "ECALP", "OnZeta", "DOTA", "BoostAdapter", "DPE")
_OF_STREAMS = ("EATA", "RoTTA", "ROID", "CLIPTTA", "Ramen")
_OF_BATCHES = ("CLIPArTT", "WATT")
_CLASSES = (*_OF_THE_PAPER, *_SINCE, *_TRAINING_FREE, *_OF_STREAMS, *_OF_BATCHES)

METHODS: Registry[type[Method]] = Registry(
    "method",
    {name.lower(): f"tta_panda.methods.{name.lower()}:{name}" for name in _CLASSES},
    entry_points="tta_panda.methods",
)

DEBIASES = ("panda", "center", "running", "level", "panda+level")
"""Suffixes that may follow a `+` in the name of a method: Panda, centring on the mean of the batch or of the stream,
the level of absent classes, and the level with Panda as its gate."""

_ALIASES = {"cbc": "clip+center"}

_registered: dict[str, str | None] = {}
"""Methods added by `register_method`: where another process can import them from, or None if it cannot."""


class MethodName(NamedTuple):
    """The parts of a method's name such as `tent+panda`."""

    base: str
    debias: str = ""  # one of DEBIASES, or empty

    def __str__(self) -> str:
        return f"{self.base}+{self.debias}" if self.debias else self.base

    @classmethod
    def of(cls, name: str) -> MethodName:
        """Split a name, which need not be registered here."""
        base, _, debias = name.partition("+")
        return cls(base, debias)


def list_methods(pattern: str = "*") -> list[str]:
    """Return the names of methods, plain and debiased, that match a shell wildcard."""
    names = [str(MethodName(base, debias)) for base in METHODS for debias in ("", *DEBIASES)]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def parse_method(name: str) -> MethodName:
    """Parse a name such as `tent` or `tent+panda` and check it against the registry, without importing the method."""
    cleaned = name.strip().lower()
    parsed = MethodName.of(_ALIASES.get(cleaned, cleaned))
    if parsed.base not in METHODS or parsed.debias not in ("", *DEBIASES) or cleaned.endswith("+"):
        bases = [parsed.base] if parsed.base in METHODS else METHODS
        known = [str(MethodName(base, debias)) for base in bases for debias in ("", *DEBIASES)]
        raise UnknownNameError("method", name, [*known, *_ALIASES])
    return parsed


def create_method(
    name: str,
    classifier: Classifier,
    *,
    preset: str | None = None,
    protocol: str = "paper",
    seed: int = 0,
    **settings: Any,
) -> Method:
    """Create a method by name, as in `create_method("tent+panda", classifier, preset="cifar10-c", beta=0.6)`.

    Args:
        name: one of `list_methods()`.
        classifier: the classifier to adapt.
        preset: name of the preset with the values of options that are not in `settings`; by default the model's
            preset, if it has one.
        protocol: `"paper"` or `"reference"`.
        seed: random seed of the method.
        settings: options of the method and of its debiasing.
    """
    from tta_panda.methods.base import check_classifier
    from tta_panda.methods.factory import build_method, resolve_options
    from tta_panda.methods.presets import get_preset

    check_classifier(classifier)
    parsed = parse_method(name)
    chosen = preset or getattr(classifier.model, "preset", None)
    options = resolve_options(parsed, settings, preset=get_preset(chosen) if chosen else None, protocol=protocol)
    return build_method(parsed, classifier, options, seed)


def register_method(name: str, method: type[Method] | str) -> None:
    """Register your own method: `name`, `name+panda` and so on then work wherever the name of a method does.

    An installed package does the same with an entry point of the group `tta_panda.methods`.

    Args:
        name: a name in lower case, without `+`, spaces or commas.
        method: the class, or its location as a string `"module:Class"`. Worker processes import it from its module,
            so a class that is defined in a script, a notebook or a function works in a single process only.
    """
    if not name or name != name.lower() or any(letter in "+," or letter.isspace() for letter in name):
        raise InvalidInputError(f"{name!r} is not a name for a method: use lower case, without '+', spaces or commas.")
    if name in _ALIASES:
        raise InvalidInputError(f"{name!r} is an alias of {_ALIASES[name]!r}; choose another name.")
    target: str | None = method if isinstance(method, str) else None
    if not isinstance(method, str):
        from tta_panda.methods.factory import check_method_class

        check_method_class(method)
        if method.__module__ != "__main__" and "<locals>" not in method.__qualname__:
            target = f"{method.__module__}:{method.__qualname__}"
    METHODS.register(name, method, replace=name in _registered and _registered[name] == target)
    _registered[name] = target


def registered_targets(names: Collection[str]) -> dict[str, str | None]:
    """Return where other processes can import those of these methods that were registered in this process, or None."""
    return {name: target for name, target in _registered.items() if name in names}


def register_targets(targets: Mapping[str, str | None]) -> None:
    """Register the methods that `registered_targets` returned in another process."""
    for name, target in targets.items():
        if target is None:
            raise InvalidInputError(
                f"The method {name!r} was defined in a script, a notebook or a function, so worker processes cannot "
                "import it. Move the class into a module, or use a single worker."
            )
        register_method(name, target)
