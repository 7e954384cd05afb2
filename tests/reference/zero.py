"""3.8 Zero: the most confident views vote."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, entropy, note, text_embeddings, unit

DECIDING_VOTE = 0.5
"""What the winner of a tie gets on top of its votes, so that the counts say who won; the amount is a reading."""


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    views: int,
    keep: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            with torch.no_grad():
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        answers = []
        for image_views in given.views(images, views):
            with torch.no_grad():
                z = given.scale * (unit(given.model.encode_image(image_views)) - offset) @ t.T
            order = torch.sort(entropy(z), stable=True).indices.tolist()
            count = max(1, int(keep * views))
            kept, discarded = order[:count], order[count:]

            votes = [0.0] * len(t)
            for view in kept:
                votes[int(z[view].argmax())] += 1
            tied = [k for k in range(len(t)) if votes[k] == max(votes)]
            how = "clear" if len(tied) == 1 else "lowest index"
            if len(tied) > 1 and protocol == "paper" and discarded:
                winner = None
                for view in discarded:
                    if int(z[view].argmax()) in tied:
                        winner, how = int(z[view].argmax()), "discarded view"
                        break
                if winner is None:
                    winner, how = max(tied, key=lambda k: float(z[discarded[0], k])), "logit"
                votes[winner] += DECIDING_VOTE
            note(trace, how=how)
            answers.append(torch.tensor(votes))
        outputs.append(torch.stack(answers))
    return outputs
