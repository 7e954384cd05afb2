"""Views are Pillow's and torchvision's to the bit or nearly so, and a plan alone decides which ones they are."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest
import torch
from data_files import real_data
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from reference.pillow_views import PILLOW_OPERATIONS, apply_view_plan_by_picture
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import hflip, pil_to_tensor, resize, resized_crop, to_pil_image, to_tensor

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.views import AUGMENTATIONS, OPERATIONS, ViewPlan, apply_view_plan, sample_view_plan
from tta_panda.views.apply import crop_views
from tta_panda.views.operations import MOVING, POINTWISE, affine_map, transform
from tta_panda.views.plan import NO_OPERATION

seeds = st.integers(0, 2**31)
sides = st.integers(1, 40)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made_images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Slopes, an edge and noise: floats on the 8-bit grid."""
    noise = torch.rand(count, 3, height, width, generator=generator(seed))
    slope = torch.linspace(0, 1, width) * torch.linspace(1, 0.2, height)[:, None]
    images = 0.7 * slope + 0.3 * noise
    images[:, :, height // 2 :, : width // 3] = 0.9
    return (images * 255).round() / 255


def photographs(count: int, height: int = 96, width: int = 112) -> Tensor:
    files = sorted(real_data("photos").glob("*/*.jpg"))
    pictures = [Image.open(file).convert("RGB").resize((width, height)) for file in files[:: len(files) // count]]
    return torch.stack([to_tensor(picture) for picture in pictures[:count]])


@pytest.fixture(params=["made", "photographs", "tiny"])
def images(request: pytest.FixtureRequest) -> Tensor:
    if request.param == "photographs":
        return photographs(4)
    return made_images(4, 61, 83) if request.param == "made" else made_images(4, 7, 5)


def make_views(images: Tensor, views: int, generator: torch.Generator, augmentation: str = "augmix") -> Tensor:
    return apply_view_plan(images, sample_view_plan(augmentation, images.shape, views, generator))


def grid(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def operate(name: str, images: Tensor, strengths: list[float]) -> Tensor:
    """Each image with its own strength."""
    return (POINTWISE | MOVING)[name](images, torch.tensor(strengths, dtype=torch.float64))


def pillow_all(name: str, images: Tensor, strengths: list[float]) -> Tensor:
    pictures = [to_pil_image(image) for image in images]
    return torch.stack(
        [
            pil_to_tensor(PILLOW_OPERATIONS[name](picture, strength))
            for picture, strength in zip(pictures, strengths, strict=True)
        ]
    )


EXACT = {
    "autocontrast": [0, 0, 0, 0],
    "equalize": [0, 0, 0, 0],
    "posterize": [4, 3, 1, 8],
    "solarize": [231, 254, 256, 128],
    "translate_x": [0, 3, -2, 200],
    "translate_y": [0, 7, -6, -200],
}
BLENDED = {
    "rotate": [1, -2, 2, -1],
    "shear_x": [0.02718281, -0.01414214, 0.00314159, 0.22360680],
    "shear_y": [0.02718281, -0.01414214, 0.00314159, -0.22360680],
}


def test_every_operation_is_compared():
    assert set(OPERATIONS) == set(EXACT) | set(BLENDED) == set(POINTWISE) | set(MOVING)


@pytest.mark.parametrize("name", EXACT)
def test_these_operations_equal_pillow(name, images):
    pixels = grid(images)
    untouched = pixels.clone()
    assert torch.equal(operate(name, pixels, EXACT[name]), pillow_all(name, pixels, EXACT[name]))
    assert torch.equal(pixels, untouched)


@pytest.mark.parametrize("name", BLENDED)
def test_blended_pixels_are_cut_off_as_pillow_does(name, images):
    pixels = grid(images)
    untouched = pixels.clone()
    apart = (operate(name, pixels, BLENDED[name]).int() - pillow_all(name, pixels, BLENDED[name]).int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 2e-4  # float32 here, double there
    assert torch.equal(pixels, untouched)


@pytest.mark.parametrize("name", MOVING)
def test_all_moves_are_one_affine_map(name, images):
    """As other devices than a CPU use it."""
    pixels, strengths = grid(images), (EXACT | BLENDED)[name]
    maps = torch.tensor([affine_map(name, strength, *pixels.shape[2:]) for strength in strengths], dtype=torch.float64)
    expected = pillow_all(name, pixels, strengths)
    apart = (transform(pixels, maps).int() - expected.int()).abs()
    assert apart.max() <= 1 and (apart > 0).float().mean() < 2e-5  # double precision here, too
    assert name not in EXACT or not apart.any()


@pytest.mark.parametrize("value", [0, 1, 77, 255])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_constant_image_as_pillow_has_it(name, value):
    pixels = torch.full((4, 3, 20, 24), value, dtype=torch.uint8)
    pixels[:, 1] = 255 - value
    strengths = (EXACT | BLENDED)[name]
    assert torch.equal(operate(name, pixels, strengths), pillow_all(name, pixels, strengths))


@given(seeds, st.integers(2, 256), sides, sides)
@settings(max_examples=60, deadline=None)
def test_tables_equal_pillow_for_any_histogram(seed, values, height, width):
    levels = torch.randperm(256, generator=generator(seed))[:values]
    pixels = levels[torch.randint(values, (1, 3, height, width), generator=generator(seed))].to(torch.uint8)
    for name in ("autocontrast", "equalize"):
        assert torch.equal(operate(name, pixels, [0]), pillow_all(name, pixels, [0]))


@pytest.mark.parametrize("sides", [None, (32, 40), (150, 130)], ids=str)
def test_crops_equal_torchvision(images, sides):
    plan = sample_view_plan("crops", images.shape, 12, generator(1), sides)
    for image, boxes, flips in zip(grid(images), plan.boxes, plan.flips, strict=True):
        expected = [
            crop_by_torchvision(image, box.tolist(), bool(flip), plan.sides)
            for box, flip in zip(boxes, flips, strict=True)
        ]
        assert torch.equal(crop_views(image[None], boxes[None], flips[None], plan.sides), torch.stack(expected))


@given(sides, sides, sides, sides, seeds, st.data())
@settings(max_examples=60, deadline=None)
def test_any_crop_equals_torchvision(height, width, new_height, new_width, seed, data):
    """Enlarged or reduced, in each direction on its own."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator(seed))
    boxes = []
    for _ in range(2):  # crops that need different numbers of neighbours
        h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
        boxes.append([data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w])
    flip = data.draw(st.booleans())
    crops = crop_views(image[None], torch.tensor([boxes]), torch.tensor([[flip, flip]]), (new_height, new_width))
    for crop, box in zip(crops, boxes, strict=True):
        assert torch.equal(crop, crop_by_torchvision(image, box, flip, (new_height, new_width)))


def crop_by_torchvision(image: Tensor, box: list[int], flip: bool, sides: tuple[int, int]) -> Tensor:
    """One direction after the other: newer versions of Pillow choose the order by its cost."""
    wide = resized_crop(to_pil_image(image), *box, [box[2], sides[1]], InterpolationMode.BILINEAR, antialias=True)
    crop = resize(wide, list(sides), InterpolationMode.BILINEAR, antialias=True)
    return pil_to_tensor(hflip(crop) if flip else crop)


def test_views_of_another_size_than_the_image():
    images = made_images(2, 61, 83)
    plan = sample_view_plan("augmix", images.shape, 4, generator(6), (24, 20))
    made = apply_view_plan(images, plan)
    assert made.shape == (2, 4, 3, 24, 20)
    expected = torch.stack([apply_view_plan_by_picture(to_pil_image(i), plan, n) for n, i in enumerate(images)])
    apart = (made - expected).abs() * 255
    assert (apart > 0.01).float().mean() < 5e-4
    assert torch.equal(apply_view_plan(grid(images), plan), made)  # uint8 and floats alike


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_whole_views_equal_pillow(augmentation, images):
    plan = sample_view_plan(augmentation, images.shape, 12, generator(2))
    expected = torch.stack([apply_view_plan_by_picture(to_pil_image(i), plan, n) for n, i in enumerate(images)])
    apart = (apply_view_plan(images, plan) - expected).abs() * 255
    # Where a blended pixel is one off, a later solarisation or equalisation can make more of it.
    assert (apart > 0.01).float().mean() < 5e-4
    assert apart.median() < 1e-3
    if augmentation == "crops":
        assert torch.equal(apply_view_plan(images, plan), expected)


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_parts_give_the_bits_of_the_whole(augmentation, images):
    plan = sample_view_plan(augmentation, images.shape, 9, generator(3))
    whole = apply_view_plan(images, plan)
    parts = [apply_view_plan(images[a:b], plan[a:b]) for a, b in [(0, 1), (1, 4)]]
    assert torch.equal(whole, torch.cat(parts))
    assert len(plan[1:4]) == 3 and plan[1:4].count == 9


def test_the_number_of_threads_makes_no_difference():
    images = made_images(3, 100, 100)
    alone, before = make_views(images, 8, generator()), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(make_views(images, 8, generator()), alone)
    finally:
        torch.set_num_threads(before)


def test_views_leave_the_threads_of_other_libraries_alone(monkeypatch):
    """Numbers of threads are global: changing them here would race with views that are made at the same time."""
    for library, name in ((cv2, "setNumThreads"), (torch, "set_num_threads")):
        monkeypatch.setattr(library, name, lambda count: pytest.fail(f"{count} threads"))
    make_views(made_images(3, 100, 100), 8, generator())


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_seed_decides_and_nothing_else_is_drawn_from(augmentation):
    images = made_images(2, 20, 30)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (make_views(images, 6, generator(7), augmentation) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, make_views(images, 6, generator(8), augmentation))
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_both_augmentations_share_their_crops():
    plans = [sample_view_plan(name, (3, 3, 32, 48), 5, generator(4)) for name in AUGMENTATIONS]
    assert torch.equal(plans[0].boxes, plans[1].boxes) and torch.equal(plans[0].flips, plans[1].flips)


@given(st.sampled_from(AUGMENTATIONS), st.integers(1, 3), st.integers(1, 5), sides, sides, seeds)
@settings(max_examples=40, deadline=None)
def test_views_of_any_size(augmentation, batch, views, height, width, seed):
    images = torch.rand(batch, 3, height, width, generator=generator(seed))
    untouched = images.clone()
    made = make_views(images, views, generator(seed), augmentation)
    assert made.shape == (batch, views, 3, height, width) and torch.equal(images, untouched)
    assert made.min() >= 0 and made.max() <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtype_is_kept_and_no_gradient_is_tracked(dtype):
    images = made_images(2, 16, 16).to(dtype).requires_grad_()
    made = make_views(images.detach(), 4, generator())
    assert made.dtype == dtype
    assert not apply_view_plan(images, sample_view_plan("augmix", images.shape, 3, generator())).requires_grad


@given(st.integers(1, 300), st.integers(1, 300), seeds)
@settings(max_examples=30, deadline=None)
def test_crops_lie_within_the_image(height, width, seed):
    top, left, h, w = sample_view_plan("crops", (4, 3, height, width), 16, generator(seed)).boxes.flatten(0, 1).T
    assert (h >= 1).all() and (w >= 1).all() and (top >= 0).all() and (left >= 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()


def test_crops_are_drawn_as_torchvision_does():
    plan = sample_view_plan("crops", (100, 3, 224, 224), 100, generator())
    top, left, h, w = plan.boxes.flatten(0, 1).double().T
    share, ratio = h * w / 224**2, w / h
    assert share.min() > 0.075 and share.max() <= 1
    assert ratio.min() > 0.74 and ratio.max() < 1.36
    assert share.mean() == pytest.approx(expected_share(), abs=0.01)
    assert ratio.log().mean() == pytest.approx(0, abs=0.01)
    assert ((top + 0.5) / (224 - h + 1)).mean() == pytest.approx(0.5, abs=0.02)
    assert ((left + 0.5) / (224 - w + 1)).mean() == pytest.approx(0.5, abs=0.02)
    assert plan.flips.double().mean() == pytest.approx(0.5, abs=0.02)


def expected_share() -> float:
    """The mean area of crops by a plain loop: the first of ten tries that fits."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(4000):
        for _ in range(10):
            area, ratio = 224**2 * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if w <= 224 and h <= 224:
                shares.append(w * h / 224**2)
                break
        else:
            shares.append(1.0)
    return float(np.mean(shares))


@pytest.mark.parametrize(
    ("height", "width", "box"), [(400, 4, [197, 0, 5, 4]), (4, 400, [0, 197, 4, 5]), (1, 1, [0, 0, 1, 1])]
)
def test_where_no_crop_fits_a_central_one_is_taken(height, width, box):
    plan = sample_view_plan("crops", (8, 3, height, width), 64, generator())
    assert (plan.boxes == torch.tensor(box)).all(dim=2).any()


def test_chains_are_drawn_as_published():
    plan = sample_view_plan("augmix", (60, 3, 224, 224), 63, generator())
    operations, strengths = plan.operations.flatten(0, 2), plan.strengths.flatten(0, 2)
    lengths = (operations != NO_OPERATION).sum(dim=1)
    assert all((lengths == length).double().mean() == pytest.approx(1 / 3, abs=0.02) for length in (1, 2, 3))
    assert ((operations != NO_OPERATION) == (torch.arange(3) < lengths[:, None])).all()  # operations come first
    used = operations[operations != NO_OPERATION]
    given = {name: strengths[operations == index] for index, name in enumerate(OPERATIONS)}
    for index in range(len(OPERATIONS)):
        assert (used == index).double().mean() == pytest.approx(1 / 9, abs=0.01)
    for name in ("shear_x", "shear_y"):
        level = given[name].abs() / 0.03
        assert level.min() >= 0.1 and level.max() <= 1 and level.mean() == pytest.approx(0.55, abs=0.02)
        assert (given[name] > 0).double().mean() == pytest.approx(0.5, abs=0.05)
    assert set(given["posterize"].tolist()) == {4}
    assert set(given["rotate"].tolist()) == {-2, -1, 0, 1, 2}
    assert set(given["solarize"].tolist()) == set(range(231, 255))
    assert set(given["translate_x"].tolist()) == set(range(-7, 8))
    assert set(given["autocontrast"].tolist()) == {0}


def test_translations_follow_the_side_they_run_along():
    plan = sample_view_plan("augmix", (40, 3, 32, 32), 63, generator(), (300, 60))
    reach = [plan.strengths[plan.operations == OPERATIONS.index(f"translate_{axis}")].abs().max() for axis in "xy"]
    assert reach == [1, 9]


def test_weights_are_a_uniform_share_and_a_flat_dirichlet():
    weights = sample_view_plan("augmix", (60, 3, 8, 8), 63, generator()).weights.flatten(0, 1)
    assert weights.shape[1] == 4 and (weights >= 0).all()
    assert torch.allclose(weights.sum(dim=1), torch.ones(len(weights), dtype=torch.float64))
    kept, shares = weights[:, 0], weights[:, 1:] / (1 - weights[:, :1])
    assert kept.mean() == pytest.approx(1 / 2, abs=0.02) and kept.var() == pytest.approx(1 / 12, abs=0.01)
    for chain in range(3):  # Dirichlet(1, 1, 1): mean 1/3, variance 1/18
        assert shares[:, chain].mean() == pytest.approx(1 / 3, abs=0.02)
        assert shares[:, chain].var() == pytest.approx(1 / 18, abs=0.01)


def test_mixing_commutes_with_normalisation():
    images = made_images(1, 32, 32)
    plan = sample_view_plan("augmix", (1, 3, 32, 32), 1, generator(5))
    parts = []
    for chain in range(4):  # the crop alone, then each chain alone
        alone = torch.nn.functional.one_hot(torch.tensor([[chain]]), 4).double()
        parts.append(apply_view_plan(images, dataclasses.replace(plan, weights=alone))[0, 0])
    mean, std = torch.tensor([0.48, 0.46, 0.41]).view(3, 1, 1), torch.tensor([0.27, 0.26, 0.28]).view(3, 1, 1)
    weights = plan.weights[0, 0].float()
    normalised = sum(weight * (part - mean) / std for weight, part in zip(weights, parts, strict=True))
    assert torch.allclose((apply_view_plan(images, plan)[0, 0] - mean) / std, normalised, atol=1e-5)
    assert all(torch.allclose(part * 255, (part * 255).round(), atol=1e-3) for part in parts)


def test_bad_requests_say_what_is_wrong():
    images = made_images(2, 8, 8)
    with pytest.raises(UnknownNameError, match=r"augmentation 'augmx'.*'augmix'"):
        make_views(images, 4, generator(), "augmx")
    plan = sample_view_plan("augmix", images.shape, 3, generator())
    with pytest.raises(InvalidInputError, match=r"2 image\(s\) of 8x8 px, got 1 image\(s\)"):
        apply_view_plan(images[:1], plan)
    with pytest.raises(InvalidInputError, match="sliced"):
        _ = plan[0]
    assert isinstance(plan, ViewPlan) and apply_view_plan(images, plan).shape == (2, 3, 3, 8, 8)
