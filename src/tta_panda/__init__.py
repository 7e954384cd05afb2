"""Test-time adaptation of vision-language models, with Panda: debiasing by negative data augmentation.

    import tta_panda

    model = tta_panda.load_model("mini")
    classifier = tta_panda.ZeroShotClassifier(model, ["airplane", "umbrella", "snowman"])
    method = tta_panda.create_method("tent+panda", classifier, beta=0.4)
    logits = method.adapt(images)      # (B, 3, H, W) -> (B, K): predicts, and adapts
    method.reset()

`__init__.pyi` lists the public names. They are imported on first use, so that `import tta_panda` is cheap.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
