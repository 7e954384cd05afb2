"""What can be loaded by name, how large it is, and whether its weights are on this machine. Nothing is downloaded."""

from __future__ import annotations

import fnmatch
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tta_panda.models.names import ModelName, parse_model_name
from tta_panda.models.sources import SOURCES

SIZES = Path(__file__).with_name("architectures.json")
"""Parameters and input size by architecture; `scripts/measure_architectures.py` writes it."""

CLIP_CACHE = Path("~/.cache/clip")
"""Where open_clip keeps weights that it fetches from an address rather than from the hub."""


class Listing(NamedTuple):
    """An architecture, the weights published for it, and those of them that are on this machine."""

    name: str
    parameters: int | None
    image_size: int | None
    weights: list[str]
    here: list[str]


def list_models(pattern: str = "*") -> list[str]:
    """Names that `load_model` takes: models of packages, and open_clip's published weights as `ARCHITECTURE:TAG`.

    Args:
        pattern: a shell wildcard for names or architectures, such as `"ViT-B-32*"` or `"*:openai"`.
    """
    import open_clip

    from tta_panda.models.quickgelu import canonical_tag

    published = (ModelName("open_clip", *pair) for pair in open_clip.list_pretrained())
    names = [*_single_models(), *(name for name in published if name == canonical_tag(name))]
    matching = (name for name in names if any(fnmatch.fnmatchcase(text, pattern) for text in (name.source, str(name))))
    return [str(name) for name in matching]


def describe_models(pattern: str = "*") -> Iterator[Listing]:
    """The models of packages and all architectures of open_clip whose names match a shell wildcard."""
    import open_clip

    for name in _single_models():
        if fnmatch.fnmatchcase(name.source, pattern):
            extra = SOURCES[name.library].extra
            held_by = [f"tta-panda[{extra}]" if extra else "embedded"]
            yield Listing(name.source, *_sizes()[name.source], held_by, held_by if name.directory else [])
    for architecture in open_clip.list_models():
        if fnmatch.fnmatchcase(architecture, pattern):
            tags = open_clip.list_pretrained_tags_by_model(architecture)
            here = [tag for tag in tags if weights_here(open_clip.get_pretrained_cfg(architecture, tag))]
            yield Listing(architecture, *_sizes()[architecture], tags, here)


def _single_models() -> list[ModelName]:
    return [parse_model_name(name) for name, source in SOURCES.items() if source.package]


def weights_here(published: Mapping[str, Any]) -> Path | None:
    """The file of published weights in the caches of this machine."""
    import huggingface_hub

    repository, file = os.path.split(str(published.get("hf_hub") or ""))
    if not repository:
        target = CLIP_CACHE.expanduser() / os.path.basename(str(published.get("url") or "-"))
        return target if target.is_file() else None
    default = "open_clip_pytorch_model.bin"
    safe = "open_clip_model.safetensors" if file in ("", default) else f"{Path(file).stem}.safetensors"
    found = (huggingface_hub.try_to_load_from_cache(repository, name) for name in (safe, file or default))
    return next((Path(path) for path in found if isinstance(path, str)), None)


@cache
def _sizes() -> dict[str, tuple[int | None, int | None]]:
    """Parameters and input size by architecture; None for what is not known."""
    return defaultdict(lambda: (None, None), json.loads(SIZES.read_text("utf-8")))
