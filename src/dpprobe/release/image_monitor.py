"""Compares new images with noisy counts of test images, to detect changes in the images.

`parts/monitor/measure` counts test units in tables. This module defines the bins of tables, and
compares published counts with new images, which costs no privacy.

**Tables.** An image is in one bin of each table. Bins are predicted classes, or ranges of the
largest probability, of the features' L2 norm, or of unusualness. A head without probabilities has
ranges of the largest score. All limits of ranges are public. Limits of norms are multiples of the
features' norm for a public test image.

**Unusualness** is the share of a row's squared length outside typical directions of training rows.
Typical directions are the released centre and the leading eigenvectors of the released second
moment. Centre and second moment were released with noise, so typical directions cost no privacy.
Heads without a released centre or second moment have no table of unusualness.

**Comparison.** The distance of two tables is the largest difference in the share of rows, over all
sets of classes or all limits of ranges. Noise makes distances positive even without a change. A
distance is therefore compared with distances of simulated tables, drawn from one distribution with
the noise and numbers of units of the real tables. This distribution is estimated from both tables.
A table differs if at most a share `FALSE_ALARMS` / tables of simulated distances is as large. By
Bonferroni, `FALSE_ALARMS` bounds the probability of any false alarm, up to errors of the estimate.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.data.sources.csv_files import open_csv
from dpprobe.errors import ConfigError, DataError
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.fitted import TYPICAL
from dpprobe.privacy.stated_facts import mechanisms_of
from dpprobe.release.probabilities import TOP_EDGES

if TYPE_CHECKING:
    from dpprobe.heads.transform import Transform
    from dpprobe.release.bundle import Bundle
    from dpprobe.release.predict import Predictor

Floats = npt.NDArray[np.float64]

CLASSES, VALUES, NORMS, UNUSUAL = "predicted_class", "largest_value", "feature_norm", "unusualness"
WORDS = {
    CLASSES: "predicted class",
    VALUES: "largest probability",
    NORMS: "feature norm",
    UNUSUAL: "unusualness",
}
# Limits of norm ranges, as multiples of the test image's norm, which is in the middle range.
NORM_FACTORS = (
    0.0625, 0.125, 0.25, *(2.0 ** (step / 6 - 13 / 12) for step in range(14)), 4.0, 8.0, 16.0
)  # fmt: skip
UNUSUAL_EDGES = (
    0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7,
    0.8, 0.9, 1.0,
)  # fmt: skip
FALSE_ALARMS = 0.01
# Rows added to each bin before simulations: empty rare bins would make tables too similar.
ADDED = 0.5
# A comparison is uninformative if chance can cause a larger distance.
TELLING = 0.3
SIMULATIONS = 4000
SHOWN_UNUSUAL = 20
# Numbers of images that are tried in turn, to report how many images a comparison needs.
NUMBERS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
ADVICE = "do not trust probabilities, sets and test result before a person has checked the images"
SIMILAR, DIFFERENT, TOO_FEW = "similar", "differs", "too few"


def list_edges(probe_norm: float, *, unusual: bool) -> dict[str, list[float]]:
    """Returns the finite limits of each table's ranges; the outermost ranges are unbounded."""
    norms = [(probe_norm or 1.0) * factor for factor in NORM_FACTORS]
    edges = {VALUES: list(TOP_EDGES[1:-1]), NORMS: norms}
    return {**edges, UNUSUAL: list(UNUSUAL_EDGES[1:-1])} if unusual else edges


def measure_norms(features: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.linalg.norm(features.astype(np.float64), axis=1))


def measure_unusualness(
    features: npt.NDArray[np.float32], transform: Transform, typical: npt.NDArray[np.float32]
) -> Floats:
    """Returns the share of each row's squared length outside typical directions [r, d].

    Rows get the head's transform without centring; a row of zeros has share 1.
    """
    rows = features
    if not isinstance(transform.spec, kinds.AroundCentre):
        with torch.inference_mode():
            rows = transform(torch.from_numpy(features)).numpy()
    lengths = measure_norms(rows)
    with np.errstate(invalid="ignore"):
        inside = np.square(rows.astype(np.float64) @ typical.T.astype(np.float64)).sum(axis=1)
    share = np.divide(inside, lengths**2, out=np.zeros(len(rows)), where=lengths > 0)
    return np.asarray(np.clip(1 - share, 0.0, 1.0))


def place_rows(
    values: npt.NDArray[Any],
    norms: Floats,
    unusual: Floats | None,
    edges: Mapping[str, Sequence[float]],
) -> dict[str, npt.NDArray[np.intp]]:
    """Returns the bin of each row [m] in each table; `values` are probabilities [m, classes]."""
    measured = {VALUES: values.max(axis=1), NORMS: norms}
    if unusual is not None:
        measured[UNUSUAL] = unusual
    ranges = {
        name: np.searchsorted(np.asarray(edges[name]), each, side="right")
        for name, each in measured.items()
    }
    return {CLASSES: values.argmax(axis=1), **ranges}


def find_directions(
    centre: npt.NDArray[Any] | None, moment: torch.Tensor | None, *, dimension: int
) -> npt.NDArray[np.float32] | None:
    """Returns orthonormal typical directions [r, d]; None without a released centre or moment.

    Args:
      moment: a noisy second moment [d, d], or [d + 1, d + 1] with a constant as last feature.
    """
    columns = [] if centre is None else [centre[:, None]]
    if moment is not None:
        noisy = moment[:dimension, :dimension].to("cpu", torch.float32)
        vectors = torch.linalg.eigh(noisy).eigenvectors.numpy()
        columns.append(vectors[:, -count_directions(dimension) :])
    if not columns:
        return None
    basis, _ = np.linalg.qr(np.concatenate(columns, axis=1).astype(np.float64))
    return np.ascontiguousarray(basis.T, dtype=np.float32)


def count_directions(dimension: int) -> int:
    return min(64, max(dimension // 4, 1))


# distances


def project_shares(noisy: Floats) -> Floats:
    """Projects noisy shares [..., bins] to the nearest non-negative shares of sum 1."""
    falling = -np.sort(-noisy, axis=-1)
    excess = np.cumsum(falling, axis=-1) - 1
    place = np.arange(1, noisy.shape[-1] + 1)
    last = (falling * place > excess).sum(axis=-1, keepdims=True) - 1
    return np.maximum(noisy - np.take_along_axis(excess, last, -1) / (last + 1), 0.0)


def measure_gaps(counts: Floats, incoming: Floats, n: int, *, ordered: bool) -> Floats:
    """Returns differences in shares of rows, [..., bins]; of cumulative shares if `ordered`."""
    gaps = incoming / incoming.sum(axis=-1, keepdims=True) - project_shares(counts / n)
    return np.cumsum(gaps, axis=-1) if ordered else gaps


def measure_distance(counts: Floats, incoming: Floats, n: int, *, ordered: bool) -> Floats:
    gaps = np.abs(measure_gaps(counts, incoming, n, ordered=ordered))
    return np.asarray(gaps.max(axis=-1) if ordered else gaps.sum(axis=-1) / 2)


def _pool_shares(counts: Floats, incoming: Floats, n: int, deviation: float) -> Floats:
    """Estimates shares [bins] common to both tables; noise lowers the weight of n test units."""
    bins = len(counts)
    left = n / (1 + bins * deviation**2 / n)
    units = left + float(incoming.sum())
    shares = project_shares((left * counts / n + incoming) / units)
    return (units * shares / shares.sum() + ADDED) / (units + ADDED * bins)


def simulate_distances(
    shares: Floats, *, n: int, incoming: int, deviation: float, ordered: bool
) -> Floats:
    """Simulates distances between tables of equal shares, with a fixed public seed."""
    generator = np.random.default_rng(0)
    counts = generator.multinomial(n, shares, SIMULATIONS)
    noisy = counts + generator.normal(0.0, deviation, counts.shape)
    seen = generator.multinomial(incoming, shares, SIMULATIONS).astype(np.float64)
    return measure_distance(noisy, seen, n, ordered=ordered)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one table.

    Attributes:
      distance: the largest difference in the share of rows.
      by_chance: the distance that unchanged images exceed with probability `FALSE_ALARMS` / tables.
      needed: number of units required; None if there are enough, or no number suffices.
      change: the bins where the difference is largest.
    """

    verdict: str
    distance: float
    by_chance: float
    needed: int | None
    change: str


def compare_table(
    counts: Floats,
    incoming: Floats,
    *,
    n: int,
    deviation: float,
    level: float,
    classes: Sequence[str] | None,
    edges: Sequence[float],
) -> Comparison:
    """Compares the counts of new units with the noisy counts of n test units, both [bins].

    Args:
      level: probability of a false alarm.
      classes: names of the bins; None for ranges, whose limits are `edges`.
    """
    ordered, units = classes is None, round(float(incoming.sum()))
    if not units:
        return Comparison(verdict=TOO_FEW, distance=0.0, by_chance=1.0, needed=None, change="")
    shares = _pool_shares(counts, incoming, n, deviation)

    def simulate(number: int) -> Floats:
        return simulate_distances(
            shares, n=n, incoming=number, deviation=deviation, ordered=ordered
        )

    simulated = simulate(units)
    limit = float(np.quantile(simulated, 1 - level))
    distance = float(measure_distance(counts, incoming, n, ordered=ordered))
    as_far = int((simulated >= distance - 1e-12).sum())
    verdict, needed = SIMILAR, None
    if 1 + as_far <= level * (1 + SIMULATIONS):
        verdict = DIFFERENT
    elif limit > TELLING:
        verdict = TOO_FEW
        more = [number for number in NUMBERS if number > units]
        tells = (each for each in more if np.quantile(simulate(each), 1 - level) <= TELLING)
        needed = next(tells, None)
    gaps, ours = measure_gaps(counts, incoming, n, ordered=ordered), incoming / incoming.sum()
    place = int(np.abs(gaps).argmax())
    share = float(ours[: place + 1].sum() if ordered else ours[place])
    where = f"up to {edges[min(place, len(edges) - 1)]:.3g}" if classes is None else classes[place]
    change = f"{where}: {100 * share:.0f}% here, {100 * (share - gaps[place]):.0f}% of test units"
    return Comparison(
        verdict=verdict, distance=distance, by_chance=limit, needed=needed, change=change
    )


# new images


def read_groups(path: Path | None) -> dict[str, str]:
    """Reads the columns id and group of a CSV file; raises ConfigError without them."""
    if path is None:
        return {}
    try:
        with open_csv(path, str(path)) as lines:
            names = [name.strip() for name in next(lines, ())]
            if names.count("id") != 1 or names.count("group") != 1:
                raise ValueError(f"it has {', '.join(names)}")
            records = list(filter(None, lines))
        if any(len(record) != len(names) for record in records):
            raise ValueError(f"a line does not have {len(names)} values")
        rows = {(record[names.index("id")], record[names.index("group")]) for record in records}
        if len(groups := dict(rows)) < len(rows):
            raise ValueError("an id has several groups")
        return groups
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a CSV file with the columns id and group ({error}); write the "
            "header id,group, then one line per image with its one group"
        ) from error


def open_watch(groups: Path | None, predictor: Predictor) -> Watch:
    """Opens the `Watch` of a predictor's bundle; `groups` is a CSV file with columns id and group.

    Raises ConfigError for a release without tables.
    """
    return Watch(predictor.bundle, predictor.heads.transforms[0], read_groups(groups))


class Watch:
    """Counts new rows in a bundle's tables, and compares the counts with those of test units."""

    def __init__(self, bundle: Bundle, transform: Transform, groups: Mapping[str, str]) -> None:
        """Reads a bundle's tables; `groups` maps image ids to groups, each of which is one unit.

        Raises ConfigError for a release without tables, DataError for tables of another head.
        """
        block, self._classes = bundle.statement.get("monitor"), bundle.facts.class_names
        if block is None:
            raise ConfigError(
                f"--monitor: release {bundle.facts.name} has no counts of test images; leave "
                "--monitor out, or make a release with `monitor: {epsilon: 1}`"
            )
        self._transform, self._groups = transform, groups
        self._typical = bundle.arrays.get(TYPICAL)
        try:
            (mechanism,) = mechanisms_of(block)
            self._deviation = mechanism.noise_scale
            self._n, self._edges = int(block["n"]), dict(block["edges"])
            tables = {name: np.array(each, float) for name, each in block["tables"].items()}
            sizes = {name: len(each) + 1 for name, each in self._edges.items()}
            self._counts = {name: tables[name] for name in (CLASSES, *sizes)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"monitor: cannot be read ({error!r})") from error
        sizes[CLASSES] = len(self._classes)
        fits = all(self._counts[name].shape == (size,) for name, size in sizes.items())
        if self._typical is not None:
            fits &= self._typical.shape[1:] == (bundle.facts.dimension,)
        if not fits or (UNUSUAL in sizes) != (self._typical is not None) or self._n < 1:
            raise DataError(f"monitor: tables of {sizes} bins do not fit the head")
        self._bins: list[npt.NDArray[np.intp]] = []
        self._names: list[str] = []
        self._unusual: list[tuple[float, str]] = []

    def add_rows(
        self, names: Sequence[str], values: npt.NDArray[Any], features: npt.NDArray[np.float32]
    ) -> None:
        """Counts rows, given by ids, probabilities [m, classes] and stored features [m, d]."""
        unusual = None
        if self._typical is not None:
            unusual = measure_unusualness(features, self._transform, self._typical)
            every = [*self._unusual, *zip(unusual.tolist(), names, strict=True)]
            self._unusual = heapq.nlargest(SHOWN_UNUSUAL, every)
        bins = place_rows(values, measure_norms(features), unusual, self._edges)
        self._bins.append(np.stack([bins[name] for name in self._counts]))
        self._names += names

    def compare(self) -> Report:
        named = [self._groups.get(name, place) for place, name in enumerate(self._names)]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
        codes = np.array([numbers[name] for name in named], dtype=np.intp)
        weights = 1 / np.bincount(codes)[codes] if named else np.empty(0)
        empty = np.empty((len(self._counts), 0), np.intp)
        results = {}
        for bins, (name, counts) in zip(
            np.concatenate([empty, *self._bins], axis=1), self._counts.items(), strict=True
        ):
            results[name] = compare_table(
                counts,
                np.bincount(bins, weights=weights, minlength=len(counts)).astype(np.float64),
                n=self._n,
                deviation=self._deviation,
                level=FALSE_ALARMS / len(self._counts),
                classes=self._classes if name == CLASSES else None,
                edges=self._edges.get(name, ()),
            )
        most = tuple({"id": name, UNUSUAL: value} for value, name in self._unusual)
        return Report(
            images=len(named),
            units=len(numbers),
            test_units=self._n,
            tables=results,
            most_unusual=most,
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """The comparison of new images with the test units of a release, by table."""

    images: int
    units: int
    test_units: int
    tables: Mapping[str, Comparison]
    most_unusual: tuple[Mapping[str, Any], ...]

    @property
    def verdict(self) -> str:
        """`DIFFERENT` if any table differs, `TOO_FEW` if all are uninformative, else `SIMILAR`."""
        given = {one.verdict for one in self.tables.values()}
        return next(each for each in (DIFFERENT, SIMILAR, TOO_FEW) if each in given)

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}

    def list_lines(self) -> list[str]:
        """Returns the report's lines for the console, with the verdict last."""
        lines = [f"monitor: {self.units:,} new units against {self.test_units:,} test units"]
        for name, one in self.tables.items():
            apart = f"{100 * one.distance:.0f} points apart, by chance {100 * one.by_chance:.0f}"
            lines.append(f"  {WORDS[name]}: {one.verdict} ({apart}; {one.change})")
        return [*lines, self._conclude()]

    def _conclude(self) -> str:
        named = ", ".join(
            WORDS[name] for name, one in self.tables.items() if one.verdict == self.verdict
        )
        if self.verdict == DIFFERENT:
            return f"WARNING: differs from the test images: {named}; {ADVICE}"
        if self.verdict == SIMILAR:
            return f"looks like the test images: {named}"
        needs = [one.needed for one in self.tables.values() if one.needed]
        return f"too few images to tell ({self.units:,}; needs about {min(needs, default='more')})"
