"""Uses public examples as prototypes: each class draws examples near its private ones, at random.

DPPL-Public of Wahdany, Jagielski, Dziedzic and Boenisch 2025 ("Differentially private prototypes
for imbalanced transfer learning"), with draws one after the other in place of one draw of several.

**Released**: only "choices", `top` times one candidate per class, by the exponential mechanism. A
candidate r is a public example through the same backbone. Its score for class c is

    u_c(r) = sum over rows x of class c of  s(x, r),   s = (cos(x, r) - low) / (high - low)

with s clamped to [0, 1], and cosines counted from the candidates' public mean.

**Sensitivity.** If a null row replaces x, the scores of all candidates for x's class fall by s(x,
r), from 0 to 1; other classes' do not change. So two candidates' scores move against each other by
at most 1: range 1, with no factor of 2 (`privacy.bounded_range`, which also says why a class's draw
and all classes' draws cost the same). A unit of m rows adds the mean of what each would add alone,
to any classes: with weights a_c in class c, of sum at most 1, it moves the sum over classes of the
drawn candidates' scores by sum of a_c s_c, from 0 to 1. A row of several labels adds to each, with
weights 1, or `max_labels` over their number if they are more: the range is `max_labels`.

The price depends on neither the number of classes, of candidates nor of a class's rows: a rare
class has its few rows' scores against the same temperature, and loses nothing to frequent ones.

**Whole numbers.** Rows and candidates are brought to length 2^12 and their entries rounded towards
zero, so float32 adds the products exactly (at most 2^24); s is rounded down to 2^-16, weights to a
public step, and scores are sums of integers below 2^52. So a row's part depends on that row alone,
and the draws are exact (`privacy.exponential_draws`).

**Used**: the mean p of a class's candidates, counted from the candidates' mean m and scaled to unit
length. A row scores p (x - m): one linear head that names the class with the nearest prototypes by
angle. Class frequencies play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.normalisation import L2, Normalize
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import EXPONENTIAL, Mechanism

if TYPE_CHECKING:
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.grid import GridSum
    from dpprobe.privacy.releases import Releases

CHOICES = "choices"
MOST_CANDIDATES, MOST_DRAWS = 100_000, 1000
# Bits of a row's length, of s, at most of a weight, and of all of a score.
_LENGTH_BITS, _SHARE_BITS, _WEIGHT_BITS, _SCORE_BITS = 12, 16, 16, 52
# Rounding in float32: rows are shorter than 2^12 by this much.
_MARGIN = 4 * 2.0**-24
# The most that a weight's rounding in float64 may add.
_WEIGHT_MARGIN = 2.0**-40


class Options(MethodOptions):
    """Prototypes chosen among public images by pure DP, with equal noise for all classes."""

    paths: ClassVar[tuple[str, ...]] = ("public_features",)

    head: Literal["public_prototypes"] = "public_prototypes"
    normalize: Normalize = Field(
        default_factory=L2,
        description="Normalisation of each feature vector, of candidates too. Training and "
        "candidate features are then centred on the candidates' mean, which costs no privacy.",
    )
    public_features: str = Field(
        min_length=1,
        description="A manifest.json of a public dataset's features from the same backbone; "
        "prototypes are chosen among its images. Features of private images are refused. "
        "{dataset} and {backbone} in the path stand for their names.",
    )
    candidates: int = Field(
        10_000,
        ge=1,
        le=MOST_CANDIDATES,
        description="Maximum number of public images to choose among, evenly spaced over the "
        "file; each takes eight bytes of memory per feature.",
    )
    top: int = Field(
        5,
        ge=1,
        le=MOST_DRAWS,
        description="Prototypes per class, drawn one after the other; each is a release.",
    )
    similarity: tuple[float, float] = Field(
        (0.0, 0.25),
        description="Cosines up to the first number count as 0, from the second on as 1; a "
        "narrower range separates similar candidates.",
    )
    max_labels: int = Field(
        1,
        ge=1,
        description="Number of labels of an image that count in full. If an image has more "
        "labels, all of them are scaled down equally. The sensitivity grows "
        "with this number.",
    )

    @model_validator(mode="after")
    def _check_similarity(self) -> Options:
        low, high = self.similarity
        if not -1 <= low < high <= 1:
            raise ValueError(
                f"similarity {low:g}, {high:g}: write two cosines from -1 to 1, the smaller "
                "one first"
            )
        if self.top > self.candidates:
            raise ValueError(
                f"top {self.top} is more than the {self.candidates} candidates; write fewer"
            )
        return self

    @property
    def multi_label(self) -> bool:
        return True

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return "none"

    @property
    def audit_fault(self) -> str | None:
        return (
            "audits test sums with Gaussian noise, but this head releases randomly selected "
            "images; dpprobe's tests compute their probabilities instead"
        )

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        return (
            Mechanism(
                name=CHOICES,
                released="one public row per class, selected by its similarity to the class's rows",
                sensitivity=float(self.max_labels),
                noise_multiplier=1.0,
                sample_rate=1.0,
                count=self.top,
                kind=EXPONENTIAL,
            ),
        )


@dataclass(frozen=True)
class Candidates:
    """Public examples, normalised like private ones, among which prototypes are chosen.

    Attributes:
      centre: float32 [d], their mean.
      directions: float32 [m, d], unit vectors from the centre.
      entries: float32 [m, d], the same on the grid: whole numbers, of length at most 2^12.
    """

    centre: torch.Tensor
    directions: torch.Tensor
    entries: torch.Tensor


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Selects each seed's prototypes; the weights are their mean directions."""
    # torch and what needs it: planning imports this module
    import torch

    from dpprobe.heads.history import History

    key = (options.public_features, options.candidates)
    with torch.inference_mode():
        candidates = rows.make_once(("candidates", *key), lambda: read_candidates(options, rows))
        if len(candidates.entries) < options.top:
            raise ConfigError(
                f"top {options.top}: {options.public_features} has {len(candidates.entries)} "
                "candidates; write fewer, or name a file with more rows"
            )
        scores = rows.make_once(
            ("candidates' scores", *key, options.similarity, options.max_labels),
            lambda: class_scores(options, rows, candidates),
        )
        chosen = releases.release_exponential(CHOICES, scores).to(rows.device)
        means = torch.nn.functional.normalize(candidates.directions[chosen].mean(2), dim=2)
        biases = -(means @ candidates.centre)
        weights = torch.cat([means, biases[..., None]], 2)
    history = History(rows, 1.0, record, options.link)
    history.add_record(options.top, weights)
    return Fitted(weights=weights.cpu().numpy(), steps=options.top, history=history.records)


def read_candidates(options: Options, rows: Rows) -> Candidates:
    """Reads finite public candidates; DataError without any, else raises as `read_public_rows`."""
    # torch and what needs it, as above
    import torch

    from dpprobe.heads.rows import read_public_rows

    public = read_public_rows("public_features", options.public_features, rows)
    usable = (public.lengths.isfinite() & (public.lengths > 0)).nonzero()[:, 0]
    if not len(usable):
        raise DataError(
            f"public_features {options.public_features}: every row is all 0 or has "
            "numbers that are not finite; name another file"
        )
    count = min(options.candidates, len(usable))
    kept = usable[torch.arange(count, device=usable.device) * len(usable) // count]
    vectors = torch.empty((count, rows.dimension), device=rows.device)
    for start, stop, block in public.read_blocks():
        low, high = (int(torch.searchsorted(kept, end)) for end in (start, stop))
        vectors[low:high] = block[kept[low:high] - start]
    centre = vectors.mean(0, dtype=torch.float64).float()
    if count == 1:
        centre.zero_()
    directions = torch.nn.functional.normalize(vectors - centre, dim=1)
    return Candidates(centre, directions, on_grid(vectors, centre))


def on_grid(vectors: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Returns vectors [m, d] from the centre, at length 2^12, rounded towards zero: float32."""
    from dpprobe.heads.training_set import row_lengths  # imports torch

    offsets = vectors - centre
    scale = 2.0**_LENGTH_BITS * (1 - _MARGIN) / row_lengths(offsets)
    return offsets.mul_(scale.float()[:, None]).trunc_().nan_to_num_(0.0, 0.0, 0.0)


def class_scores(options: Options, rows: Rows, candidates: Candidates) -> GridSum:
    """Sums s(x, r) over the rows of each class, weighted: [classes, candidates]."""
    # torch and what needs it, as above
    import torch

    from dpprobe.heads.training_set import chunk_rows
    from dpprobe.privacy.grid import GridSum

    weight_bits = _weight_bits(rows)
    entries = candidates.entries
    total = torch.zeros((rows.num_classes, len(entries)), dtype=torch.float64, device=rows.device)
    for start, stop, block in rows.read_blocks():
        vectors = on_grid(block, candidates.centre)
        shares = class_shares(options, rows, start, stop, weight_bits)
        for low, high in chunk_rows(len(entries), 12 * len(vectors)):
            near = compute_similarities(vectors, entries[low:high], options.similarity)
            total[:, low:high].addmm_(shares.T, near.double())
    return GridSum(total, 2.0 ** -(_SHARE_BITS + weight_bits))


def compute_similarities(
    vectors: torch.Tensor, entries: torch.Tensor, similarity: tuple[float, float]
) -> torch.Tensor:
    """Returns 2^16 s, rounded down: float32 [rows, candidates], of both on the grid."""
    low, high = similarity
    cosines = (vectors @ entries.T).mul_(4.0**-_LENGTH_BITS)
    shares = cosines.sub_(low).mul_(1 / (high - low)).clamp_(0, 1)
    return shares.mul_(2.0**_SHARE_BITS).floor_()


def class_shares(
    options: Options, rows: Rows, start: int, stop: int, weight_bits: int
) -> torch.Tensor:
    """Returns each row's weights in the classes, in whole steps of 2^-weight_bits: [m, classes].

    A unit's weights sum to at most 1, or `max_labels`; an unusable row has none.
    """
    shares = rows.make_targets(start, stop).double()
    if rows.multi_label:
        labels = shares.sum(1, keepdim=True).clamp_(min=1)
        shares *= (options.max_labels / labels).clamp_(max=1)
    if rows.weights is not None:
        shares *= rows.weights[start:stop, None]
    if weight_bits:
        shares.mul_(2.0**weight_bits * (1 - _WEIGHT_MARGIN)).floor_()
    return shares * rows.lengths[start:stop].isfinite()[:, None]


def _weight_bits(rows: Rows) -> int:
    """Returns the bits of a row's weights: 0 if all are 1, else those that n units leave free."""
    if rows.weights is None and not rows.multi_label:
        return 0
    return min(_WEIGHT_BITS, _SCORE_BITS - _SHARE_BITS - rows.n.bit_length())
