"""Measure the sizes of models that `tta-panda ls models` lists, with the installed version of open_clip."""

from __future__ import annotations

import json

import open_clip
import timm
import torch

from tta_panda.models.base import square_side
from tta_panda.models.linear import LITE0
from tta_panda.models.names import SIZES, SOURCES
from tta_panda.models.openclip import open_clip_silenced


def measure(architecture: str) -> tuple[int | None, int | None]:
    """Count the parameters and find the input size of an architecture, without memory for its weights.

    Both are None if the configuration describes no image tower. The parameters are None if the text tower is from
    another library, since its configuration would have to be downloaded.
    """
    config = open_clip.get_model_config(architecture)
    if "vision_cfg" not in config:
        return None, None
    size = square_side(config["vision_cfg"].get("image_size", 224), architecture)
    if "text_cfg" not in config or config["text_cfg"].get("hf_model_name"):
        return None, size
    with open_clip_silenced(), torch.device("meta"):
        clip = open_clip.create_model(architecture, load_weights=False, pretrained_text=False, device="meta")
    return sum(parameter.numel() for parameter in clip.parameters()), size


def measure_lite0() -> tuple[int, int]:
    """Count the parameters and find the input size of lite0, a network of timm."""
    network = timm.create_model(LITE0)
    size = timm.data.resolve_model_data_config(network)["input_size"][-1]
    return sum(parameter.numel() for parameter in network.parameters()), size


def main() -> None:
    sizes = {"mini": measure(f"local-dir:{SOURCES['mini'].directory}"), "lite0": measure_lite0()}
    sizes |= {name: measure(name) for name in open_clip.list_models()}
    lines = [f" {json.dumps(name)}: {json.dumps(size)}" for name, size in sizes.items()]
    SIZES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} architectures in {SIZES}")


if __name__ == "__main__":
    main()
