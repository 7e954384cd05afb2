"""TPT (Shu et al. 2022, "Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods.base import Protocol
from tta_panda.methods.checks import check_range
from tta_panda.methods.episodes import EpisodicMethod, minimise
from tta_panda.methods.losses import marginal_entropy
from tta_panda.models.base import Classifier, PromptableModel
from tta_panda.panda import Encoded, Panda
from tta_panda.views import ViewKind


class TPT(EpisodicMethod):
    """For each image alone, the words before the class name are tuned until its confident views agree.

    Args:
        lr: learning rate of AdamW.
        steps: updates per image.
        context: the words that the tuned vectors start as; the prompt is `"{context} {class name}."`.
        prompts_per_pass: texts encoded at a time. Several images share a pass where all their prompts fit; the classes
            of one image are split over passes, which costs a second forward, where they do not.
        views: how many of each image, the plain one included.
        keep: share of them, the lowest in entropy, that the prompt is learned from.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        steps: int = 1,
        context: str = "a photo of a",
        prompts_per_pass: int = 500,
        views: int = 10,
        keep: float = 0.3,
        augmentation: ViewKind = "augmix",
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        check_range("prompts_per_pass", prompts_per_pass, 1)
        if not context.strip():
            raise InvalidInputError(f"context must hold the words that the prompt starts as, got {context!r}.")
        super().__init__(
            classifier,
            lr=lr,
            steps=steps,
            views=views,
            keep=keep,
            augmentation=augmentation,
            debias=debias,
            protocol=protocol,
            seed=seed,
        )
        self.prompts_per_pass = prompts_per_pass
        self.prompts = _Prompts(classifier, context)

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        features = self.view_features(encoded)  # (B, V, D)
        kept, plain = self.confident_views(features), features[:, :1]
        together = max(1, self.prompts_per_pass // len(self.classifier.class_names))
        return in_chunks(lambda piece: self._solve(kept[piece], plain[piece]), len(kept), together)

    def _solve(self, kept: Tensor, plain: Tensor) -> Tensor:
        """Logits (b, K) of some images, each with a context of its own."""
        start = self.prompts.context.expand(len(kept), -1, -1)  # (b, n, W)
        contexts = minimise(lambda contexts: marginal_entropy(self._logits(kept, contexts)), start, self.lr, self.steps)
        return self._logits(plain, contexts)[:, 0]

    def _logits(self, features: Tensor, contexts: Tensor) -> Tensor:
        text = self.prompts.encode(contexts, self.prompts_per_pass)  # (b, K, D)
        self.passes.count_texts(text.flatten(0, 1))
        return self.classifier.logits(features, text)


class _Prompts:
    """The prompts of all classes as input embeddings, in which the context can be replaced."""

    def __init__(self, classifier: Classifier, context: str):
        model = classifier.model
        if not isinstance(model, PromptableModel):
            raise UnsupportedModelError(
                f"TPT tunes the input embeddings of a text encoder, which {model.name} does not give access to "
                "(tokenize, embed_tokens and encode_embedded); use TPS, which shifts class embeddings instead."
            )
        self.model = model
        with torch.inference_mode(False), torch.no_grad():
            start = _first_difference(model.tokenize(["a", "the"]))  # behind the start-of-text token, if there is one
            stop = _first_difference(model.tokenize([f"{context} a.", f"{context} the."]))
            self.place = slice(start, stop)
            self.tokens = model.tokenize([f"{context} {name}." for name in classifier.class_names])  # (K, L)
            if start >= stop or not (self.tokens[:, self.place] == self.tokens[0, self.place]).all():
                raise UnsupportedModelError(
                    "TPT needs its context at the same place in all prompts, which the tokenizer of "
                    f"{classifier.model.name} does not give (padding on the left, or words joined at its end)."
                )
            self.embedded = model.embed_tokens(self.tokens)  # (K, L, W)
        self.context = self.embedded[0, self.place]  # (n, W)

    def encode(self, contexts: Tensor, per_pass: int) -> Tensor:
        """Unit text features (b, K, D) for every context (b, n, W)."""
        classes = len(self.tokens)
        before, after = self.embedded[:, : self.place.start], self.embedded[:, self.place.stop :]

        def encode(piece: slice) -> Tensor:
            rows = torch.arange(piece.start, piece.stop, device=contexts.device)  # of all images' prompts
            names = rows % classes
            embedded = torch.cat([before[names], contexts[rows // classes], after[names]], dim=1)
            return self.model.encode_embedded(embedded, self.tokens[names])

        features = in_chunks(encode, len(contexts) * classes, per_pass)
        return F.normalize(features.float(), dim=-1).view(len(contexts), classes, -1)


def _first_difference(tokens: Tensor) -> int:
    """Where two texts (2, L) part."""
    return int((tokens[0] != tokens[1]).int().argmax())
