"""Training in pieces: the same gradients from the activations of a few images, and none where nothing is trained."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor

from tta_panda import Panda, Tent, make_classifier, wrap_model
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods import METHODS, create_method
from tta_panda.methods.features import encode_images
from tta_panda.methods.trained import TrainedMethod

TRAINED = [name for name in METHODS if issubclass(METHODS.get(name), TrainedMethod)]
LENIENT = {"sar": {"margin": 1.0}, "eta": {"margin": 1.0, "d_margin": 1.0}, "eata": {"margin": 1.0, "d_margin": 1.0}}
LENIENT |= {"deyo": {"filter_margin": 9.0, "plpd_threshold": -1.0}}
LENIENT |= {"memo": {"views": 10}, "rotta": {"capacity": 10}, "cliptta": {"steps": 1}, "clipartt": {"steps": 1}}
LENIENT |= {"watt": {"rounds": 1, "steps": 1}}


def adapted(name: str, classifier, images: Tensor, **options) -> tuple[Tensor, dict[str, Tensor], set[int]]:
    """Logits, the gradients that a step followed, and how many images were encoded at a time."""
    method = create_method(name, classifier, **LENIENT.get(name.partition("+")[0], {}), **options)
    gradients, sizes = {}, set()
    backward = method.backward

    def remember(*given: Tensor) -> float | None:
        loss = backward(*given)
        gradients.update({key: parameter.grad.clone() for key, parameter in method.adapted.items()})
        return loss

    method.backward = remember
    method.model.image_encoder.register_forward_pre_hook(lambda _, inputs: sizes.add(len(inputs[0])))
    return method.adapt(images), gradients, sizes


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("name", TRAINED)
def test_pieces_give_the_gradients_of_the_whole(name, recompute, mini_classifier, images, monkeypatch):
    name, options = f"{name}+panda", {"beta": 0.4}
    logits, gradients, sizes = adapted(name, mini_classifier, images[:10], **options)
    if not recompute:
        monkeypatch.setattr("tta_panda.methods.features.IMAGES_PER_PASS", 4)
    in_pieces = adapted(name, mini_classifier, images[:10], micro_batch=4 if recompute else None, **options)
    assert max(sizes) >= 10 and max(in_pieces[2]) == 4
    assert gradients and gradients.keys() == in_pieces[1].keys()
    torch.testing.assert_close(in_pieces[0], logits, atol=2e-2, rtol=1e-3)  # Mint's are of after the step
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(in_pieces[1][key], gradient, atol=1e-4 * largest, rtol=1e-3)


def test_a_state_goes_on_with_another_micro_batch(tiny_classifier, images):
    method, other = (Tent(tiny_classifier, micro_batch=size) for size in (None, 4))
    method.adapt(images[:8])
    other.load_state_dict(method.state_dict())
    torch.testing.assert_close(other.adapt(images[8:16]), method.adapt(images[8:16]))


@pytest.mark.parametrize(("count", "sizes"), [(28, [28]), (29, [15, 14]), (56, [28, 28]), (110, [28, 28, 27, 27])])
def test_a_cpu_encodes_in_even_pieces(count, sizes, mini, images, monkeypatch):
    seen, encode = [], mini.encode_image
    monkeypatch.setattr(mini, "encode_image", lambda batch: (seen.append(len(batch)), encode(batch))[1])
    prepared = mini.prepare(images.repeat(3, 1, 1, 1)[:count])
    with torch.no_grad():
        torch.testing.assert_close(encode_images(mini, prepared), encode(prepared), atol=1e-5, rtol=1e-4)
    assert seen == sizes


def test_pieces_are_refused_where_a_batch_is_normalised_as_a_whole(images):
    network = timm.create_model("test_resnet", num_classes=4).eval()
    classifier = make_classifier(wrap_model(network), ["heart", "star", "anchor", "cloud"])
    with pytest.raises(UnsupportedModelError, match="Add norm_statistics=running"):
        Tent(classifier, micro_batch=4)
    Tent(classifier, micro_batch=4, norm_statistics="running").adapt(images[:6])


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_piece_has_an_image(wrong, tiny_classifier):
    with pytest.raises(InvalidInputError, match="micro_batch"):
        Tent(tiny_classifier, micro_batch=wrong)


def test_nothing_frozen_has_a_gradient_and_what_comes_first_has_no_graph(mini_classifier, images):
    method = Tent(mini_classifier, debias=Panda(beta=0.4))
    recorded: dict[str, bool] = {}
    for name in ("conv1", "ln_pre"):
        layer = method.model.image_encoder.get_submodule(name)
        layer.register_forward_hook(lambda _, __, output, name=name: recorded.update({name: output.requires_grad}))
    trained = {id(parameter) for parameter in method.adapted.values()}
    method.adapt(images[:4])
    for parameter in method.model.parameters():
        assert (parameter.grad is not None) == (id(parameter) in trained)
    assert recorded == {"conv1": False, "ln_pre": True}
