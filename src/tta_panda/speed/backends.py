"""How fast images are encoded without gradients: by torch in several ways, and by other backends."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.models import ImageModel, load_model
from tta_panda.models.backends import OpenVinoEncoder
from tta_panda.speed.measure import Advance, Report, Row, Settings, take_turns

_ROUNDS = 7

Encode = Callable[[Tensor], Tensor]


def _channels_last(model: ImageModel) -> Encode:
    module = copy.deepcopy(cast(nn.Module, model)).to(memory_format=torch.channels_last)
    return lambda images: cast(ImageModel, module).encode_image(images.to(memory_format=torch.channels_last))


def _bf16(model: ImageModel) -> Encode:
    twin = copy.deepcopy(model)
    twin.precision = "bf16"  # type: ignore[attr-defined]
    return twin.encode_image


_WAYS: dict[str, Callable[[ImageModel], Encode]] = {
    "torch": lambda model: model.encode_image,
    "torch, channels last": _channels_last,
    "torch, compiled": lambda model: torch.compile(model.encode_image),
    "torch, bf16": _bf16,
    "openvino": OpenVinoEncoder,
}


@torch.no_grad()
def measure_backends(settings: Settings, advance: Advance) -> Report:
    """A row for each way: milliseconds per image, how much faster than torch, and the least cosine with its results."""
    model = load_model(settings.model, settings.device)
    side = model.image_size
    images = torch.rand(settings.batch_size, 3, side, side, generator=torch.Generator().manual_seed(0)).to(model.device)
    ways = {way: partial(make(model), images) for way, make in _WAYS.items() if _is_available(way, model.device)}
    timings = take_turns(ways, settings.rounds or _ROUNDS, advance, settings.device)
    expected = F.normalize(ways["torch"](), dim=-1)
    rows: list[Row] = []
    for way, encode in ways.items():
        times_as_fast = timings.ratio("torch", way)
        rows.append(
            {
                "encoder": way,
                "ms": 1000 * timings.of(way).median / len(images),
                "times as fast": times_as_fast.median,
                "±": times_as_fast.margin,
                "by processor time": timings.processor_ratio("torch", way).median,
                "least cosine": float((F.normalize(encode(), dim=-1) * expected).sum(dim=-1).min()),
            }
        )
    notes = [f"{model.name}, {len(images)} images of {side} px, {torch.get_num_threads()} thread(s)."]
    if importlib.util.find_spec("openvino") is None:
        notes.append('Not installed: openvino. Type: pip install "tta-panda[openvino]"')
    return Report(rows, notes)


def _is_available(way: str, device: torch.device) -> bool:
    return way.startswith("torch") or (device.type == "cpu" and importlib.util.find_spec(way) is not None)
