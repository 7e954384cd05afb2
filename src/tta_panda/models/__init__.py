"""Vision-language models behind one protocol, and the zero-shot classifiers they give."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tta_panda.errors import InvalidInputError
from tta_panda.models.base import VisionLanguageModel, ZeroShotClassifier

__all__ = ["VisionLanguageModel", "ZeroShotClassifier", "load_model", "weights_digest"]


def load_model(name: str, pretrained: str | None = None, device: str = "cpu") -> VisionLanguageModel:
    """A model by name.

    Args:
        name: `"mini"` (embedded), an open_clip architecture, alone or with its weights (`"ViT-B-32-quickgelu:openai"`,
            `"ViT-B-32-quickgelu:weights/clip.safetensors"`), or a local directory with `open_clip_config.json`.
        pretrained: the weights, where `name` does not say: a tag, a file, or `"random"`.
        device: where the model runs, as torch names it.
    """
    import torch

    architecture, weights = _split(name)
    if weights and pretrained:
        raise InvalidInputError(f"The weights are named twice: {weights!r} in {name!r}, and pretrained={pretrained!r}.")
    weights = weights or pretrained or ""
    device = _usable(device)
    with torch.inference_mode(False):  # a model that was loaded in inference mode could never be adapted
        if architecture == "mini":
            from tta_panda.models.mini import load_mini

            if weights:
                raise InvalidInputError(f"The mini model has its own weights; leave {weights!r} away.")
            return load_mini(device)
        from tta_panda.models.openclip import load_open_clip

        return load_open_clip(architecture, weights or None, device)


def weights_digest(name: str) -> str | None:
    """A short hash of the weights behind a name, where these are files here; None where a tag names them."""
    architecture, weights = _split(name)
    if architecture == "mini":
        from tta_panda.models.mini import WEIGHTS

        files = [WEIGHTS]
    elif Path(architecture).expanduser().is_dir():
        files = sorted(path for path in Path(architecture).expanduser().iterdir() if path.is_file())
    else:
        files = [Path(weights).expanduser()] if weights else []
    if not files or not all(file.is_file() for file in files):
        return None
    digests = []
    for file in files:
        with file.open("rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def _split(name: str) -> tuple[str, str]:
    """`ARCHITECTURE:WEIGHTS` taken apart; a directory may have a colon in its name."""
    if Path(name).expanduser().is_dir():
        return name, ""
    architecture, _, weights = name.partition(":")
    return architecture, weights


def _usable(device: str) -> str:
    """The device, if it exists here."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInputError(f"The device {device!r} cannot be used here ({reason}); try device cpu.") from error
    return device
