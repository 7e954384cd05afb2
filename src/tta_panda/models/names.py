"""How models are written: one string, taken apart here and nowhere else.

mini                            the embedded model
ARCHITECTURE:TAG                open_clip, published weights
ARCHITECTURE:FILE               open_clip, a checkpoint of yours (.safetensors, .pt, .bin, .pth)
ARCHITECTURE:random             open_clip, random weights; also timm:NAME:random
hf-hub:ORGANISATION/NAME        open_clip, configuration and weights from a hub repository
DIRECTORY                       open_clip_config.json or config.json (transformers), and weights beside it
transformers:DIRECTORY-OR-NAME  a model of the transformers library
timm:NAME[:FILE]                a classifier of the timm library; its head's rows are the classes
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from tta_panda.errors import InvalidInputError

Library = Literal["mini", "open_clip", "transformers", "timm"]

RANDOM = "random"
"""In the place of weights: random ones, the same every time, for trying things out."""

HUB = "hf-hub:"
OPEN_CLIP_CONFIG = "open_clip_config.json"
TRANSFORMERS_CONFIG = "config.json"


class ModelName(NamedTuple):
    """A model's name taken apart."""

    library: Library
    source: str
    weights: str = ""

    @property
    def directory(self) -> Path | None:
        """The local directory that the name stands for, if it does."""
        path = Path(self.source).expanduser()
        return path if path.is_dir() and self.library in ("open_clip", "transformers") and not self.weights else None

    def __str__(self) -> str:
        prefix = f"{self.library}:" if self.library in ("transformers", "timm") else ""
        return f"{prefix}{self.source}{':' if self.weights else ''}{self.weights}"


def parse_model_name(name: str, pretrained: str | None = None) -> ModelName:
    """A name, with weights that may be given apart, as the library, what to load there, and its weights."""
    parsed = _parse(name)
    if not pretrained:
        return parsed
    if parsed.weights:
        raise InvalidInputError(f"The weights are named twice: {parsed.weights!r} in {name!r}, and {pretrained!r}.")
    if parsed.directory or parsed.library == "transformers" or parsed.source.startswith(HUB):
        raise InvalidInputError(f"{name} has its own weights; leave {pretrained!r} away.")
    return parsed._replace(weights=pretrained)


def _parse(name: str) -> ModelName:
    path = Path(name).expanduser()
    if path.is_dir():
        only_transformers = (path / TRANSFORMERS_CONFIG).is_file() and not (path / OPEN_CLIP_CONFIG).is_file()
        return ModelName("transformers" if only_transformers else "open_clip", str(name))
    if name.startswith(HUB):
        return ModelName("open_clip", name)
    first, _, rest = name.partition(":")
    if first == "transformers":
        return ModelName("transformers", rest)
    if first == "timm":
        hub = HUB if rest.startswith(HUB) else ""
        source, _, weights = rest.removeprefix(hub).partition(":")
        return ModelName("timm", hub + source, weights)
    return ModelName("mini" if first == "mini" else "open_clip", first, rest)
