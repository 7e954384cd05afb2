"""Protocols of models, the base class of adapters for other libraries, and classifiers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.images import Framing
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Precision, autocast, full_precision
from tta_panda.models.prepare import check_prepared, prepare_images
from tta_panda.models.prompts import DEFAULT_TEMPLATE, Context, Templates, prompts_of
from tta_panda.transfers import to_device

if TYPE_CHECKING:
    from tta_panda.models.feature_cache import FeatureCache

PAPER_PATCH_SIZE = 32
PROMPTS_PER_PASS = 256


@runtime_checkable
class ImageModel(Protocol):
    """The protocol of image encoders, which all methods need.

    Implementations are `torch.nn.Module`s in eval mode whose parameters do not require gradients; methods that train
    work on copies. A batch is prepared once, and may then be encoded many times.
    """

    name: str
    image_size: int
    """Side in pixels of the square input images."""
    negative_patch_size: int
    """Default side in pixels of Panda's patches."""

    @property
    def image_encoder(self) -> nn.Module:
        """The module whose normalisation layers may adapt, with weight and bias. A smaller module adapts less."""

    @property
    def device(self) -> torch.device: ...

    def prepare(self, images: Tensor) -> Tensor:
        """Check images (B, 3, H, W) of any size, uint8 or floats in [0, 1], and resize them to the model's input size.

        Returns float32 in [0, 1], (B, 3, image_size, image_size), on the model's device. Prepared images are returned
        unchanged.
        """

    def encode_image(self, prepared: Tensor) -> Tensor:
        """Return embeddings (B, D), not normalised, of prepared images or of images made from these."""


@runtime_checkable
class VisionLanguageModel(ImageModel, Protocol):
    """An image and a text encoder with a common embedding space."""

    @property
    def text_encoder(self) -> nn.Module | None:
        """The module that may adapt, for methods that train both encoders; None if texts are embedded elsewhere."""

    @property
    def logit_scale(self) -> float:
        """The factor from cosine similarities to logits."""

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Return embeddings (len(texts), D), not normalised."""


@runtime_checkable
class PromptableModel(Protocol):
    """A model whose text encoder also accepts input embeddings instead of tokens, for methods that tune a prompt.

    `encode_embedded(embed_tokens(tokens), tokens)` equals `encode_text` of the tokenized texts.
    """

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return token ids (N, L), cut to the longest text if padding does not affect the embeddings."""

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Return input embeddings (N, L, W) of tokens (N, L)."""

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Return text embeddings (N, D) of input embeddings; `tokens` is needed to find the end of each text."""


def framing_of(model: ImageModel) -> int | Framing:
    """Return how a model resizes and crops pictures; custom models only need an `image_size`."""
    return getattr(model, "framing", model.image_size)


# --- models of other libraries --------------------------------------------------------------------------------------


class ImageAdapter(nn.Module):
    """Base class of adapters for other libraries, with the preprocessing that the network was trained with.

    Args:
        name: name of the model in messages and records.
        framing: how pictures of any size are resized and cropped to the network's input.
        mean: mean of each channel, for normalisation.
        std: standard deviation of each channel, for normalisation.
    """

    precision: Precision = "fp32"
    """Precision of the encoders' computations; weights, gradients and features are always float32."""
    preset: str | None = None
    """Name of the model's own preset, if there is one."""

    def __init__(self, name: str, framing: Framing, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.name = name
        self.framing = framing
        self.image_size = framing.size
        self.negative_patch_size = min(PAPER_PATCH_SIZE, framing.size // 2)  # half the side of small images
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(tuple(mean), dtype=torch.float32).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std), dtype=torch.float32).view(3, 1, 1), persistent=False)

    def __repr__(self) -> str:
        facts = f"image_size={self.image_size}, device='{self.device}', precision={self.precision!r}"
        return f"{type(self).__name__}({self.name!r}, {facts})"

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def prepare(self, images: Tensor) -> Tensor:
        return prepare_images(images, self.framing, self.device)

    def pixels(self, prepared: Tensor) -> Tensor:
        """Normalise prepared images with the network's mean and standard deviation."""
        check_prepared(prepared, self.image_size)
        return ((prepared - self.mean) / self.std).contiguous(memory_format=self.memory_format)

    @functools.cached_property
    def memory_format(self) -> torch.memory_format:
        """Channels last for convolutional networks, which are faster with it."""
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in self.modules())
        return torch.channels_last if convolutions > 1 else torch.contiguous_format

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return a context that computes in the encoders' precision; their outputs are converted to float32."""
        return autocast(self.precision, self.device)


def square_side(size: int | Sequence[int], name: str) -> int:
    """Return the side of a network's input from a number, or from height and width; raise if it is not square."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise ModelLoadError(
            f"{name} takes images of {'x'.join(map(str, sides))} px, but only square inputs are supported. Load it "
            "with a square image size if possible."
        )
    return sides[0]


@contextlib.contextmanager
def embeddings_replaced(layer: nn.Module, embedded: Tensor) -> Iterator[None]:
    """Make an embedding layer return `embedded`, so that its text encoder applies its own masks and pooling."""
    handle = layer.register_forward_hook(lambda _layer, _tokens, _output: embedded)
    try:
        yield
    finally:
        handle.remove()


def first_embedding(network: nn.Module) -> nn.Module:
    """Return the token embedding layer, which text encoders declare before the position embedding."""
    return next(module for module in network.modules() if isinstance(module, nn.Embedding))


# --- classifiers ----------------------------------------------------------------------------------------------------


class Classifier(ABC):
    """Base class of classifiers, which compare image features with class embeddings.

    Args:
        model: the image encoder.
        class_names: two or more different names; underscores are read as spaces.
    """

    class_embeddings: Tensor  # (K, D)
    logit_scale: float
    bias: Tensor | float = 0.0  # (K,), added to logits
    made_of: object = None
    """The inputs, other than the model, of the class embeddings: prompts, or rows of a head."""

    def __init__(self, model: ImageModel, class_names: Iterable[str]):
        self.model = model
        self.class_names = _checked_names(class_names)

    def __repr__(self) -> str:
        model = self.model
        facts = f"classes={len(self.class_names)}, image_size={model.image_size}, device='{model.device}'"
        return f"{type(self).__name__}({model.name!r}, {facts})"

    @functools.cached_property
    def digest(self) -> str:
        """A short hash of the model's weights and of the prompts or rows that the class embeddings were made from."""
        content = f"{weights_hash(cast(nn.Module, self.model))} {self.made_of}"
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @functools.cached_property
    def directions(self) -> float:
        """The effective number of dimensions in which the class embeddings differ."""
        return float(count_directions(self.class_embeddings))

    @abstractmethod
    def embed(self, raw: Tensor) -> Tensor:
        """Normalise raw features (..., D) to unit length; for a linear head, return them unchanged."""

    def logits(self, features: Tensor, class_embeddings: Tensor | None = None) -> Tensor:
        """Return logits (..., K) of image features (..., D).

        Features are not normalised again: debiased ones do not have unit length. Methods that adapt the class
        embeddings pass theirs (..., K, D).
        """
        embeddings = self.class_embeddings if class_embeddings is None else class_embeddings
        return self.logit_scale * features @ embeddings.mT + self.bias

    def logits_from_raw(self, features: Tensor, raw: Tensor) -> Tensor:
        """Return `logits` for class embeddings (..., K, D) that `embed` was not applied to yet."""
        return self.logits(features, self.embed(raw))


def count_directions(embeddings: Tensor) -> Tensor:
    """Return the participation ratio () of the differences of embeddings (K, D): their effective dimension, below K."""
    centred = embeddings - embeddings.mean(dim=0)
    products = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    return (products.trace() ** 2 / products.square().sum().clamp_min(1e-30)).clamp_min(1)


class ZeroShotClassifier(Classifier):
    """A zero-shot classifier: the text embeddings of class names are the weights of a linear layer on unit features.

    Args:
        model: a `VisionLanguageModel`.
        class_names: two or more different names; underscores are read as spaces.
        templates: prompts with `{}` for the class name, or functions from the class name to the prompt, such as
            `open_clip.OPENAI_IMAGENET_TEMPLATES`; or a list of prompts for each class name; or a learned `Context`. The
            embeddings of several prompts are averaged.
        cache: where text embeddings are kept.
    """

    model: VisionLanguageModel

    def __init__(
        self,
        model: ImageModel,
        class_names: Iterable[str],
        templates: Templates = DEFAULT_TEMPLATE,
        cache: FeatureCache | None = None,
    ):
        if not isinstance(model, VisionLanguageModel):
            raise InvalidInputError(
                f"{type(model).__name__} has no text encoder to embed class names with. For a model with a linear "
                "head, use make_classifier(model, class_names)."
            )
        super().__init__(model, class_names)
        self._context = templates if isinstance(templates, Context) else None
        if self._context and not isinstance(model, PromptableModel):
            raise InvalidInputError(f"{model.name} gives no access to its input embeddings, which a context replaces.")
        self.logit_scale = model.logit_scale
        if not 0 < self.logit_scale < float("inf"):
            raise InvalidInputError(f"The logit scale of {model.name} must be positive, got {self.logit_scale}.")
        of_class = prompts_of(self.class_names, templates)
        # Template by template if all classes have equally many, so that a pass has texts of similar length.
        self._counts = list(map(len, of_class))
        most = range(max(self._counts))
        places = [(k, place) for place in most for k, texts in enumerate(of_class) if place < len(texts)]
        self.prompts = [of_class[k][place] for k, place in places]
        """All prompts."""
        self._classes = torch.tensor([k for k, _ in places], device=model.device)
        self.made_of = [*self.prompts, str(self._context)] if self._context else self.prompts
        # Leave the caller's inference mode, if any: methods that train use these features in their graphs.
        with torch.inference_mode(False), torch.no_grad(), full_precision(model.device):
            encode = functools.partial(self.encode_prompts, model)  # (K, D), unit
            self.class_embeddings = encode() if cache is None else cache.compute(f"texts {self.made_of}", encode)
        self._check_case()

    @functools.cached_property
    def _batches(self) -> list[list[str]] | list[Tensor]:
        """The prompts, tokenized once: methods that train the text encoder encode them for every batch of images."""
        batches = [
            self.prompts[start : start + PROMPTS_PER_PASS] for start in range(0, len(self.prompts), PROMPTS_PER_PASS)
        ]
        if isinstance(self.model, PromptableModel):
            return [self.model.tokenize(batch) for batch in batches]
        return batches

    def encode_prompts(self, model: VisionLanguageModel) -> Tensor:
        """Return unit text features (K, D) of the classifier's model or a copy, with gradient if it is trained."""

        def encode(piece: slice) -> Tensor:
            batch = self._batches[piece.start]
            if not isinstance(batch, Tensor):
                return model.encode_text(batch)
            promptable = cast(PromptableModel, model)
            embedded = promptable.embed_tokens(batch)
            if self._context is not None:
                first = piece.start * PROMPTS_PER_PASS
                embedded = self._with_context(embedded, self._classes[first : first + len(batch)])
            return promptable.encode_embedded(embedded, batch)

        encoded = self.embed(in_chunks(encode, len(self._batches), 1))
        if min(self._counts) == max(self._counts):
            means = encoded.view(self._counts[0], len(self._counts), -1).mean(dim=0)
        else:
            sums = torch.zeros(len(self._counts), encoded.shape[1], device=encoded.device)
            counts = to_device(torch.tensor(self._counts), encoded.device)
            means = sums.index_add(0, self._classes, encoded) / counts[:, None]
        return F.normalize(means, dim=-1)

    def _with_context(self, embedded: Tensor, classes: Tensor) -> Tensor:
        """Replace the input embeddings (N, L, W) after the start of the text by the context."""
        vectors = cast(Context, self._context).vectors.to(embedded)
        if vectors.shape[-1] != embedded.shape[-1]:
            raise InvalidInputError(
                f"The context has input embeddings of {vectors.shape[-1]} dimensions, but those of {self.model.name} "
                f"have {embedded.shape[-1]}. Use the model that it was learned with."
            )
        if vectors.shape[-2] + 1 >= embedded.shape[1]:
            raise InvalidInputError(
                f"The context has {vectors.shape[-2]} vectors, which leaves no room for the class names in the "
                f"{embedded.shape[1]} tokens of {self.model.name}."
            )
        own = vectors[classes] if vectors.ndim == 3 else vectors.expand(len(embedded), -1, -1)  # (N, n, W)
        return torch.cat([embedded[:, :1], own, embedded[:, 1 + own.shape[1] :]], dim=1)

    def embed(self, raw: Tensor) -> Tensor:
        return F.normalize(raw.float(), dim=-1)

    def logits_from_raw(self, features: Tensor, raw: Tensor) -> Tensor:
        # Normalise logits instead of embeddings, which are much larger if every image has its own.
        norms = torch.linalg.vector_norm(raw.float(), dim=-1)  # (..., K)
        logits: Tensor = self.logits(features, raw.float()) / norms.clamp_min(1e-12)[..., None, :]
        return logits

    def _check_case(self) -> None:
        """Raise if names differ only in case and the model, such as CLIP, ignores case."""
        first: dict[str, int] = {}
        for index, name in enumerate(self.class_names):
            other = first.setdefault(name.lower(), index)
            if other != index and torch.allclose(self.class_embeddings[other], self.class_embeddings[index], atol=1e-5):
                raise InvalidInputError(
                    f"The class names {self.class_names[other]!r} and {name!r} are the same to {self.model.name}, "
                    "which ignores case. Rename one of them."
                )


def _checked_names(class_names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(class_names, str) or not isinstance(class_names, Iterable):
        raise InvalidInputError(f"class_names must be a list of names, got {class_names!r}.")
    if isinstance(class_names, set | frozenset):
        raise InvalidInputError("class_names is a set, which has no order; write sorted(class_names).")
    given = tuple(class_names)
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise InvalidInputError(f"Class names must be strings, got {wrong[0]!r}.")
    names = tuple(name.replace("_", " ").strip() for name in given)
    if len(names) < 2:
        raise InvalidInputError(f"A classifier needs at least two class names, got {list(names)}.")
    if not all(names):
        raise InvalidInputError("Class names must not be empty.")
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InvalidInputError(f"Class names must differ from each other; repeated: {', '.join(repeated)}.")
    return names
