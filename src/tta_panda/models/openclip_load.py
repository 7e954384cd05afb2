"""Find and load open_clip models: published ones by name and tag, hub repositories, local files and directories."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed
from open_clip.pretrained import download_pretrained_from_hf
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError, UnknownNameError
from tta_panda.models.checkpoints import find_weights, load_weights, read_state_dict
from tta_panda.models.devices import Precision
from tta_panda.models.loading import (
    failures_explained,
    no_questions,
    only_weights,
    open_clip_silenced,
    require_transformers,
)
from tta_panda.models.names import HUB, OPEN_CLIP_CONFIG, RANDOM, ModelName
from tta_panda.models.openclip import OpenClipModel
from tta_panda.models.quickgelu import OPENAI_MARKS, SUFFIX, canonical_tag, file_wants_quick_gelu, tag_uses_quick_gelu
from tta_panda.models.sources import SOURCES


def load_open_clip(name: ModelName, device: str = "cpu", precision: Precision = "fp32") -> OpenClipModel:
    """The model behind a parsed name: open_clip creates it, and the weights are read here."""
    label = str(name)
    _check_name(name)
    source = f"local-dir:{name.directory}" if name.directory else name.source
    tag = name.weights if name.weights not in ("", RANDOM) and not name.file else None
    quick_gelu = tag is not None and tag_uses_quick_gelu(name)
    file = _weights_file(name)
    state = None if file is None else read_state_dict(file)
    with failures_explained(f"Cannot load {label}"):
        if state is not None and tag is None:
            quick_gelu = file_wants_quick_gelu(source, state, label)
        with open_clip_silenced():
            clip, tokenizer = _created(source, tag, quick_gelu)
            weights = None if state is None else _fitted(clip, state)
        if weights is not None:
            load_weights(clip, weights, label)
        return OpenClipModel(clip.to(device), tokenizer, label, precision=precision)


def _created(source: str, tag: str | None, quick_gelu: bool) -> tuple[nn.Module, Any]:
    """A network with random weights, the same ones every time, and its tokenizer, as a configuration says.

    A configuration can name a text encoder and a tokenizer of transformers, and ask for code that comes with them.
    """
    text = (open_clip.get_model_config(source) or {}).get("text_cfg", {})
    with contextlib.ExitStack() as stack:
        if text.get("hf_model_name") or text.get("hf_tokenizer_name"):
            require_transformers(f"The text encoder and the tokenizer of {source}")
            stack.enter_context(no_questions())
        stack.enter_context(only_weights())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(0)
        # The tag is for its preprocessing alone.
        clip = open_clip.create_model(
            source, tag, load_weights=False, pretrained_text=False, force_quick_gelu=quick_gelu
        )
        no_code = {"trust_remote_code": False} if text.get("hf_tokenizer_name") else {}
        return clip, open_clip.get_tokenizer(source, **no_code)


def _check_name(name: ModelName) -> None:
    if name.directory or name.source.startswith(HUB):
        return
    if open_clip.get_model_config(name.source) is None:
        raise _unknown_model(name)
    if not name.weights:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name.source)) or "(none published)"
        raise ModelLoadError(
            f"Which weights for {name}? Write {name}:TAG with one of the tags {tags}, {name}:PATH with a checkpoint "
            f"file, or {name}:{RANDOM} for random weights."
        )


def _weights_file(name: ModelName) -> Path | None:
    """Where the weights are, fetched where they are published; None for random ones."""
    if name.directory:
        return _file_in(name.directory, SOURCES[name.library].weights)
    if name.file or name.weights == RANDOM:
        return name.file
    with failures_explained(f"Cannot fetch {name}", f"\n{_how_to_bring(name)}"):
        if name.source.startswith(HUB):
            return Path(download_pretrained_from_hf(name.source.removeprefix(HUB)))
        return Path(open_clip.download_pretrained(open_clip.get_pretrained_cfg(name.source, name.weights)))


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


def _file_in(directory: Path, patterns: Sequence[str]) -> Path:
    if not (directory / OPEN_CLIP_CONFIG).is_file():
        found = ", ".join(sorted(path.name for path in directory.iterdir())[:10]) or "nothing"
        raise ModelLoadError(
            f"{directory} holds no {OPEN_CLIP_CONFIG} (found: {found}). Put the configuration beside the weights or "
            f"name the architecture and the file, as in ViT-B-32-quickgelu:{directory / 'weights.safetensors'}."
        )
    if files := find_weights(directory, patterns):
        return files[0]
    raise ModelLoadError(f"{directory} holds no weights ({', '.join(patterns)}); put them beside the configuration.")


def _unknown_model(name: ModelName) -> ModelLoadError | UnknownNameError:
    text, source = str(name), name.source
    if Path(text).is_dir():
        return ModelLoadError(f"There is no model {text}, but a directory of that name: write ./{text} to load it.")
    respelled = source.replace("/", "-").replace("@", "-").removesuffix("px")
    if respelled != source and open_clip.get_model_config(respelled):
        return ModelLoadError(
            f"open_clip writes {source} as {respelled}. For OpenAI's weights, write {respelled}{SUFFIX}:openai"
        )
    if "/" in source or "\\" in source or (Path(source).suffix and not name.weights):
        return ModelLoadError(
            f"{source} is not a directory with a model. To load a checkpoint file, name its architecture, too, as in "
            f"ViT-B-32-quickgelu:{source}; for a model of the transformers library or the hub, write "
            f"transformers:{source} or hf-hub:{source}"
        )
    single = [library for library, entry in SOURCES.items() if entry.package]
    return UnknownNameError("model", source, [*single, *open_clip.list_models()])


def _how_to_bring(name: ModelName) -> str:
    """Which files to get, and what to type then, where published weights cannot be fetched."""
    if name.source.startswith(HUB):
        repository = name.source.removeprefix(HUB)
        return (
            f"If it cannot be fetched from here: get {OPEN_CLIP_CONFIG} and open_clip_model.safetensors of the model "
            f"repository {repository} on another machine, copy them into a directory, and name it: --model ./DIRECTORY"
        )
    published = open_clip.get_pretrained_cfg(name.source, name.weights)
    repository = str(published.get("hf_hub") or "").strip("/")
    where = f"the model repository {repository}" if repository else str(published.get("url"))
    architecture = canonical_tag(name).source  # a file does not say which activation it needs, as the tag does
    return (
        "If the weights cannot be fetched from here: get open_clip_model.safetensors (or the .pt or .bin file) from "
        f"{where} on another machine, copy it to, for instance, weights/{architecture}.safetensors, and name it "
        f"instead of the tag: --model {architecture}:weights/{architecture}.safetensors"
    )
