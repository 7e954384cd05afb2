"""Where filters, votes, memories and single images bring methods to their limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import make_tiny
from torch import Tensor

from tta_panda import BAT, DMN, ETA, SAR, TPS, TPT, DeYO, Panda, Tent, Zero, ZeroShotClassifier
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import METHODS
from tta_panda.methods.losses import by_confidence, entropy, marginal_entropy
from tta_panda.panda import Encoded

BETAS = pytest.mark.parametrize("beta", [None, 0.5])


def debias(beta: float | None) -> Panda | None:
    return None if beta is None else Panda(beta=beta)


def weights(method) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in method.adapted.values()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- filters --------------------------------------------------------------------------------------------------------

STRICT = {ETA: {"margin": 0.0}, SAR: {"margin": 0.0}, DeYO: {"filter_margin": 0.0}}
LENIENT = {ETA: {"margin": 2.0}, SAR: {"margin": 2.0}, DeYO: {"filter_margin": 9.0, "plpd_threshold": -1.0}}


@BETAS
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("cls", STRICT)
def test_nothing_passes_the_filter(cls, beta, protocol, tiny_classifier, images):
    method = cls(tiny_classifier, debias=debias(beta), protocol=protocol, **STRICT[cls])
    before = weights(method)
    for batch in images.split(16):
        assert method.adapt(batch).isfinite().all()
    assert same(weights(method), before)
    assert not method.optimizer.state


@BETAS
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("cls", LENIENT)
def test_everything_passes_the_filter(cls, beta, protocol, tiny_classifier, images):
    method = cls(tiny_classifier, debias=debias(beta), protocol=protocol, **LENIENT[cls])
    before = weights(method)
    for batch in images.split(16):
        assert method.adapt(batch).isfinite().all()
    assert not same(weights(method), before)


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_no_candidate_of_deyo_survives_the_second_filter(protocol, tiny_classifier, images):
    method = DeYO(tiny_classifier, filter_margin=9.0, plpd_threshold=1.0, debias=Panda(beta=0.5), protocol=protocol)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)


@pytest.mark.parametrize("destroy", ["patches", "occlusion", "pixels", "none"])
def test_deyo_destroys_shapes_in_every_way(destroy, tiny_classifier, images):
    first, second = (DeYO(tiny_classifier, destroy=destroy, debias=Panda(beta=0.5)) for _ in range(2))
    before = weights(first)
    for batch in images.split(16):
        assert torch.equal(first.adapt(batch), second.adapt(batch))
    assert not same(weights(first), before)
    assert (first.passes.images == 0) == (destroy == "none")


@pytest.mark.parametrize("name", METHODS.names())
@BETAS
@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_two_classes(name, beta, protocol, images):
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star"])
    method = METHODS.get(name)(classifier, debias=debias(beta), protocol=protocol)
    for batch in images[:24].split(12):
        logits = method.adapt(batch)
        assert logits.shape == (12, 2)
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", METHODS.names())
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("sampler", ["pool", "same_cell", "within_image"])
def test_single_images(name, protocol, sampler, tiny_classifier, images):
    method = METHODS.get(name)(tiny_classifier, debias=Panda(beta=0.5, sampler=sampler), protocol=protocol)
    for batch in images[:2].split(1):
        assert method.adapt(batch).isfinite().all()


# --- SAR ------------------------------------------------------------------------------------------------------------


def test_sar_starts_over_when_its_loss_collapses(tiny_classifier, images):
    method = SAR(tiny_classifier, lr=1e-2, margin=2.0, reset_constant=9.0)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)
    assert method.mean_loss is None
    assert not method.optimizer.state


def test_sar_puts_weights_back_before_it_steps(tiny_classifier, images):
    method = SAR(tiny_classifier, lr=0.0, rho=5.0, margin=2.0)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)
    assert method.optimizer.state


def test_sar_of_its_own_publication_leaves_the_last_blocks_alone(tiny_classifier, images):
    method = SAR(tiny_classifier, optimizer="sgd", lr=1e-2, margin=2.0, skip_last_blocks=1)
    assert set(method.adapted) == {
        f"image.{layer}.{kind}"
        for layer in ("ln_pre", "transformer.resblocks.0.ln_1", "transformer.resblocks.0.ln_2")
        for kind in ("weight", "bias")
    }
    before = weights(method)
    method.adapt(images[:16])
    assert not same(weights(method), before)
    with pytest.raises(InvalidInputError, match="2 blocks"):
        SAR(tiny_classifier, skip_last_blocks=2)


# --- Zero -----------------------------------------------------------------------------------------------------------


class Views:
    """An encoded batch of one image whose views have given logits: features are the logits, classes the axes."""

    def __init__(self, *logits: list[float]):
        self.encoded = Encoded(torch.tensor(logits[:1]), views=torch.tensor([logits]))
        classes = len(logits[0])
        self.classifier = ZeroShotClassifier(make_tiny(), ["a", "b", "c", "d"][:classes])
        self.classifier.text_features = torch.eye(classes) / self.classifier.logit_scale


def votes(views: Views, keep: float, protocol: str = "paper") -> list[float]:
    count = views.encoded.views.shape[1]
    method = Zero(views.classifier, views=count, keep=keep, protocol=protocol)
    return method.adapt_encoded(views.encoded)[0].tolist()


SURE_A, SURE_B, SURE_C = [9.0, 0, 0], [0, 8.5, 0], [0, 0, 7.0]


def test_votes_are_counted():
    assert votes(Views(SURE_A, SURE_B, SURE_A, [0.1, 0, 0]), keep=0.75) == [2.0, 1.0, 0.0]


def test_a_tie_is_broken_by_the_surest_view_that_did_not_vote():
    tied = Views(SURE_A, SURE_B, SURE_C, [0, 3.0, 0], [2.0, 0, 0])  # c is no candidate, b comes before a
    assert votes(tied, keep=0.4) == [1.0, 1.5, 0.0]
    assert votes(tied, keep=0.4, protocol="reference") == [1.0, 1.0, 0.0]


def test_a_tie_that_no_view_decides_goes_to_the_likelier_class():
    assert votes(Views(SURE_A, SURE_B, [0, 0.5, 7.0], [0.3, 0, 2.0]), keep=0.5) == [1.0, 1.5, 0.0]


def test_a_tie_of_all_views_goes_to_the_surest():
    assert votes(Views([0, 8.5, 0], [9.0, 0, 0]), keep=1.0) == [1.5, 1.0, 0.0]


# --- DMN ------------------------------------------------------------------------------------------------------------


def test_a_full_memory_gives_the_place_of_the_least_certain(tiny_classifier, images):
    method = DMN(tiny_classifier, slots=2)
    for batch in images.split(8):
        method.adapt(batch)
    with torch.no_grad():
        features = F.normalize(tiny_classifier.model.encode_image(images), dim=1)
    logits = tiny_classifier.logits(features)
    for label in range(4):
        own = logits.argmax(dim=1) == label
        expected = entropy(logits[own]).sort().values[:2]
        kept = method.uncertainty[label][method.uncertainty[label].isfinite()].sort().values
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=0)


def test_a_memory_without_weight_changes_nothing(tiny_classifier, images):
    got = DMN(tiny_classifier, alpha=0).adapt(images[:8])
    with torch.no_grad():
        features = F.normalize(tiny_classifier.model.encode_image(images[:8]), dim=1)
    torch.testing.assert_close(got, tiny_classifier.logits(features).log_softmax(dim=1))


# --- BAT ------------------------------------------------------------------------------------------------------------


@BETAS
def test_bat_where_only_one_class_is_predicted(beta, tiny_classifier, images):
    method = BAT(tiny_classifier, debias=debias(beta))
    for _ in range(2):
        batch = images[:1].expand(6, -1, -1, -1)  # one image, six times
        logits = method.adapt(batch)
        assert len(logits.argmax(dim=1).unique()) == 1
        assert logits.isfinite().all()


# --- TPT ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["tiny", "mini"])
def test_an_untouched_context_is_the_plain_prompt(source, request):
    model = request.getfixturevalue(source)
    names = ["heart", "chess knight", "airplane arriving", "x"]
    method = TPT(ZeroShotClassifier(model, names))
    assert method.prompts.context.shape[0] == 4
    with torch.no_grad():
        got = method.prompts.encode(method.prompts.context[None], 500)[0]
        expected = F.normalize(
            model.clip.encode_text(model.tokenizer([f"a photo of a {name}." for name in names])), dim=1
        )
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("context", ["a blurry picture showing one", "symbol:"])
def test_other_contexts(context, tiny_classifier, images):
    method = TPT(tiny_classifier, context=context, views=4)
    with torch.no_grad():
        got = method.prompts.encode(method.prompts.context[None], 500)[0]
        prompts = [f"{context} {name}." for name in tiny_classifier.class_names]
        expected = F.normalize(tiny_classifier.model.encode_text(prompts), dim=1)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert method.adapt(images[:2]).isfinite().all()
    with pytest.raises(InvalidInputError, match="words"):
        TPT(tiny_classifier, context=" ")


@pytest.mark.parametrize("prompts_per_pass", [1, 3, 4, 8, 10_000])
def test_a_memory_budget_changes_nothing(prompts_per_pass, tiny_classifier, images):
    options = {"views": 6, "keep": 0.5, "lr": 1e-2}
    alone = TPT(tiny_classifier, prompts_per_pass=4, **options)  # one image of four classes at a time
    expected = alone.adapt(images[:5])
    got = TPT(tiny_classifier, prompts_per_pass=prompts_per_pass, **options).adapt(images[:5])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_more_steps_lower_the_entropy_that_is_minimised(mini_classifier, foggy):
    def marginal(method_class, steps):
        method = method_class(mini_classifier, steps=steps, lr=1e-2, views=8)
        encoded = method.features.encode_frozen(foggy[:4])
        # With one view, the plain one, what is minimised is the entropy of what is returned.
        return entropy(method.adapt_encoded(encoded._replace(views=encoded.views[:, :1]))).mean()

    for method_class in (TPT, TPS):
        assert (
            marginal(method_class, 5)
            < marginal(method_class, 1)
            < entropy(mini_classifier.logits(F.normalize(mini_classifier.model.encode_image(foggy[:4]), dim=1))).mean()
        )


# --- numbers --------------------------------------------------------------------------------------------------------


def test_half_precision_logits_keep_their_entropies():
    logits = torch.tensor([[60.0, 0.0, -60.0], [0.5, 0.25, 0.0]])
    expected = torch.distributions.Categorical(logits=logits.double()).entropy().float()
    torch.testing.assert_close(entropy(logits.half()), expected, atol=1e-6, rtol=1e-5)
    assert entropy(logits.half()).dtype == torch.float32
    assert marginal_entropy(logits.half()[None] * 1000).isfinite().all()


@pytest.mark.parametrize("name", METHODS.names())
@BETAS
def test_an_encoder_of_half_precision_features(name, beta, images, monkeypatch):
    model = make_tiny()
    original = type(model).encode_image
    monkeypatch.setattr(type(model), "encode_image", lambda self, x: original(self, x).half())
    method = METHODS.get(name)(ZeroShotClassifier(model, ["heart", "star", "anchor"]), debias=debias(beta))
    logits = method.adapt(images[:12])
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_views_are_ranked_by_entropy():
    logits = torch.tensor([[[1.0, 0], [5, 0], [0, 0], [0, 3]]])
    assert by_confidence(logits).tolist() == [[1, 3, 0, 2]]


# --- state ----------------------------------------------------------------------------------------------------------

CONTINUE = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from conftest import make_tiny
from tta_panda import Panda, ZeroShotClassifier
from tta_panda.methods import METHODS

saved = torch.load(sys.argv[2], weights_only=True)
logits = {}
for key, state in saved["states"].items():
    name, beta, protocol = key.split()
    debias = None if beta == "None" else Panda(beta=beta)
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])
    views = {"views": 4} if name in ("tpt", "tps", "zero") else {}
    method = METHODS.get(name)(classifier, debias=debias, protocol=protocol, **views)
    method.load_state_dict(state)
    logits[key] = method.adapt(saved["images"])
torch.save(logits, sys.argv[3])
"""


def test_another_process_goes_on_bit_by_bit(tiny_classifier, images, tmp_path):
    states, expected = {}, {}
    for name in METHODS:
        for beta in (None, "auto"):
            for protocol in ("paper", "reference"):
                panda = None if beta is None else Panda(beta=beta)
                views = {"views": 4} if name in ("tpt", "tps", "zero") else {}
                method = METHODS.get(name)(tiny_classifier, debias=panda, protocol=protocol, **views)
                method.adapt(images[:10])
                method.adapt(images[10:20])
                states[f"{name} {beta} {protocol}"] = method.state_dict()
                expected[f"{name} {beta} {protocol}"] = method.adapt(images[20:30])
    torch.save({"states": states, "images": images[20:30]}, tmp_path / "states.pt")
    tests = Path(__file__).parent
    arguments = [sys.executable, "-c", CONTINUE, str(tests), str(tmp_path / "states.pt"), str(tmp_path / "logits.pt")]
    subprocess.run(arguments, check=True, timeout=300)
    got = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert {key for key in expected if not torch.equal(got[key], expected[key])} == set()


@pytest.mark.parametrize(
    ("cls", "options", "error", "message"),
    [
        (Tent, {"lr": float("nan")}, InvalidInputError, "lr must be"),
        (Tent, {"protocol": "papr"}, UnknownNameError, "'paper'"),
        (SAR, {"optimizer": "sdg"}, UnknownNameError, "'sgd'"),
        (DeYO, {"destroy": "patch"}, UnknownNameError, "'patches'"),
        (DeYO, {"grid": 99}, InvalidInputError, "grid must be a number from 2 to 32"),
        (Zero, {"keep": 1.5}, InvalidInputError, "keep must be a number from 0 to 1"),
        (Zero, {"augmentation": "crop"}, UnknownNameError, "'crops'"),
        (TPS, {"views": 0}, InvalidInputError, "views must be"),
        (TPS, {"steps": 0}, InvalidInputError, "steps must be"),
        (DMN, {"slots": 0}, InvalidInputError, "slots must be"),
    ],
)
def test_options_that_cannot_be_used_are_refused(cls, options, error, message, tiny_classifier):
    with pytest.raises(error, match=message):
        cls(tiny_classifier, **options)
