"""What was run and what came out, as typed records: the only thing that tables and figures are made from."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tta_panda.evaluation.metrics import Tally
from tta_panda.methods import MethodName
from tta_panda.methods.passes import EncoderPasses
from tta_panda.models.devices import Precision

FORMAT = 3


class RunConfig(BaseModel):
    """What decides a run's numbers; its hash is the record's file name.

    Where data lie on this machine is not part of it, so folders of records from several machines merge by copying.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    panda: bool
    options: dict[str, Any]
    model: str
    weights: str | None = None
    """Digest of weights that are a local file or come with the package; None for published ones, which a tag names."""
    data: str
    corruption: str
    severity: int
    batch_size: int
    seed: int
    limit: int | None = None
    preprocess: Literal["batched", "exact"] = "batched"
    """How images come to the model's size: as one tensor operation, or one by one with Pillow as open_clip does it."""
    image_list: str | None = None
    """Digest of the list of images that the run was restricted to."""
    data_fingerprint: str | None = None
    """What tells the data from others of the same name, where the name does not say it all."""
    precision: Precision = "fp32"
    """What the encoders compute in."""

    @property
    def method_name(self) -> MethodName:
        return MethodName(self.method, self.panda)

    @property
    def key(self) -> str:
        """Stable over processes, platforms and versions: a hash of the canonical JSON of all fields.

        Fields that came later are left out where they hold their defaults, so that earlier records keep their names.
        """
        later = {name for name in ("precision",) if getattr(self, name) == type(self).model_fields[name].default}
        canonical = json.dumps(self.model_dump(mode="json", exclude=later), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:20]


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
    """What came out for a tenth of the stream: how predictions change while a method adapts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int
    accuracy: float
    l1: float

    @classmethod
    def of(cls, tally: Tally) -> Tenth:
        return cls(samples=tally.samples, accuracy=tally.accuracy, l1=tally.l1)


class RunRecord(BaseModel):
    """The outcome of one method on one domain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    config: RunConfig
    weights_hash: str | None = None
    """Of the weights as they were loaded, whatever names them; None in records from before there was one."""
    samples: int
    accuracy: float = Field(ge=0, le=1)
    accuracy_stderr: float
    l1: float = Field(ge=0, le=2 + 1e-9)
    """Prediction bias."""
    ece: float = Field(ge=0, le=1 + 1e-9)
    """Expected calibration error of the most likely class, 15 bins of equal width."""
    nll: float
    """Mean negative log-likelihood of the label, in nats."""
    nll_stderr: float
    recall_sd: float
    """Class-wise recall: standard deviation over the classes that occur; with the smallest and the largest."""
    recall_min: float
    recall_max: float
    class_names: list[str]
    predicted_counts: list[int]
    label_counts: list[int]
    mean_probabilities: list[float]
    mean_beta: float | None = None
    """Over the batches; None without Panda."""
    passes: PassesPerBatch
    tenths: list[Tenth]
    """Consecutive tenths of the stream; fewer where it has fewer than ten images."""
    seconds: float
    """Encoder passes (shared ones in full) and the method's own work."""
    images_per_second: float
    peak_memory: int | None = None
    """Bytes: of tensors on a GPU, else of the process, what it shared with other runs included."""
    environment: dict[str, str]

    def row(self) -> dict[str, Any]:
        """The record as one flat row of a table."""
        config = self.config.model_dump()
        options = config.pop("options")
        return {
            **config,
            "accuracy": self.accuracy,
            "accuracy_stderr": self.accuracy_stderr,
            **{name: getattr(self, name) for name in ("l1", "ece", "nll", "nll_stderr")},
            **{name: getattr(self, name) for name in ("recall_sd", "recall_min", "recall_max")},
            "samples": self.samples,
            "mean_beta": self.mean_beta,
            **self.passes.model_dump(),
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
            "peak_memory": self.peak_memory,
            "weights_hash": self.weights_hash,
            "options": options,
            "record": self.config.key,
        }


def describe_environment(device: str) -> dict[str, str]:
    """Versions that the numbers may depend on."""
    packages = (
        "tta-panda",
        "torch",
        "open_clip_torch",
        "timm",
        "transformers",
        "numpy",
        "opencv-python-headless",
        "pillow",
    )
    versions = {package: metadata.version(package) for package in packages if _is_installed(package)}
    return {"python": platform.python_version(), "platform": platform.machine(), "device": device, **versions}


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
