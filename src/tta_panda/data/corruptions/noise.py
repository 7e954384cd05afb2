"""Noise: gaussian, shot, impulse, speckle."""

from __future__ import annotations

import numpy as np

from tta_panda.data.corruptions.arrays import Generators, Images, draw, to_uint8, to_unit
from tta_panda.data.corruptions.severity import Values


def gaussian_noise(images: Images, generators: Generators, values: Values) -> Images:
    (sigma,) = values
    noise = draw(generators, lambda generator: generator.standard_normal(images.shape[1:]))
    noise *= sigma
    noise += to_unit(images)
    return to_uint8(noise)


def speckle_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Gaussian noise in proportion to the signal."""
    (sigma,) = values
    noise = draw(generators, lambda generator: generator.standard_normal(images.shape[1:]))
    noise *= sigma
    noise += 1
    noise *= to_unit(images)
    return to_uint8(noise)


def shot_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Photon counts: the fewer photons at full brightness, the coarser."""
    (photons,) = values
    expected = to_unit(images) * photons
    for mean, generator in zip(expected, generators, strict=True):
        mean[:] = generator.poisson(mean)
    return to_uint8(expected / photons)


def impulse_noise(images: Images, generators: Generators, values: Values) -> Images:
    """Salt and pepper, for each channel separately and in equal parts."""
    (amount,) = values
    chance = draw(generators, lambda generator: generator.random(images.shape[1:], dtype=np.float32))
    out = images.copy()
    out[chance < amount] = 255
    out[chance < amount / 2] = 0
    return out
