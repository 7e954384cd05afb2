"""The paper's theorem: why subtracting something correlated with the corruption helps, and how much of it is best.

Along one direction the embedding is `v = v_class + v_corruption` with variances 1 and s^2, and the label is the sign of
`v_class`. A negative `n` of variance s^2 has correlation r with the corruption and none with the class.
"""

from __future__ import annotations

import math

import numpy as np


def accuracy(noise: float, correlation: float = 0.0, beta: float = 0.0) -> float:
    """Probability that `sign(v - beta n)` is the label, for `noise` s > 0; largest at `beta == correlation`."""
    spread = noise * math.sqrt(1 - correlation**2 + (beta - correlation) ** 2)
    return 0.5 + math.atan2(1, spread) / math.pi


def simulate_accuracy(noise: float, correlation: float, beta: float, samples: int, rng: np.random.Generator) -> float:
    """The same probability by drawing `samples` triples of class, corruption and negative."""
    of_class, of_corruption, independent = rng.standard_normal((3, samples))
    negative = correlation * of_corruption + math.sqrt(1 - correlation**2) * independent
    debiased = of_class + noise * of_corruption - beta * noise * negative
    return float(np.mean(np.sign(debiased) == np.sign(of_class)))
