"""The result of a run as a typed record: the only thing that tables and figures are made from."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from tta_panda import __version__
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.metrics import StreamMetrics
from tta_panda.executors import as_worker_error
from tta_panda.files import to_dataframe

if TYPE_CHECKING:
    import pandas

Encoded = Literal["images", "images_with_gradient", "texts", "texts_with_gradient"]
"""Kinds of encoder passes; those with a gradient cost about three times as much."""

SCHEMA: Literal[2] = 2
"""Number of the format of records. Raise it with every change of a field: other numbers are refused."""


class Measurement(BaseModel):
    """Metrics of the predictions for some images: those of a stream, of a domain or of a tenth of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int
    accuracy: float = Field(ge=0, le=1)
    accuracy_stderr: float
    bias: float = Field(ge=0, le=2 + 1e-9)
    """Prediction bias: L1 distance between the mean prediction and the label frequencies."""
    ece: float = Field(ge=0, le=1 + 1e-9)
    """Expected calibration error of the most probable class, 15 bins of equal width."""
    nll: float
    """Mean negative log-likelihood of the label, in nats."""
    nll_stderr: float
    recall_sd: float
    """Class-wise recall: standard deviation over the classes that occur; with the smallest and the largest."""
    recall_min: float
    recall_max: float
    predicted_counts: list[int] = []
    label_counts: list[int] = []
    mean_probabilities: list[float] = []
    """By class; tenths have none of these three."""
    mean_beta: float | None = None
    """Strength of the subtracted offset, mean over the images. None without one."""
    mean_gamma: float | None = None
    """The same of the level of absent classes."""

    @classmethod
    def of(cls, metrics: StreamMetrics, *, by_class: bool = True) -> Measurement:
        recalls = metrics.recalls
        measured = {
            name: getattr(metrics, name)
            for name in ("samples", "accuracy", "accuracy_stderr", "bias", "ece", "nll", "nll_stderr")
        }
        measured |= {"recall_sd": recalls.std(), "recall_min": recalls.min(), "recall_max": recalls.max()}
        measured |= {"mean_beta": metrics.mean_strength("beta"), "mean_gamma": metrics.mean_strength("gamma")}
        if by_class:
            lists = (metrics.predicted, metrics.labels, metrics.mean_probabilities)
            measured |= zip(_BY_CLASS, (each.tolist() for each in lists), strict=True)
        return Measurement(**measured)


_BY_CLASS = ("predicted_counts", "label_counts", "mean_probabilities")


class EvaluationResult(Measurement):
    """The result of one method on one stream."""

    class_names: list[str]
    domains: dict[str, Measurement] = {}
    """Each domain by itself, where the stream joins several."""
    tenths: list[Measurement]
    """Consecutive parts of equal length, of a stream whose length is known: ten for each domain and severity that it
    joins, fewer where it has fewer images."""
    restarts: int = 0
    """How often the method started over, because its training diverged."""
    skipped_steps: int = 0
    """Updates that were skipped, because the loss or a gradient was NaN or infinite."""
    passes: dict[Encoded, float] = Field(min_length=len(get_args(Encoded)))
    """Images and texts encoded for a batch, on average: what the method costs, whatever the machine."""
    seconds: float
    """Encoder passes (shared ones in full, and those from a cache as long as they took when they were made) and the
    method's own work."""
    images_per_second: float
    explanation: str = ""
    """What debiases the method says of the stream at its end: the bias, and what was subtracted or why nothing was."""
    peak_memory: int | None = None
    """Bytes: of tensors on a GPU, else of the process, including what it shared with other runs."""

    def rows(self) -> list[dict[str, Any]]:
        """The result as rows of a table, one for each domain, without what it has for each class and tenth."""
        return [{"domain": name, **self._numbers(part)} for name, part in (self.domains or {"": self}).items()]

    def to_dataframe(self) -> pandas.DataFrame:
        """`rows` as a pandas DataFrame: `pip install "tta-panda[pandas]"`."""
        return to_dataframe(self.rows())

    def _numbers(self, measured: Measurement) -> dict[str, Any]:
        """The numbers of a domain, and those that are known of the whole stream only."""
        whole = self.model_dump(
            exclude={"config", "domains", "passes", "tenths", "class_names", "explanation", *_BY_CLASS}
        )
        own = measured.model_dump(include=Measurement.model_fields.keys() - _BY_CLASS)
        return {**whole, **own, **{str(kind): number for kind, number in self.passes.items()}}

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({self.samples} images: accuracy {self.accuracy:.1%} ± {self.accuracy_stderr:.1%}, "
            f"bias {self.bias:.3f}, ECE {self.ece:.3f}, NLL {self.nll:.3f})"
        )

    __repr__ = __str__


class RunRecord(EvaluationResult):
    """The result of a run, with everything that decided it."""

    schema_number: Literal[2]
    version: str = __version__
    """Of the package that wrote it."""
    config: RunConfig
    weights_hash: str
    """Of the weights as they were loaded, whatever their name."""
    environment: dict[str, str]

    @property
    def by_corruption(self) -> Mapping[str, Measurement]:
        """The metrics of each corruption of the stream."""
        return self.domains or {self.config.stream.corruption: self}

    def rows(self) -> list[dict[str, Any]]:
        """The record as rows of a table, one for each corruption, without what it has for each class and tenth."""
        return [
            {
                **asdict(self.config.stream),
                "corruption": corruption,
                "method": self.config.method.name,
                "options": dict(self.config.method.options),
                **self._numbers(measured),
                "record": self.config.key,
            }
            for corruption, measured in self.by_corruption.items()
        ]


class FailedRun(BaseModel):
    """A run without a record, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_number: Literal[2] = SCHEMA
    config: RunConfig
    status: Literal["unavailable", "unreadable", "diverged", "failed"]
    """The model cannot serve the method; the data cannot be read; predictions became NaN or infinite; or any other
    error, with its traceback."""
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, config: RunConfig, status: str, error: Exception) -> FailedRun:
        error = as_worker_error(error)
        traceback = getattr(error, "traceback", "")
        return cls.model_validate({"config": config, "status": status, "message": str(error), "traceback": traceback})

    @property
    def subject(self) -> str:
        """What the message is about, in a few words: a method, data, or a run."""
        stream = self.config.stream
        subjects = {"unavailable": self.config.method.name, "unreadable": f"{stream.data}, {stream.domain}"}
        return subjects.get(self.status, str(self.config))


_PACKAGES = ("torch", "open_clip_torch", "timm", "transformers", "numpy", "opencv-python-headless", "pillow")


def describe_environment(device: str) -> dict[str, str]:
    """Versions that the numbers may depend on."""
    versions = {package: version for package in _PACKAGES if (version := installed_version(package))}
    return {"python": platform.python_version(), "platform": platform.machine(), "device": device, **versions}


@functools.cache
def installed_version(package: str) -> str | None:
    """The version of a package; read once, because it takes milliseconds and many records may be written a second."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
