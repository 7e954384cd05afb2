"""What the code says about a method, for its page: its publication, its options, and what it encodes.

```{method-facts} tent
:arxiv: 2006.10726
```
```{method-options} tent
```
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import tta_panda
from tta_panda.methods import METHODS, parse_method
from tta_panda.methods.base import EncoderPasses, Method
from tta_panda.methods.factory import expected_passes, resolve_options
from tta_panda.methods.presets import PRESETS, Preset
from tta_panda.options import declared_options

IMAGES, CLASSES = 10, 5
"""Of the batch whose encoder passes are shown. Panda adds one negative for ten images."""


class MethodFacts(SphinxDirective):
    """The publication of a method, and what it sends through the encoders."""

    required_arguments = 1
    option_spec: ClassVar = {"arxiv": str}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        cls = METHODS.get(name)
        publication = (sys.modules[cls.__module__].__doc__ or "").strip().rstrip(".")
        link = f"[arXiv:{self.options['arxiv']}](https://arxiv.org/abs/{self.options['arxiv']})"
        text = [f"{_summary(cls)}\n", f"{publication}. {link}\n", *_cost_table([name, f"{name}+panda"])]
        return self.parse_text_to_nodes("\n".join(text))


class MethodCosts(SphinxDirective):
    """What every method sends through the encoders."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(_cost_table(list(METHODS))))


class MethodOptions(SphinxDirective):
    """The class of a method, and its options with their defaults, the values of presets, and what they mean."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        cls = METHODS.get(name)
        documented, inherited = _by_owner(cls)
        body = [_remarks(cls), *_definitions(name, documented), _also(inherited)]
        declared = declared_options(cls)
        own = ["*", *(f"{key}={declared[key].default!r}" for key in documented)] if documented else []
        signature = ", ".join(["classifier", *own, "..."])
        text = [f"````{{py:class}} tta_panda.{cls.__name__}({signature})\n", *body, "````"]
        return self.parse_text_to_nodes("\n".join(text))


def _cost_table(names: Sequence[str]) -> Iterator[str]:
    """Rows of Markdown, with a column for everything that any of the methods encodes."""
    counts = {name: asdict(_passes(name)) for name in names}
    columns = [key for key in counts[names[0]] if key != "batches" and any(count[key] for count in counts.values())]
    titles = " | ".join(column.replace("_", " ") for column in columns)
    yield f"| encoded at most for {IMAGES} images of {CLASSES} classes | {titles} |"
    yield f"|---|{'---:|' * len(columns)}"
    for name, count in counts.items():
        shown = " | ".join(str(count[column] or "–") for column in columns)
        yield f"| `{name}` | {shown} |"
    yield ""


def _passes(name: str) -> EncoderPasses:
    """What a method encodes for one batch, with the preset of the embedded model."""
    parsed = parse_method(name)
    return expected_passes(parsed, resolve_options(parsed, {}, preset=PRESETS["mini"]), IMAGES, CLASSES)


def _by_owner(cls: type[Method]) -> tuple[list[str], dict[type, list[str]]]:
    """The options to document with the class, and those that public base classes document, by base class."""
    owners = {key: next(owner for owner in cls.__mro__ if key in _meanings(owner)) for key in declared_options(cls)}
    inherited: dict[type, list[str]] = {}
    for key, owner in owners.items():
        if owner is not cls and owner.__name__ in tta_panda.__all__:
            inherited.setdefault(owner, []).append(key)
    return [key for key in owners if not any(key in keys for keys in inherited.values())], inherited


def _definitions(name: str, options: Iterable[str]) -> Iterator[str]:
    cls = METHODS.get(name)
    meanings = ChainMap(*map(_meanings, cls.__mro__))
    for key in options:
        default = declared_options(cls)[key].default
        yield f"`{key}` = `{default!r}`\n: {meanings[key]}{_by_preset(name, key, default)}\n"


def _distinct_presets() -> Iterable[Preset]:
    """One of those that share their methods, and differ in models and prompts."""
    presets: dict[int, Preset] = {}
    for preset in PRESETS.values():
        presets.setdefault(id(preset.methods), preset)
    return presets.values()


def _by_preset(name: str, option: str, default: Any) -> str:
    """The values that presets set in the place of the default, each with the presets that have it."""
    presets: dict[str, list[str]] = {}
    for preset in _distinct_presets():
        value = preset.options(parse_method(name)).get(option, default)
        if value != default:
            presets.setdefault(f"`{value!r}`", []).append(f"`{preset.name}`")
    shown = "; ".join(f"{value} in {', '.join(names)}" for value, names in presets.items())
    return f" *Presets:* {shown}." if shown else ""


def _also(inherited: Mapping[type, Sequence[str]]) -> str:
    """A sentence that names the options of base classes, with links to where they are explained."""
    options = {owner: ", ".join(f"`{key}`" for key in keys) for owner, keys in inherited.items()}
    return (
        "Also "
        + "; ".join(f"{keys} of {{py:class}}`tta_panda.{owner.__name__}`" for owner, keys in options.items())
        + "."
    )


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\n")[0]


def _remarks(cls: type) -> str:
    """What a docstring says between its first line and the arguments."""
    return (inspect.getdoc(cls) or "").partition("\n\n")[2].partition("Args:")[0]


@functools.cache
def _meanings(cls: type) -> dict[str, str]:
    """The arguments that a docstring explains."""
    arguments = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("method-facts", MethodFacts)
    app.add_directive("method-costs", MethodCosts)
    app.add_directive("method-options", MethodOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
