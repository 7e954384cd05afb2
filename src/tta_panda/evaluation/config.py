"""Configuration of runs: a stream and a method, with all their options.

Code that plans, groups, names or shows runs reads the fields of these two types, so a new field is added only here.
Paths on this machine are not part of them, so records of several machines are merged by copying.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tta_panda.data import CLEAN
from tta_panda.data.order import Order
from tta_panda.errors import InvalidInputError
from tta_panda.methods import MethodName
from tta_panda.options import Count, Seed, check_option, declared_options

ALL = "all"
"""The fifteen corruptions of the benchmark, in its order."""

Preprocessing = Literal["batched", "exact"]


DIGESTS = ("weights", "fingerprint", "image_list")
"""Fields of a stream that are not settings, but identify files."""

_TITLES = {
    "model": "{}",
    "data": "{}",
    "severity": "severity {}",
    "batch_size": "batches of {}",
    "limit": "{} images",
    "window": "window of {}",
}
"""How titles show a field; by default, its name and value."""


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """A model, and images in an order. Runs on equal streams can share encoder passes."""

    model: str
    weights: str | None = None
    """Digest of weights that are local files or come with the package; None for published ones with a tag."""
    precision: str = "fp32"
    backend: str = "torch"
    templates: str = "photo"
    data: str
    fingerprint: str | None = None
    """Identifies the data if their name does not suffice."""
    corruption: str = CLEAN
    """For a stream that joins domains, all of them: `all`, or names separated by commas."""
    severity: Annotated[int, Field(ge=0, le=5)] = 0
    order: str = "shuffled"
    seed: Seed = 0
    batch_size: Count = 100
    window: Count | None = None
    """For batches of one image: adapt to this many of the last images at a time."""
    limit: Count | None = None
    preprocess: Preprocessing = "batched"
    ignore_orientation: bool = False
    image_list: str | None = None
    """Digest of the list of images that the run was restricted to."""
    unknown_classes: str | None = None
    """Classes of the data whose images are in the stream, but which methods do not know, separated by commas."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", str(Order.parse(self.order)))  # the canonical name
        if len(set(self.corruptions)) < len(self.corruptions):
            raise InvalidInputError(f"A stream has each of its domains once; got {self.corruption}.")
        for name, option in declared_options(type(self)).items():  # type: ignore[arg-type]  # mypy: see options.py
            check_option(name, getattr(self, name), option.annotation)
        if self.window is not None and self.batch_size != 1:
            raise InvalidInputError(
                f"A window is for single images, got batches of {self.batch_size}: add --batch-size 1 or omit --window."
            )

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The corruptions in the stream."""
        from tta_panda.data.corruptions import CORRUPTIONS

        return CORRUPTIONS if self.corruption == ALL else tuple(self.corruption.split(","))

    @property
    def unknown(self) -> list[str]:
        """The unknown classes."""
        return self.unknown_classes.split(",") if self.unknown_classes else []

    @property
    def parsed_order(self) -> Order:
        return Order.parse(self.order)

    @property
    def visits(self) -> list[tuple[str, int]]:
        """The corruptions and severities in the stream, in this order unless they are mixed."""
        order = self.parsed_order
        once = [(name, level) for name in self.corruptions for level in order.severities(self.severity)]
        return once * order.rounds

    @property
    def domain(self) -> str:
        """The corruption and severity in words."""
        return f"{self.corruption} at severity {self.severity}" if self.severity else self.corruption

    def title(self, also: Collection[str] = (), omit: Collection[str] = ()) -> str:
        """Describe the stream: options that differ from their defaults, and the fields in `also`; none in `omit`."""
        parts = []
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            is_changed = name not in DIGESTS and value != each.default
            is_missing = name in DIGESTS and value is None
            if (name in also or is_changed or name == "batch_size") and not is_missing and name not in omit:
                form = _TITLES.get(name, f"{name.replace('_', ' ')} {{}}")
                parts.append(form.format("all" if value is None else value))
        return ", ".join(parts)


EMBEDDED = StreamConfig(model="mini", data="glyphs-c")
"""The default model and data."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """A method by name, such as `tent+panda`, with all of its options."""

    name: str
    options: Mapping[str, Any]

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @property
    def parsed(self) -> MethodName:
        """The parsed name. It need not be registered here, because records may come from other machines."""
        return MethodName.of(self.name)

    def __hash__(self) -> int:  # `options` is a dictionary, which cannot be hashed
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(_canonical(asdict(self)))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A method on a stream. Its key is the name of its record."""

    stream: StreamConfig
    method: MethodConfig

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @functools.cached_property
    def key(self) -> str:
        """A hash of the canonical JSON of all fields, the same in every process and on every machine."""
        return hashlib.sha256(_canonical(asdict(self)).encode()).hexdigest()[:20]

    def __str__(self) -> str:
        return f"{self.method.name} on {self.stream.domain}, seed {self.stream.seed}"


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(_plain_numbers(content), sort_keys=True, separators=(",", ":"))


def _plain_numbers(value: Any) -> Any:
    """Convert floats without a fraction to integers, so that equal numbers have equal JSON."""
    if isinstance(value, Mapping):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def by_stream(configs: Iterable[RunConfig]) -> dict[StreamConfig, list[RunConfig]]:
    """Group runs by their stream, in the order of first appearance."""
    streams: dict[StreamConfig, list[RunConfig]] = {}
    for config in configs:
        streams.setdefault(config.stream, []).append(config)
    return streams
