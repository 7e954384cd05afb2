"""How much memory one batch takes, method by method: on a processor that of the process, on a GPU that of tensors."""

from __future__ import annotations

import gc
from typing import Any

import torch

from tta_panda.evaluation.memory import PeakMemory
from tta_panda.methods import METHODS, create_method
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models import Classifier, load_model
from tta_panda.speed.measure import Advance, Report, Row, Settings
from tta_panda.speed.workload import draw_pictures, make_classes

_PARTS = 4  # a batch is encoded in so many pieces where activations are to take less


def measure_memory(settings: Settings, advance: Advance) -> Report:
    """A row for each method: the peak above what the model takes, without and with Panda, and with small pieces."""
    model = load_model(settings.model, settings.device)
    images = draw_pictures(settings.batch_size, model.image_size)
    classifier = make_classes(model, settings.classes)
    micro_batch = -(-settings.batch_size // _PARTS)
    names = settings.methods or tuple(name for name in METHODS if issubclass(METHODS.get(name), TrainedMethod))
    rows: list[Row] = []
    for name in names:
        row: Row = {"method": name, "MiB": _peak(name, classifier, images)}
        row["MiB, with Panda"] = _peak(f"{name}+panda", classifier, images)
        if issubclass(METHODS.get(name), TrainedMethod):
            row[f"MiB, micro_batch={micro_batch}"] = _peak(name, classifier, images, micro_batch=micro_batch)
        rows.append(row)
        advance(1 / len(names))
    return Report(rows, [f"{model.name}, one batch of {len(images)} images, {settings.classes} classes."])


def _peak(name: str, classifier: Classifier, images: torch.Tensor, **options: Any) -> float | None:
    """The most memory of one batch in MiB, less what was in use before."""
    method = create_method(name, classifier, **options)
    method.adapt(images[:2])  # what only the first batch takes
    gc.collect()
    memory = PeakMemory(classifier.model.device)
    before = memory.read()
    method.adapt(images)
    after = memory.read()
    return None if before is None or after is None else (after - before) / 2**20
