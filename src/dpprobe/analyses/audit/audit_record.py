"""The record of an audited cell: the names of its files, and its JSON as a typed object.

This module imports nothing heavy, because each start of Snakemake imports it.

Only a record's part `membership` reveals anything about private examples. The white-box audit and
its controls run on synthetic rows, and use only the real data's public n, dimension and classes.
`membership` is computed from private rows without noise, and must be protected like private rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from dpprobe.files.records import Record, RecordPart
from dpprobe.privacy.limits import INFINITE

# The folder of all audits, in the results folder. The files of a cell's audit are
# <folder>/<dataset>/<backbone>/<method>/eps-<epsilon><suffix>.
AUDITS = "audit"
RECORD_SUFFIX, SCORES_SUFFIX = ".json", ".parquet"
# The record of an audit is written last, and marks the audit as complete.
AUDIT_SUFFIXES = (RECORD_SUFFIX, SCORES_SUFFIX)


def audit_path(audits: Path | str, cell: tuple[str, str, str, str], suffix: str) -> Path:
    """Returns the path of an audit's file below the folder of all audits."""
    dataset, backbone, method, epsilon = cell
    return Path(audits, dataset, backbone, method, f"eps-{epsilon}{suffix}")


def _read_number(value: Any) -> Any:
    return math.inf if value == INFINITE else value


def _write_number(value: float | None) -> float | str | None:
    """Writes infinity as "inf", and NaN as None."""
    if value is None or math.isnan(value):
        return None
    return INFINITE if math.isinf(value) else value


# A number in an audit's record: infinity is written "inf", and NaN null.
Number = Annotated[float, BeforeValidator(_read_number), PlainSerializer(_write_number)]
OptionalNumber = Annotated[
    float | None, BeforeValidator(_read_number), PlainSerializer(_write_number)
]


class Claim(RecordPart):
    """The privacy guarantee that an audit tests.

    Attributes:
      epsilon: realised epsilon of one head; infinite for a cell without a guarantee.
      mu: Gaussian-DP parameter of the composition; None for sampling, or without a guarantee.
      sampled: True if a mechanism runs on Poisson samples.
    """

    epsilon: Number
    epsilon_target: Number
    delta: float
    mu: float | None
    sampled: bool
    priced_by: str


class Bundle(RecordPart):
    """The audit's result for an attacker who sees only a head's weights."""

    accuracy: float
    epsilon_lower: Number


class Test(RecordPart):
    """A test and its p-value under the claim; 0 or 1 if correct mechanisms always pass the test."""

    name: str
    p_value: float


class WhiteBox(RecordPart):
    """The tests of all values that a fit releases: attacks on a canary, and tests of the noise.

    Attributes:
      test: a description of the test statistic.
      canary, rows: descriptions of the canary and of the other training rows.
      group: number of equal canaries, which are all in the training data or all out.
      inside, outside: number of runs with the canaries, and of runs without canaries.
      accuracy: the share of runs in which the test correctly guesses whether the canaries were in.
      epsilon_lower: the lower bound on epsilon, at `confidence`, without assumptions on the scores.
      holds: False if a test refutes the claim; by chance in 1 of 1,000 audits of correct claims.
      level: a p-value of at most `level` refutes the claim (Bonferroni over the tests).
      number_factor: with `probability`, the audit detects a single number's noise, such as one
        bias's in one step, that is too small by this factor; None if it sees only weights.
      noise_factor: the test shows that noise is at most the plan's noise times `noise_factor`.
      caught_factor: the test detects with `probability` noise that is too small by this factor,
        given the test's strength; None if no factor would be detected.
      direct_epsilon_lower: the bound on epsilon from only (epsilon, delta), without the plan.
      cut_caught: the tests of tails would refute noise that is cut at this many standard
        deviations; None if there are too few runs. The replay finds cuts at up to 8 deviations.
      replayed: a description of the comparison with the reference, at full width.
      sensitivity_used: by mechanism, how much the canary changes a sum, divided by the sensitivity.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_by_name=True, validate_by_alias=True
    )

    test: str
    canary: str
    rows: str
    group: int
    runs: int
    inside: int = Field(alias="in")
    outside: int = Field(alias="out")
    confidence: float
    accuracy: float
    epsilon_lower: Number
    holds: bool
    tests: tuple[Test, ...]
    level: float
    number_factor: float | None
    noise_factor: OptionalNumber
    caught_factor: OptionalNumber
    probability: float
    direct_epsilon_lower: Number
    bundle: Bundle | None
    sensitivity_used: dict[str, float]
    cut_caught: float | None = None
    replayed: str | None = None
    seconds: float

    @property
    def refuted_by(self) -> list[str]:
        return [test.name for test in self.tests if test.p_value <= self.level]


class Control(RecordPart):
    """A broken mechanism, which at least one test of the audit must refute."""

    name: str
    breaks: str
    runs: int
    refuted_by: tuple[str, ...]
    p_value: float
    level: float
    caught: bool


class NoControl(RecordPart):
    """A control (broken mechanism) that does not apply to a plan, and the reason."""

    name: str
    not_applicable: str


ATTACK_NAMES: Final = {"loss": "loss threshold", "lira": "LiRA", "rmia": "RMIA"}


class Attack(RecordPart):
    """A membership attack on one kind of rows.

    Attributes:
      members, non_members: numbers of pairs (head, unit) with and without the unit in training.
      tpr_at_fpr: true-positive rate at each false-positive rate; None if there are too few pairs.
      intervals: the intervals [low, high] of the true-positive rates in `tpr_at_fpr`.
    """

    rows: Literal["all", "mislabelled", "rarest_classes"]
    attack: Literal["loss", "lira", "rmia"]
    units: int
    members: int
    non_members: int
    auc: float
    auc_interval: tuple[float, float] | None
    tpr_at_fpr: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None] = Field(default_factory=dict)


class Allowed(RecordPart):
    """The best rates that any attack can have under the plan."""

    balanced_accuracy: float
    tpr_at_fpr: dict[str, float]


class NoRows(RecordPart):
    """A kind of rows that a dataset lacks, and the reason."""

    rows: str
    reason: str


class Membership(RecordPart):
    """Attacks on real training examples. Not private.

    Attributes:
      units, n: number of attacked units of privacy, and of all units.
      interval: a description of the method that computed the intervals.
    """

    shadows: int
    targets: int
    units: int
    n: int
    rows: tuple[Attack, ...]
    not_applicable: tuple[NoRows, ...]
    interval: str
    roc: dict[str, Any]
    allowed: Allowed
    seconds: float
    shadows_per_second: float

    def find_attack(self) -> Attack | None:
        """Returns the LiRA attack on all rows, the attack that summaries show."""
        return next((r for r in self.rows if (r.rows, r.attack) == ("all", "lira")), None)


class Evidence(RecordPart):
    """The date, the code and the power of an audit; `power` is None without a white-box audit."""

    date: str
    code: str
    power: str | None


class AuditRecord(Record):
    """An audited cell.

    Attributes:
      fingerprint: the hash of all inputs of the audit.
      plan: the plan that was audited, as `Plan.to_dict` gives it.
    """

    format: Literal["dpprobe-audit"] = "dpprobe-audit"
    format_version: Literal[3] = 3
    dataset: str
    backbone: str
    method: str
    epsilon: str
    fingerprint: str
    claim: Claim
    plan: dict[str, Any]
    white_box: WhiteBox | None
    controls: tuple[Control | NoControl, ...]
    membership: Membership | None
    evidence: Evidence

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.dataset, self.backbone, self.method, self.epsilon

    @property
    def in_words(self) -> str | None:
        """The result of the white-box audit in one sentence; None without a white-box audit."""
        box = self.white_box
        if box is None:
            return None
        refuted = f"REFUTED by an audit ({', '.join(box.refuted_by)}). " if not box.holds else ""
        return (
            f"{refuted}An audit of {box.runs} runs with a synthetic canary shows epsilon to be at "
            f"least {at_least(box.epsilon_lower)} at {100 * box.confidence:g}% confidence, and "
            f"{self.evidence.power}; a low bound is no certificate."
        )


def at_least(value: float) -> str:
    """Writes a lower bound on an epsilon, rounded down to three digits."""
    if math.isinf(value):
        return INFINITE
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit * (1 + 1e-12)) * unit:.3g}"


def power_in_words(white_box: Mapping[str, Any] | None) -> str | None:
    """Describes the power of a white-box audit; None without a white-box audit."""
    if white_box is None:
        return None
    factor, probability = white_box["caught_factor"], white_box["probability"]
    if factor is None or not math.isfinite(factor):
        return f"would have caught no error in the noise with probability {probability:g}"
    return (
        f"would have caught noise too small by a factor of {factor:.3g} with probability "
        f"{probability:g}"
    )
