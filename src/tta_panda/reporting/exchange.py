"""Records in the formats of others: CLIP_benchmark's result files and robustbench's `model_info`."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import StoreError
from tta_panda.evaluation.config import MethodConfig, StreamConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.files import read_regular, save_file
from tta_panda.models.names import parse_model_name
from tta_panda.reporting.cells import ACCURACY
from tta_panda.reporting.comparison import Comparison, compare

_CLIP_BENCHMARK_NAMES = {"imagenet": "imagenet1k", "imagenet-sketch": "imagenet_sketch", "imagenet-v2": "imagenetv2"}
_ROBUSTBENCH_NAMES = {"cifar10-c": "cifar10", "cifar100-c": "cifar100", "imagenet-c": "imagenet"}


class ClipBenchmarkMetrics(BaseModel):
    """The metrics of a classification; files may contain others."""

    acc1: float = Field(ge=0, le=1)
    acc5: float | None = None
    """None for fewer than five classes; CLIP_benchmark writes NaN."""
    mean_per_class_recall: float | None = None

    @field_validator("acc5", "mean_per_class_recall")
    @classmethod
    def _no_nan(cls, value: float | None) -> float | None:
        return None if value != value else value


class ClipBenchmarkResult(BaseModel):
    """The content of a result file of CLIP_benchmark."""

    model_config = ConfigDict(extra="allow")

    dataset: str
    model: str
    pretrained: str
    task: Literal["zeroshot_classification"]
    metrics: ClipBenchmarkMetrics
    language: str = "en"


def read_clip_benchmark(path: Path) -> ClipBenchmarkResult:
    """Read a result file of CLIP_benchmark; raise `StoreError` if it is none of zero-shot classification."""
    try:
        return ClipBenchmarkResult.model_validate_json(read_regular(path))
    except OSError as error:
        raise StoreError(f"Cannot read {path} ({error.strerror or error}).") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise StoreError(
            f"{path} is not a result of CLIP_benchmark's zeroshot_classification: {where}: {first['msg']}."
        ) from error


def to_clip_benchmark(record: RunRecord) -> dict[str, ClipBenchmarkResult]:
    """Convert a record to results by corruption.

    A method that adapts is part of the name of the model, so that it is not mistaken for the model alone.
    """
    stream, method = record.config.stream, record.config.method
    parsed = parse_model_name(stream.model)
    model, tag = (parsed.source, parsed.weights) if parsed.library == "open_clip" else (stream.model, "")
    found = {}
    for corruption, measured in record.by_corruption.items():
        data = _CLIP_BENCHMARK_NAMES.get(stream.data, stream.data)
        dataset = data.removesuffix("-c") if corruption == CLEAN else f"{data}/{corruption}/{stream.severity}"
        metrics = {
            "acc1": measured.accuracy,
            "acc5": measured.top5_accuracy,
            "mean_per_class_recall": measured.recall_mean,
        }
        found[corruption] = ClipBenchmarkResult(
            dataset=dataset,
            model=model if method.name == "clip" else f"{model} ({method.name})",
            pretrained=tag or stream.weights or "",
            task="zeroshot_classification",
            metrics=ClipBenchmarkMetrics(**metrics),
            samples=measured.samples,
            seed=stream.seed,
            protocol=stream.title(),
            options=dict(method.options),
            record=record.config.key,
        )
    return found


def to_model_info(severities: Mapping[int, Comparison], method: MethodConfig) -> dict[str, Any] | None:
    """Convert the records of a method to the `model_info` of robustbench, as its corruption benchmarks have it.

    Args:
        severities: comparisons that differ in severity only.
        method: the method.

    Returns:
        None unless the method was run on clean images and on all fifteen corruptions. Link, authors and venue are left
        for the user to fill in.
    """
    first = next(iter(severities.values()))
    clean = first.cell(method, ACCURACY, CLEAN).value
    means = [each.mean(method, ACCURACY, CORRUPTIONS).value for each in severities.values()]
    corrupted = [mean for mean in means if mean is not None]
    if clean is None or len(corrupted) < len(means):
        return None
    passes = [
        (record.passes["images"] + record.passes["images_with_gradient"]) / first.setting.batch_size
        for record in first.records(method, CORRUPTIONS[0])
    ]
    levels = ", ".join(map(str, severities))
    return {
        "link": "",
        "name": f"{first.label(method)}: test-time adaptation of {first.setting.model}",
        "authors": "",
        "additional_data": True,  # the training data of CLIP
        "number_forward_passes": max(1, round(statistics.fmean(passes))),
        "dataset": _ROBUSTBENCH_NAMES[first.setting.data],
        "venue": "",
        "architecture": first.setting.model,
        "eps": None,
        "clean_acc": f"{clean:.2f}",
        "reported": "",
        "corruptions_acc": f"{statistics.fmean(corrupted):.2f}",
        "footnote": f"Adapts to the test images: {first.setting.title()}. Mean of 15 corruptions at severity {levels}.",
    }


def write_exchange(records: Iterable[RunRecord], folder: Path) -> list[Path]:
    """Write records as `clip_benchmark/*.json` and `model_info/<data set>/corruptions/*.json`; return the paths.

    The latter needs clean images and the fifteen corruptions of a data set that robustbench has.
    """
    records = list(records)
    written = []
    for record in records:
        for corruption, result in to_clip_benchmark(record).items():
            path = folder / "clip_benchmark" / f"{_file_stem(f'{record.config.key}-{corruption}')}.json"
            # A missing metric is omitted: CLIP_benchmark would read null as a number.
            written.append(save_file(path, result.model_dump_json(exclude_none=True)))
    settings: dict[StreamConfig, dict[int, Comparison]] = {}
    for comparison in compare(each for each in records if each.config.stream.data in _ROBUSTBENCH_NAMES):
        setting = comparison.setting
        settings.setdefault(replace(setting, severity=0), {})[setting.severity] = comparison
    for number, severities in enumerate(settings.values(), 1):
        first = next(iter(severities.values()))
        for method in first.methods:
            if info := to_model_info(severities, method):
                stem = _file_stem(f"{number}_{first.setting.model}_{first.label(method)}")
                path = folder / "model_info" / info["dataset"] / "corruptions" / f"{stem}.json"
                written.append(save_file(path, json.dumps(info, indent=2)))
    return written


def _file_stem(text: str) -> str:
    """Return a file name for a text from a record, which could contain slashes."""
    return re.sub(r"[^\w.+=-]+", "_", text)[:100]
