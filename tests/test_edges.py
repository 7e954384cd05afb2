"""Where filters, votes, memories and single images bring methods to their limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, TINY_OPTIONS, make_tiny
from torch import Tensor

from tta_panda import BAT, DMN, ETA, SAR, TPS, TPT, DeYO, Panda, Zero, ZeroShotClassifier, create_method
from tta_panda.errors import InvalidInputError
from tta_panda.methods import METHODS
from tta_panda.methods.deyo import _permute_patches
from tta_panda.methods.features import Encoded
from tta_panda.methods.losses import entropy, marginal_entropy, top_class
from tta_panda.methods.views import by_confidence, count_kept
from tta_panda.models.openclip import OpenClipModel

BETAS = pytest.mark.parametrize("beta", [None, 0.5])


def debias(beta: float | None) -> Panda | None:
    return None if beta is None else Panda(beta=beta)


def weights(method) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in method.adapted.values()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# --- filters --------------------------------------------------------------------------------------------------------

ALL = {"skip_last_blocks": 0}
STRICT = {ETA: {"margin": 0.0}, SAR: {"margin": 0.0, **ALL}, DeYO: {"filter_margin": 0.0}}
LENIENT = {
    ETA: {"margin": 2.0, "d_margin": 1.0},
    SAR: {"margin": 2.0, **ALL},
    DeYO: {"filter_margin": 9.0, "plpd_threshold": -1.0},
}


@BETAS
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("cls", STRICT)
def test_nothing_passes_the_filter(cls, beta, protocol, tiny_classifier, images):
    method = cls(tiny_classifier, debias=debias(beta), protocol=protocol, **STRICT[cls])
    before = weights(method)
    for batch in images.split(16):
        method.adapt(batch)
    assert same(weights(method), before)
    assert not method.weights.optimizer.state


@BETAS
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("cls", LENIENT)
def test_everything_passes_the_filter(cls, beta, protocol, tiny_classifier, images):
    method = cls(tiny_classifier, debias=debias(beta), protocol=protocol, **LENIENT[cls])
    before = weights(method)
    method.adapt(images[:16])
    assert not same(weights(method), before)


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_no_candidate_of_deyo_survives_the_second_filter(protocol, tiny_classifier, images):
    method = DeYO(tiny_classifier, filter_margin=9.0, plpd_threshold=1.0, debias=Panda(beta=0.5), protocol=protocol)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)


@pytest.mark.parametrize("destroy", ["patches", "occlusion", "pixels", "none"])
def test_deyo_destroys_shapes_in_every_way(destroy, tiny_classifier, images):
    options = {"destroy": destroy, "lr": 1e-3, **TINY_OPTIONS["deyo"]}
    first, second = (DeYO(tiny_classifier, debias=Panda(beta=0.5), **options) for _ in range(2))
    before = weights(first)
    for batch in images.split(16):
        assert torch.equal(first.adapt(batch), second.adapt(batch))
    assert not same(weights(first), before)
    assert (first.passes.images == 0) == (destroy == "none")


@pytest.mark.parametrize("grid", [2, 4, 5, 7, 12, 32])
def test_deyo_permutes_a_grid_of_cells_whatever_the_side(grid):
    images = torch.arange(2 * 3 * 32 * 32, dtype=torch.float).view(2, 3, 32, 32)
    destroyed = _permute_patches(images, grid, torch.Generator().manual_seed(0))
    side, start = 32 // grid, (32 % grid) // 2
    core = slice(start, start + side * grid)
    for image, other in zip(images, destroyed, strict=True):
        cells = [
            sorted(
                cell.flatten().tolist()
                for row in picture[:, core, core].split(side, dim=1)
                for cell in row.split(side, dim=2)
            )
            for picture in (image, other)
        ]
        assert cells[0] == cells[1]
        assert len(cells[0]) == grid**2
        assert not torch.equal(image, other)
        assert torch.isin(other, image).all()  # the margin, too, holds nothing else


# --- SAR ------------------------------------------------------------------------------------------------------------


def test_sar_starts_over_when_its_loss_collapses(tiny_classifier, images):
    method = SAR(tiny_classifier, lr=1e-2, margin=2.0, reset_constant=9.0, **ALL)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)
    assert method.mean_loss is None
    assert not method.weights.optimizer.state


def test_sar_puts_weights_back_before_it_steps(tiny_classifier, images):
    method = SAR(tiny_classifier, lr=0.0, rho=5.0, margin=2.0, **ALL)
    before = weights(method)
    method.adapt(images[:16])
    assert same(weights(method), before)
    assert method.weights.optimizer.state


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


def test_sar_skips_a_quarter_of_the_blocks_unless_told(tiny_classifier):
    torch.manual_seed(0)
    clip = open_clip.CLIP(**{**TINY, "vision_cfg": {**TINY["vision_cfg"], "layers": 12}})
    open_clip.set_model_preprocess_cfg(clip, {"size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3})
    deep = OpenClipModel(clip, tiny_classifier.model.tokenizer, name="deep")
    method = SAR(ZeroShotClassifier(deep, tiny_classifier.class_names))
    blocks = {int(name.split(".")[3]) for name in method.adapted if "resblocks" in name}
    assert blocks == set(range(9))
    assert not any("ln_post" in name for name in method.adapted)
    assert len(SAR(tiny_classifier).adapted) == 12  # all of two blocks


def test_eta_starts_over_after_the_batches_that_are_asked_for(tiny_classifier, images):
    method = ETA(tiny_classifier, lr=0.05, margin=1.0, d_margin=1.0, reset_every=2)
    first, second = method.adapt(images[:8]), method.adapt(images[:8])
    assert not torch.equal(first, second)
    assert torch.equal(method.adapt(images[:8]), first) and torch.equal(method.adapt(images[:8]), second)
    assert method.restarts == 0  # these count divergence


# --- Zero -----------------------------------------------------------------------------------------------------------


class Views:
    """An encoded batch of one image whose views have given logits: features are the logits, classes the axes."""

    def __init__(self, *logits: list[float]):
        self.encoded = Encoded(torch.tensor(logits[:1]), views=torch.tensor([logits]))
        classes = len(logits[0])
        self.classifier = ZeroShotClassifier(make_tiny(), ["a", "b", "c", "d"][:classes])
        self.classifier.class_embeddings = torch.eye(classes) / self.classifier.logit_scale


def votes(views: Views, keep: float, protocol: str = "paper") -> list[float]:
    count = views.encoded.views.shape[1]
    method = Zero(views.classifier, views=count, keep=keep, protocol=protocol)
    return method.adapt_encoded(views.encoded)[0].tolist()


SURE_A, SURE_B, SURE_C = [9.0, 0, 0], [0, 8.5, 0], [0, 0, 7.0]


def test_votes_are_counted():
    assert votes(Views(SURE_A, SURE_B, SURE_A, [0.1, 0, 0]), keep=0.75) == [2.0, 1.0, 0.0]


def test_with_a_temperature_probabilities_are_averaged_instead():
    views = Views(SURE_A, SURE_B, [3.0, 1.0, 0], [0.1, 0, 0])
    method = Zero(views.classifier, views=4, keep=0.75, temperature=2.0)
    scaled = np.array([SURE_A, SURE_B, [3.0, 1.0, 0]]) / 2
    expected = (np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(method.adapt_encoded(views.encoded)[0].softmax(0), expected, rtol=1e-5)
    Zero(views.classifier, views=4, temperature=1e-3).adapt_encoded(views.encoded)  # raises for infinite logits
    with pytest.raises(InvalidInputError, match="temperature"):
        Zero(views.classifier, temperature=-1.0)


def test_a_tie_is_broken_by_the_surest_view_that_did_not_vote():
    tied = Views(SURE_A, SURE_B, SURE_C, [0, 3.0, 0], [2.0, 0, 0])  # c is no candidate, b comes before a
    assert votes(tied, keep=0.4) == [1.0, 1.5, 0.0]
    assert votes(tied, keep=0.4, protocol="reference") == [1.0, 1.0, 0.0]


def test_a_tie_that_no_view_decides_goes_to_the_likelier_class():
    assert votes(Views(SURE_A, SURE_B, [0, 0.5, 7.0], [0.3, 0, 2.0]), keep=0.5) == [1.0, 1.5, 0.0]


def test_a_tie_of_all_views_goes_to_the_surest():
    assert votes(Views([0, 8.5, 0], [9.0, 0, 0]), keep=1.0) == [1.5, 1.0, 0.0]


def plain_features(classifier: ZeroShotClassifier, images: Tensor) -> Tensor:
    return F.normalize(classifier.model.encode_image(classifier.model.prepare(images)), dim=1)


# --- DMN ------------------------------------------------------------------------------------------------------------


def test_a_full_memory_gives_the_place_of_the_least_certain(tiny_classifier, images):
    method = DMN(tiny_classifier, slots=2)
    for batch in images.split(8):
        method.adapt(batch)
    with torch.no_grad():
        features = plain_features(tiny_classifier, images)
    logits = tiny_classifier.logits(features)
    for label in range(4):
        own = logits.argmax(dim=1) == label
        expected = entropy(logits[own]).sort().values[:2]
        kept = method.memory["entropies"][method.memory["labels"] == label].sort().values
        torch.testing.assert_close(kept, torch.cat([torch.tensor([-torch.inf]), expected]), atol=1e-5, rtol=0)


def one_by_one(method: DMN, features: Tensor) -> Tensor:
    """The memory written and read image by image, in double precision."""
    classifier = method.classifier
    text, scale = classifier.class_embeddings.double(), classifier.logit_scale
    memory: list[list[tuple[float, Tensor]]] = [[] for _ in text]
    rows = []
    for v in features.double():
        z = scale * text @ v
        h, own = float(torch.distributions.Categorical(logits=z).entropy()), memory[int(z.argmax())]
        worst = max(range(len(own)), key=lambda j: own[j][0], default=0)
        if len(own) < method.slots:
            own.append((h, v))
        elif h < own[worst][0]:
            own[worst] = (h, v)
        seen = [[text[k], *(m for _, m in memory[k])] for k in range(len(text))]
        w = [F.normalize(sum((-method.sharpness * (1 - m @ v)).exp() * m for m in ms), dim=0) for ms in seen]
        rows.append((z.softmax(0) + method.alpha * (scale * torch.stack(w) @ v).softmax(0)) / (1 + method.alpha))
    return torch.stack(rows).log().float()


@pytest.mark.parametrize(("classes", "slots", "floats"), [(3, 2, 2**22), (40, 3, 2**22), (40, 50, 1)])
def test_reading_at_once_is_reading_one_by_one(classes, slots, floats, monkeypatch):
    """Also where classes are read in parts, slots are overwritten twice in a batch, and few classes occur."""
    monkeypatch.setattr("tta_panda.methods.image_cache.FLOATS_PER_PASS", floats)
    classifier = ZeroShotClassifier(make_tiny(), [f"class {k}" for k in range(classes)])
    generator = torch.Generator().manual_seed(classes)
    classifier.class_embeddings = F.normalize(torch.randn(classes, 16, generator=generator), dim=1)
    features = F.normalize(torch.randn(90, 16, generator=generator) + 2 * classifier.class_embeddings[0], dim=1)
    method = DMN(classifier, slots=slots)
    got = torch.cat([method.adapt_encoded(Encoded(part)) for part in features.split(30)])
    torch.testing.assert_close(got, one_by_one(method, features), atol=1e-4, rtol=1e-4)
    assert method.memory["labels"].bincount().max() <= slots + 1  # the text has one, too


def test_a_memory_without_weight_changes_nothing(tiny_classifier, images):
    got = DMN(tiny_classifier, alpha=0).adapt(images[:8])
    with torch.no_grad():
        features = plain_features(tiny_classifier, images[:8])
    torch.testing.assert_close(got, tiny_classifier.logits(features).log_softmax(dim=1))


# --- BAT ------------------------------------------------------------------------------------------------------------


@BETAS
def test_bat_where_only_one_class_is_predicted(beta, tiny_classifier, images):
    method = BAT(tiny_classifier, debias=debias(beta))
    for _ in range(2):
        batch = images[:1].expand(6, -1, -1, -1)  # one image, six times
        logits = method.adapt(batch)
        assert len(logits.argmax(dim=1).unique()) == 1


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
def test_other_contexts(context, tiny_classifier):
    method = TPT(tiny_classifier, context=context, views=4)
    with torch.no_grad():
        got = method.prompts.encode(method.prompts.context[None], 500)[0]
        prompts = [f"{context} {name}." for name in tiny_classifier.class_names]
        expected = F.normalize(tiny_classifier.model.encode_text(prompts), dim=1)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    with pytest.raises(InvalidInputError, match="words"):
        TPT(tiny_classifier, context=" ")


def test_the_classifiers_templates_play_no_part(tiny, images):
    names = ["heart", "star", "anchor", "cloud"]
    classifiers = [ZeroShotClassifier(tiny, names, templates) for templates in (["a photo of a {}."], ["no {} at all"])]
    assert not torch.equal(*(classifier.class_embeddings for classifier in classifiers))
    for beta in (None, "auto"):
        panda = None if beta is None else Panda(beta=beta)
        first, second = (TPT(c, debias=panda, **TINY_OPTIONS["tpt"]) for c in classifiers)
        assert torch.equal(first.adapt(images[:8]), second.adapt(images[:8]))


@pytest.mark.parametrize("prompts_per_pass", [3, 8])
def test_a_memory_budget_changes_nothing(prompts_per_pass, tiny_classifier, images):
    options = {"views": 6, "keep": 0.5, "lr": 1e-2}
    alone = TPT(tiny_classifier, prompts_per_pass=4, **options)  # one image of four classes at a time
    expected = alone.adapt(images[:5])
    got = TPT(tiny_classifier, prompts_per_pass=prompts_per_pass, **options).adapt(images[:5])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_more_steps_lower_the_entropy_that_is_minimised(mini_classifier, foggy):
    def marginal(method_class, steps):
        method = method_class(mini_classifier, steps=steps, lr=1e-2, views=8)
        encoded = method.features.encode(method.features.prepare(foggy[:4]))
        # With one view, the plain one, what is minimised is the entropy of what is returned.
        return entropy(method.adapt_encoded(encoded._replace(views=encoded.views[:, :1]))).mean()

    for method_class in (TPT, TPS):
        assert (
            marginal(method_class, 5)
            < marginal(method_class, 1)
            < entropy(mini_classifier.logits(plain_features(mini_classifier, foggy[:4]))).mean()
        )


@pytest.mark.parametrize(("method_class", "selections"), [(TPT, 1), (TPS, 3)])
def test_tps_selects_views_at_every_step_and_tpt_once(method_class, selections, tiny_classifier, images, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "tta_panda.methods.views.by_confidence",
        lambda values, logits: (seen.append(by_confidence(values, logits)), seen[-1])[1],
    )
    method_class(tiny_classifier, steps=3, views=8, keep=0.25, lr=0.5).adapt(images[:2])
    assert len(seen) == selections
    assert len({str(views) for views in seen}) == selections


# --- numbers --------------------------------------------------------------------------------------------------------


def test_half_precision_logits_keep_their_entropies():
    logits = torch.tensor([[60.0, 0.0, -60.0], [0.5, 0.25, 0.0]])
    expected = torch.distributions.Categorical(logits=logits.double()).entropy().float()
    torch.testing.assert_close(entropy(logits.half()), expected, atol=1e-6, rtol=1e-5)
    assert entropy(logits.half()).dtype == torch.float32
    assert marginal_entropy(logits.half()[None] * 1000).isfinite().all()


def test_the_top_class_is_the_first_of_equals_for_any_shape():
    logits = torch.tensor([[[1.0, 3.0, 3.0], [2.0, -1.0, 0.0]], [[0.0, 0.0, 0.0], [-torch.inf, 5.0, 7.0]]])
    assert top_class(logits).tolist() == [[1, 0], [0, 2]]
    assert top_class(logits[0, 0]).item() == 1
    assert top_class(logits[:, 1:]).dtype == torch.int64


def test_views_are_sorted_by_entropy():
    logits = torch.tensor([[[1.0, 0], [5, 0], [0, 0], [0, 3]]])
    assert by_confidence(torch.arange(4)[None], logits).tolist() == [[1, 3, 0, 2]]
    assert [count_kept(keep, 4) for keep in (0.0, 0.5, 1.0)] == [1, 2, 4]


# --- state ----------------------------------------------------------------------------------------------------------

CONTINUE = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from conftest import TINY_OPTIONS, make_tiny
from tta_panda import Panda, ZeroShotClassifier
from tta_panda.methods import METHODS

saved = torch.load(sys.argv[2], weights_only=True)
logits = {}
for key, state in saved["states"].items():
    name, protocol = key.split()
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])
    method = METHODS.get(name)(classifier, debias=Panda(), protocol=protocol, **TINY_OPTIONS.get(name, {}))
    method.load_state_dict(state)
    logits[key] = method.adapt(saved["images"])
torch.save(logits, sys.argv[3])
"""


@pytest.mark.slow
def test_another_process_goes_on_bit_by_bit(tiny_classifier, images, tmp_path):
    states, expected = {}, {}
    for name in ("clip", "tent", "deyo", "dmn", "zero"):
        protocol = "reference" if name == "tent" else "paper"
        options = TINY_OPTIONS.get(name, {})
        method = METHODS.get(name)(tiny_classifier, debias=Panda(), protocol=protocol, **options)
        method.adapt(images[:10])
        method.adapt(images[10:20])
        states[f"{name} {protocol}"] = method.state_dict()
        expected[f"{name} {protocol}"] = method.adapt(images[20:30])
    torch.save({"states": states, "images": images[20:30]}, tmp_path / "states.pt")
    tests = Path(__file__).parent
    arguments = [sys.executable, "-c", CONTINUE, str(tests), str(tmp_path / "states.pt"), str(tmp_path / "logits.pt")]
    subprocess.run(arguments, check=True)
    got = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert {key for key in expected if not torch.equal(got[key], expected[key])} == set()


def test_more_prompts_than_one_pass_takes_give_the_same_embeddings(tiny):
    names = [f"name {i}" for i in range(300)]
    some = [0, 1, 298, 299]
    many, few = (ZeroShotClassifier(tiny, chosen).class_embeddings for chosen in (names, [names[i] for i in some]))
    torch.testing.assert_close(many[some], few, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name", ["clip+panda", "clip+panda+level", "tps+panda", "tent+panda", "deyo+panda", "dmn+panda"]
)
def test_the_default_device_of_the_caller_changes_nothing(name, tiny_classifier):
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = create_method(name, tiny_classifier).adapt(images)
    torch.set_default_device("meta")  # any tensor that is made there has no values
    try:
        logits = create_method(name, tiny_classifier).adapt(images)
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(logits, expected)  # torch's attention has another path under a default device
