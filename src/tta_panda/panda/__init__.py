"""Panda itself: negatives, the offset they give, and how much of it to subtract."""

from tta_panda.panda.beta import Beta
from tta_panda.panda.debias import Debiaser, Negatives, Panda
from tta_panda.panda.negatives import SAMPLERS, NegativePlan, apply_plan, sample_plan

__all__ = ["SAMPLERS", "Beta", "Debiaser", "NegativePlan", "Negatives", "Panda", "apply_plan", "sample_plan"]
