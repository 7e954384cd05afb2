"""What `method.adapt` takes besides a batch, and what it does with threads and with NaN."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from tta_panda import CLIP, DMN, Panda, Tent
from tta_panda.errors import InvalidInputError, NumericalError
from tta_panda.images import Framing, fit_picture, read_image
from tta_panda.models.prepare import as_batch

RNG = np.random.default_rng(0)
ARRAYS = [RNG.integers(256, size=(*size, 3), dtype=np.uint8) for size in ((32, 32), (40, 64), (90, 33), (20, 25))]
PICTURES = [Image.fromarray(array) for array in ARRAYS]
FITTED = torch.stack([torch.from_numpy(np.array(fit_picture(picture, 32))).permute(2, 0, 1) for picture in PICTURES])


@pytest.mark.parametrize("kind", ["pillow", "numpy", "mixed", "tuple"])
def test_pictures_of_any_sizes_are_fitted_as_files_are(kind, tiny_classifier):
    given = {"pillow": PICTURES, "numpy": ARRAYS, "mixed": [*PICTURES[:2], *ARRAYS[2:]], "tuple": tuple(PICTURES)}[kind]
    expected = CLIP(tiny_classifier, debias=Panda()).adapt(FITTED)
    assert torch.equal(CLIP(tiny_classifier, debias=Panda()).adapt(given), expected)


def test_tensors_of_any_sizes_are_fitted_by_the_models_framing(tiny, tiny_classifier):
    tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in ARRAYS]
    expected = CLIP(tiny_classifier).adapt(torch.cat([tiny.prepare(tensor[None]) for tensor in tensors]))
    assert torch.equal(CLIP(tiny_classifier).adapt(tensors), expected)
    assert torch.equal(CLIP(tiny_classifier).adapt([tensors[0] / 255, *tensors[1:]]), expected)
    with_pillow = CLIP(tiny_classifier).adapt([PICTURES[0], *tensors[1:]])
    assert torch.equal(with_pillow, expected)  # the first one has the model's size
    same_size = as_batch([tensors[0], tensors[0]], 32)
    assert same_size.dtype == torch.uint8 and torch.equal(same_size, torch.stack([tensors[0]] * 2))


def test_grey_transparent_and_palette_pictures_are_taken():
    for mode in ("L", "LA", "RGBA", "P", "1", "CMYK"):
        batch = as_batch([picture.convert(mode) for picture in PICTURES], Framing(16, shorter=20))
        assert batch.shape == (4, 3, 16, 16) and batch.dtype == torch.uint8
    grey = as_batch([np.full((20, 30), 77, np.uint8)], 16)
    assert grey.shape == (1, 3, 16, 16) and (grey == 77).all()


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ([PICTURES[0], "photo.jpg"], r"images\[1\] is str; expected a Pillow image"),
        ([ARRAYS[0] / 255], r"images\[0\] is float64 \(32, 32, 3\)"),
        ([], "must be a torch.Tensor"),
        (PICTURES[0], "takes a list of pictures"),
        ([torch.rand(3, 8, 8) * 255, torch.rand(3, 9, 9)], r"must be in \[0, 1\]"),
        (torch.linspace(-0.5, 0.5, 768).view(1, 3, 16, 16), r"must be in \[0, 1\], got values from -0\.5"),
        ([torch.rand(1, 8, 8), torch.rand(3, 9, 9)], r"shape \(B, 3, H, W\)"),
    ],
)
def test_other_things_are_refused(images, reason, tiny_classifier):
    with pytest.raises(InvalidInputError, match=reason):
        CLIP(tiny_classifier).adapt(images)


@pytest.mark.parametrize("make", [Tent, DMN])
def test_threads_that_share_a_method_wait_for_each_other(make, tiny_classifier, images):
    """The same batch again and again, so that the order does not matter: as if one thread had sent them all."""
    shared, alone = (make(tiny_classifier, debias=Panda(), seed=3) for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: shared.adapt(images[:8]), range(12)))
        states = list(pool.map(lambda _: shared.state_dict(), range(4)))
    expected = [alone.adapt(images[:8]) for _ in range(12)]
    assert sorted(logits.numpy().tobytes() for logits in got) == sorted(logits.numpy().tobytes() for logits in expected)
    assert shared.passes.batches == 12
    shared.reset()
    shared.load_state_dict(states[-1])
    assert torch.equal(shared.adapt(images[:8]), alone.adapt(images[:8]))


def test_beta_is_not_set_while_a_batch_is_predicted(tiny_classifier):
    method = Tent(tiny_classifier, debias=Panda(beta=0.2))
    with ThreadPoolExecutor(1) as pool:
        with method._lock:
            waiting = pool.submit(setattr, method, "beta", 0.8)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
            assert method.beta == 0.2
        waiting.result()
    assert method.beta == 0.8


def test_methods_can_be_copied_and_pickled_with_a_lock_of_their_own(tiny_classifier, images):
    method = Tent(tiny_classifier, debias=Panda())
    method.adapt(images[:8])
    copies = [copy.deepcopy(method), pickle.loads(pickle.dumps(method))]
    expected = method.adapt(images[8:16])
    assert all(torch.equal(each.adapt(images[8:16]), expected) for each in copies)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_predictions_that_are_not_finite_are_an_error(value, tiny_classifier, images, monkeypatch):
    method = CLIP(tiny_classifier)
    method.adapt(images[:4])
    monkeypatch.setattr(CLIP, "_adapt", lambda self, encoded: encoded.features * value)
    with pytest.raises(NumericalError, match=r"NaN or infinite in batch 2: .* smaller learning rate"):
        method.adapt(images[:4])


def test_training_that_diverges_is_an_error_and_reset_starts_afresh(tiny_classifier, images):
    method = Tent(tiny_classifier, lr=1e30)
    before = method.adapt(images[:8])
    with pytest.raises(NumericalError, match="in batch 2"):
        method.adapt(images[:8])
    method.reset()
    assert torch.equal(method.adapt(images[:8]), before)


def test_a_pillow_image_is_read_as_its_file_is(tmp_path):
    grey = np.linspace(0, 65535, 64 * 64, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    with Image.open(tmp_path / "grey.png") as picture:
        [read] = as_batch([picture], 32)
    assert np.array_equal(read.permute(1, 2, 0).numpy(), read_image(tmp_path / "grey.png", 32))
