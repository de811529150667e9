"""The job of simulated sites: heads of each site, their average, secure sums, and pooled data."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.sites.options import SimulatedSitesOptions, Split
from dpprobe.analyses.sites.sites_record import Estimate, SitesCell, SitesRecord
from dpprobe.data.options import Headline
from dpprobe.devices import limit_threads
from dpprobe.errors import DataError, DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed, derived_seed, open_stream
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.target import Target
from dpprobe.results import uncertainty
from dpprobe.results.unit_counts import unit_codes
from dpprobe.site_exchange.simulated_fit import fit_together
from dpprobe.study.study import Study
from dpprobe.training.fit_inputs import FitInputs, choose_headline
from dpprobe.training.job_features import JobFeatures, read_job_features
from dpprobe.training.plan_file import plan_method
from dpprobe.training.public_file_check import PrivateData

logger = logging.getLogger("dpprobe")

Index = npt.NDArray[np.int64]
MakePlan = Callable[[int], Plan]
_CONCENTRATION = 0.5  # Dirichlet parameter of sites' class frequencies, as in federated benchmarks


def simulate_sites(
    train: Path,
    test: Path,
    record: Path,
    folder: Path,
    *,
    options: SimulatedSitesOptions,
    inputs: Mapping[str, Any],
    dataset: str,
    backbone: str,
    threads: int,
    study: Study,
) -> None:
    """Compares heads for each split, number of sites and budget of one (dataset, backbone).

    Each seed has its own split and noise. The split does not depend on budget and backbone.

    Raises:
      DataError: if there are more sites than units.
      DpprobeError: if all units together are too few for the method or the budget.
    """
    limit_threads(threads)
    method = study.methods[inputs["method"]].fill_paths(dataset=dataset, backbone=backbone)
    fit_inputs = FitInputs(FeatureStore(train), inputs["unit"])
    private = PrivateData.of_study(
        study,
        dataset=dataset,
        backbone=backbone,
        class_names=fit_inputs.store.class_names,
        manifests=(train, test),
    )
    pool = Pool.read(
        replace(fit_inputs, public=private.check_public(method)), test, inputs["metric"]
    )
    identity = {"use": "sites", "dataset": dataset, "study_seed": study.seed}
    split_seeds = [cell_seed(identity, index) for index in range(study.seeds)]
    identity |= {"backbone": backbone, "options": method.identity_options()}
    cells = []
    for epsilon in inputs["epsilons"]:
        make_plan = plan_sizes(method, epsilon, inputs, folder.parent / "calibration")
        seeds = [cell_seed({**identity, "epsilon": epsilon}, i) for i in range(study.seeds)]
        fits = [fit_heads(method, pool.features.train, make_plan(pool.n), [each]) for each in seeds]
        pooled = pool.estimate([[pool.score(heads)] for heads in fits])
        for count in options.counts:
            logger.info("epsilon %s: %s sites", epsilon, count)
            part_seeds = [derived_seed(each, f"{count}") for each in split_seeds]
            splits = {
                split: [split_units(pool.labels, count, split, each) for each in part_seeds]
                for split in options.splits
            }
            compared = _compare_splits(method, pool, splits, make_plan, seeds, options.colluders)
            cells += [
                SitesCell(split=split, sites=count, epsilon=epsilon, pooled=pooled, **results)
                for split, results in compared
            ]
    SitesRecord(
        dataset=dataset,
        backbone=backbone,
        method=inputs["method"],
        metric=pool.metric,
        unit=inputs["unit"],
        n=pool.n,
        colluders=options.colluders,
        seeds=study.seeds,
        cells=tuple(cells),
    ).write(record)


def _compare_splits(
    method: MethodOptions,
    pool: Pool,
    splits: Mapping[Split, Sequence[Sequence[Index]]],
    make_plan: MakePlan,
    seeds: Sequence[int],
    colluders: int | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each split's values of a `SitesCell`, for sites training together and alone."""
    # Sums over all sites do not depend on the split.
    summed = [
        pool.fit_together(method, parts, make_plan, derived_seed(seed, f"{len(parts)}"), colluders)
        for seed, parts in zip(seeds, next(iter(splits.values())), strict=True)
    ]
    together = pool.estimate([[pool.score(heads)] for heads in summed])
    for split, drawn in splits.items():
        alone = [
            train_alone(method, pool, parts, make_plan, derived_seed(seed, split))
            for seed, parts in zip(seeds, drawn, strict=True)
        ]
        yield split, {"together": together, **describe_alone(pool, alone)}


@dataclass(frozen=True)
class Pool:
    """The examples of all sites.

    Attributes:
      codes: int64 [training rows], the number of each row's unit, which is the patient, or the row
        if patients are unknown.
      metric: the metric that compares heads.
    """

    features: JobFeatures
    codes: Index
    metric: Headline

    @classmethod
    def read(cls, inputs: FitInputs, test: Path, metric: Headline | None) -> Pool:
        store, tested = inputs.store, FeatureStore(test).leave_out_nulls()
        shown = choose_headline(tested, metric)
        features = read_job_features(
            inputs, tested, device="cpu", memory_mb=sys.maxsize, headline=shown
        )
        codes = unit_codes(store.units)
        return cls(features, np.arange(store.rows) if codes is None else codes, shown)

    @property
    def n(self) -> int:
        return self.features.train.n

    @cached_property
    def labels(self) -> Index:
        """The most frequent class of each unit (a patient, or a row if patients are unknown)."""
        train = self.features.train
        counts = np.zeros((self.codes.max() + 1, train.num_classes), dtype=np.int64)
        np.add.at(counts, (self.codes, train.labels.numpy()), 1)
        return counts.argmax(axis=1)

    def select(self, units: Index, public_n: int | None = None) -> TrainingSet:
        """Returns the rows of some units; `public_n` is the number of all sites' units, if used."""
        train = self.features.train
        assert train.features is not None
        rows = np.flatnonzero(np.isin(self.codes, units))
        names = [str(code) for code in self.codes[rows]]
        return TrainingSet(
            train.features[rows],
            train.labels[rows],
            train.num_classes,
            units=None if train.units is None else Units.number_units(names),
            public_n=public_n,
            public=train.public,
        )

    def fit_together(
        self,
        method: MethodOptions,
        parts: Sequence[Index],
        make_plan: MakePlan,
        seed: int,
        colluders: int | None,
    ) -> Heads:
        rows = [self.select(units, public_n=self.n) for units in parts]
        return fit_together(method, rows, make_plan(self.n), seed, colluders=colluders)

    def score(self, heads: Heads) -> np.ndarray:
        assert isinstance(self.features.test, torch.Tensor)
        return score_rows(heads, self.features.test)[0]

    def measure(self, scores: np.ndarray) -> float:
        evaluation = self.features.evaluate(scores, link="none")
        return float(evaluation.compute_metrics()[self.metric])

    def estimate(self, seeds: Sequence[Sequence[np.ndarray]]) -> Estimate:
        """Averages the metric over each seed's heads, then over seeds; returns mean and interval.

        The interval over test examples has the mean width of the heads' intervals. It is not too
        narrow, because a mean's standard deviation is at most the mean standard deviation.

        Args:
          seeds: the scores of the heads of each seed, at least one head per seed.
        """
        values = np.array([np.mean([*map(self.measure, heads)]) for heads in seeds])
        mean = float(values.mean())
        low, high = np.clip(mean + np.mean([*map(self._offsets, seeds[0])], axis=0), 0, 1)
        entry = uncertainty.summarise_values(values, mean, (float(low), float(high), ""))
        return Estimate(mean=mean, low=entry["both_low"], high=entry["both_high"])

    def _offsets(self, scores: np.ndarray) -> list[float]:
        """Returns the ends of the metric's interval over test examples, relative to the metric."""
        value, evaluation = self.measure(scores), self.features.evaluate(scores, link="none")
        entry = uncertainty.summarise_records([{self.metric: value}], evaluation)[self.metric]
        return [entry["rows_low"] - value, entry["rows_high"] - value]


@dataclass(frozen=True)
class Alone:
    """Results of sites that train alone.

    Attributes:
      scores: the test scores of each site that can train a head.
      failures: for each site that cannot train a head, the reason.
      sizes: the number of units of each site.
      one_class: the number of sites whose examples have a single class.
    """

    scores: list[np.ndarray]
    failures: list[str]
    sizes: list[int]
    one_class: int


def train_alone(
    method: MethodOptions, pool: Pool, parts: Sequence[Index], make_plan: MakePlan, seed: int
) -> Alone:
    """Trains one head per site on the site's units, with the site's own plan and noise."""
    scores, failures, sizes, one_class = list[np.ndarray](), list[str](), list[int](), 0
    for number, units in enumerate(parts):
        rows, site_seed = pool.select(units), derived_seed(seed, f"{number} of {len(parts)} sites")
        sizes.append(rows.n)
        one_class += len(rows.labels.unique()) == 1
        try:
            heads = fit_heads(method, rows, make_plan(rows.n), [site_seed])
        except DpprobeError as error:
            failures.append(str(error))
        else:
            scores.append(pool.score(heads))
    return Alone(scores, failures, sizes, one_class)


def describe_alone(pool: Pool, seeds: Sequence[Alone]) -> dict[str, Any]:
    """Returns the values of a `SitesCell` that depend on the split."""
    sizes = [size for alone in seeds for size in alone.sizes]
    failures = [reason for alone in seeds for reason in alone.failures]
    facts = {
        "smallest": min(sizes),
        "largest": max(sizes),
        "one_class": sum(alone.one_class for alone in seeds),
        "untrained": len(failures),
        "reason": failures[0] if failures else "",
    }
    scores = [alone.scores for alone in seeds if alone.scores]
    if not scores:
        return {**facts, **dict.fromkeys(("alone", "worst", "best", "averaged"))}
    values = [[*map(pool.measure, heads)] for heads in scores]
    return {
        **facts,
        "alone": pool.estimate(scores),
        "worst": np.mean([*map(min, values)]),
        "best": np.mean([*map(max, values)]),
        "averaged": pool.estimate([[np.mean(heads, axis=0)] for heads in scores]),
    }


def plan_sizes(
    method: MethodOptions, epsilon: str, inputs: Mapping[str, Any], calibrated: Path
) -> MakePlan:
    """Returns a function that plans fits of n units at one budget, cached by n."""

    @cache
    def make_plan(n: int) -> Plan:
        target = Target(
            n=n,
            unit=inputs["unit"],
            epsilon=read_budget(epsilon),
            delta=inputs["delta"],
            accountant=inputs["accountant"],
            above=True,
        )
        return plan_method(method, target, cache=calibrated, checked=False)

    return make_plan


def split_units(labels: Index, sites: int, split: str, seed: int) -> list[Index]:
    """Divides units among sites; returns the units of each site, at least one.

    Args:
      labels: int64 [units], the class of each unit.
      split: as in `SimulatedSitesOptions.splits`.

    Raises:
      DataError: if there are more sites than units.
    """
    spare = len(labels) - sites
    if spare < 0:
        raise DataError(
            f"sites.counts: {sites} sites, but there are only {len(labels)} training units; use "
            f"at most {len(labels)}"
        )
    stream = open_stream(seed, "sites")
    shares = 1 / np.arange(1, sites + 1) if split == "sizes" else np.ones(sites)
    edges = np.rint(spare * np.cumsum(shares) / shares.sum()).astype(np.int64)
    sizes = 1 + np.diff(edges, prepend=0)
    order = stream.permutation(len(labels))
    if split == "labels":
        order = _gather_labels(order, labels, sizes, stream)
    return np.split(order, np.cumsum(sizes)[:-1])


def _gather_labels(order: Index, labels: Index, sizes: Index, stream: np.random.Generator) -> Index:
    """Orders units so that class frequencies differ between sites, which take consecutive units.

    Each site draws Dirichlet weights of classes, as ratios of Gamma numbers. A site gets units of a
    class in proportion to the class's weight times the number of units not given to earlier sites.
    """
    left = [order[labels[order] == one] for one in np.unique(labels)]
    taken = []
    for size in sizes:
        weights = stream.gamma(_CONCENTRATION, size=len(left)) + 1e-12
        while size:
            chances = weights * [len(units) for units in left]
            drawn = stream.multinomial(size, chances / chances.sum())
            parts = [units[:count] for units, count in zip(left, drawn, strict=True)]
            left = [units[count:] for units, count in zip(left, drawn, strict=True)]
            size -= sum(map(len, parts))
            taken += parts
    return np.concatenate(taken)
