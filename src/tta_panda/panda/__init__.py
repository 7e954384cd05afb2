"""Panda itself: negatives, the offset they give, and how much of it to subtract."""

from tta_panda.panda.debias import Batch, Debiaser, Encoded, Panda, split_encoded
from tta_panda.panda.negatives import SAMPLERS, NegativePlan, apply_plan, sample_plan

__all__ = [
    "SAMPLERS",
    "Batch",
    "Debiaser",
    "Encoded",
    "NegativePlan",
    "Panda",
    "apply_plan",
    "sample_plan",
    "split_encoded",
]
