"""The published strength of every corruption, severities 1 to 5, for small (32 px) and large (224 px) images.

The numbers are those of `make_cifar_c.py` and `make_imagenet_c.py` (Hendrycks & Dietterich, "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR 2019). One row per severity; comments name columns.
"""

from __future__ import annotations

Values = tuple[float, ...]
Table = dict[str, tuple[Values, ...]]


def _rows(*values: float) -> tuple[Values, ...]:
    return tuple((value,) for value in values)


def _elastic(side: float, *rows: Values) -> tuple[Values, ...]:
    """Elastic strengths are published as fractions of the image's side."""
    return tuple(tuple(side * value for value in row) for row in rows)


CIFAR: Table = {
    "gaussian_noise": _rows(0.04, 0.06, 0.08, 0.09, 0.10),  # sigma
    "shot_noise": _rows(500, 250, 100, 75, 50),  # photons at full brightness
    "impulse_noise": _rows(0.01, 0.02, 0.03, 0.05, 0.07),  # share of values
    "speckle_noise": _rows(0.06, 0.1, 0.12, 0.16, 0.2),  # sigma
    "gaussian_blur": _rows(0.4, 0.6, 0.7, 0.8, 1),  # sigma
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, sigma of the rim
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),  # sigma, reach, iterations
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),  # radius, sigma
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),  # end of the factors, step
    "snow": (  # mean, sigma, zoom, threshold, blur radius, blur sigma, weight of the image
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    # weight of the image, weight of the frost, size of the frost photograph relative to its file
    "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # amount, decay of the roughness
    "brightness": _rows(0.05, 0.1, 0.15, 0.2, 0.3),  # added to V of HSV
    "contrast": _rows(0.75, 0.5, 0.4, 0.3, 0.15),  # factor
    "elastic_transform": _elastic(  # strength, smoothness, affine jitter
        32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": _rows(0.95, 0.9, 0.85, 0.75, 0.65),  # size of the small image
    "jpeg_compression": _rows(80, 65, 58, 50, 40),  # quality
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # factor, offset on S of HSV
    "spatter": (  # mean, sigma, smoothness, threshold, strength (water) or smoothness (mud), 0 water or 1 mud
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
}

IMAGENET: Table = {
    "gaussian_noise": _rows(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _rows(60, 25, 12, 5, 3),
    "impulse_noise": _rows(0.03, 0.06, 0.09, 0.17, 0.27),
    "speckle_noise": _rows(0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": _rows(1, 2, 3, 4, 6),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _rows(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _rows(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": _elastic(  # 244, not 224: as published
        244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
    ),
    "pixelate": _rows(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _rows(25, 18, 15, 10, 7),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
}

PARAMETER_SETS: dict[str, Table] = {"cifar": CIFAR, "imagenet": IMAGENET}
