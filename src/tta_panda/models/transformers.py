"""Models of the transformers library: CLIP, SigLIP, SigLIP 2 and Chinese-CLIP."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError, missing_extra
from tta_panda.images import Framing, Interpolation
from tta_panda.models.base import ImageAdapter, embeddings_replaced, first_embedding, square_side
from tta_panda.models.checkpoints import (
    check_hub,
    check_keys,
    check_size,
    failures_explained,
    find_weights,
    read_state_dict,
)
from tta_panda.models.names import SOURCES, TRANSFORMERS_CONFIG, ModelName
from tta_panda.transfers import to_device

_PILLOW_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}


KINDS = ("clip", "siglip", "siglip2", "chinese_clip")
"""Supported values of `model_type` in a configuration."""

_PADDED_TO_CONTEXT = ("siglip", "siglip2")  # texts are padded to the full context length, as in training
_MASKED = ("chinese_clip",)  # attention is not causal, so padding must be masked


class TransformersModel(ImageAdapter):
    """A `VisionLanguageModel` and `PromptableModel` of a network of the transformers library.

    SigLIP's bias is not used, as in `OpenClipModel`.
    """

    def __init__(self, network: Any, tokenizer: Any = None, processor: Any = None, *, name: str):
        self.kind: str = network.config.model_type
        _check_kind(self.kind, name)
        tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        if tokenizer is None or processor is None:
            raise InvalidInputError(
                f"{name} needs its tokenizer and image processor: wrap_model(network, "
                "processor=transformers.AutoProcessor.from_pretrained(...)) with the name or directory of the network."
            )
        images = getattr(processor, "image_processor", processor)
        super().__init__(name, _framing(network.config, images, name), images.image_mean, images.image_std)
        self.network: Any = network
        self.tokenizer = tokenizer
        self.to(network.device).eval().requires_grad_(False)

    @property
    def image_encoder(self) -> nn.Module:
        return cast(nn.Module, self.network.vision_model)

    @property
    def text_encoder(self) -> nn.Module:
        return cast(nn.Module, self.network.text_model)

    @property
    def logit_scale(self) -> float:
        return float(cast(Tensor, self.network.logit_scale).exp())

    def encode_image(self, prepared: Tensor) -> Tensor:
        pixels = self.pixels(prepared)
        with self.autocast():
            inputs = self._patches(pixels) if self.kind == "siglip2" else {"pixel_values": pixels}
            return _embedding(self.network.get_image_features(**inputs))

    def _patches(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return inputs for SigLIP 2, which takes patches (B, P, p*p*3) and the shape of their grid."""
        side = self.network.config.vision_config.patch_size
        grid = self.image_size // side
        cells = pixels.unflatten(3, (grid, side)).unflatten(2, (grid, side))  # (B, 3, rows, p, columns, p)
        patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return {
            "pixel_values": patches,
            "pixel_attention_mask": patches.new_ones(patches.shape[:2], dtype=torch.long),
            "spatial_shapes": patches.new_full((len(patches), 2), grid, dtype=torch.long),
        }

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return self._encode_tokens(self.tokenize(texts))

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        length = self.network.config.text_config.max_position_embeddings
        padding = "max_length" if self.kind in _PADDED_TO_CONTEXT else "longest"
        batch = self.tokenizer(list(texts), padding=padding, truncation=True, max_length=length, return_tensors="pt")
        return to_device(cast(Tensor, batch["input_ids"]), self.device)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, first_embedding(self.text_encoder)(tokens))

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        with embeddings_replaced(first_embedding(self.text_encoder), embedded):
            return self._encode_tokens(tokens)

    def _encode_tokens(self, tokens: Tensor) -> Tensor:
        mask = tokens != self.tokenizer.pad_token_id if self.kind in _MASKED else None
        with self.autocast():
            return _embedding(self.network.get_text_features(input_ids=tokens, attention_mask=mask))


def _embedding(output: Any) -> Tensor:
    """Return the embeddings, which newer versions return together with the hidden states."""
    return cast(Tensor, output if isinstance(output, Tensor) else output.pooler_output).float()


def _framing(config: Any, processor: Any, name: str) -> Framing:
    interpolation = _PILLOW_FILTERS.get(int(processor.resample), "bicubic")
    if config.model_type == "siglip2":
        # The model supports any aspect ratio; square images use the maximum number of patches.
        patch = config.vision_config.patch_size
        return Framing(patch * int(processor.max_num_patches**0.5), interpolation=interpolation)
    size, crop = _sides(processor.size), _sides(getattr(processor, "crop_size", None))
    if getattr(processor, "do_center_crop", False) and crop:
        return Framing(square_side(crop, name), shorter=size[0], interpolation=interpolation)
    return Framing(square_side(size, name), squash=len(size) == 2, interpolation=interpolation)


def _sides(size: Any) -> list[int]:
    """Return height and width, or only the shorter side."""
    if size is None:
        return []
    sizes = dict(size)
    return [sizes["shortest_edge"]] if sizes.get("shortest_edge") else [sizes["height"], sizes["width"]]


def load_transformers(name: ModelName) -> TransformersModel:
    """Load a model from a local directory or the hub, preferring safetensors, without running its code."""
    require_transformers("Models of the transformers library")
    import transformers

    source, label = str(name.directory or name.source), str(name)
    advice = (
        f" A directory needs {TRANSFORMERS_CONFIG}, model.safetensors, the files of the tokenizer and "
        "preprocessor_config.json, as save_pretrained writes them."
    )
    # Explicit, because transformers would otherwise ask on the terminal whether to run code in the directory.
    safe = {"trust_remote_code": False}
    with failures_explained(f"Cannot load {label}", advice), transformers_silenced():
        if not name.directory:
            check_hub(source, TRANSFORMERS_CONFIG)
        config = transformers.AutoConfig.from_pretrained(source, **safe)
        _check_kind(config.model_type, label)
        how = {"output_loading_info": True, "dtype": torch.float32}
        if name.directory:  # read here, because transformers allocates what files and configuration ask for
            patterns = SOURCES[name.library].weights
            if not (files := find_weights(name.directory, patterns)):
                raise FileNotFoundError(f"it has none of {', '.join(patterns)}")
            state = {key: tensor for file in files for key, tensor in read_state_dict(file).items()}
            layers = [getattr(part, "num_hidden_layers", None) for part in (config.vision_config, config.text_config)]
            kind: Any = type(check_size(label, state, layers, lambda: transformers.AutoModel.from_config(config)))
            network, report = kind.from_pretrained(None, config=config, state_dict=state, **how)
        else:
            network, report = transformers.AutoModel.from_pretrained(source, weights_only=True, **how, **safe)
        # transformers only logs missing weights, which it initialises, and unexpected ones; here both are errors.
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
        missing, unknown, misshapen = (sorted(map(str, report.get(kind, ()))) for kind in kinds)
        check_keys(label, missing=missing, unknown=unknown, misshapen=misshapen)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **safe)
        processor = transformers.AutoImageProcessor.from_pretrained(source, **safe)
        return TransformersModel(network, tokenizer, processor, name=label)


def _check_kind(kind: str, label: str) -> None:
    if kind not in KINDS:
        raise ModelLoadError(
            f"{label} is a model of type {kind!r}; supported are {', '.join(KINDS)}. Others can be wrapped in a few "
            "lines, see docs/models.md."
        )


def require_transformers(what: str) -> None:
    """Raise `MissingExtraError` if the transformers library is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise missing_extra(f"{what} need", "transformers")


@contextlib.contextmanager
def remote_code_refused() -> Iterator[None]:
    """Make transformers reject a model's own code instead of asking on the terminal."""
    from transformers import dynamic_module_utils

    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


@contextlib.contextmanager
def transformers_silenced() -> Iterator[None]:
    """Suppress the loading reports and progress bars of transformers; actual problems raise errors."""
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
