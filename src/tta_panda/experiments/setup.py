"""The ground that all experiments of one command stand on: model, data, seeds, size, and how beta is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tta_panda.data.corruptions import CORRUPTIONS, GROUPS
from tta_panda.data.dataset import CLEAN
from tta_panda.data.fingerprint import MADE
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.plan import plan_runs, run_options
from tta_panda.evaluation.presets import Preset
from tta_panda.evaluation.record import RunConfig
from tta_panda.methods import parse_method

BETA_GRID = tuple(step / 10 for step in range(1, 11))
"""The paper's search."""

AUTO, BEST_OF_GRID = "auto, no labels", "best of grid, chosen on test labels"
"""The two ways to choose beta, where both are shown."""

QUICK_SEEDS, QUICK_IMAGES = (0, 1), 300
PAPER_SEEDS = (0, 1, 2, 3, 4)

BATCH_SIZE = 100

Beta = float | Literal["auto", "paper", "grid"]


@dataclass(frozen=True)
class Variant:
    """A method with its settings: one run per domain and seed."""

    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    batch_size: int = BATCH_SIZE
    limit: int | None = None


@dataclass(frozen=True)
class Series:
    """What fills a column or draws a line: a variant; of several, the one that is most accurate over all domains."""

    label: str
    candidates: tuple[Variant, ...]


@dataclass
class Setup:
    """What the user asked for, resolved.

    Args:
        beta: `"paper"` takes the preset's value of each method, `"auto"` chooses without labels, a number is used as it
            is, and `"grid"` reports the best of the paper's grid, chosen on test labels, beside `"auto"`.
        quick: experiments leave out some of their corruptions, methods and grid points.
    """

    model: str = "mini"
    data: str = "glyphs-c"
    preset: Preset | None = None
    protocol: str = "paper"
    seeds: Sequence[int] = PAPER_SEEDS
    limit: int | None = None
    beta: Beta = "auto"
    quick: bool = False
    precision: str = "fp32"
    preprocess: str = "batched"
    image_list: Path | None = None
    data_root: Path | None = None
    _places: dict[tuple[str, int], RunConfig] = field(default_factory=dict, repr=False)
    _options: dict[Variant, dict[str, Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.beta == "paper" and self.preset is None:
            raise InvalidInputError(
                "The paper gives a beta for each method on CIFAR-10-C, CIFAR-100-C and ImageNet-C, and none for "
                f"{self.model} on {self.data}. Name a benchmark with --preset, or use --beta auto, a number, or grid."
            )
        if isinstance(self.beta, float) and not 0 <= self.beta < float("inf"):
            raise InvalidInputError(f"--beta must be paper, auto, grid or a number >= 0, got {self.beta}.")

    @property
    def benchmark(self) -> str | None:
        """The paper's benchmark, if this is one of them as the paper runs it: model, settings and all of its images."""
        preset = self.preset
        if preset is None or self.protocol != "paper" or self.quick or self.limit or self.image_list:
            return None
        # OpenAI's weights are always loaded with QuickGELU, whichever name asks for them.
        if self.model.replace("-quickgelu", "") != f"{preset.model}:{preset.pretrained}".replace("-quickgelu", ""):
            return None
        fingerprints = [self._place(corruption, self.seeds[0]).data_fingerprint for corruption in CORRUPTIONS]
        is_published = not any(fingerprint and fingerprint.startswith(MADE) for fingerprint in fingerprints)
        return preset.name if self.data == preset.data and is_published else None

    def has_papers_beta(self, series: Series) -> bool:
        """Whether a series with Panda has its beta from where the paper has it: a search on test labels."""
        return self.beta == "paper" or len(series.candidates) > 1

    @property
    def sensitivity_corruptions(self) -> tuple[str, ...]:
        """Where grids of settings are tried: everywhere, or on one corruption of each group."""
        return tuple(names[0] for names in GROUPS.values()) if self.quick else CORRUPTIONS

    def plain(self, method: str, label: str = "", **more: Any) -> Series:
        """A method as it is. `more` are its settings, and what `variant` takes."""
        return Series(label or method, (self.variant(method, **more),))

    def panda(self, method: str, label: str = "", **more: Any) -> Series:
        """The method with Panda, with the beta that was asked for; where that is a grid, with `auto`."""
        asked: dict[str, Any] = {"paper": {}, "grid": {"beta": "auto"}}.get(str(self.beta), {"beta": self.beta})
        label = label or f"{method}+panda"
        label = f"{label} ({AUTO})" if self.beta == "grid" and "beta" not in more else label
        return Series(label, (self.variant(f"{method}+panda", **{**asked, **more}),))

    def best_of_grid(self, method: str, label: str = "", **more: Any) -> Series:
        """The method with the best beta of the paper's grid, chosen on test labels."""
        candidates = [self.variant(f"{method}+panda", beta=beta, **more) for beta in BETA_GRID]
        return Series(f"{label or f'{method}+panda'} ({BEST_OF_GRID})", tuple(candidates))

    def with_panda(self, method: str, **more: Any) -> list[Series]:
        """All that a table shows of a method with Panda: one series, or under a grid search that and the best of it."""
        series = [self.panda(method, **more)]
        return [*series, self.best_of_grid(method, **more)] if self.beta == "grid" else series

    def variant(
        self, method: str, *, batch_size: int = BATCH_SIZE, quick_images: int = QUICK_IMAGES, **settings: Any
    ) -> Variant:
        """`quick_images` are used in a quick look, unless the user said how many to use."""
        limit = quick_images if self.quick and self.limit is None else self.limit
        return Variant(method, tuple(sorted(settings.items())), batch_size, limit)

    def options(self, variant: Variant) -> dict[str, Any]:
        """Every option of the variant's method, as a record holds it."""
        if variant not in self._options:
            name = parse_method(variant.method)
            self._options[variant] = run_options(name, dict(variant.settings), self.preset, self.protocol)
        return self._options[variant]

    def runs(self, variant: Variant, corruption: str) -> list[RunConfig]:
        """One for each seed."""
        name = parse_method(variant.method)
        change = {"method": name.base, "panda": name.panda, "options": self.options(variant)}
        change |= {"batch_size": variant.batch_size, "limit": variant.limit}
        return [self._place(corruption, seed).model_copy(update=change) for seed in self.seeds]

    def _place(self, corruption: str, seed: int) -> RunConfig:
        """A run of some method at the place; all places are planned at once, since weights and data are looked at."""
        if not self._places:
            planned = plan_runs(
                ["clip"],
                model=self.model,
                data=self.data,
                corruptions=[CLEAN, *CORRUPTIONS],
                seeds=self.seeds,
                limit=self.limit,
                precision=self.precision,
                preprocess=self.preprocess,
                image_list=self.image_list,
                data_root=self.data_root,
            )
            self._places = {(config.corruption, config.seed): config for config in planned}
        return self._places[corruption, seed]

    def __str__(self) -> str:
        images = f"{self.limit} images" if self.limit else f"{QUICK_IMAGES} images" if self.quick else "all images"
        parts = [self.model, self.data, images, f"seeds {', '.join(map(str, self.seeds))}", f"beta {self.beta}"]
        parts += [f"preset {self.preset.name}"] if self.preset else []
        parts += [f"protocol {self.protocol}"] if self.protocol != "paper" else []
        return ", ".join(parts) + (" (a quick look)" if self.quick else "")
