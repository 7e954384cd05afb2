"""The paper's tables and figures by name: which runs each needs, how it is laid out, and what the paper printed."""

from __future__ import annotations

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
    },
)
