"""Presets: settings for the paper's benchmarks, and for the embedded model.

A preset sets the options that differ from the defaults of a method, which are those of the method's own code. Records
contain the values of all options of a run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tta_panda.errors import UnknownNameError
from tta_panda.methods import MethodName

_VIEWS = {"views": 64, "keep": 0.1, "augmentation": "augmix"}
_SELECT_VIEWS = ("tpt", "tps", "zero", "vte", "dota", "boostadapter", "dpe")
_USE_ALL_VIEWS = ("mta",)

# For CPUs, minutes instead of hours.
_FEW_VIEWS = {"views": 10, "keep": 0.3, "augmentation": "augmix"}
_FEW_STEPS: dict[str, dict[str, Any]] = {
    "cliptta": {"steps": 2},
    "clipartt": {"steps": 3},
    "watt": {"rounds": 1, "steps": 1},
    "eata": {"fisher_images": 100},
    "memo": {"views": 4},
    "ramen": {"slots": 75},
}

_SHARED: dict[str, dict[str, Any]] = {
    "eta": {"margin": 0.5, "d_margin": 1.0},
    # The value that the paper lists as SAR's learning rate is the radius rho; the actual one is the default everywhere.
    "sar": {"optimizer": "adam", "skip_last_blocks": 0},
    "deyo": {"lr": 1e-3, "filter_margin": 2.0, "plpd_threshold": 0.0},
    "tpt": {"lr": 1e-3},
}
"""Options that all presets set."""

_BENCHMARKS = (
    ("cifar10-c", "ViT-B-32-quickgelu:openai"),
    ("cifar100-c", "ViT-B-32-quickgelu:openai"),
    ("imagenet-c", "ViT-B-16-quickgelu:openai"),
)
"""Data and models of the paper."""

_PER_BENCHMARK: dict[str, dict[str, tuple[Any, Any, Any]]] = {
    "clip": {"beta": (0.7, 0.4, 0.4)},
    "tent": {"beta": (0.6, 0.3, 0.3), "lr": (2e-4, 1e-4, 1e-4)},
    "eta": {"beta": (0.8, 0.4, 0.3), "lr": (1e-4, 5e-4, 1e-4)},
    "sar": {"beta": (0.7, 0.3, 0.2), "rho": (0.05, 0.1, 0.01)},
    "deyo": {"beta": (0.8, 0.5, 0.3)},
    "tpt": {"beta": (0.4, 0.4, 0.4)},
    "dmn": {"beta": (0.5, 0.5, 0.3)},
    "zero": {"beta": (0.4, 0.5, 0.4)},
    "tps": {"beta": (0.6, 0.4, 0.4), "lr": (1e-2, 1e-3, 1e-3)},
    "bat": {"beta": (0.7, 0.3, 0.3), "lr": (1e-4, 2e-4, 2e-4)},
    "mint": {"lr": (7e-3, 7e-3, 1.5e-2)},
    "im": {"lr": (2e-4, 1e-4, 1e-4)},  # those of Tent, as none are published
    "subtta": {"lr": (1e-3, 1e-3, 5e-4), "momentum": (0.1, 0.1, 0.5)},
    "roid": {"lr": (1e-3, 1e-3, 2.5e-4), "optimizer": ("adam", "adam", "sgd")},
    "cliptta": {"slots": (4, 16, 16), "sample_size": (40, 128, 1000)},
    "eata": {"lr": (1e-3, 1e-3, 2.5e-4), "d_margin": (0.4, 0.1, 0.05), "fisher_weight": (1.0, 1.0, 2000.0)},
    "memo": {"lr": (5e-3, 5e-3, 2.5e-4), "views": (32, 32, 64)},
    "ramen": {"slots": (7500, 750, 75), "neighbours": (50, 5, 1), "sharpness": (5.0, 5.0, 0.0)},
    "onzeta": {"length": (10_000, 10_000, 5000)},
    "dota": {"growth": (0.02, 0.02, 0.005), "max_weight": (0.3, 0.3, 0.2)},
    "latte": {"slots": (12, 8, 8), "alpha": (1.0, 0.7, 0.7)},  # none are published for ImageNet-C
}
"""Values for the three benchmarks, by method and option; for Panda's ten methods from its paper."""

_MINI = {"eta": {"lr": 1e-3}, "tps": {"lr": 1e-3}, "mint": {"lr": 1.5e-2}, "tda": {"negative_alpha": 1.0}}
_MINI |= {"eata": {"lr": 1e-3, "margin": 0.5, "d_margin": 1.0, "fisher_weight": 1.0}, "oga": {"temperature": 0.2}}


@dataclass(frozen=True)
class Preset:
    """A model, a data set, and the hyperparameters of all methods for them."""

    name: str
    model: str
    data: str
    methods: Mapping[str, Mapping[str, Any]]
    """Options by method; `beta` is Panda's."""
    panda: Mapping[str, Any]
    """Options of Panda that are the same for all methods."""
    templates: str = "photo"
    """Templates of the prompts, one of `tta_panda.models.TEMPLATES`."""

    def options(self, method: MethodName) -> dict[str, Any]:
        """Return the options that the preset sets for a method and its debiasing; none for unknown methods."""
        own = dict(self.methods.get(method.base, {}))
        beta = own.pop("beta", "auto")
        if "panda" not in method.debias:
            return own
        return {**own, **self.panda, "beta": beta if method.debias == "panda" else "auto"}


def _preset(name: str, model: str, data: str, values: Mapping[str, Any], *, few: bool = False, **panda: Any) -> Preset:
    views, steps = (_FEW_VIEWS, _FEW_STEPS) if few else (_VIEWS, {})
    own = {
        method: _SHARED.get(method, {}) | values.get(method, {}) | steps.get(method, {})
        for method in {**_SHARED, **values, **steps}
    }
    for method in (*_SELECT_VIEWS, *_USE_ALL_VIEWS):
        made = {option: value for option, value in views.items() if option != "keep" or method in _SELECT_VIEWS}
        own[method] = own.get(method, {}) | made
    return Preset(name, model, data, own, panda)


def _benchmark(index: int, *, few: bool = False) -> Preset:
    data, model = _BENCHMARKS[index]
    values = {
        method: {option: per_benchmark[index] for option, per_benchmark in options.items()}
        for method, options in _PER_BENCHMARK.items()
    }
    return _preset(f"{data}-cpu" if few else data, model, data, values, few=few, patch_size=32, pool=0)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        *(_benchmark(index) for index in range(3)),
        *(_benchmark(index, few=True) for index in range(3)),
        _preset("mini", "mini", "glyphs-c", _MINI, few=True, patch_size=None, pool=32),
    )
}


def _add(base: str, model: str, templates: str) -> None:
    """Add a benchmark with another model and other prompts."""
    name = f"{base}-{templates}"
    PRESETS[name] = replace(PRESETS[base], name=name, model=model, templates=templates)


# The models of Mint's own code, which uses batches of 20, and a variant with OpenAI's prompts for ImageNet.
_add("cifar10-c", "ViT-B-32-quickgelu:openai", "mint")
_add("cifar100-c", "ViT-B-16-quickgelu:openai", "mint")
_add("imagenet-c", "ViT-L-14-quickgelu:openai", "mint")
_add("imagenet-c", "ViT-B-16-quickgelu:openai", "openai")
_add("cifar100-c", "ViT-B-32-quickgelu:openai", "clipartt")


def list_presets(pattern: str = "*") -> list[str]:
    """Return the names of presets that match a shell wildcard."""
    return fnmatch.filter(PRESETS, pattern)


def get_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]
