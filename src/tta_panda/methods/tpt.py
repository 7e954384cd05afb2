"""TPT (Shu et al. 2022, "Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models")."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods.batch import Encoded
from tta_panda.methods.episodes import EpisodicMethod, EpisodicOptions
from tta_panda.methods.features import undisturbed
from tta_panda.models.base import Classifier, PromptableModel


class TPT(EpisodicMethod):
    """For each image alone, the words before the class name are tuned until its confident views agree.

    The prompt `"{context} {class name}."` serves for everything: views are selected, Panda's beta is chosen and the
    tuning starts with it. The classifier's own templates play no part.

    Args:
        context: the words that the tuned vectors start as.
        prompts_per_pass: texts encoded at a time. Several images share a pass where all their prompts fit; the classes
            of one image are split over passes, which costs a second forward, where they do not.
        common: the arguments of every episodic method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        context: str = "a photo of a",
        prompts_per_pass: int = 500,
        **common: Unpack[EpisodicOptions],
    ):
        super().__init__(classifier, **common)
        check_range("prompts_per_pass", prompts_per_pass, 1)
        if not context.strip():
            raise InvalidInputError(f"context must hold the words that the prompt starts as, got {context!r}.")
        self.prompts_per_pass = prompts_per_pass
        self.prompts = _Prompts(classifier, context)
        self.start = self.prompts.context  # (n, W)
        self.images_at_once = max(1, prompts_per_pass // len(classifier.class_names))
        with undisturbed(classifier.model.device), torch.no_grad():
            self._untuned = self.prompts.encode(self.start[None], prompts_per_pass)[0]  # (K, D)

    @property
    def class_embeddings(self) -> Tensor:
        return self._untuned

    def view_features(self, encoded: Encoded) -> Tensor:
        features = super().view_features(encoded)
        # The authors' code scales debiased features to unit length again.
        return self.classifier.embed(features) if self.follows_reference else features

    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        text = self.prompts.encode(tuned, self.prompts_per_pass)  # (b, K, D)
        self.passes.count("texts", text.flatten(0, 1))
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
