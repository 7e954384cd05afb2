"""What decides a run, once: the stream it sees, and the method that sees it.

Everything that plans, groups, names or shows runs derives from the fields of these two types, so that a field that is
added here is everywhere. Where data lie on this machine is not part of it: records of several machines merge by
copying.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from tta_panda.data import AVAILABLE, CLEAN
from tta_panda.data.order import Order
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import MethodName

ALL = "all"
"""The fifteen corruptions of the benchmark, in its order."""

Preprocessing = Literal["batched", "exact"]


class Option(NamedTuple):
    """A field of a stream that users set."""

    help: str
    title: str = ""
    """How a value is written in titles; by default after the name of the field."""
    always: bool = False
    """Whether titles have it even where it is the default."""
    several: str | None = None
    """Where a command takes a list of values, each of which is a run: the list that is used by default."""
    choices: tuple[str, ...] = ()
    least: int | None = None
    by_preset: bool = False
    """Whether presets have a value for it."""


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """A model, and images in an order. Runs on equal streams can share encoder passes."""

    model: Annotated[
        str,
        Option(
            "mini, lite0, ARCHITECTURE:TAG or ARCHITECTURE:FILE (open_clip), hf-hub:NAME, transformers:NAME, "
            "timm:NAME, a directory, or MODULE:FUNCTION for a model of your own.",
            "{}",
            by_preset=True,
        ),
    ]
    weights: str | None = None
    """Digest of weights that are local files or come with the package; None for published ones, which a tag names."""
    precision: Annotated[str, Option("Precision of the encoders: fp32, bf16 or fp16. All else runs in fp32.")] = "fp32"
    backend: Annotated[
        str, Option("What computes image embeddings: torch, or openvino for methods that do not train, on a processor.")
    ] = "torch"
    templates: Annotated[
        str,
        Option("Prompts for class names: photo, or the averages of mint (seven) or openai (eighty).", by_preset=True),
    ] = "photo"
    data: Annotated[str, Option("Data set; see: tta-panda ls data.", "{}", by_preset=True)]
    fingerprint: str | None = None
    """What tells the data from others of the same name, where the name does not say it all."""
    corruption: Annotated[
        str, Option("Comma-separated names, clean, or all; available: what the data set has.", several=AVAILABLE)
    ] = CLEAN
    """Of a stream that joins domains, all of them: `all`, or names with commas."""
    severity: Annotated[int, Option("1 to 5; several as 1,3,5 or 1-5.", "severity {}", several="5", least=0)] = 0
    order: Annotated[
        str,
        Option(
            "How domains follow each other: reset, continual, gradual or mixed; and images: shuffled, given, "
            "correlated:0.1, imbalanced:inf or label_shift:0.1; or both, as mixed+correlated:0.1."
        ),
    ] = "shuffled"
    seed: Annotated[int, Option("Random seed; several as 0,1,2 or 0-4.", several="0", least=0)] = 0
    batch_size: Annotated[int, Option("Images per batch.", "batches of {}", always=True, least=1)] = 100
    limit: Annotated[int | None, Option("At most this many images of each corruption.", "{} images", least=1)] = None
    preprocess: Annotated[
        Preprocessing,
        Option(
            "batched: resize a batch as one tensor; exact: image by image with Pillow, as open_clip does.",
            choices=get_args(Preprocessing),
        ),
    ] = "batched"
    ignore_orientation: Annotated[bool, Option("Do not turn image files as their EXIF orientation says.")] = False
    image_list: str | None = None
    """Digest of the list of images that the run was restricted to."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", str(Order.parse(self.order)))  # one spelling, whichever was given
        for name, option in self.options().items():
            value = getattr(self, name)
            if option.choices and value not in option.choices:
                raise UnknownNameError(name, str(value), option.choices)
            if option.least is not None and value is not None and value < option.least:
                raise InvalidInputError(f"{name} must be at least {option.least}, got {value}.")

    @classmethod
    @functools.cache
    def options(cls) -> dict[str, Option]:
        """The fields that users set."""
        hints = get_type_hints(cls, include_extras=True)
        found = {each.name: getattr(hints[each.name], "__metadata__", ()) for each in fields(cls)}
        return {name: metadata[0] for name, metadata in found.items() if metadata}

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Those that the stream consists of."""
        from tta_panda.data.corruptions import CORRUPTIONS

        return CORRUPTIONS if self.corruption == ALL else tuple(self.corruption.split(","))

    @property
    def parsed_order(self) -> Order:
        return Order.parse(self.order)

    @property
    def visits(self) -> list[tuple[str, int]]:
        """Corruptions and severities that the stream consists of; one after another, unless they are mixed."""
        return [(name, level) for name in self.corruptions for level in self.parsed_order.severities(self.severity)]

    @property
    def domain(self) -> str:
        """In words."""
        return f"{self.corruption} at severity {self.severity}" if self.severity else self.corruption

    def title(self, also: Collection[str] = ()) -> str:
        """The stream in a few words: what users set and is not the default, and the fields named in `also`."""
        parts = []
        for each in fields(self):
            value, option = getattr(self, each.name), self.options().get(each.name)
            if each.name not in also and not (option and (option.always or value != each.default)):
                continue
            if value is not None or option:  # without a digest there is nothing to say
                written = option.title if option and option.title else f"{each.name.replace('_', ' ')} {{}}"
                parts.append(written.format("all" if value is None else value))
        return ", ".join(parts)


EMBEDDED = StreamConfig(model="mini", data="glyphs-c")
"""What is run where nothing else is named."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """A method by name, `tent+panda` say, with every option that it has."""

    name: str
    options: Mapping[str, Any]

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @property
    def parsed(self) -> MethodName:
        """The name taken apart. It need not be registered here: records may come from elsewhere."""
        return MethodName.of(self.name)

    def __hash__(self) -> int:  # options are a dictionary, which has no hash of its own
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(_canonical(asdict(self)))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A method on a stream. Its key names its record."""

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
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def by_stream(configs: Iterable[RunConfig]) -> dict[StreamConfig, list[RunConfig]]:
    """Runs on the same stream, together, in the order of their first appearance."""
    streams: dict[StreamConfig, list[RunConfig]] = {}
    for config in configs:
        streams.setdefault(config.stream, []).append(config)
    return streams
