"""Images of none of the classes: compare how much images and negatives, which show no object, resemble the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.state import Stateful
from tta_panda.transfers import to_device

RECENT = 100
"""Number of negatives that images are compared with."""


class NegativeEnergies(Stateful):
    """Energies of the latest negatives of a stream, as a null distribution for those of images.

    The energy of an image is the logarithm of the sum of its exponentiated logits. It is low if the image resembles
    none of the classes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest: Tensor | None = self.add_state("latest", None)  # (N,)

    def p_values(self, images: Tensor, negatives: Tensor) -> Tensor | None:
        """Add the energies (M,) of a batch's negatives, and return the p-values (B,) of its images' energies.

        A p-value is the share of negatives with at least the energy of the image; None before the first negative.
        """
        latest = (
            negatives
            if self.latest is None
            else torch.cat([to_device(self.latest, negatives.device), negatives])[-RECENT:]
        )
        if not len(latest):
            return None
        self.latest = latest
        return 1 - torch.searchsorted(latest.sort().values, images) / len(latest)
