"""Newer methods at their limits, on larger streams, and under a shift of all features."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reference.dota
import reference.eata
import reference.latte
import reference.rotta
import torch
import torch.nn.functional as F
from conftest import TINY_OPTIONS, make_tiny
from reference.given import Given
from torch import Tensor

from tta_panda import CLIP, LAME, CLIPArTT, FrozenMethod, Panda, Tent, ZeroShotClassifier
from tta_panda.errors import InvalidInputError
from tta_panda.methods import METHODS, parse_method
from tta_panda.methods.dota import DOTA
from tta_panda.methods.eata import EATA
from tta_panda.methods.factory import default_options
from tta_panda.methods.features import Encoded
from tta_panda.methods.im import IM
from tta_panda.methods.latte import Latte, exchange
from tta_panda.methods.losses import marginal_entropy, matching_loss
from tta_panda.methods.mint import Mint
from tta_panda.methods.oga import OGA, _covariance, _whitened
from tta_panda.methods.rotta import RoTTA
from tta_panda.methods.stata import Gaussians, StatA
from tta_panda.methods.tda import TDA

FROZEN = ("tda", "oga", "stata", "lame", "latte")
LEARNING = ("ecalp", "onzeta")
VIEWING = ("dota", "boostadapter", "dpe")
TRAINED = ("mint", "im", "eata", "memo", "rotta", "roid", "cliptta", "ramen", "clipartt", "watt")


def made_up(classes: int, size: int, count: int) -> tuple[ZeroShotClassifier, Tensor]:
    """A classifier with random class embeddings, and unit features (count, size) that lie around some of them."""
    generator = torch.Generator().manual_seed(classes)
    classifier = ZeroShotClassifier(make_tiny(), [f"class {k}" for k in range(classes)])
    classifier.class_embeddings = F.normalize(torch.randn(classes, size, generator=generator), dim=1)
    classifier.logit_scale = 20.0
    of = torch.randint(max(2, classes // 2), (count,), generator=generator)
    noise = torch.randn(count, size, generator=generator) / size**0.5
    return classifier, F.normalize(classifier.class_embeddings[of] + 1.5 * noise, dim=1)


def by_reference(name: str, classifier: ZeroShotClassifier, batches: list[Tensor], **options) -> Tensor:
    return torch.cat(importlib.import_module(f"reference.{name}").run(given_by(classifier), batches, **options))


def given_by(classifier: ZeroShotClassifier) -> Given:
    """What the straight-line code needs, with features in the place of images."""
    model = SimpleNamespace(encode_image=lambda x: x, encode_text=lambda texts: classifier.class_embeddings)
    names = list(classifier.class_names)
    return Given(model, names, classifier.logit_scale, lambda x: x, lambda x, count: x, lambda x: x)


@pytest.mark.parametrize("name", ["dmn", *FROZEN, *LEARNING])
@pytest.mark.parametrize(("classes", "size", "sizes"), [(2, 4, 40), (20, 8, 30), (5, 6, 1), (5, 6, 2), (12, 16, 120)])
def test_at_once_is_one_by_one(name, classes, size, sizes):
    """Also where slots change hands twice in a batch, where most classes have no image, and for single images."""
    if sizes == 1 and name in ("stata", "lame"):
        pytest.skip("a single image has no neighbours; see below")
    classifier, features = made_up(classes, size, 120 if sizes > 2 else 12)
    method = METHODS.get(name)(classifier)
    options = {key: value for key, value in method.options.items() if key != "protocol"}
    batches = list(features.split(sizes))
    got = torch.cat([method.adapt_encoded(Encoded(batch)) for batch in batches])
    expected = by_reference(name, classifier, batches, **options)
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)
    plain = torch.cat([CLIP(classifier).adapt_encoded(Encoded(batch)) for batch in batches])
    assert (got.log_softmax(dim=1) - plain.log_softmax(dim=1)).abs().max() > 1e-3


@pytest.mark.parametrize("name", [*FROZEN, *LEARNING, *VIEWING, *TRAINED])
@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_one_image_over_and_over(name, beta, protocol, tiny_classifier, images):
    """One class, no variance, and every image has nothing but itself as neighbours."""
    debias = None if beta is None else Panda(beta=beta)
    method = METHODS.get(name)(tiny_classifier, debias=debias, protocol=protocol, **TINY_OPTIONS.get(name, {}))
    for size in (1, 3, 12, 2):
        logits = method.adapt(images[:1].expand(size, -1, -1, -1))
        # OnZeta balances the classes, and views differ.
        assert name in ("onzeta", *VIEWING) or len(logits.argmax(dim=1).unique()) == 1


@pytest.mark.parametrize("name", [*FROZEN, *LEARNING, *VIEWING, *TRAINED])
def test_nothing_is_confident(name, tiny_classifier, images):
    """All classes have one embedding, so that every prediction is uniform."""
    tiny_classifier.class_embeddings = tiny_classifier.class_embeddings[:1].expand(4, -1).clone()
    method = METHODS.get(name)(tiny_classifier, **TINY_OPTIONS.get(name, {}))
    for batch in images.split(10):
        method.adapt(batch)
    if name == "oga":
        assert not len(method.cache["labels"])  # no better than chance
    if name == "tda":
        assert not len(method.negative["labels"])  # ln 4 is 0.69 of log2(4), above max_entropy


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (TDA, {"slots": 0}),
        (TDA, {"negative_slots": 0}),
        (OGA, {"slots": 0}),
        (OGA, {"temperature": -1.0}),
        (StatA, {"neighbours": 0}),
        (StatA, {"inner_steps": 0}),
        (StatA, {"alpha": -1.0}),
        (Mint, {"prior": -1.0}),
        (IM, {"diversity": -1.0}),
    ],
)
def test_options_out_of_range_are_refused(cls, wrong, tiny_classifier):
    [name] = wrong
    with pytest.raises(InvalidInputError, match=f"{name} must be a (whole )?number >= "):
        cls(tiny_classifier, **wrong)


# --- what a shift of all features does not change -------------------------------------------------------------------


def test_gaussians_around_images_do_not_change_under_a_common_shift():
    """So Panda cannot move them: it subtracts one vector from all features."""
    classifier, features = made_up(4, 8, 200)
    shift = torch.linspace(-0.5, 0.5, 8)
    labels = torch.arange(200) % 4
    method = OGA(classifier)

    def posterior(moved: Tensor | float, labels: Tensor) -> Tensor:
        entries = features + moved
        method.cache = {"features": entries, "labels": labels, "entropies": torch.zeros(len(labels))}
        return method._log_likelihoods(entries).log_softmax(dim=1)

    torch.testing.assert_close(posterior(shift, labels), posterior(0.0, labels), rtol=1e-3, atol=1e-3)
    # A class whose mean is its text does change.
    assert (posterior(shift, labels % 3) - posterior(0.0, labels % 3)).abs().max() > 1

    gaussians = Gaussians(features[:4], features[4:8].square() + 0.1)
    moved = Gaussians(gaussians.means + shift, gaussians.variances)
    expected = gaussians.log_likelihoods(features)
    torch.testing.assert_close(moved.log_likelihoods(features + shift), expected, rtol=1e-4, atol=1e-4)
    distances = (features[:, None] - gaussians.means).square() / gaussians.variances + gaussians.variances.log()
    torch.testing.assert_close(expected, -distances.sum(dim=2) / 2, rtol=1e-4, atol=1e-4)


def test_mints_loss_does_not_change_under_a_common_shift(tiny_classifier):
    features = F.normalize(torch.randn(30, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    predicted = torch.arange(30) % 3
    losses, gradients = [], []
    for shift in (torch.zeros(16), torch.linspace(-0.5, 0.5, 16)):
        method = Mint(tiny_classifier)
        moved = (features + shift).requires_grad_(True)
        method.sums.index_add_(0, predicted, moved.detach())
        method.counts.index_add_(0, predicted, torch.ones(30, 1))
        loss = method._loss(moved, predicted)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, moved)[0])
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", FROZEN)
def test_an_offset_that_all_classes_share_changes_nothing(name):
    """It moves all logits of an image alike; keys, Gaussians and neighbours are of plain features."""
    classifier, features = made_up(5, 6, 40)
    # A direction in which all class embeddings have the same coordinate.
    direction = torch.linalg.lstsq(classifier.class_embeddings, torch.ones(5, 1)).solution.T
    plain, debiased = METHODS.get(name)(classifier), METHODS.get(name)(classifier, debias=Panda(beta=0.5))
    for batch in features.split(20):
        expected = plain.adapt_encoded(Encoded(batch)).log_softmax(dim=1)
        got = debiased.adapt_encoded(Encoded(batch, direction)).log_softmax(dim=1)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["dmn", "tda", "latte", *LEARNING, *VIEWING])
def test_each_image_has_the_correction_of_its_own(name):
    """A level is one of these; methods that process images one by one find it in a batch of any size."""
    classifier, features = made_up(5, 6, 12)
    random = torch.Generator().manual_seed(0)
    views = F.normalize(features[:, None] + 0.2 * torch.randn(12, 4, 6, generator=random), dim=-1)
    views[:, 0] = features
    bias, shift = 5 * torch.randn(12, 5, generator=random), 0.2 * torch.randn(12, 6, generator=random)
    encoded = Encoded(features, views=views, bias=bias, shift=shift)
    at_once, one_by_one, plain = (METHODS.get(name)(classifier, **TINY_OPTIONS.get(name, {})) for _ in range(3))
    with torch.no_grad():
        got = at_once._adapt(encoded)
        torch.testing.assert_close(got, torch.cat([one_by_one._adapt(each) for each in encoded.split()]))
        assert (got - plain._adapt(Encoded(features, views=views))).abs().max() > 0.1


# --- OGA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "shrinks"), [(20, True), (100, False)])
def test_products_are_those_with_an_inverse_that_is_shrunk_where_images_are_few(count, shrinks):
    residuals = torch.randn(count, 5, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 6)
    covariance = np.cov(residuals.numpy().T)
    if shrinks:
        expected = 5 * np.linalg.inv((count - 1) * covariance + np.trace(covariance) * np.eye(5))
    else:
        expected = np.linalg.inv(covariance)
    root = _whitened(torch.eye(5), _covariance(residuals))
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-3, atol=1e-5)


def test_directions_without_variance_are_left_out():
    flat = torch.diag(torch.tensor([4.0, 0.0, 0.25]))
    root = _whitened(torch.eye(3), flat)
    np.testing.assert_allclose(root @ root.T, np.linalg.pinv(flat.numpy()), rtol=1e-5, atol=1e-6)


# --- StatA ----------------------------------------------------------------------------------------------------------


def test_stata_does_not_care_for_the_order_of_a_batch_nor_for_batches_before():
    classifier, features = made_up(5, 8, 60)
    method = StatA(classifier)
    first, second = (method.adapt_encoded(Encoded(part)) for part in features.split(30))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    again = StatA(classifier).adapt_encoded(Encoded(features[30:][order]))
    torch.testing.assert_close(again, second[order], rtol=1e-3, atol=1e-3)
    assert not torch.equal(first, second)


def test_stata_keeps_what_the_text_says_of_a_single_image():
    classifier, features = made_up(5, 6, 40)
    for image in features.split(1):
        got = StatA(classifier).adapt_encoded(Encoded(image))
        assert got.isfinite().all()
        assert got.argmax() == classifier.logits(image).argmax()


# --- LAME -----------------------------------------------------------------------------------------------------------


def test_lame_gains_on_sorted_streams_and_keeps_what_the_text_says_of_a_single_image():
    classifier, features = made_up(8, 16, 400)
    labels = CLIP(classifier).adapt_encoded(Encoded(features)).argmax(1)
    noisy = F.normalize(features + 0.5 * torch.randn(400, 16, generator=torch.Generator().manual_seed(0)) / 2, dim=1)

    def accuracy(method: FrozenMethod, order: Tensor, size: int) -> float:
        predicted = [method.adapt_encoded(Encoded(noisy[part])).argmax(1) for part in order.split(size)]
        return float((torch.cat(predicted) == labels[order]).float().mean())

    by_class, shuffled = labels.argsort(stable=True), torch.arange(400)
    plain = accuracy(CLIP(classifier), by_class, 20)
    assert accuracy(LAME(classifier), by_class, 20) > plain + 0.02
    assert accuracy(LAME(classifier), shuffled, 20) < accuracy(LAME(classifier), by_class, 20)
    assert accuracy(LAME(classifier), shuffled, 1) == accuracy(CLIP(classifier), shuffled, 1)


@pytest.mark.parametrize("affinity", ["rbf", "knn"])
def test_lame_works_where_all_images_are_the_same(affinity):
    classifier, features = made_up(5, 6, 4)
    got = LAME(classifier, affinity=affinity).adapt_encoded(Encoded(features[:1].expand(4, -1)))
    assert got.isfinite().all() and torch.allclose(got, got[:1])


# --- Latte ----------------------------------------------------------------------------------------------------------


def test_three_clients_exchange_prototypes_after_every_image():
    classifier, features = made_up(5, 6, 90)
    options = {"slots": 2, "alpha": 0.5, "sharpness": 5.0, "entropy_weight": 1.5}
    clients = [Latte(classifier, **options) for _ in range(3)]
    given = given_by(classifier)
    local: list[list[list]] = [[[] for _ in range(5)] for _ in clients]
    external: list[list[list]] = [[[] for _ in range(5)] for _ in clients]
    differences = []
    for images in features.split(3):
        for client, image, own, others in zip(clients, images.split(1), local, external, strict=True):
            got = client.adapt_encoded(Encoded(image))
            [expected] = reference.latte.run(given, [image], **options, local=own, external=others)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            [alone] = reference.latte.run(given, [image], **options, local=[list(entries) for entries in own])
            differences.append(float((expected - alone).abs().max()))
        received = exchange([client.cache for client in clients], classifier, count=1)
        external = reference.latte.exchange(given, local, 1, 1.5)
        for client, entries in zip(clients, received, strict=True):
            client.external = entries
    assert max(differences) > 0.1
    assert all(len(client.external["labels"]) <= 5 for client in clients)


def test_a_client_alone_receives_nothing(tiny_classifier, images):
    client = Latte(tiny_classifier)
    client.adapt(images[:12])
    [received] = exchange([client.cache], tiny_classifier, count=3)
    assert not len(received["labels"])


# --- EATA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_clean_images_tell_eata_which_weights_matter(protocol, tiny_classifier, images):
    """In calls of any size, and also after a reset; what is missing comes from the stream."""
    options = {"lr": 1e-2, "margin": 1.0, "d_margin": 1.0, "fisher_weight": 2000.0, "fisher_images": 20}
    clean, stream = images[:16].float() / 255, list((images[16:].float() / 255).split(8))
    given = replace(given_by(tiny_classifier), model=make_tiny(), class_names=list(tiny_classifier.class_names))
    expected = reference.eata.run(given, stream, **options, protocol=protocol, clean=clean)
    method = EATA(tiny_classifier, protocol=protocol, **options)
    method.adapt(images[:8])
    for part in [clean] if protocol == "reference" else clean.split(6):
        method.estimate_fisher(part)
    for _ in range(2):
        got = [method.adapt(batch) for batch in stream]
        torch.testing.assert_close(torch.cat(got), torch.cat(expected), rtol=1e-5, atol=1e-5)
        method.reset()
    without = EATA(tiny_classifier, protocol=protocol, **options)
    assert (torch.cat([without.adapt(batch) for batch in stream]) - torch.cat(got)).abs().max() > 1e-4


# --- RoTTA ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capacity", "common"), [(3, 0.5), (10, 0.9), (6, 0.3)])
def test_the_memory_of_rotta_is_that_of_the_text(capacity, common, tiny_classifier):
    """With the share of a class, its own image goes; without, one of the largest classes; or the new one."""
    generator = torch.Generator().manual_seed(capacity)
    labels = torch.randint(4, (200,), generator=generator) * (torch.rand(200, generator=generator) > common)
    entropies = torch.rand(200, generator=generator)
    method = RoTTA(tiny_classifier, capacity=capacity)
    new = {name: rows.new_zeros(200, *rows.shape[1:]) for name, rows in method.memory.items()}
    new |= {"labels": labels, "entropies": entropies, "order": torch.arange(200)}
    by_hand: list[list[dict]] = [[] for _ in range(4)]
    done = set()
    for i, (label, entropy) in enumerate(zip(labels.tolist(), entropies.tolist(), strict=True)):
        method._remember({name: rows[i : i + 1] for name, rows in new.items()})
        done.add(reference.rotta.enter(by_hand, label, {"h": entropy, "age": 0, "order": i}, capacity))
        assert set(method.memory["order"].tolist()) == {item["order"] for own in by_hand for item in own}
    assert {"added", "own", "dropped"} <= done and ("largest" in done) == (capacity != 6 or common == 0.3)
    at_once = RoTTA(tiny_classifier, capacity=capacity)
    at_once._remember(new)
    assert torch.equal(at_once.memory["order"], method.memory["order"])


# --- DOTA -----------------------------------------------------------------------------------------------------------


def test_one_covariance_predicts_almost_as_one_per_class():
    classifier, features = made_up(5, 8, 200)
    options = {"views": 4, "keep": 0.5, "growth": 0.02, "max_weight": 0.3, "shrinkage": 1e-4}
    noise = 0.1 * torch.randn(200, 4, 8, generator=torch.Generator().manual_seed(0))
    views = F.normalize(features[:, None] + noise, dim=-1)
    given = replace(given_by(classifier), views=lambda images, count: views)
    got = DOTA(classifier, **options).adapt_encoded(Encoded(features, views=views))
    [exact] = reference.dota.run(given, [features], **options, per_class=True)
    assert (got.argmax(dim=1) == exact.argmax(dim=1)).float().mean() > 0.98
    assert (got.argmax(dim=1) == classifier.logits(features).argmax(dim=1)).float().mean() < 0.95


# --- methods that start anew with every batch -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mint", "clipartt", "watt"])
def test_every_batch_starts_from_the_first_weights(name, tiny_classifier, images):
    options = TINY_OPTIONS.get(name, {}) | {"lr": 1e-2}
    untouched, disturbed = (METHODS.get(name)(tiny_classifier, **options) for _ in range(2))
    for method in (untouched, disturbed):
        method.adapt(images[:16])
    with torch.no_grad():
        for parameter in disturbed.adapted.values():
            parameter.add_(1.0)
    assert torch.equal(untouched.adapt(images[16:32]), disturbed.adapt(images[16:32]))


@pytest.mark.parametrize("name", ["clipartt", "watt"])
def test_images_with_one_text_take_no_step(name, tiny_classifier, images):
    """Their gradient is zero but for rounding, which Adam would turn into a full step."""
    method = METHODS.get(name)(tiny_classifier, lr=1.0)
    before = {key: parameter.detach().clone() for key, parameter in method.adapted.items()}
    method.adapt(images[:1].expand(6, -1, -1, -1))
    assert all(torch.equal(parameter, before[key]) for key, parameter in method.adapted.items())


def test_a_caption_has_the_mean_correction_of_its_classes(tiny_classifier, images):
    method = CLIPArTT(tiny_classifier, candidates=2)
    encoded = method.embed(method.features.prepare(images[:5]).images)
    classes = torch.tensor([[0, 1], [2, 3], [1, 0], [3, 1], [0, 2]])
    bias = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    names = tiny_classifier.class_names
    texts = ["a photo of a " + " or ".join(names[k] for k in row) for row in classes.tolist()]
    captions = F.normalize(tiny_classifier.model.encode_text(texts), dim=1)
    by_hand = [[bias[i, row].mean() for row in classes] for i in range(5)]
    matches = tiny_classifier.logit_scale * encoded.features @ captions.T + torch.tensor(by_hand)
    expected = matching_loss(matches, encoded.features, captions, transpose=False)
    torch.testing.assert_close(method._loss(encoded._replace(bias=bias), classes, {}), expected)


# --- Mint -----------------------------------------------------------------------------------------------------------


def test_mint_without_a_contrast_takes_no_step(tiny_classifier, images):
    method = Mint(tiny_classifier, lr=1.0, debias=Panda(beta=0.5))
    before = {name: parameter.detach().clone() for name, parameter in method.adapted.items()}
    method.adapt(images[:1])  # its class mean is the mean of all
    assert all(torch.equal(parameter, before[name]) for name, parameter in method.adapted.items())
    for image in images[1:12].split(1):
        method.adapt(image)
    assert not all(torch.equal(parameter, before[name]) for name, parameter in method.adapted.items())


# --- IM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [None, 0.5])
def test_im_without_diversity_is_tent(beta, tiny_classifier, images):
    debias = None if beta is None else Panda(beta=beta)
    tent = Tent(tiny_classifier, lr=1e-2, debias=debias)
    same, other = (IM(tiny_classifier, lr=1e-2, diversity=weight, debias=debias) for weight in (0.0, 1.0))
    expected, got, different = ([m.adapt(batch) for batch in images.split(20)][1] for m in (tent, same, other))
    assert torch.equal(got, expected)
    assert not torch.allclose(different, expected, atol=1e-3)


def test_im_learns_nothing_from_single_images(tiny_classifier, images):
    method = IM(tiny_classifier, lr=1.0)
    before = {name: parameter.detach().clone() for name, parameter in method.adapted.items()}
    for image in images[:4].split(1):
        method.adapt(image)
    assert all(torch.equal(parameter, before[name]) for name, parameter in method.adapted.items())


def test_im_keeps_predictions_different(mini_classifier, foggy):
    def diversity(cls) -> Tensor:
        method = cls(mini_classifier, lr=1e-3)
        for _ in range(3):
            logits = method.adapt(foggy)
        return marginal_entropy(logits[None])

    assert diversity(IM) > diversity(Tent)


def test_im_has_the_options_of_tent():
    tent, im = (default_options(parse_method(name)) for name in ("tent", "im"))
    assert im == {**tent, "diversity": 1.0}
