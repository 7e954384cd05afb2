"""Tables and figures by name, the paper's and some beyond it: which runs each needs, and how it is laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.experiments.base import Experiment

EXPERIMENTS: Registry[type[Experiment]] = Registry(
    "experiment",
    {
        "table-main": "tta_panda.experiments.table_main:MainTable",
        "table-corruptions": "tta_panda.experiments.table_corruptions:CorruptionsTable",
        "table-pda": "tta_panda.experiments.table_pda:PositiveAugmentationTable",
        "table-time": "tta_panda.experiments.table_time:TimeTable",
        "table-nda": "tta_panda.experiments.table_nda:NegativeAugmentationTable",
        "fig-bias": "tta_panda.experiments.fig_bias:BiasFigure",
        "fig-histograms": "tta_panda.experiments.fig_histograms:HistogramsFigure",
        "fig-evolution": "tta_panda.experiments.fig_evolution:EvolutionFigure",
        "fig-ratio": "tta_panda.experiments.fig_ratio:RatioFigure",
        "fig-beta": "tta_panda.experiments.fig_beta:BetaFigure",
        "fig-batch-size": "tta_panda.experiments.fig_batch_size:BatchSizeFigure",
        "fig-ablation": "tta_panda.experiments.fig_ablation:AblationFigure",
        "fig-learning-rate": "tta_panda.experiments.fig_learning_rate:LearningRateFigure",
        "fig-theorem": "tta_panda.experiments.fig_theorem:TheoremFigure",
        "table-beyond": "tta_panda.experiments.table_beyond:BeyondTable",
        "table-streams": "tta_panda.experiments.table_streams:StreamsTable",
        "table-beta": "tta_panda.experiments.table_beta:BetaTable",
        "fig-continual": "tta_panda.experiments.fig_continual:ContinualFigure",
        "fig-batch-one": "tta_panda.experiments.fig_batch_one:BatchOneFigure",
        "fig-patch-size": "tta_panda.experiments.fig_patch_size:PatchSizeFigure",
    },
)

SELECTIONS: dict[str, Callable[[type[Experiment]], bool]] = {
    "all": lambda experiment: True,
    "paper": lambda experiment: bool(experiment.in_paper),
    "beyond": lambda experiment: not experiment.in_paper,
}
"""Names for several experiments at once."""


def select_experiments(names: Iterable[str]) -> list[str]:
    """The experiments that names stand for, each once; a name may be a selection."""
    chosen: list[str] = []
    for name in names:
        belongs = SELECTIONS.get(name)
        chosen += [name] if belongs is None else [each for each in EXPERIMENTS if belongs(EXPERIMENTS.get(each))]
    return list(dict.fromkeys(chosen))
