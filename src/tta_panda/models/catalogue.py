"""What can be loaded by name, how large it is, and whether its weights are on this machine. Nothing is downloaded."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SIZES = Path(__file__).with_name("architectures.json")
"""Parameters and input size by architecture; `scripts/measure_architectures.py` writes it."""

CLIP_CACHE = Path("~/.cache/clip")
"""Where open_clip keeps weights that it fetches from an address rather than from the hub."""


class Listing(NamedTuple):
    """An architecture, the weights published for it, and those of them that are here."""

    name: str
    parameters: int | None
    image_size: int
    weights: list[str]
    here: list[str]


def list_models(pattern: str = "*") -> Iterator[Listing]:
    """The embedded model and all of open_clip whose names match a shell wildcard."""
    import open_clip

    from tta_panda.models.mini import ARCHITECTURE

    if fnmatch.fnmatchcase("mini", pattern):
        yield Listing("mini", *_size(ARCHITECTURE), ["embedded"], ["embedded"])
    for name in open_clip.list_models():
        if name != ARCHITECTURE and fnmatch.fnmatchcase(name, pattern):
            tags = open_clip.list_pretrained_tags_by_model(name)
            here = [tag for tag in tags if weights_here(open_clip.get_pretrained_cfg(name, tag))]
            yield Listing(name, *_size(name), tags, here)


def weights_here(published: Mapping[str, Any]) -> Path | None:
    """The file of published weights in the caches of this machine."""
    repository, file = os.path.split(str(published.get("hf_hub") or ""))
    if repository:
        return _in_hub_cache(repository, file or "open_clip_pytorch_model.bin")
    target = CLIP_CACHE.expanduser() / os.path.basename(str(published.get("url") or "-"))
    return target if target.is_file() else None


def _in_hub_cache(repository: str, file: str) -> Path | None:
    safe = "open_clip_model.safetensors" if file == "open_clip_pytorch_model.bin" else f"{Path(file).stem}.safetensors"
    found = (_cached(repository, name) for name in (safe, file))
    return next((Path(path) for path in found if isinstance(path, str)), None)


def _cached(repository: str, file: str) -> object:
    from huggingface_hub import try_to_load_from_cache

    return try_to_load_from_cache(repository, file)


@cache
def _sizes() -> dict[str, tuple[int | None, int]]:
    return {name: (parameters, size) for name, (parameters, size) in json.loads(SIZES.read_text("utf-8")).items()}


def _size(name: str) -> tuple[int | None, int]:
    return _sizes().get(name) or measure(name)


def measure(name: str) -> tuple[int | None, int]:
    """Parameters and input size of an architecture, made without memory for its weights.

    No number of parameters where the text tower is another library's, whose configuration would have to be fetched.
    """
    import open_clip
    import torch

    from tta_panda.models.adapter import square_side
    from tta_panda.models.openclip_load import quiet

    config = open_clip.get_model_config(name)
    size = square_side(config["vision_cfg"].get("image_size", 224), name)
    if config["text_cfg"].get("hf_model_name"):
        return None, size
    with quiet(), torch.device("meta"):
        clip = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
    return sum(parameter.numel() for parameter in clip.parameters()), size
