"""The paper's settings per benchmark: which model, which data, and every method's hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tta_panda.errors import UnknownNameError
from tta_panda.methods import MethodName

_VIEWS = {"views": 64, "keep": 0.1, "augmentation": "augmix"}

_SHARED: dict[str, dict[str, Any]] = {
    "eta": {"margin": 0.5, "d_margin": 1.0},
    # What the paper lists as SAR's learning rate is the radius rho; the optimiser's own is the same everywhere.
    "sar": {"lr": 1e-3, "margin": 0.4, "reset_constant": 0.2, "optimizer": "adam", "skip_last_blocks": 0},
    "deyo": {
        "lr": 1e-3,
        "filter_margin": 2.0,
        "weight_margin": 0.4,
        "plpd_threshold": 0.0,
        "entropy_weight": 1.0,
        "plpd_weight": 1.0,
        "destroy": "patches",
        "grid": 4,
    },
    "tpt": {"lr": 1e-3, "steps": 1, "context": "a photo of a", **_VIEWS},
    "dmn": {"slots": 50, "alpha": 0.3, "sharpness": 5.5},
    "zero": _VIEWS,
    "tps": {"steps": 1, **_VIEWS},
    "bat": {"weight_decay": 0.01},
}
"""What does not change between the benchmarks."""

_PANDA = {"patch_size": 32, "ratio": 0.1}

_PER_BENCHMARK: tuple[tuple[str, str, tuple[float, float, float]], ...] = (
    ("tent", "lr", (2e-4, 1e-4, 1e-4)),
    ("eta", "lr", (1e-4, 5e-4, 1e-4)),
    ("sar", "rho", (0.05, 0.1, 0.01)),
    ("tps", "lr", (1e-2, 1e-3, 1e-3)),
    ("bat", "lr", (1e-4, 2e-4, 2e-4)),
    ("clip", "beta", (0.7, 0.4, 0.4)),
    ("tent", "beta", (0.6, 0.3, 0.3)),
    ("eta", "beta", (0.8, 0.4, 0.3)),
    ("sar", "beta", (0.7, 0.3, 0.2)),
    ("deyo", "beta", (0.8, 0.5, 0.3)),
    ("tpt", "beta", (0.4, 0.4, 0.4)),
    ("dmn", "beta", (0.5, 0.5, 0.3)),
    ("zero", "beta", (0.4, 0.5, 0.4)),
    ("tps", "beta", (0.6, 0.4, 0.4)),
    ("bat", "beta", (0.7, 0.3, 0.3)),
)
"""(method, option, values for CIFAR-10-C, CIFAR-100-C and ImageNet-C)."""


@dataclass(frozen=True)
class Preset:
    """A benchmark as the paper runs it."""

    name: str
    model: str
    pretrained: str
    data: str
    methods: Mapping[str, Mapping[str, Any]]
    """Options by method; `beta` is Panda's."""

    def options(self, method: MethodName) -> dict[str, Any]:
        """What the preset sets for a method, and for Panda where the name asks for it."""
        own = dict(self.methods[method.base])
        beta = own.pop("beta")
        return {**own, **_PANDA, "beta": beta} if method.panda else own


def _preset(index: int, name: str, model: str) -> Preset:
    methods = {method: dict(_SHARED.get(method, {})) for method, option, _ in _PER_BENCHMARK if option == "beta"}
    for method, option, values in _PER_BENCHMARK:
        methods[method][option] = values[index]
    return Preset(name, model, "openai", name, methods)


PRESETS: dict[str, Preset] = {
    "cifar10-c": _preset(0, "cifar10-c", "ViT-B-32-quickgelu"),
    "cifar100-c": _preset(1, "cifar100-c", "ViT-B-32-quickgelu"),
    "imagenet-c": _preset(2, "imagenet-c", "ViT-B-16-quickgelu"),
}


def get_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]
