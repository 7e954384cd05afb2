"""Test-time adaptation of vision-language models, with Panda: debiasing by negative data augmentation.

    import tta_panda

    model = tta_panda.load_model("mini")
    classifier = tta_panda.ZeroShotClassifier(model, ["airplane", "umbrella", "snowman"])
    method = tta_panda.Tent(classifier, debias=tta_panda.Panda(beta=0.4))
    logits = method.adapt(images)      # (B, 3, H, W) -> (B, K): predicts, and adapts
    method.reset()

Names are imported on first use, so that `import tta_panda` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tta_panda.data import load_data
    from tta_panda.data.stream import Stream
    from tta_panda.methods.bat import BAT
    from tta_panda.methods.clip import CLIP
    from tta_panda.methods.deyo import DeYO
    from tta_panda.methods.dmn import DMN
    from tta_panda.methods.eta import ETA
    from tta_panda.methods.model_check import check_model
    from tta_panda.methods.sar import SAR
    from tta_panda.methods.tent import Tent
    from tta_panda.methods.tps import TPS
    from tta_panda.methods.tpt import TPT
    from tta_panda.methods.zero import Zero
    from tta_panda.models import ZeroShotClassifier, load_model, make_classifier
    from tta_panda.panda import Panda

__version__ = "0.1.0"

_PUBLIC = {
    "BAT": "tta_panda.methods.bat",
    "CLIP": "tta_panda.methods.clip",
    "DMN": "tta_panda.methods.dmn",
    "ETA": "tta_panda.methods.eta",
    "SAR": "tta_panda.methods.sar",
    "TPS": "tta_panda.methods.tps",
    "TPT": "tta_panda.methods.tpt",
    "DeYO": "tta_panda.methods.deyo",
    "Panda": "tta_panda.panda",
    "Stream": "tta_panda.data.stream",
    "Tent": "tta_panda.methods.tent",
    "Zero": "tta_panda.methods.zero",
    "ZeroShotClassifier": "tta_panda.models",
    "check_model": "tta_panda.methods.model_check",
    "load_data": "tta_panda.data",
    "load_model": "tta_panda.models",
    "make_classifier": "tta_panda.models",
}

__all__ = [
    "BAT",
    "CLIP",
    "DMN",
    "ETA",
    "SAR",
    "TPS",
    "TPT",
    "DeYO",
    "Panda",
    "Stream",
    "Tent",
    "Zero",
    "ZeroShotClassifier",
    "__version__",
    "check_model",
    "load_data",
    "load_model",
    "make_classifier",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
