"""How strongly the offset is subtracted: a fixed beta, or one chosen from unlabelled predictions.

The offset moves all logits of a batch by one vector, `z = s (l - beta b)` with `l = v t'` and `b = n t'`, so the effect
of any beta can be judged from `l` and `b` without encoding anything again.
"""

from __future__ import annotations

from typing import Literal

from tta_panda.panda.beta.base import BetaRule, FixedBeta
from tta_panda.panda.beta.information import InformationBeta
from tta_panda.panda.beta.shrinkage import ShrinkageBeta
from tta_panda.panda.beta.slope import AutoBeta, SlopeBeta

BetaName = Literal["auto", "slope", "shrinkage", "information"]
Beta = float | BetaName

RULES: dict[BetaName, type[BetaRule]] = {
    "auto": AutoBeta,
    "slope": SlopeBeta,
    "shrinkage": ShrinkageBeta,
    "information": InformationBeta,
}

__all__ = ["RULES", "Beta", "BetaName", "BetaRule", "beta_rule"]


def beta_rule(beta: Beta) -> BetaRule:
    """The rule of a name, or a fixed beta, at the beginning of a stream."""
    return RULES[beta]() if isinstance(beta, str) else FixedBeta(float(beta))
