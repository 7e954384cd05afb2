"""Find and load open_clip models: published ones by name and tag, hub repositories, local files and directories."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed
from open_clip.pretrained import download_pretrained_from_hf
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError, TtaPandaError, UnknownNameError
from tta_panda.models.checkpoints import find_weights, load_weights, read_state_dict
from tta_panda.models.devices import Precision
from tta_panda.models.extras import require_transformers
from tta_panda.models.names import HUB, OPEN_CLIP_CONFIG, RANDOM, ModelName
from tta_panda.models.openclip import OpenClipModel
from tta_panda.models.quickgelu import OPENAI_MARKS, file_wants_quick_gelu, tag_uses_quick_gelu


def load_open_clip(name: ModelName, device: str = "cpu", precision: Precision = "fp32") -> OpenClipModel:
    """The model behind a parsed name."""
    if name.source.startswith(HUB):
        with _unfetchable_explained(name):
            file = Path(download_pretrained_from_hf(name.source.removeprefix(HUB)))
        return create_open_clip(name.source, str(name), device, precision, file=file)
    if name.directory:
        return _load_directory(name.directory, device, precision)
    if open_clip.get_model_config(name.source) is None:
        raise _unknown_model(str(name) if not name.weights else name.source)
    if not name.weights:
        tags = open_clip.list_pretrained_tags_by_model(name.source)
        raise ModelLoadError(
            f"Which weights for {name}? Write {name}:TAG with one of the tags {', '.join(tags) or '(none published)'}, "
            f"{name}:PATH with a checkpoint file, or {name}:{RANDOM} for random weights."
        )
    if name.weights == RANDOM:
        return create_open_clip(name.source, str(name), device, precision)
    file = Path(name.weights).expanduser()
    if file.is_file():
        return create_open_clip(name.source, str(name), device, precision, file=file)
    quick_gelu = tag_uses_quick_gelu(name)
    with _unfetchable_explained(name):
        file = Path(open_clip.download_pretrained(open_clip.get_pretrained_cfg(name.source, name.weights)))
    return create_open_clip(
        name.source, str(name), device, precision, tag=name.weights, file=file, force_quick_gelu=quick_gelu
    )


def create_open_clip(
    source: str,
    label: str,
    device: str,
    precision: Precision = "fp32",
    *,
    tag: str | None = None,
    file: Path | None = None,
    negative_patch_size: int | None = None,
    force_quick_gelu: bool = False,
) -> OpenClipModel:
    """What open_clip makes of a source, with weights that are read here; or one sentence that says why it cannot.

    Args:
        source: an architecture, or what open_clip calls a schema (`hf-hub:`, `local-dir:`) and a place.
        label: what the user called it.
        device: where it goes.
        precision: what the encoders compute in.
        tag: whose preprocessing goes with the weights.
        file: the weights; None for random ones.
        negative_patch_size: side of Panda's patches.
        force_quick_gelu: for weights that were trained with it, whatever the architecture is called.
    """
    state = None if file is None else read_state_dict(file)
    try:
        _check_text_tower(source)
        if state is not None and tag is None:
            force_quick_gelu = file_wants_quick_gelu(source, state, label)
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random weights are the same ones every time
            options: dict[str, Any] = {"force_quick_gelu": force_quick_gelu, "load_weights": False}
            clip = open_clip.create_model(source, pretrained=tag, pretrained_text=False, **options)
            tokenizer = open_clip.get_tokenizer(source)
        if state is not None:
            load_weights(clip, _fitted(clip, state), label)
        return OpenClipModel(clip.to(device), tokenizer, label, negative_patch_size, precision)
    except TtaPandaError:
        raise
    except Exception as error:  # open_clip, torch, safetensors and the hub each have their own
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(f"Cannot load {label}: {first_line}") from error


def _check_text_tower(source: str) -> None:
    text = (open_clip.get_model_config(source) or {}).get("text_cfg", {})
    if text.get("hf_model_name") or text.get("hf_tokenizer_name"):
        require_transformers(f"The text encoder and the tokenizer of {source}")


def _fitted(clip: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names that this version of open_clip has for them, as its own loader does it."""
    state = {key: value for key, value in state.items() if key not in OPENAI_MARKS}
    state = convert_state_dict(clip, state)
    if "positional_embedding" in state and not hasattr(clip, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    for name in ("logit_scale", "logit_bias"):  # one number, with or without a dimension
        if name in state and isinstance(own := getattr(clip, name), Tensor) and own.numel() == state[name].numel():
            state[name] = state[name].reshape(own.shape)
    state.pop("text.transformer.embeddings.position_ids", None)  # constants, which older transformers saved
    resize_pos_embed(state, clip)
    resize_text_pos_embed(state, clip)
    return state


def _load_directory(directory: Path, device: str, precision: Precision) -> OpenClipModel:
    if not (directory / OPEN_CLIP_CONFIG).is_file():
        found = ", ".join(sorted(path.name for path in directory.iterdir())[:10]) or "nothing"
        raise ModelLoadError(
            f"{directory} holds no {OPEN_CLIP_CONFIG} (found: {found}). Put the configuration beside the weights or "
            f"name the architecture and the file, as in ViT-B-32-quickgelu:{directory / 'weights.safetensors'}."
        )
    file = find_weights(directory, "open_clip")
    return create_open_clip(f"local-dir:{directory}", str(directory), device, precision, file=file)


def _unknown_model(name: str) -> ModelLoadError | UnknownNameError:
    if Path(name).suffix or "/" in name or "\\" in name:
        return ModelLoadError(
            f"{name} is not a directory with a model. To load a checkpoint file, name its architecture, too, as in "
            f"ViT-B-32-quickgelu:{name}; for a model of the transformers library or the hub, write transformers:{name} "
            f"or hf-hub:{name}"
        )
    return UnknownNameError("model", name, ["mini", *open_clip.list_models()])


@contextlib.contextmanager
def _unfetchable_explained(name: ModelName) -> Iterator[None]:
    """Say which file to bring, and what to type then, where published weights cannot be fetched."""
    try:
        yield
    except Exception as error:  # the hub, the network and the file system each have their own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(f"Cannot fetch {name}: {reason}\n{_how_to_bring(name)}") from error


def _how_to_bring(name: ModelName) -> str:
    if name.source.startswith(HUB):
        repository = name.source.removeprefix(HUB)
        return (
            f"If it cannot be fetched from here: get {OPEN_CLIP_CONFIG} and open_clip_model.safetensors of the model "
            f"repository {repository} on another machine, copy them into a directory, and name it: --model DIRECTORY"
        )
    published = open_clip.get_pretrained_cfg(name.source, name.weights)
    repository = str(published.get("hf_hub") or "").strip("/")
    where = f"the model repository {repository}" if repository else str(published.get("url"))
    quick = published.get("quick_gelu", False) and not name.source.endswith("-quickgelu")
    architecture = f"{name.source}-quickgelu" if quick else name.source  # a file cannot say what the tag says
    return (
        "If the weights cannot be fetched from here: get open_clip_model.safetensors (or the .pt or .bin file) from "
        f"{where} on another machine, copy it to, for instance, weights/{architecture}.safetensors, and name it "
        f"instead of the tag: --model {architecture}:weights/{architecture}.safetensors"
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """open_clip reports on the root logger and by warnings; what matters of it, we raise."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        root.setLevel(level)
