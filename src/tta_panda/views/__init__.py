"""Random views of images for TPT, TPS, Zero and others: equal to Pillow's, on any device.

plan = sample_view_plan("augmix", images.shape, 63, torch.Generator().manual_seed(0))
views = apply_view_plan(images, plan)      # (B, 3, H, W) -> (B, 63, 3, H, W)
"""

from tta_panda.views.apply import apply_view_plan
from tta_panda.views.plan import AUGMENTATIONS, OPERATIONS, Augmentation, ViewPlan, sample_view_plan

__all__ = [
    "AUGMENTATIONS",
    "OPERATIONS",
    "Augmentation",
    "ViewPlan",
    "apply_view_plan",
    "sample_view_plan",
]
