"""CLIP, SigLIP, SigLIP 2 and Chinese-CLIP of the transformers library behind the protocol of this one."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.framing import Framing, Interpolation
from tta_panda.models.adapter import ImageAdapter, square_side
from tta_panda.models.devices import Precision
from tta_panda.models.extras import require_transformers
from tta_panda.models.names import TRANSFORMERS_CONFIG, ModelName
from tta_panda.models.prompts import embeddings_replaced, first_embedding

_PILLOW_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}


class TextHabits(NamedTuple):
    """How the texts of a kind of model are laid out."""

    full_length: bool = False  # padded to the context's length, as in training
    masks_padding: bool = False  # attention is not causal, so padding has to be masked


KINDS = {
    "clip": TextHabits(),
    "siglip": TextHabits(full_length=True),
    "siglip2": TextHabits(full_length=True),
    "chinese_clip": TextHabits(masks_padding=True),
}
"""Supported values of `model_type` in a configuration."""


class TransformersModel(ImageAdapter):
    """A model of the transformers library behind the `VisionLanguageModel` protocol, with the prompt path.

    SigLIP's bias is the same for all classes and not used, as in `OpenClipModel`.
    """

    def __init__(self, network: Any, tokenizer: Any, processor: Any, name: str, precision: Precision = "fp32"):
        framing = _framing(network.config, processor, name)
        super().__init__(name, framing, processor.image_mean, processor.image_std, precision)
        self.network: Any = network
        self.tokenizer = tokenizer
        self.kind: str = network.config.model_type
        self.to(network.device).freeze()

    @property
    def image_encoder(self) -> nn.Module:
        return cast(nn.Module, self.network.vision_model)

    @property
    def text_encoder(self) -> nn.Module:
        return cast(nn.Module, self.network.text_model)

    @property
    def logit_scale(self) -> float:
        return float(cast(Tensor, self.network.logit_scale).exp())

    def encode_image(self, images: Tensor) -> Tensor:
        pixels = self.pixels(images)
        with self.autocast():
            inputs = self._patches(pixels) if self.kind == "siglip2" else {"pixel_values": pixels}
            return _embedding(self.network.get_image_features(**inputs))

    def _patches(self, pixels: Tensor) -> dict[str, Tensor]:
        """SigLIP 2 takes images of any shape as patches (B, P, p*p*3) with the shape of their grid."""
        side = self.network.config.vision_config.patch_size
        grid = self.image_size // side
        cells = pixels.unflatten(3, (grid, side)).unflatten(2, (grid, side))  # (B, 3, rows, p, columns, p)
        patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        batch = len(pixels)
        return {
            "pixel_values": patches,
            "pixel_attention_mask": torch.ones(batch, grid * grid, dtype=torch.long, device=self.device),
            "spatial_shapes": torch.full((batch, 2), grid, dtype=torch.long, device=self.device),
        }

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self._encode_tokens(self.tokenize(texts))

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        length = self.network.config.text_config.max_position_embeddings
        padding = "max_length" if KINDS[self.kind].full_length else "longest"
        batch = self.tokenizer(list(texts), padding=padding, truncation=True, max_length=length, return_tensors="pt")
        return cast(Tensor, batch["input_ids"].to(self.device))

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, first_embedding(self.text_encoder)(tokens))

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        with embeddings_replaced(first_embedding(self.text_encoder), embedded):
            return self._encode_tokens(tokens)

    def _encode_tokens(self, tokens: Tensor) -> Tensor:
        mask = tokens != self.tokenizer.pad_token_id if KINDS[self.kind].masks_padding else None
        with self.autocast():
            return _embedding(self.network.get_text_features(input_ids=tokens, attention_mask=mask))


def _embedding(output: Any) -> Tensor:
    """Older versions return the embeddings themselves, newer ones put them beside the hidden states."""
    return cast(Tensor, output if isinstance(output, Tensor) else output.pooler_output).float()


def _framing(config: Any, processor: Any, name: str) -> Framing:
    interpolation = _PILLOW_FILTERS.get(int(processor.resample), "bicubic")
    if config.model_type == "siglip2":
        # Made for any proportions; square images get all the patches that there are.
        patch = config.vision_config.patch_size
        return Framing(patch * int(processor.max_num_patches**0.5), interpolation=interpolation)
    size, crop = _sides(processor.size), _sides(getattr(processor, "crop_size", None))
    if getattr(processor, "do_center_crop", False) and crop:
        return Framing(square_side(crop, name), shorter=size[0], interpolation=interpolation)
    return Framing(square_side(size, name), squash=len(size) == 2, interpolation=interpolation)


def _sides(size: Any) -> list[int]:
    """Height and width, or the shorter side alone."""
    if size is None:
        return []
    sizes: Mapping[str, int] = dict(size)
    if sizes.get("shortest_edge"):
        return [sizes["shortest_edge"]]
    return [sizes["height"], sizes["width"]]


def load_transformers(name: ModelName, device: str = "cpu", precision: Precision = "fp32") -> TransformersModel:
    """A model by local directory or hub name: safetensors first, and never code from the repository."""
    require_transformers("Models of the transformers library")
    import transformers

    source = str(Path(name.source).expanduser()) if name.directory else name.source
    label = str(name)
    with _explained(label), _quiet():
        config = transformers.AutoConfig.from_pretrained(source)
        if config.model_type not in KINDS:
            raise ModelLoadError(
                f"{label} is a model of type {config.model_type!r}; supported are {', '.join(KINDS)}. Others can be "
                "wrapped in a few lines, see docs/models.md."
            )
        network, report = transformers.AutoModel.from_pretrained(
            source, weights_only=True, output_loading_info=True, dtype=torch.float32
        )
        _check_keys(report, label)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        processor = transformers.AutoImageProcessor.from_pretrained(source)
        return TransformersModel(network.to(device), tokenizer, processor, label, precision)


def _check_keys(report: Mapping[str, Any], label: str) -> None:
    """transformers makes up missing weights and drops unknown ones with a line in a log; here both are errors."""
    names = {"missing_keys": "missing", "unexpected_keys": "not known to it", "mismatched_keys": "of another shape"}
    found = {text: sorted(map(str, report.get(kind, ()))) for kind, text in names.items()}
    problems = "; ".join(f"{text}: {', '.join(keys[:12])}" for text, keys in found.items() if keys)
    if problems:
        raise ModelLoadError(f"The weights do not fit {label}. {problems}.")


@contextlib.contextmanager
def _explained(label: str) -> Iterator[None]:
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:  # transformers, the hub, safetensors and torch each have their own
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(
            f"Cannot load {label}: {first_line} A directory needs {TRANSFORMERS_CONFIG}, model.safetensors, the files "
            "of the tokenizer and preprocessor_config.json, as save_pretrained writes them."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Loading reports and bars are transformers' own; what matters of them is raised here."""
    from transformers.utils import logging as their_logging

    level, bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity(logging.CRITICAL)
    their_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        their_logging.set_verbosity(level)
        if bars:
            their_logging.enable_progress_bar()
