"""Ordinary image classifiers, such as timm's: the rows of a linear head serve as class embeddings.

A head computes `W f + b` from features `f` that are not normalised, so nothing is normalised here either: without
Panda and adaptation the logits are the classifier's own. The offset is the mean of the negatives' features, and the
head, bias included, is applied to what is left: `W (f - beta n) + b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import open_clip
import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaError
from tta_panda.framing import Framing, Interpolation
from tta_panda.models.adapter import ImageAdapter, square_side
from tta_panda.models.base import Classifier
from tta_panda.models.checkpoints import load_weights, read_state_dict
from tta_panda.models.devices import Precision
from tta_panda.models.names import RANDOM, ModelName


class LinearHeadModel(ImageAdapter):
    """A network with a linear head behind the `ImageModel` protocol.

    Args:
        network: as timm makes them: `forward_features`, `forward_head(..., pre_logits=True)` and `get_classifier()`.
        name: what the model is called in messages and records.
        framing: how pictures become the square that the network sees.
        mean: of its training images, per channel.
        std: the same, standard deviation.
        precision: what the network computes in.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        framing: Framing,
        mean: Sequence[float],
        std: Sequence[float],
        precision: Precision = "fp32",
    ):
        super().__init__(name, framing, mean, std, precision)
        self.network = network
        self.to(next(network.parameters()).device).freeze()
        self._check_head()

    @property
    def image_encoder(self) -> nn.Module:
        return self.network

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.network.get_classifier())  # type: ignore[operator]

    def encode_image(self, images: Tensor) -> Tensor:
        with self.autocast():
            return self._features(self.pixels(images)).float()

    def _features(self, pixels: Tensor) -> Tensor:
        network: Any = self.network
        return cast(Tensor, network.forward_head(network.forward_features(pixels), pre_logits=True))

    @torch.no_grad()
    def _check_head(self) -> None:
        """That the head is one linear layer on the features, and nothing comes after it."""
        pixels = torch.zeros(1, 3, self.image_size, self.image_size, device=self.device)
        if isinstance(self.head, nn.Linear):
            features = self._features(pixels)
            fits = features.shape[-1] == self.head.in_features
            if fits and torch.allclose(self.head(features), self.network(pixels), rtol=1e-3, atol=1e-3):
                return
        raise ModelLoadError(
            f"{self.name} does not end in one linear layer (found: {type(self.head).__name__}), whose rows could serve "
            "as class embeddings."
        )


class LinearClassifier(Classifier):
    """The head of a network as a classifier for some classes.

    As many names as the head has rows are taken to be in the order of the rows. Fewer are looked up by name, in heads
    of 1,000 rows, where all of them are ImageNet's classes as CLIP spells them.

    Args:
        model: the network.
        class_names: of the data.
        rows: the row of each class, where neither is right.
    """

    model: LinearHeadModel
    logit_scale = 1.0

    def __init__(self, model: LinearHeadModel, class_names: Sequence[str], rows: Sequence[int] | None = None):
        super().__init__(model, class_names)
        head = model.head
        chosen = self._rows(head.out_features) if rows is None else list(rows)
        if len(chosen) != len(self.class_names) or not all(0 <= row < head.out_features for row in chosen):
            raise InvalidInputError(
                f"rows must name one of the {head.out_features} rows of the head for each of the "
                f"{len(self.class_names)} classes, got {chosen[:10]}."
            )
        with torch.inference_mode(False), torch.no_grad():
            self.text_features = head.weight[chosen].float().clone()  # (K, D)
            self.bias = 0.0 if head.bias is None else head.bias[chosen].float().clone()  # (K,)

    def embed(self, raw: Tensor) -> Tensor:
        return raw.float()

    def _rows(self, count: int) -> list[int]:
        if len(self.class_names) == count:
            return list(range(count))
        imagenet = open_clip.IMAGENET_CLASSNAMES
        if count == len(imagenet) and all(imagenet.count(name) == 1 for name in self.class_names):
            return [imagenet.index(name) for name in self.class_names]
        raise InvalidInputError(
            f"The head of {self.model.name} has {count} rows, but the data have {len(self.class_names)} classes "
            f"({', '.join(self.class_names[:5])}, ...). Use a model that was trained for these classes, data with the "
            "classes of the model, or say which rows they are: LinearClassifier(model, class_names, rows=[...])."
        )


def load_timm(name: ModelName, device: str = "cpu", precision: Precision = "fp32") -> LinearHeadModel:
    """A timm classifier by name: published weights, a checkpoint file, or random ones."""
    import timm

    label = str(name)
    if not timm.is_model(name.source.partition(".")[0]) and not name.source.startswith("hf-hub:"):
        near = timm.list_models(f"*{name.source[:8]}*")[:5]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise ModelLoadError(
            f"timm has no model {name.source!r}.{hint} They are listed by timm.list_models('*pattern*')."
        )
    state = _state(name)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # random weights are the same ones every time
            network = timm.create_model(name.source, pretrained=not name.weights)
        if state is not None:
            network.reset_classifier(_rows_of(network, state, label))
            load_weights(network, state, label)
        data = timm.data.resolve_model_data_config(network)
        framing = _framing(data, label)
        return LinearHeadModel(network.to(device), label, framing, data["mean"], data["std"], precision)
    except TtaPandaError:
        raise
    except Exception as error:  # timm, torch and the hub each have their own
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelLoadError(
            f"Cannot load {label}: {first_line} Where published weights cannot be fetched, name a file: "
            f"timm:{name.source}:weights.safetensors, or {RANDOM} ones: timm:{name.source}:{RANDOM}"
        ) from error


def _state(name: ModelName) -> dict[str, Tensor] | None:
    if name.weights in ("", RANDOM):
        return None
    file = Path(name.weights).expanduser()
    if not file.is_file():
        raise ModelLoadError(f"There is no checkpoint file {name.weights}.")
    return read_state_dict(file)


def _rows_of(network: Any, state: dict[str, Tensor], label: str) -> int:
    """How many classes a checkpoint was trained for."""
    key = next((key for key, module in network.named_modules() if module is network.get_classifier()), "")
    if f"{key}.weight" not in state:
        raise ModelLoadError(f"The weights do not fit {label}. missing: {key}.weight, the head.")
    return len(state[f"{key}.weight"])


def _framing(data: dict[str, Any], label: str) -> Framing:
    size = square_side(data["input_size"][1:], label)
    interpolation: Interpolation = "bilinear" if data["interpolation"] == "bilinear" else "bicubic"
    if data.get("crop_mode") == "squash":
        return Framing(size, squash=True, interpolation=interpolation)
    return Framing(size, shorter=int(size / data["crop_pct"]), interpolation=interpolation)
