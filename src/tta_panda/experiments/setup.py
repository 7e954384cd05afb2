"""The setup of experiments: model, data, seeds, size and choice of beta, and the runs that result from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from tta_panda.data import CLEAN
from tta_panda.data.cifar import was_made
from tta_panda.data.corruptions import CORRUPTIONS, GROUPS
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.config import EMBEDDED, MethodConfig, RunConfig, StreamConfig
from tta_panda.evaluation.plan import Sources, model_preset, plan_methods, plan_streams
from tta_panda.experiments.printed import BACKBONES
from tta_panda.methods import MethodName, list_methods, parse_method
from tta_panda.methods.presets import Preset

BETA_GRID = tuple(step / 10 for step in range(1, 11))
"""The grid of the paper's search for beta."""

QUICK_SEEDS, QUICK_IMAGES = (0, 1), 300
PAPER_SEEDS = (0, 1, 2, 3, 4)
SEVERITY = 5

Beta = float | Literal["auto", "paper"]

STREAMS: Mapping[str, Mapping[str, Any]] = {
    "shuffled": {},
    "batches of 10": {"batch_size": 10},
    "single images": {"batch_size": 1},
    "correlated:0.1": {"order": "correlated:0.1"},
    "sorted": {"order": "correlated:0"},
    "label_shift:0.1": {"order": "label_shift:0.1"},
    "one class": {"order": "label_shift:0"},
    "continual": {"order": "continual"},
    "mixed": {"order": "mixed"},
    "continual+correlated:0.1": {"order": "continual+correlated:0.1"},
}
"""Kinds of streams: how they differ from those of the paper, which are batches of shuffled images of one corruption."""

_SHORT_NAMES = {"gaussian_noise": "gauss", "impulse_noise": "impul", "defocus_blur": "defoc", "motion_blur": "motn"}
_SHORT_NAMES |= {"brightness": "brit", "contrast": "contr", "elastic_transform": "elast", "pixelate": "pixel"}

_BETA_NOTES = {
    "auto": "Beta is auto: chosen from the stream without labels, by the same rule for every corruption.",
    "paper": "Beta is the paper's for each method, which its authors chose as the best of a grid on test labels.",
}

_STREAM_FIELDS = {each.name for each in fields(StreamConfig)}


def short_name(corruption: str) -> str:
    """Abbreviate the name of a corruption for a narrow column."""
    return _SHORT_NAMES.get(corruption) or corruption.partition("_")[0]


@dataclass(frozen=True)
class Series:
    """A column of a table or a line of a figure: a method with its options, on streams with its changes."""

    label: str
    method: str
    options: tuple[tuple[str, Any], ...] = ()
    stream: tuple[tuple[str, Any], ...] = ()


@dataclass
class Setup:
    """Model, data, seeds and options that all experiments of a command share.

    Args:
        settings: options of methods and of Panda, except for beta, that differ from preset and defaults.
        beta: `"paper"` uses the preset's value for each method, `"auto"` chooses it without labels, and a number is
            used as it is.
        quick: experiments omit some of their corruptions, methods and grid points.
        methods: plain names of the methods that experiments by method are restricted to; empty for all.
    """

    stream: StreamConfig = EMBEDDED
    sources: Sources = field(default_factory=lambda: Sources(EMBEDDED.model))
    preset: Preset | None = field(default_factory=lambda: model_preset(EMBEDDED.model))
    protocol: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = PAPER_SEEDS
    beta: Beta = "auto"
    quick: bool = False
    methods: Sequence[str] = ()
    _streams: dict[str, dict[tuple[str, int], StreamConfig]] = field(default_factory=dict, repr=False)
    _methods: dict[Series, MethodConfig] = field(default_factory=dict, repr=False)
    _runs: dict[tuple[Series, str], list[RunConfig]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        plan_methods(list_methods(), self.settings)  # raises for options that no method has
        if self.beta == "paper" and not self.has_paper_preset:
            raise InvalidInputError(
                "The paper gives a beta for each method on CIFAR-10-C, CIFAR-100-C and ImageNet-C, and none for "
                f"{self.stream.model} on {self.stream.data}. Name a benchmark with --preset, or use --set "
                "beta=auto or a number."
            )
        if isinstance(self.beta, float) and not 0 <= self.beta < float("inf"):
            raise InvalidInputError(f"beta must be paper, auto or a number >= 0, got {self.beta}.")

    @property
    def has_paper_preset(self) -> bool:
        """Whether the preset is one of the paper's benchmarks."""
        return self.preset is not None and self.preset.name in BACKBONES

    @property
    def benchmark(self) -> str | None:
        """The name of the paper's benchmark, if model, settings and images are those of the paper."""
        preset = self.preset
        if preset is None or not self.has_paper_preset or self.protocol != "paper" or self.quick:
            return None
        from tta_panda.models import recorded_name  # imports torch

        if recorded_name(self.sources.model) != recorded_name(preset.model) or self.sources.image_list:
            return None
        if self.settings or self.stream != StreamConfig(model=self.stream.model, data=preset.data):
            return None
        return None if self.uses_made_data else preset.name

    @property
    def uses_made_data(self) -> bool:
        """Whether any of the corruptions was made by this package, not by the authors of the data set."""
        streams = (self._stream(corruption, self.seeds[0], self.stream.order) for corruption in CORRUPTIONS)
        return any(stream.fingerprint and was_made(stream.fingerprint) for stream in streams)

    def sensitivity_corruptions(self) -> tuple[str, ...]:
        """All corruptions, or in a quick look one of each group."""
        return tuple(names[0] for names in GROUPS.values()) if self.quick else CORRUPTIONS

    def series(self, method: str, label: str = "", *, quick_images: int = QUICK_IMAGES, **changes: Any) -> Series:
        """Make the series of a method; with Panda, it has the beta of the setup.

        Args:
            quick_images: number of images in a quick look, unless the user set a limit.
            changes: options of the method, and fields of its streams.
        """
        if MethodName.of(method).debias == "panda" and self.beta != "paper":  # that one is in the preset
            changes = {"beta": self.beta, **changes}
        if self.quick and self.stream.limit is None:
            changes["limit"] = quick_images
        stream = {name: changes.pop(name) for name in _STREAM_FIELDS & changes.keys()}
        return Series(label or method, method, tuple(sorted(changes.items())), tuple(sorted(stream.items())))

    def plain_and_panda(self, methods: Iterable[str]) -> dict[str, list[Series]]:
        """Make the series of each method without and with Panda, by its name."""
        return {name: [self.series(name), self.series(f"{name}+panda")] for name in methods}

    def method(self, series: Series) -> MethodConfig:
        """The method of a series with all its options."""
        if series not in self._methods:
            from tta_panda.methods.factory import default_options  # imports torch

            known = default_options(parse_method(series.method))
            common = {key: value for key, value in self.settings.items() if key in known}
            options = common | dict(series.options)
            [self._methods[series]] = plan_methods([series.method], options, self.preset, self.protocol)
        return self._methods[series]

    def runs(self, series: Series, corruption: str) -> list[RunConfig]:
        """The runs of a series, one per seed; if its order joins domains, they are the same for all corruptions."""
        if (series, corruption) not in self._runs:
            changes = dict(series.stream)
            order = changes.pop("order", self.stream.order)
            streams = [replace(self._stream(corruption, seed, order), **changes) for seed in self.seeds]
            method = self.method(series)
            self._runs[series, corruption] = [RunConfig(stream=stream, method=method) for stream in streams]
        return self._runs[series, corruption]

    def _stream(self, corruption: str, seed: int, order: str) -> StreamConfig:
        """Find a stream; all streams of an order are planned at once, because planning reads weights and data."""
        if order not in self._streams:
            stream = replace(self.stream, order=order)
            planned = plan_streams(stream, self.sources, [CLEAN, *CORRUPTIONS], [SEVERITY], self.seeds)
            self._streams[order] = {(name, each.seed): each for each in planned for name in each.corruptions}
        return self._streams[order][corruption, seed]

    def __str__(self) -> str:
        parts = [replace(self.stream, severity=SEVERITY).title(), f"seeds {', '.join(map(str, self.seeds))}"]
        parts.append(f"beta {self.beta}")
        parts += [f"preset {self.preset.name}"] if self.has_paper_preset and self.preset else []
        parts += [f"{key} {value}" for key, value in self.settings.items()]
        parts += [f"protocol {self.protocol}"] if self.protocol != "paper" else []
        quick = f" (a quick look: {QUICK_IMAGES} images, in some experiments more)" if self.quick else ""
        return ", ".join(parts) + quick

    def notes(self) -> list[str]:
        """Notes that apply to all numbers of the setup."""
        if self.benchmark is None:
            paper = (
                "The paper has no numbers for this setting. Its numbers for its own benchmarks are in separate tables, "
                "marked as the paper's."
            )
        else:
            paper = (
                f"The paper's numbers for {BACKBONES[self.benchmark]} are shown with ours, marked “paper”. With Panda, "
                "its beta was the best of a grid, chosen on test labels."
            )
        return [f"{self}.", paper, _BETA_NOTES.get(str(self.beta), f"Beta is {self.beta} throughout.")]
