"""What came out of a run, as a typed record: the only thing that tables and figures are made from."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tta_panda import __version__
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.metrics import StreamMetrics
from tta_panda.executors import as_worker_error
from tta_panda.methods.base import EncoderPasses


class PassesPerBatch(BaseModel):
    """What a method sent through the encoders for a batch, on average; its cost, whatever the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: float
    images_with_gradient: float
    texts: float
    texts_with_gradient: float

    @classmethod
    def of(cls, passes: EncoderPasses) -> PassesPerBatch:
        return cls(**{name: getattr(passes, name) / max(1, passes.batches) for name in cls.model_fields})


class Tenth(BaseModel):
    """What came out for a part of a stream: how predictions change while a method adapts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int
    accuracy: float
    bias: float
    mean_beta: float | None = None

    @classmethod
    def of(cls, metrics: StreamMetrics) -> Tenth:
        return cls(**{name: getattr(metrics, name) for name in cls.model_fields})


class Measurement(BaseModel):
    """What was measured of the predictions for some images: those of a stream, or of a domain in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int
    accuracy: float = Field(ge=0, le=1)
    accuracy_stderr: float
    bias: float = Field(ge=0, le=2 + 1e-9)
    """Prediction bias: L1 distance between the mean prediction and the label frequencies."""
    ece: float = Field(ge=0, le=1 + 1e-9)
    """Expected calibration error of the most likely class, 15 bins of equal width."""
    nll: float
    """Mean negative log-likelihood of the label, in nats."""
    nll_stderr: float
    recall_sd: float
    """Class-wise recall: standard deviation over the classes that occur; with the smallest and the largest."""
    recall_min: float
    recall_max: float
    predicted_counts: list[int]
    label_counts: list[int]
    mean_probabilities: list[float]
    mean_beta: float | None = None
    """Over the images: how much of the offset was subtracted, or judged with. None without one."""
    mean_gamma: float | None = None
    """The same of the level of absent classes."""

    @classmethod
    def of(cls, metrics: StreamMetrics) -> Measurement:
        recalls = metrics.recalls
        return Measurement(
            samples=metrics.samples,
            accuracy=metrics.accuracy,
            accuracy_stderr=metrics.accuracy_stderr,
            bias=metrics.bias,
            ece=metrics.ece,
            nll=metrics.nll,
            nll_stderr=metrics.nll_stderr,
            recall_sd=float(recalls.std()),
            recall_min=float(recalls.min()),
            recall_max=float(recalls.max()),
            predicted_counts=metrics.predicted.tolist(),
            label_counts=metrics.labels.tolist(),
            mean_probabilities=metrics.mean_probabilities.tolist(),
            mean_beta=metrics.mean_beta,
            mean_gamma=metrics.mean_gamma,
        )


class EvaluationResult(Measurement):
    """What was measured of one method on one stream."""

    class_names: list[str]
    domains: dict[str, Measurement] = {}
    """Each domain by itself, where the stream joins several."""
    tenths: list[Tenth]
    """Consecutive parts of equal length, of a stream whose length is known: ten for each domain and severity that it
    joins, fewer where it has fewer images."""
    restarts: int = 0
    """How often weights that had gone astray were given up for earlier ones."""
    skipped_steps: int = 0
    """Updates that were left out, because the loss or a gradient was NaN or infinite."""
    passes: PassesPerBatch
    seconds: float
    """Encoder passes (shared ones in full, and those from a cache as long as they took when they were made) and the
    method's own work."""
    images_per_second: float
    peak_memory: int | None = None
    """Bytes: of tensors on a GPU, else of the process, what it shared with other runs included."""

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({self.samples} images: accuracy {self.accuracy:.1%} ± {self.accuracy_stderr:.1%}, "
            f"bias {self.bias:.3f}, ECE {self.ece:.3f}, NLL {self.nll:.3f})"
        )

    __repr__ = __str__


class RunRecord(EvaluationResult):
    """The outcome of a run, with what decided it."""

    version: str = __version__
    """Of the package that wrote it."""
    config: RunConfig
    weights_hash: str
    """Of the weights as they were loaded, whatever names them."""
    environment: dict[str, str]

    @property
    def by_corruption(self) -> Mapping[str, Measurement]:
        """What was measured on each corruption of the stream."""
        return self.domains or {self.config.stream.corruption: self}

    def rows(self) -> list[dict[str, Any]]:
        """The record as rows of a table, one for each corruption, without what it has for each class and tenth."""
        whole = self.model_dump(exclude={"config", "domains", "passes", "tenths", "class_names", *_PER_CLASS})
        return [
            {
                **asdict(self.config.stream),
                "corruption": corruption,
                "method": self.config.method.name,
                "options": dict(self.config.method.options),
                **{**whole, **measured.model_dump(include=set(Measurement.model_fields) - _PER_CLASS)},
                **self.passes.model_dump(),
                "record": self.config.key,
            }
            for corruption, measured in self.by_corruption.items()
        ]


class FailedRun(BaseModel):
    """A run that gave no record, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: RunConfig
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, config: RunConfig, error: Exception) -> FailedRun:
        error = as_worker_error(error)
        return cls(config=config, message=str(error), traceback=getattr(error, "traceback", ""))


_PER_CLASS = {"predicted_counts", "label_counts", "mean_probabilities"}


_PACKAGES = ("torch", "open_clip_torch", "timm", "transformers", "numpy", "opencv-python-headless", "pillow")


def describe_environment(device: str) -> dict[str, str]:
    """Versions that the numbers may depend on."""
    versions = {package: version for package in _PACKAGES if (version := installed_version(package))}
    return {"python": platform.python_version(), "platform": platform.machine(), "device": device, **versions}


@functools.cache
def installed_version(package: str) -> str | None:
    """Read once: it takes milliseconds, and many records may be written in a second."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
