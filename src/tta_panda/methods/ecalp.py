"""ECALP (Li et al. 2025, "Efficient and Context-Aware Label Propagation"), for zero-shot use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device, to_host

SCALE = 1e4
"""From propagated scores to logits."""

CARRIED = 0.2
"""Share of an image's best score that its next propagation starts from."""


class ECALP(FrozenMethod):
    """Propagates class scores from texts to images through a graph of nearest neighbours that grows with the stream.

    Images are processed one by one. Each is added to the graph, connected with its nearest texts and images, and
    classified by a second node of its own, which is then removed. Images are compared by plain features, in the
    dimensions in which the texts differ, and with texts by debiased ones.

    The defaults are those of ECALP's own code, which remembers all images; here, the oldest are forgotten beyond
    `capacity`. The graph is on the CPU.

    Args:
        text_neighbours: number of texts that an image is connected with.
        image_neighbours: number of images that an image is connected with, itself included.
        sharpness: exponent of similarities; negative similarities are no connections.
        steps: number of steps of propagation per image.
        capacity: maximum number of images in the graph. Time per image grows in proportion.
    """

    text_neighbours: Count = 3
    image_neighbours: Count = 8
    sharpness: NonNegative = 10.0
    steps: Count = 3
    capacity: Count = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = self.classifier.class_embeddings.cpu()
        self._importance = F.normalize(texts, dim=-1).var(dim=0)  # (D,)
        self.graph: dict[str, Tensor]  # rows are images
        empty = {
            "features": texts[:0],
            "neighbours": torch.empty(0, self.image_neighbours, dtype=torch.long, device="cpu"),
            "similarities": texts.new_empty(0, self.image_neighbours),  # zero for missing neighbours
            "texts": texts.new_empty(0, len(texts)),  # weights of the connections
            "labels": torch.empty(0, dtype=torch.long, device="cpu"),
            "scores": texts.new_empty(0),
        }
        self.add_state("graph", empty)
        self.count = self.add_state("count", 0)  # images so far

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.classify(encoded)  # (B, K)
        lengths = self.classifier.class_embeddings.norm(dim=-1) * encoded.features.norm(dim=-1, keepdim=True)
        cosines = logits / (self.classifier.logit_scale * lengths).clamp_min(1e-12)
        cosines, features = to_host(cosines, F.normalize(encoded.features, dim=-1))
        best = cosines.topk(min(self.text_neighbours, cosines.shape[1]), dim=1)
        texts = torch.zeros_like(cosines).scatter_(1, best.indices, best.values.clamp_min(0) ** self.sharpness)
        found = torch.stack([self._add(*image) for image in zip(features, texts, strict=True)])
        return to_device(found, logits.device)

    def _add(self, feature: Tensor, texts: Tensor) -> Tensor:
        """Add an image with this feature (D,) and weights (K,) of texts to the graph, and return its logits (K,)."""
        place = self.count % self.capacity
        if self.count < self.capacity:
            self.graph = {
                name: torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) for name, rows in self.graph.items()
            }
        graph = self.graph
        graph["similarities"][graph["neighbours"] == place] = 0.0  # of the image that it replaces
        graph["features"][place] = F.normalize(feature * self._importance, dim=-1)
        graph["texts"][place] = texts
        graph["scores"][place] = 0.0
        self.count += 1

        similarities = (graph["features"] @ feature).clamp_min(0)  # (N,)
        neighbours, values = self._offer(graph["neighbours"], graph["similarities"], place, similarities)
        nearest = similarities.argsort(descending=True, stable=True)[: self.image_neighbours]
        neighbours[place, : len(nearest)] = nearest
        values[place] = 0.0
        values[place, : len(nearest)] = similarities[nearest]
        graph["neighbours"], graph["similarities"] = neighbours, values

        # A second node of the image is classified: its neighbours are those of the first.
        neighbours, values = self._offer(neighbours, values, len(neighbours), similarities)
        twice = torch.cat([torch.arange(len(neighbours)), torch.tensor([place])])
        scores = self._propagate(neighbours[twice], values[twice] ** self.sharpness, graph["texts"][twice])
        graph["scores"], graph["labels"] = scores[:-1].max(dim=1)
        graph["scores"] *= CARRIED
        return SCALE * scores[-1]

    def _offer(self, neighbours: Tensor, values: Tensor, node: int, similarities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neighbours and similarities (N, k) of all images when `node` is one of the candidates."""
        values, order = torch.cat([values, similarities[:, None]], dim=1).sort(descending=True, stable=True)
        candidates = torch.cat([neighbours, torch.full_like(neighbours[:, :1], node)], dim=1)
        return candidates.gather(1, order)[:, :-1], values[:, :-1]

    def _propagate(self, neighbours: Tensor, weights: Tensor, texts: Tensor) -> Tensor:
        """Return the scores (N, K) of nodes whose neighbours (N, k) and texts (N, K) have these weights."""
        size = len(neighbours)
        edges = torch.stack([torch.arange(size).repeat_interleave(neighbours.shape[1]), neighbours.flatten()])
        both = torch.cat([edges, edges.flip(0)], dim=1)
        graph = torch.sparse_coo_tensor(
            both, weights.flatten().repeat(2), (size, size), check_invariants=True
        ).coalesce()
        degrees = weights.sum(dim=1).index_add_(0, edges[1], weights.flatten()) + texts.sum(dim=1)
        scale = 1 / (degrees.sqrt() + 1e-6)[:, None]
        from_texts = scale * texts / (texts.sum(dim=0).sqrt() + 1e-6)
        scores = torch.zeros_like(texts)
        scores[torch.arange(size - 1), self.graph["labels"]] = self.graph["scores"]
        for _ in range(self.steps):
            scores = from_texts + scale * (graph @ (scale * scores))
        return scores
