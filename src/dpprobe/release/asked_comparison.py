"""A requested comparison of two bundles, with its data, its noise and its ledger entry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from dpprobe.data.promise_facts import promise_facts
from dpprobe.errors import ConfigError
from dpprobe.json_values import hash_value
from dpprobe.options import NAME_PATTERN
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.privacy.unit_words import UnitWords, unit_words
from dpprobe.release.asked_release import hash_data, name_split
from dpprobe.release.bundle import Bundle, bundle_digest
from dpprobe.release.compared_heads import (
    Bundles,
    Stores,
    check_pair,
    open_stores,
    stated_frequencies,
)
from dpprobe.release.comparison import Metric, comparison_mechanisms, mean_frequencies
from dpprobe.release.comparison_words import describe_imbalance, describe_plan
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Part
from dpprobe.release.verification.verify import read_verified
from dpprobe.study.reserved_names import COMPARISON_FILE, COMPARISONS
from dpprobe.study.study import Study
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import check_price

_LONGEST_NAME = 164  # two names of releases, and `_vs_`


@dataclass(frozen=True, kw_only=True)
class AskedComparison:
    """A comparison of two verified bundles on a dataset of a study.

    Attributes:
      bundles: the heads A and B.
      macro: compare by macro accuracy, not by accuracy.
      call: the options of `dpprobe run` that name the study's files, for messages.
    """

    study: Study
    bundles: tuple[Bundle, Bundle]
    dataset: str
    name: str
    epsilon: float
    macro: bool = False
    call: Sequence[str] = ()

    @classmethod
    def open_bundles(
        cls,
        study: Study,
        first: Path,
        second: Path,
        *,
        epsilon: float,
        dataset: str | None = None,
        name: str | None = None,
        macro: bool = False,
        call: Sequence[str] = (),
    ) -> Self:
        """Verifies both bundles; `dataset` and `name` follow from the bundles if absent.

        Raises:
          DataError: if a bundle does not verify.
          ConfigError: for heads that cannot be compared, or an unknown dataset.
        """
        a, b = bundles = (read_verified(first), read_verified(second))
        check_pair(a, b)
        if dataset is None and a.facts.dataset != b.facts.dataset:
            raise ConfigError(
                f"{first} is from dataset {a.facts.dataset}, {second} from {b.facts.dataset}; "
                "pass --dataset NAME, the dataset to compare them on"
            )
        chosen = dataset or a.facts.dataset
        if chosen not in study.datasets:
            raise ConfigError(
                f"dataset {chosen}: not in the study, which has {', '.join(study.datasets)}; pass "
                "--dataset NAME"
            )
        called = name or f"{a.facts.name}_vs_{b.facts.name}"
        if not re.fullmatch(NAME_PATTERN, called) or len(called) > _LONGEST_NAME:
            raise ConfigError(
                f"comparison {called!r}: pass --name with lower-case letters, digits and "
                f"underscores, at most {_LONGEST_NAME} characters"
            )
        if macro:
            _check_macro(bundles, chosen)
        return cls(
            study=study,
            bundles=bundles,
            dataset=chosen,
            name=called,
            epsilon=epsilon,
            macro=macro,
            call=call,
        )

    # data

    @property
    def title(self) -> str:
        return f"comparison {self.name}"

    @property
    def output(self) -> Path:
        return Path(self.study.results_dir) / COMPARISONS / self.name / COMPARISON_FILE

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(Path(self.study.data_dir), self.dataset)

    @cached_property
    def unit(self) -> str:
        return self.study.dataset_unit(self.dataset)

    @property
    def words(self) -> UnitWords:
        return unit_words(self.unit, vectors=self.bundles[0].facts.backbone.takes_vectors)

    @cached_property
    def stores(self) -> tuple[Stores, Stores]:
        """The stored features of both splits, per bundle."""
        return open_stores(self.study, self.dataset, self.bundles, call=self.call)

    @cached_property
    def split(self) -> str:
        return name_split(self.study.datasets[self.dataset], self.stores[0][0])

    @cached_property
    def plan(self) -> Plan:
        """The plan for the test units; raises PrivacyError if no noise meets epsilon and delta."""
        target = Target(
            n=FitInputs(self.stores[0][1], self.unit).n,
            epsilon=self.epsilon,
            delta=self.study.dataset_delta(self.dataset),
            accountant="pld",  # exact without sampling
            unit=self.unit,
        )
        cache = Path(self.study.results_dir) / "calibration"
        plan = calibrate(comparison_mechanisms(), target, cache=cache)
        check_price(plan)
        return plan

    @cached_property
    def metric(self) -> Metric:
        """The metric, with the mean of the class frequencies that the bundles state."""
        return Metric(mean_frequencies(self.stated) if self.macro else ())

    @cached_property
    def stated(self) -> list[tuple[float, ...]]:
        return stated_frequencies(self.bundles, self.dataset)

    def describe_plan(self) -> list[str]:
        """Describes cost, noise and power; all numbers are public."""
        names = [bundle.facts.name for bundle in self.bundles]
        lines = describe_plan(self.plan, self.metric, names, self.dataset, self.words)
        return lines if self.macro else [*lines, *describe_imbalance(self.stated)]

    def make_booking(self) -> Booking:
        promise = promise_facts(self.study.datasets[self.dataset])
        return Booking(
            release=self.title,  # with a space, which no release's name has
            study=self.study.study,
            unit=self.unit,
            split=self.split,
            parts=(Part.from_plan("test", self.plan),),
            identity=f"{self.hash_options()} {hash_data(self.stores[0])}",
            column=promise.unit_column if self.unit == "patient" else None,
            same_units_as=promise.same_units_as,
        )

    def hash_options(self) -> str:
        return hash_value(
            {
                "heads": [bundle_digest(bundle.folder) for bundle in self.bundles],
                "dataset": self.dataset,
                "epsilon": self.epsilon,
                "metric": self.metric.name,
                "unit": self.unit,
                "delta": self.study.dataset_delta(self.dataset),
            }
        )


def _check_macro(bundles: Bundles, dataset: str) -> None:
    """Raises ConfigError unless heads have one label per image and state class frequencies."""
    if bundles[0].facts.multi_label:
        raise ConfigError(
            "--metric macro_accuracy: it needs one label per image, but these heads have several; "
            "pass --metric accuracy"
        )
    if not stated_frequencies(bundles, dataset):
        raise ConfigError(
            "--metric macro_accuracy: neither bundle states the classes' frequencies in "
            f"{dataset}; compare a release with `class_priors` or with `balanced: true`, or pass "
            "--metric accuracy"
        )
