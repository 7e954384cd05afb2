"""Random views of images, as TPT, TPS and Zero use them: equal to Pillow's, on any device.

from tta_panda.views import make_views

generator = torch.Generator().manual_seed(0)
views = make_views(images, 64, generator)      # (B, 3, H, W) -> (B, 64, 3, H, W), the image itself first
"""

from tta_panda.views.apply import apply_view_plan, make_views
from tta_panda.views.plan import AUGMENTATIONS, OPERATIONS, Augmentation, ViewPlan, sample_view_plan

__all__ = [
    "AUGMENTATIONS",
    "OPERATIONS",
    "Augmentation",
    "ViewPlan",
    "apply_view_plan",
    "make_views",
    "sample_view_plan",
]
