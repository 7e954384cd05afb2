"""Models of the open_clip library: by name and tag, from a local checkpoint, or from a local directory."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

import open_clip
import torch
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError, UnknownNameError
from tta_panda.models.images import check_images, fit_images

RANDOM = "random"
"""Tag that asks for a model with random weights, for trying things out."""

PAPER_PATCH_SIZE = 32

logger = logging.getLogger(__name__)


class OpenClipModel(nn.Module):
    """An open_clip model behind the `VisionLanguageModel` protocol."""

    def __init__(self, clip: nn.Module, tokenizer: Any, name: str, negative_patch_size: int = PAPER_PATCH_SIZE):
        super().__init__()
        self.clip = clip.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.negative_patch_size = negative_patch_size
        preprocessing = open_clip.get_model_preprocess_cfg(clip)
        size = preprocessing["size"]
        self.image_size = int(size[0] if isinstance(size, Sequence) else size)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing["mean"]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing["std"]).view(3, 1, 1), persistent=False)

    @property
    def image_encoder(self) -> nn.Module:
        return cast(nn.Module, self.clip.visual)

    @property
    def text_encoder(self) -> nn.Module:
        if isinstance(self.clip, open_clip.CLIP):  # whose text transformer has no module of its own
            return nn.ModuleDict({"transformer": self.clip.transformer, "ln_final": self.clip.ln_final})
        return cast(nn.Module, self.clip.text)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def logit_scale(self) -> float:
        return float(cast(Tensor, self.clip.logit_scale).detach().exp())

    def prepare(self, images: Tensor) -> Tensor:
        check_images(images)
        return fit_images(images.to(self.device), self.image_size)

    def encode_image(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.clip.encode_image((self.prepare(images) - self.mean) / self.std))  # type: ignore[operator]

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts)
        return self.encode_embedded(self.embed_tokens(tokens), tokens)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        tokens = cast(Tensor, self.tokenizer(list(texts)).to(self.device))
        # Attention is causal and the embedding is read at the end-of-text token: what follows it cannot matter.
        return tokens[:, : int(tokens.argmax(dim=1).max()) + 1] if _reads_up_to_the_end(self.clip) else tokens

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, _token_embedding(self.clip)(tokens))

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        clip = self.clip
        if not _reads_up_to_the_end(clip):
            with _embeddings_replaced(_token_embedding(clip), embedded):
                return cast(Tensor, clip.encode_text(tokens))  # type: ignore[operator]
        # open_clip's own encode_text, for texts that are shorter than the model's context.
        length = embedded.shape[1]
        x = embedded.to(clip.transformer.get_cast_dtype())  # (N, L, W)
        x = x + clip.positional_embedding[:length].to(x.dtype)
        x = clip.ln_final(clip.transformer(x, attn_mask=clip.attn_mask[:length, :length]))
        x = x[torch.arange(len(x), device=x.device), tokens.argmax(dim=1)]
        projection = clip.text_projection
        return cast(Tensor, projection(x) if isinstance(projection, nn.Linear) else x @ projection)


def _reads_up_to_the_end(clip: nn.Module) -> TypeGuard[open_clip.CLIP]:
    """Whether this is the classic CLIP text transformer, causal and read at the end-of-text token."""
    return (
        isinstance(clip, open_clip.CLIP)
        and clip.attn_mask is not None
        and clip.text_pool_type == "argmax"
        and clip.text_projection is not None
    )


def _token_embedding(clip: nn.Module) -> nn.Module:
    """The layer that turns tokens into input embeddings, wherever this architecture has it."""
    text = clip if isinstance(clip, open_clip.CLIP) else cast(nn.Module, clip.text)
    return next(module for module in text.modules() if isinstance(module, nn.Embedding))


@contextlib.contextmanager
def _embeddings_replaced(layer: nn.Module, embedded: Tensor) -> Iterator[None]:
    """Let a layer give `embedded`, so that the text encoder around it runs as it is, masks and pooling included."""
    handle = layer.register_forward_hook(lambda _layer, _tokens, _output: embedded)
    try:
        yield
    finally:
        handle.remove()


def load_open_clip(name: str, pretrained: str | None, device: str = "cpu") -> OpenClipModel:
    """An open_clip model.

    Args:
        name: architecture (`ViT-B-32-quickgelu`), or a directory with `open_clip_config.json` and weights.
        pretrained: tag (`openai`), path of a checkpoint, or `"random"`.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return _load_directory(directory, device)
    if open_clip.get_model_config(name) is None:
        raise _unknown_model(name)
    if pretrained is None:
        tags = open_clip.list_pretrained_tags_by_model(name)
        raise ModelLoadError(
            f"Which weights for {name}? Write {name}:TAG with one of the tags {', '.join(tags) or '(none published)'}, "
            f"{name}:PATH with a checkpoint file, or {name}:{RANDOM} for random weights."
        )
    label = f"{name}:{pretrained}"
    if pretrained == RANDOM:
        return create_open_clip(name, None, label, device)
    if Path(pretrained).expanduser().is_file():
        _warn_of_quick_gelu(name, pretrained)
        return create_open_clip(name, str(Path(pretrained).expanduser()), label, device)
    quick_gelu = _tag_uses_quick_gelu(name, pretrained)
    with _unfetchable_explained(name, pretrained):
        return create_open_clip(name, pretrained, label, device, force_quick_gelu=quick_gelu)


def create_open_clip(
    source: str,
    weights: str | None,
    label: str,
    device: str,
    negative_patch_size: int = PAPER_PATCH_SIZE,
    **options: Any,
) -> OpenClipModel:
    """What open_clip makes of a source and weights, or one sentence that says why it cannot."""
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random weights are the same ones every time
            clip = open_clip.create_model(source, pretrained=weights, device=device, pretrained_text=False, **options)
            return OpenClipModel(clip, open_clip.get_tokenizer(source), label, negative_patch_size)
    except Exception as error:  # open_clip, torch, safetensors and the hub each have their own
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(f"Cannot load {label}: {first_line}") from error


def _load_directory(directory: Path, device: str) -> OpenClipModel:
    if not (directory / "open_clip_config.json").is_file():
        found = ", ".join(sorted(path.name for path in directory.iterdir())[:10]) or "nothing"
        raise ModelLoadError(
            f"{directory} holds no open_clip_config.json (found: {found}). Put the configuration beside the weights or "
            f"name the architecture and the file, as in ViT-B-32-quickgelu:{directory / 'weights.safetensors'}."
        )
    return create_open_clip(f"local-dir:{directory}", None, str(directory), device, require_pretrained=True)


def _unknown_model(name: str) -> ModelLoadError | UnknownNameError:
    if Path(name).suffix or "/" in name or "\\" in name:
        return ModelLoadError(
            f"{name} is not a directory with a model. To load a checkpoint file, name its architecture, too, as in "
            f"ViT-B-32-quickgelu:{name}"
        )
    return UnknownNameError("model", name, ["mini", *open_clip.list_models()])


def _warn_of_quick_gelu(name: str, file: str) -> None:
    """A file does not say which activation its weights were trained with, and the wrong one only costs accuracy."""
    if open_clip.get_model_config(f"{name}-quickgelu") is not None:
        warnings.warn(
            f"{file} runs with the activation of {name}, GELU. If these weights are OpenAI's, or were trained with "
            f"QuickGELU for another reason, load them as {name}-quickgelu:{file}",
            stacklevel=4,
        )


def _tag_uses_quick_gelu(name: str, tag: str) -> bool:
    """Whether the weights behind a tag were trained with QuickGELU, which they then always have to run with.

    open_clip only warns when the architecture's name and the weights disagree, and the predictions are silently worse.
    """
    published = open_clip.get_pretrained_cfg(name, tag)
    if not published:
        if "/" in tag or "\\" in tag or Path(tag).suffix:
            raise ModelLoadError(f"There is no checkpoint file {tag}. Check the path, or give a tag of {name} instead.")
        raise UnknownNameError(f"weights tag for {name}", tag, [*open_clip.list_pretrained_tags_by_model(name), RANDOM])
    trained_with = bool(published.get("quick_gelu", False))
    configured_with = bool((open_clip.get_model_config(name) or {}).get("quick_gelu", False))
    if configured_with and not trained_with:
        raise ModelLoadError(
            f"The weights {tag!r} were trained without QuickGELU, but {name} has it; "
            f"use {name.removesuffix('-quickgelu')}:{tag} instead."
        )
    if trained_with and not configured_with:
        logger.info("%s weights of %s run with QuickGELU, as they were trained", tag, name)
    return trained_with


@contextlib.contextmanager
def _unfetchable_explained(name: str, tag: str) -> Iterator[None]:
    """Say which file to bring, and what to type then, where the weights behind a tag cannot be fetched."""
    try:
        yield
    except ModelLoadError as error:
        published = open_clip.get_pretrained_cfg(name, tag)
        repository = str(published.get("hf_hub") or "").strip("/")
        where = f"the model repository {repository}" if repository else str(published.get("url"))
        quick = published.get("quick_gelu", False) and not name.endswith("-quickgelu")
        architecture = f"{name}-quickgelu" if quick else name  # a file cannot say what the tag says
        raise ModelLoadError(
            f"{error}\nIf the weights cannot be fetched from here: get open_clip_model.safetensors (or the .pt or .bin "
            f"file) from {where} on another machine, copy it to, for instance, weights/{architecture}.safetensors, and "
            f"name it instead of the tag: --model {architecture}:weights/{architecture}.safetensors"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """open_clip reports on the root logger and by warnings; what matters of it, we raise."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
