"""Releases one noisy sum of rows per class, and predicts the class whose sum is nearest in angle.

Released once: "class_sums" [K, d + 1], the sum of t x^T over rows x of norm at most S (see
`clipped_row_options.RowOptions`), where t are the labels as zeros and ones, clipped to norm
sqrt(`max_labels`). A row adds t x^T, with norm |t| |x| <= S sqrt(max_labels) (S with one label per
example). A null row adds nothing.

The column of the constant counts the rows per class. Sums are scaled to norm 1, so that frequent
classes are not preferred. Each unit-norm sum is multiplied by min(1, count / (2 deviations of the
count's noise)), so that a class without rows, whose sum is pure noise, scores near 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpprobe.heads.clipped_row_options import MaxLabels, RowOptions
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.privacy.plan import Mechanism, full_batch

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

CLASS_SUMS = "class_sums"


class Options(RowOptions):
    """One noisy prototype per class: nothing to tune, and a strong baseline under large noise."""

    head: Literal["prototypes"] = "prototypes"
    intercept: float = Field(
        0.5,
        ge=0,
        le=10,
        description="Constant appended to each feature vector, as a part of max_row_norm, and used "
        "to count classes. The constant's square is added to the squared sensitivity; 0 counts no "
        "classes.",
    )
    max_labels: MaxLabels = 1

    @property
    def running_sums(self) -> tuple[str, ...]:
        return (CLASS_SUMS,)

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        sensitivity = self.longest * self.max_labels**0.5
        return (full_batch(CLASS_SUMS, "sum of each class's clipped rows", sensitivity),)


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Releases class sums for each seed; their directions are the weights."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.history import History
    from dpprobe.heads.second_order import Design, clipped_labels, cross_moment, each_seed

    private, classes = releases.plan.private, rows.num_classes
    longest = math.sqrt(options.max_labels) if private else math.inf
    with torch.inference_mode():
        design = Design(options, rows, private=private)
        sums = rows.make_once(
            (*design.cache_key("class sums"), longest),
            lambda: cross_moment(
                design, lambda piece: clipped_labels(rows, piece, longest), classes, longest
            ),
        )

        def release_directions(seed_releases: Releases) -> torch.Tensor:
            noisy = seed_releases.release_gaussian(CLASS_SUMS, sums.one_seed)[0]
            weights = torch.zeros_like(noisy)
            lengths = torch.linalg.vector_norm(noisy[:, :-1], dim=1, keepdim=True)
            weights[:, :-1] = noisy[:, :-1] / lengths.clamp(min=1e-30)
            if design.offset > 0:
                doubt = max(2 * seed_releases.noise_deviation(CLASS_SUMS), 1e-30)
                weights *= (noisy[:, -1:] / doubt).clamp(0, 1)
            return weights.to(torch.float32)

        weights = each_seed(releases, (CLASS_SUMS,), release_directions, head=options.head)
    history = History(rows, 1.0, record, options.link)
    history.add_record(1, weights)
    return Fitted(weights=weights.cpu().numpy(), steps=1, history=history.records)
