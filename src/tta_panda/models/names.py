"""How models are named: one string, taken apart here and nowhere else.

mini, lite0                     models that packages hold: this one, and the one that the extra `lite` installs
ARCHITECTURE:TAG                open_clip, published weights
ARCHITECTURE:FILE               open_clip, your checkpoint (.safetensors, .pt, .bin, .pth)
ARCHITECTURE:random             open_clip, random weights; also timm:NAME:random
ViT-B/32, ViT-L/14@336px        OpenAI's spelling: open_clip, with OpenAI's weights
hf-hub:ORGANISATION/NAME        open_clip, configuration and weights from a hub repository
./DIRECTORY                     open_clip_config.json or config.json (transformers), with weights beside it
transformers:DIRECTORY-OR-NAME  a model of the transformers library
timm:NAME[:FILE]                a classifier of the timm library; the rows of its head are the classes
MODULE:FUNCTION                 what a function of yours returns; see `tta_panda.models.factory`

Directories are written with a slash and files with a slash or a suffix, so what happens to lie in the current folder
never changes what a name means.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

from tta_panda.errors import InvalidInputError
from tta_panda.models.loading import importing_from_here
from tta_panda.models.sources import SOURCES, ModelSource

RANDOM = "random"
"""In the place of weights: random ones, the same every time, for trying things out."""

HUB = "hf-hub:"
OPEN_CLIP_CONFIG = "open_clip_config.json"
TRANSFORMERS_CONFIG = "config.json"

_OPENAI = {
    "ViT-B/32": "ViT-B-32-quickgelu",
    "ViT-B/16": "ViT-B-16-quickgelu",
    "ViT-L/14": "ViT-L-14-quickgelu",
    "ViT-L/14@336px": "ViT-L-14-336-quickgelu",
}
"""OpenAI's names of models as open_clip spells them."""


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
    if not name.strip():
        raise InvalidInputError("The name of the model is empty. `tta-panda ls models` lists names; mini is embedded.")
    if name in _OPENAI:
        return ModelName("open_clip", _OPENAI[name], "openai")
    if name.startswith(HUB):
        return ModelName("open_clip", name)
    first, colon, rest = name.partition(":")
    if first in SOURCES and SOURCES[first].package:
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
    return ModelName("python" if _is_function(first, rest) else "open_clip", first, rest)


def _is_function(module: str, function: str) -> bool:
    """Whether this names a module that is here, and no architecture of open_clip. Nothing of the user's is imported."""
    package, *parts = [*module.split("."), function]
    if not all(part.isidentifier() for part in (package, *parts)):
        return False
    with importing_from_here():
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            return False
    import open_clip

    return open_clip.get_model_config(module) is None


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
    if SOURCES[parsed.library].package:
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
    if parsed.directory and not SOURCES[parsed.library].package:
        own = parsed.directory.name
        return str(parsed._replace(source=own if parsed.library == "transformers" else f"./{own}"))
    return str(parsed._replace(weights=parsed.file.name)) if parsed.file else str(parsed)
