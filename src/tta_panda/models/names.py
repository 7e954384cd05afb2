"""How models are named: one string, taken apart here and nowhere else.

mini                            the embedded model
ARCHITECTURE:TAG                open_clip, published weights
ARCHITECTURE:FILE               open_clip, your checkpoint (.safetensors, .pt, .bin, .pth)
ARCHITECTURE:random             open_clip, random weights; also timm:NAME:random
hf-hub:ORGANISATION/NAME        open_clip, configuration and weights from a hub repository
./DIRECTORY                     open_clip_config.json or config.json (transformers), with weights beside it
transformers:DIRECTORY-OR-NAME  a model of the transformers library
timm:NAME[:FILE]                a classifier of the timm library; the rows of its head are the classes

Directories are written with a slash and files with a slash or a suffix, so what happens to lie in the current folder
never changes what a name means.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tta_panda.errors import InvalidInputError
from tta_panda.models.sources import SOURCES, ModelSource

RANDOM = "random"
"""In the place of weights: random ones, the same every time, for trying things out."""

HUB = "hf-hub:"
OPEN_CLIP_CONFIG = "open_clip_config.json"
TRANSFORMERS_CONFIG = "config.json"


class ModelName(NamedTuple):
    """A model's name taken apart."""

    library: str
    source: str
    weights: str = ""
    directory: Path | None = None  # the local directory that the name stands for

    @property
    def file(self) -> Path | None:
        """The checkpoint that the name gives as weights; it may not exist."""
        is_file = _has_slash(self.weights) or Path(self.weights).suffix
        return Path(self.weights).expanduser() if is_file else None

    def __str__(self) -> str:
        prefix = f"{self.library}:" if self.library in ("transformers", "timm") else ""
        return f"{prefix}{self.source}{':' if self.weights else ''}{self.weights}"


def parse_model_name(name: str) -> ModelName:
    """A name as the library, what to load from it, and the weights."""
    if name.startswith(HUB):
        return ModelName("open_clip", name)
    first, colon, rest = name.partition(":")
    if first in SOURCES and SOURCES[first].embedded:
        if colon:
            raise InvalidInputError(f"{first} has its own weights: omit {colon + rest!r}.")
        return ModelName(first, first, directory=SOURCES[first].directory)
    if first == "transformers":
        return ModelName(first, rest, directory=_directory(rest))
    if first == "timm":
        hub = HUB if rest.startswith(HUB) else ""
        source, _, weights = rest.removeprefix(hub).partition(":")
        return ModelName(first, hub + source, weights)
    if (directory := _directory(name)) and _has_slash(name):
        is_open_clip = (directory / OPEN_CLIP_CONFIG).is_file() or not (directory / TRANSFORMERS_CONFIG).is_file()
        return ModelName("open_clip" if is_open_clip else "transformers", name, directory=directory)
    return ModelName("open_clip", first, rest)


def _directory(text: str) -> Path | None:
    path = Path(text).expanduser()
    return path if path.is_dir() else None


def _has_slash(text: str) -> bool:
    return "/" in text or "\\" in text


def model_source(name: str) -> ModelSource:
    """What is known of a model by its name; nothing is loaded."""
    return SOURCES[parse_model_name(name).library]


def canonical_name(name: str) -> str:
    """One spelling for all names that load the same weights: the architecture that fits the tag, absolute paths."""
    parsed = parse_model_name(name)
    if SOURCES[parsed.library].embedded:
        return name
    if parsed.directory:
        return str(parsed._replace(source=str(parsed.directory.resolve())))
    if parsed.file:
        return str(parsed._replace(weights=str(parsed.file.resolve())))
    if parsed.library == "open_clip" and parsed.weights not in ("", RANDOM):
        from tta_panda.models.quickgelu import canonical_tag

        parsed = canonical_tag(parsed)
    return str(parsed)


def recorded_name(name: str) -> str:
    """What records call a model: canonical, with files and directories by their own names, wherever they lie.

    Together with `weights_digest` it says which model this is.
    """
    parsed = parse_model_name(canonical_name(name))
    if parsed.directory and not SOURCES[parsed.library].embedded:
        own = parsed.directory.name
        return str(parsed._replace(source=own if parsed.library == "transformers" else f"./{own}"))
    return str(parsed._replace(weights=parsed.file.name)) if parsed.file else str(parsed)
