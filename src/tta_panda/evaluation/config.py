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
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from tta_panda.data import CLEAN
from tta_panda.data.order import Order
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import MethodName

ALL = "all"
"""The fifteen corruptions of the benchmark, in its order."""

Preprocessing = Literal["batched", "exact"]


class Option(NamedTuple):
    """Metadata of a field that users set: how titles show it, and its valid values."""

    title: str = ""
    """Format of a value in titles; by default, the value follows the name of the field."""
    always: bool = False
    """Whether titles show it even if it has its default value."""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """A model, and images in an order. Runs on equal streams can share encoder passes."""

    model: Annotated[str, Option("{}")]
    weights: str | None = None
    """Digest of weights that are local files or come with the package; None for published ones with a tag."""
    precision: Annotated[str, Option()] = "fp32"
    backend: Annotated[str, Option()] = "torch"
    templates: Annotated[str, Option()] = "photo"
    data: Annotated[str, Option("{}")]
    fingerprint: str | None = None
    """Identifies the data if their name does not suffice."""
    corruption: Annotated[str, Option()] = CLEAN
    """For a stream that joins domains, all of them: `all`, or names separated by commas."""
    severity: Annotated[int, Option("severity {}", minimum=0)] = 0
    order: Annotated[str, Option()] = "shuffled"
    seed: Annotated[int, Option(minimum=0, maximum=2**63 - 1)] = 0
    batch_size: Annotated[int, Option("batches of {}", always=True, minimum=1)] = 100
    limit: Annotated[int | None, Option("{} images", minimum=1)] = None
    preprocess: Annotated[Preprocessing, Option(choices=get_args(Preprocessing))] = "batched"
    ignore_orientation: Annotated[bool, Option()] = False
    image_list: str | None = None
    """Digest of the list of images that the run was restricted to."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", str(Order.parse(self.order)))  # the canonical name
        for name, option in self.options().items():
            value = getattr(self, name)
            if option.choices and value not in option.choices:
                raise UnknownNameError(name, str(value), option.choices)
            if option.minimum is not None and value is not None and value < option.minimum:
                raise InvalidInputError(f"{name} must be at least {option.minimum}, got {value}.")
            if option.maximum is not None and value > option.maximum:
                raise InvalidInputError(f"{name} must be at most {option.maximum}, got {value}.")

    @classmethod
    @functools.cache
    def options(cls) -> dict[str, Option]:
        """The fields that users set."""
        hints = get_type_hints(cls, include_extras=True)
        found = {each.name: getattr(hints[each.name], "__metadata__", ()) for each in fields(cls)}
        return {name: metadata[0] for name, metadata in found.items() if metadata}

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The corruptions in the stream."""
        from tta_panda.data.corruptions import CORRUPTIONS

        return CORRUPTIONS if self.corruption == ALL else tuple(self.corruption.split(","))

    @property
    def parsed_order(self) -> Order:
        return Order.parse(self.order)

    @property
    def visits(self) -> list[tuple[str, int]]:
        """The corruptions and severities in the stream, in this order unless they are mixed."""
        return [(name, level) for name in self.corruptions for level in self.parsed_order.severities(self.severity)]

    @property
    def domain(self) -> str:
        """The corruption and severity in words."""
        return f"{self.corruption} at severity {self.severity}" if self.severity else self.corruption

    def title(self, also: Collection[str] = (), omit: Collection[str] = ()) -> str:
        """Describe the stream: options that differ from their defaults, and the fields in `also`; none in `omit`."""
        parts = []
        for each in fields(self):
            value, option = getattr(self, each.name), self.options().get(each.name)
            shown = each.name in also or (option and (option.always or value != each.default))
            if not shown or each.name in omit:
                continue
            if value is not None or option:  # a missing digest is not shown
                written = option.title if option and option.title else f"{each.name.replace('_', ' ')} {{}}"
                parts.append(written.format("all" if value is None else value))
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
