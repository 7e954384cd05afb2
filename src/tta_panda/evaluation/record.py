"""Typed records of results, from which all tables and figures are made."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
"""Schema number of records. Increase it whenever a field changes: records with other numbers are refused."""


Number = Annotated[int, Field(ge=0, lt=2**63)]


class Measurement(BaseModel):
    """Metrics of the predictions for a stream, or for a domain or a tenth of one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    samples: Number
    """Images of the classes. All metrics are over these; unknown images only count for the last ones."""
    accuracy: float = Field(ge=0, le=1)
    accuracy_stderr: float
    top5_accuracy: float | None = None
    """None for fewer than five classes."""
    bias: float = Field(ge=0, le=2 + 1e-9)
    """Prediction bias: L1 distance between the mean prediction and the label frequencies."""
    ece: float = Field(ge=0, le=1 + 1e-9)
    """Expected calibration error of the most probable class, 15 bins of equal width."""
    nll: float
    """Mean negative log-likelihood of the label, in nats."""
    nll_stderr: float
    recall_sd: float
    """Standard deviation of recall over the classes that occur; next come minimum, maximum and mean."""
    recall_min: float
    recall_max: float
    recall_mean: float | None = None
    predicted_counts: list[Number] = []
    label_counts: list[Number] = []
    mean_probabilities: list[float] = []
    """By class, as the previous two; empty for tenths."""
    mean_beta: float | None = None
    """Mean strength of the subtracted offset over the images; None without an offset."""
    mean_gamma: float | None = None
    """The same for the level of absent classes."""
    unknown: Number = 0
    """Images of none of the classes, whose label is -1."""
    auroc: float | None = Field(None, ge=0, le=1)
    """How well energies, the log-sum-exp of logits, tell known from unknown images: area under the ROC curve. It means
    nothing for methods whose logits are log-probabilities."""
    fpr95: float | None = Field(None, ge=0, le=1)
    """Share of unknown images above the energy that 95 % of the known ones have."""
    known_energies: list[float] = []
    unknown_energies: list[float] = []
    known_p_values: list[float] = []
    unknown_p_values: list[float] = []
    """Percentiles 0 to 100, as the previous three; empty for tenths, and p-values also without negatives."""

    @classmethod
    def of(cls, metrics: StreamMetrics, *, with_lists: bool = True) -> Measurement:
        recalls = metrics.recalls
        measured = {
            name: getattr(metrics, name)
            for name in ("samples", "accuracy", "accuracy_stderr", "top5_accuracy", "bias", "ece", "nll", "nll_stderr")
        }
        measured |= {"recall_sd": recalls.std(), "recall_min": recalls.min()}
        measured |= {"recall_max": recalls.max(), "recall_mean": recalls.mean()}
        measured |= {"mean_beta": metrics.mean_strength("beta"), "mean_gamma": metrics.mean_strength("gamma")}
        measured["unknown"] = metrics.unknown
        if with_lists:
            measured |= {"predicted_counts": metrics.predicted.tolist(), "label_counts": metrics.labels.tolist()}
            measured |= {"mean_probabilities": metrics.mean_probabilities.tolist(), **metrics.detected()}
        return Measurement(**measured)


LISTS = (
    "predicted_counts", "label_counts", "mean_probabilities",
    "known_energies", "unknown_energies", "known_p_values", "unknown_p_values",
)  # fmt: skip
"""Fields of a measurement that are lists."""


class EvaluationResult(Measurement):
    """The result of one method on one stream."""

    class_names: list[str]
    domains: dict[str, Measurement] = {}
    """Metrics of each domain, if the stream joins several."""
    tenths: list[Measurement]
    """Metrics of consecutive parts of equal length, if the length of the stream is known: ten for each domain and
    severity that it joins, or fewer if there are fewer images."""
    restarts: int = 0
    """Number of times that the method started over because its training diverged."""
    skipped_steps: int = 0
    """Number of updates that were skipped because the loss or a gradient was NaN or infinite."""
    passes: dict[Encoded, float] = Field(min_length=len(get_args(Encoded)))
    """Mean numbers of images and texts encoded per batch: the cost of the method, independent of the machine."""
    seconds: float
    """Time of the encoder passes and of the method's own work. Shared passes count in full, and cached ones with the
    time that it took to compute them."""
    images_per_second: float
    explanation: str = ""
    """Findings of the debiaser at the end of the stream: the bias, and what was subtracted or why nothing was."""
    peak_memory: int | None = None
    """In bytes, including memory shared with other runs: of tensors on a GPU, otherwise of the process."""

    def rows(self) -> list[dict[str, Any]]:
        """The result as rows of a table, one per domain, without values by class and by tenth."""
        return [{"domain": name, **self._numbers(part)} for name, part in (self.domains or {"": self}).items()]

    def to_dataframe(self) -> pandas.DataFrame:
        """`rows` as a pandas DataFrame: `pip install "tta-panda[pandas]"`."""
        return to_dataframe(self.rows())

    def _numbers(self, measured: Measurement) -> dict[str, Any]:
        """The metrics of a domain, and the values that are known only for the whole stream."""
        whole = self.model_dump(exclude={"config", "domains", "passes", "tenths", "class_names", "explanation", *LISTS})
        own = measured.model_dump(include=Measurement.model_fields.keys() - LISTS)
        return {**whole, **own, **{str(kind): number for kind, number in self.passes.items()}}

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({self.samples} images: accuracy {self.accuracy:.1%} ± {self.accuracy_stderr:.1%}, "
            f"bias {self.bias:.3f}, ECE {self.ece:.3f}, NLL {self.nll:.3f})"
        )

    __repr__ = __str__


class RunRecord(EvaluationResult):
    """The result of a run, with its complete configuration."""

    schema_number: Literal[2]
    version: str = __version__
    """Version of the package that wrote the record."""
    config: RunConfig
    weights_hash: str
    """Hash of the weights that were loaded."""
    environment: dict[str, str]

    @model_validator(mode="after")
    def _has_its_domains(self) -> Self:
        stream = self.config.stream
        if set(self.domains) != set(stream.corruptions if stream.parsed_order.joins_domains else ()):
            raise ValueError(f"the domains are {list(self.domains)}, and not those of the stream")
        return self

    @property
    def by_corruption(self) -> Mapping[str, Measurement]:
        """The metrics of each corruption of the stream."""
        return self.domains or {self.config.stream.corruption: self}

    def rows(self) -> list[dict[str, Any]]:
        """The record as rows of a table, one per corruption, without values by class and by tenth."""
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
    """A run without a record, and the reason."""

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
        """The subject of the message in a few words: a method, data, or a run."""
        stream = self.config.stream
        subjects = {"unavailable": self.config.method.name, "unreadable": f"{stream.data}, {stream.domain}"}
        return subjects.get(self.status, str(self.config))


_PACKAGES = ("torch", "open_clip_torch", "timm", "transformers", "numpy", "opencv-python-headless", "pillow")


def describe_environment(device: str) -> dict[str, str]:
    """Describe the software and hardware that results may depend on."""
    versions = {package: version for package in _PACKAGES if (version := installed_version(package))}
    return {"python": platform.python_version(), "platform": platform.machine(), "device": device, **versions}


@functools.cache
def installed_version(package: str) -> str | None:
    """The version of a package, cached because reading it takes milliseconds, and records may be written often."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
