"""TPT (Shu et al. 2022, "Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models")."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Encoded, isolated
from tta_panda.methods.losses import marginal_entropy
from tta_panda.methods.views import EpisodicMethod
from tta_panda.models.base import Classifier, PromptableModel
from tta_panda.options import Count, NonNegative


class TPT(EpisodicMethod):
    """Tunes the words before the class name for each image separately, so that its confident views agree.

    The prompt `"{context} {class name}."` is used to select views, to choose Panda's beta, and to start tuning. The
    classifier's own templates are not used. Views are selected before the first step only.

    Args:
        context: the words whose embeddings initialise the tuned vectors.
        dispersion: weight of the distances between texts and their mean in the loss, which calibrates predictions;
            C-TPT (Yoon et al. 2024) uses 50 for fine-grained data sets and 20 for variants of ImageNet. Zero is TPT.
        prompts_per_pass: maximum number of texts encoded at a time. Several images share a pass if all their prompts
            fit; otherwise the classes of one image are split over passes, which costs a second forward pass.
    """

    memory_options = ("prompts_per_pass",)
    use_of_text = "tunes the prompt"

    context: str = "a photo of a"
    dispersion: NonNegative = 0.0
    prompts_per_pass: Count = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.context.strip():
            raise InvalidInputError(f"context must contain the first words of the prompt, got {self.context!r}.")
        self.prompts = _Prompts(self.classifier, self.context)
        self.start = self.prompts.context  # (n, W)
        self.images_at_once = max(1, self.prompts_per_pass // len(self.classifier.class_names))
        with isolated(self.classifier.model.device), torch.no_grad():
            self._untuned = self.prompts.encode(self.start[None], self.prompts_per_pass)[0]  # (K, D)

    @property
    def class_embeddings(self) -> Tensor:
        return self._untuned

    def view_features(self, encoded: Encoded) -> Tensor:
        features = super().view_features(encoded)
        # The authors' code scales debiased features to unit length again.
        return self.classifier.embed(features) if self.follows_reference else features

    def encode_texts(self, tuned: Tensor) -> Tensor:
        """Return unit text features (b, K, D) for every context (b, n, W)."""
        texts = self.prompts.encode(tuned, self.prompts_per_pass)
        self.passes.count("texts", texts.shape[0] * texts.shape[1], texts.requires_grad)
        return texts

    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        return self.classifier.logits(features, self.encode_texts(tuned))

    def loss(self, features: Tensor, tuned: Tensor, bias: Tensor) -> Tensor:
        if self.dispersion == 0:
            return super().loss(features, tuned, bias)
        texts = self.encode_texts(tuned)
        loss = marginal_entropy(self.classifier.logits(features, texts) + bias[:, None]).sum()
        distances: Tensor = (texts - texts.mean(dim=1, keepdim=True)).norm(dim=-1)  # (b, K)
        return loss - self.dispersion * distances.mean(dim=1).sum()

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.texts = batch.images * batch.classes
        passes.texts_with_gradient = options["steps"] * passes.texts
        return passes


class _Prompts:
    """The prompts of all classes as input embeddings, whose context can be replaced."""

    def __init__(self, classifier: Classifier, context: str):
        model = classifier.model
        if not isinstance(model, PromptableModel):
            raise UnsupportedModelError(
                f"TPT tunes the input embeddings of a text encoder, but {model.name} does not give access to them "
                "(tokenize, embed_tokens and encode_embedded); use TPS, which shifts class embeddings instead."
            )
        self.model = model
        with torch.inference_mode(False), torch.no_grad():
            start = _first_difference(model.tokenize(["a", "the"]))  # after the start-of-text token, if there is one
            stop = _first_difference(model.tokenize([f"{context} a.", f"{context} the."]))
            self.place = slice(start, stop)
            self.tokens = model.tokenize([f"{context} {name}." for name in classifier.class_names])  # (K, L)
            if start >= stop or not (self.tokens[:, self.place] == self.tokens[0, self.place]).all():
                raise UnsupportedModelError(
                    "TPT needs the context at the same position in all prompts, but the tokenizer of "
                    f"{classifier.model.name} pads on the left, or merges words at the end of the context."
                )
            self.embedded = model.embed_tokens(self.tokens)  # (K, L, W)
        self.context = self.embedded[0, self.place]  # (n, W)

    def encode(self, contexts: Tensor, per_pass: int) -> Tensor:
        """Return unit text features (b, K, D) for every context (b, n, W)."""
        classes = len(self.tokens)
        before, after = self.embedded[:, : self.place.start], self.embedded[:, self.place.stop :]

        def encode(piece: slice) -> Tensor:
            rows = torch.arange(piece.start, piece.stop, device=contexts.device)  # among the prompts of all images
            names = rows % classes
            embedded = torch.cat([before[names], contexts[rows // classes], after[names]], dim=1)
            return self.model.encode_embedded(embedded, self.tokens[names])

        features = in_chunks(encode, len(contexts) * classes, per_pass)
        return F.normalize(features.float(), dim=-1).view(len(contexts), classes, -1)


def _first_difference(tokens: Tensor) -> int:
    """Return the first position at which two texts (2, L) differ."""
    return int((tokens[0] != tokens[1]).int().argmax())
