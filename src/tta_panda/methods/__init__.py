"""Test-time adaptation methods, by name. A name may say how to debias: `tent+panda` is Tent on debiased features."""

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
_SINCE = ("TDA", "OGA", "StatA", "Mint", "IM", "VTE", "MTA", "SubTTA", "LAME")
_CLASSES = (*_OF_THE_PAPER, *_SINCE)

METHODS: Registry[type[Method]] = Registry(
    "method",
    {name.lower(): f"tta_panda.methods.{name.lower()}:{name}" for name in _CLASSES},
    entry_points="tta_panda.methods",
)

DEBIASES = ("panda", "center", "running", "level", "panda+level")
"""What may follow a `+` in the name of a method: Panda, the mean of the batch or of the stream, the level of absent
classes, and the level with Panda as its gate."""

_ALIASES = {"cbc": "clip+center"}

_registered: dict[str, str | None] = {}
"""Methods of `register_method`: where another process finds them, or None where it cannot."""


class MethodName(NamedTuple):
    """`tent+panda` taken apart."""

    base: str
    debias: str = ""  # one of DEBIASES, or nothing

    def __str__(self) -> str:
        return f"{self.base}+{self.debias}" if self.debias else self.base

    @classmethod
    def of(cls, name: str) -> MethodName:
        """Take a name apart that need not be known here."""
        base, _, debias = name.partition("+")
        return cls(base, debias)


def list_methods(pattern: str = "*") -> list[str]:
    """The names that methods can be created by, plain and debiased, as far as they match a shell wildcard."""
    names = [str(MethodName(base, debias)) for base in METHODS for debias in ("", *DEBIASES)]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def parse_method(name: str) -> MethodName:
    """Check a name such as `tent` or `tent+panda` against the registry, without importing the method."""
    asked = name.strip().lower()
    parsed = MethodName.of(_ALIASES.get(asked, asked))
    if parsed.base not in METHODS or parsed.debias not in ("", *DEBIASES) or asked.endswith("+"):
        raise UnknownNameError("method", name, [*list_methods(), *_ALIASES])
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
    """A method by name, as in `create_method("tent+panda", classifier, preset="cifar10-c", beta=0.6)`.

    Args:
        name: one of `list_methods()`.
        classifier: the classifier to adapt.
        preset: whose values to use where `settings` say nothing; by default the one of the model, if it has one.
        protocol: `"paper"` or `"reference"`.
        seed: random seed of the method.
        settings: options of the method, and of what debiases it.
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
    """Make a method of your own known: `name`, `name+panda` and so on then work wherever the name of a method does.

    An installed package does the same with an entry point of the group `tta_panda.methods`.

    Args:
        name: in lower case, without `+`, spaces or commas.
        method: the class, or the string `"module:Class"` that leads to it. Worker processes import it from its module,
            so a class that was defined in a script, a notebook or a function works in a single process only.
    """
    if not name or name != name.lower() or any(letter in "+," or letter.isspace() for letter in name):
        raise InvalidInputError(f"{name!r} is not a name for a method: use lower case, without '+', spaces or commas.")
    if name in _ALIASES:
        raise InvalidInputError(f"{name!r} is another name of {_ALIASES[name]!r}; choose one of your own.")
    target: str | None = method if isinstance(method, str) else None
    if not isinstance(method, str):
        from tta_panda.methods.factory import check_method_class

        check_method_class(method)
        if method.__module__ != "__main__" and "<locals>" not in method.__qualname__:
            target = f"{method.__module__}:{method.__qualname__}"
    METHODS.register(name, method, replace=name in _registered and _registered[name] == target)
    _registered[name] = target


def registered_targets(names: Collection[str]) -> dict[str, str | None]:
    """Those of these methods that were registered in this process: where another finds them, or None."""
    return {name: target for name, target in _registered.items() if name in names}


def register_targets(targets: Mapping[str, str | None]) -> None:
    """Register in this process what `registered_targets` gave in another."""
    for name, target in targets.items():
        if target is None:
            raise InvalidInputError(
                f"The method {name!r} was defined in a script, a notebook or a function, from where worker processes "
                "cannot import it. Move the class into a module, or use a single worker."
            )
        register_method(name, target)
