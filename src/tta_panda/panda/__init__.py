"""Panda, which debiases by the mean embedding of negatives, and other ways to debias a stream."""

from tta_panda.panda.centering import Centering
from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence
from tta_panda.panda.level import Level
from tta_panda.panda.negatives import SAMPLERS, NegativePlan, apply_plan, sample_plan
from tta_panda.panda.offset import Negatives, Panda, PandaDebiaser

__all__ = [
    "SAMPLERS",
    "Beta",
    "Centering",
    "Correction",
    "Debias",
    "Debiaser",
    "Evidence",
    "Level",
    "NegativePlan",
    "Negatives",
    "Panda",
    "PandaDebiaser",
    "apply_plan",
    "sample_plan",
]
