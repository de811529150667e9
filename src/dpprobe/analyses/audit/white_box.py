"""Audits one cell's guarantee: attacks the releases of its method and plan on synthetic rows.

`canary_attack` has the attack and its synthetic rows, and `controls` has broken mechanisms that the
audit must detect. `bounds` and `power` compute a bound on epsilon from the number of right guesses.
The attack's power does not depend on the head's size. So the attack's rows have at most 64 features
(`LARGEST`), unless a method's options need the real features' width. The module `replay` finds
faults at the full width, without statistics.

A method with a search releases only the best trial's head, so its attack uses only weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.analyses.audit.bounds import accuracy_lower_bound, epsilon_lower_bound
from dpprobe.analyses.audit.canary_attack import (
    OTHERS,
    Attack,
    Replay,
    Runs,
    Shape,
    make_worlds,
)
from dpprobe.analyses.audit.clip_edges import near_clip
from dpprobe.analyses.audit.controls import CONTROLS, Control, make_controls
from dpprobe.analyses.audit.noise_tests import Outcome, smallest_caught_share
from dpprobe.analyses.audit.power import PlanFamily, caught_factor, compute_separation
from dpprobe.analyses.audit.replay import BATCHES, NOISE, SUMS, MadeRows, replay_release
from dpprobe.errors import ConfigError
from dpprobe.heads.normalisation import Channels, GroupNorm
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.progress import Progress

# The most features and classes of audited heads.
LARGEST = Shape(n=0, dimension=64, num_classes=10, multi_label=False)
# Norms of a canary before normalisation and clipping. The audit uses the smallest norm whose change
# of the releases is at least 1 - `_AS_GOOD` of the largest change.
LENGTHS = (1.0, 30.0, 1000.0)
_PILOTS, _AS_GOOD = 2, 0.01
# The mu of all canaries together, at which a test is most powerful.
_SEPARATION, _LARGEST_GROUP = 2.0, 50
# Norms of gradients and rows, divided by the clipping norm, that reveal slightly too loose clips.
# Even faulty code that leaves norms just above the limit unchanged clips longer canaries correctly.
NEAR_CLIP = (0.99, 1.0, 1.005)
# Numbers of runs of a control: 40 runs only if 10 runs do not refute the claim. The tests after 10
# and after 40 runs share the error probability. docs/audit.md has the power of 40 runs.
CONTROL_RUNS = (10, 40)
# The share of runs that set the threshold on a head's score; guesses are counted in other runs.
_PILOT = 0.25
PROBABILITY = 0.95
# The confidence at which all tests of an audit together refute a claim.
REFUTED = 0.999
# Relative margins for rounding: of exact sums, of float32 sums, and of heads trained on float32
# sums. Without an observer, a fit adds float32 sums and noise in another order.
_EXACT_ROUND_OFF, _ROUND_OFF, _HEADS_ROUND_OFF = 1e-12, 1e-5, 1e-4
# Tests that a correct mechanism always passes; the error probability is divided among other tests.
EXACT_TESTS = ("sensitivity", "head_from_releases", "unobserved", SUMS, NOISE, BATCHES)
JOINT, SAMPLED, HEADS = (
    "paired likelihood ratio of all releases",
    "white-box scores of all sampled steps",
    "head's scores",
)


def audit_plan(
    method: MethodOptions,
    plan: Plan,
    *,
    dimension: int,
    num_classes: int,
    multi_label: bool,
    runs: int,
    confidence: float,
    seed: int,
    controls: bool,
    progress_label: str,
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Audits the private plan of a method that trains linear heads.

    Args:
      runs: number of training runs; each run is scored by all releases and by the head's weights.
      controls: True to attack broken mechanisms too.

    Returns:
      The parts `white_box` (bounds on the plan's epsilon) and `controls` (tests of broken
      mechanisms) of the record, and a table of scores with columns attack, member and score.

    Raises:
      ConfigError: if the plan has no guarantee, or there is only one unit.
    """
    if not plan.private:
        raise ConfigError(
            f"audit of head {method.head}: its plan has no guarantee to test; leave the method out"
        )
    if plan.n < 2:
        raise ConfigError(
            f"audit of head {method.head}: n = {plan.n}, but an audit needs at least 2 units"
        )
    started = time.perf_counter()
    shape = audited_shape(method, plan, dimension, num_classes, multi_label)
    made = MadeRows.make_rows(plan, dimension, num_classes, multi_label)
    cell = AuditedCell(method, plan, shape, seed, runs, confidence, made)
    test = cell.run_attack(cell.attack, runs, "runs", progress_label)
    test.replay = cell.replay(cell.attack)
    cell.add_near_clip(cell.attack, test)
    box = cell.describe_bounds(test)
    tables = [("bundle", test.members, test.bundle)]
    if plan.selection is None:
        tables.insert(0, ("releases", test.members, test.releases))
    records, broken = cell.attack_controls(progress_label) if controls else ([], {})
    tables += [(name, runs_.members, runs_.releases) for name, runs_ in broken.items()]
    names, members, scores = zip(*tables, strict=True)
    columns = {
        "attack": np.repeat(names, [len(part) for part in scores]),
        "member": np.concatenate(members),
        "score": np.concatenate(scores),
    }
    box["seconds"] = time.perf_counter() - started
    return {"white_box": box, "controls": records}, columns


def audited_shape(
    method: MethodOptions, plan: Plan, dimension: int, num_classes: int, multi_label: bool
) -> Shape:
    """Returns the size of the audited heads: the cell's size, reduced to `LARGEST` if possible.

    Rows have more features than classes, so that sums with one row per class are not square. If
    units may have several rows, a canary has three rows.
    """
    files = bool(method.input_files())
    every = files or method.counted_classes is not None
    fixed = files or isinstance(method.normalize, Channels | GroupNorm)
    most, least = LARGEST.dimension, LARGEST.num_classes + 1
    return Shape(
        n=plan.n,
        dimension=dimension if fixed else max(min(dimension, most), least),
        num_classes=num_classes if every else min(num_classes, LARGEST.num_classes),
        multi_label=multi_label,
        rows_per_unit=3 if plan.unit in plan.GROUPS else 1,
    )


@dataclass(frozen=True)
class AuditedCell:
    """A method with its plan, and the number of runs and the confidence of its audit."""

    method: MethodOptions
    plan: Plan
    shape: Shape
    seed: int
    runs: int
    confidence: float
    made: MadeRows | None = None

    def replay(self, attack: Attack) -> Replay | None:
        """Replays a fit at full width; None if there are no synthetic rows of this width."""
        if self.made is None:
            return None
        return replay_release(attack, self.method, self.made, self.seed)

    @cached_property
    def canary_count(self) -> int:
        if self.plan.selection is not None:
            return 1
        alone = PlanFamily(self.plan).separation
        most = max(1, min(_LARGEST_GROUP, self.plan.n // 2))
        return max(1, min(most, round(_SEPARATION / alone)))

    @cached_property
    def family(self) -> PlanFamily:
        return PlanFamily(self.plan, group=self.canary_count)

    @property
    def _canary_labels(self) -> range:
        """The canaries' classes; only class 0 if rows (and so canaries) may have all labels."""
        if self.shape.multi_label:
            return range(1)
        return range(min(self.shape.num_classes, LARGEST.num_classes))

    @property
    def attack(self) -> Attack:
        """The attack with the canary norm that changes releases most."""
        return self._piloted_attack[0]

    @cached_property
    def _piloted_attack(self) -> tuple[Attack, float]:
        """The attack with the canary norm that is best in a few runs, and the attack's strength."""
        attacks = [
            Attack(
                method=self.method,
                plan=self.plan,
                claim=self.plan,
                worlds=tuple(
                    make_worlds(
                        self.shape,
                        group=self.canary_count,
                        length=length,
                        seed=self.seed,
                        label=label,
                    )
                    for label in self._canary_labels
                ),
            )
            for length in LENGTHS
        ]
        if self.plan.selection is not None:
            return attacks[0], 0.0
        pilots = [derived_seed(self.seed, f"audit pilot {place}") for place in range(_PILOTS)]
        strengths = [attack.compute_strength(pilots) for attack in attacks]
        good = (1 - _AS_GOOD) * max(strengths)
        return next(pair for pair in zip(attacks, strengths, strict=True) if pair[1] >= good)

    def add_near_clip(self, attack: Attack, test: Runs) -> None:
        """Updates `used` with the changes by canaries whose norms are near the clipping norm.

        Normalised rows all have one length, so the clipping norm is moved instead of the canary: in
        the first release, the canary's norm is each share of `NEAR_CLIP` times the clipping norm.
        """
        if self.plan.selection is not None:
            return
        worlds = make_worlds(self.shape, group=1, length=1.0, seed=self.seed)
        seed = derived_seed(self.seed, "audit near the clip")
        for near in near_clip(attack, worlds, seed, NEAR_CLIP):
            for name, changes in near.measure_changes(worlds, seed).items():
                test.used[name] = max(test.used.get(name, 0.0), float(changes.max()))

    def run_attack(self, attack: Attack, runs: int, name: str, label: str) -> Runs:
        members = open_stream(self.seed, f"audit membership, {name}").random(runs) < 0.5
        seeds = [derived_seed(self.seed, f"audit {name} {run}") for run in range(runs)]
        with Progress(runs, label=label, unit="runs") as progress:
            return attack.train_and_score(seeds, members, progress)

    def describe_bounds(self, test: Runs) -> dict[str, Any]:
        """Returns the part `white_box` of the record, without `seconds`."""
        searched = self.plan.selection is not None
        bundle_correct, bundle_runs = _count_right_heads(test)
        bundle = accuracy_lower_bound(bundle_correct, bundle_runs, self.confidence)
        correct, runs = (bundle_correct, bundle_runs) if searched else _count_right_releases(test)
        accuracy = accuracy_lower_bound(correct, runs, self.confidence)
        tests = self.list_tests(test)
        level = _share_error(tests)
        return {
            "test": self._name_test(),
            "canary": self._describe_canary(),
            "rows": self._describe_rows(),
            "group": self.canary_count,
            "runs": runs,
            "in": int(test.members[-runs:].sum()),
            "out": int((~test.members[-runs:]).sum()),
            "confidence": self.confidence,
            "accuracy": correct / runs,
            "epsilon_lower": self.family.epsilon_of_accuracy(accuracy),
            "holds": not _list_refuting(tests),
            "tests": [item._asdict() for item in tests],
            "level": level,
            "noise_factor": self.family.factor_of(2 * accuracy - 1),
            "caught_factor": caught_factor(
                self.family,
                runs,
                self.confidence,
                PROBABILITY,
                strength=self._relative_strength(correct / runs),
            ),
            "probability": PROBABILITY,
            "direct_epsilon_lower": self._bound_directly(
                test.bundle if searched else test.releases, test.members
            ),
            "bundle": {
                "accuracy": bundle_correct / bundle_runs,
                "epsilon_lower": self.family.epsilon_of_accuracy(bundle),
            },
            "sensitivity_used": dict(test.used),
            "number_factor": None if searched else self._factor_of_one_number(level),
            "cut_caught": test.reach(level),
            "replayed": test.replay and test.replay.compared,
        }

    def list_tests(self, test: Runs) -> list[Outcome]:
        """Returns p-values of all tests; 0 or 1 for a test that correct mechanisms always pass."""
        from scipy.stats import binom

        allowed = (1 + self.family.total_variation()) / 2
        correct, runs = _count_right_heads(test)
        results = [Outcome("head", float(binom.sf(correct - 1, runs, allowed)))]
        apart = 0.0 if self.method.is_exact else _HEADS_ROUND_OFF
        change = test.unobserved_change
        if test.replay is not None:
            change = max(change, test.replay.head_change)
            results += test.replay.outcomes
        unobserved = Outcome("unobserved", float(change <= apart))
        if self.plan.selection is not None:
            return [*results, unobserved]
        correct, runs = _count_right_releases(test)
        moved = max(test.used.values(), default=0.0)
        exact = self.method.is_exact
        longest = 1 + (_EXACT_ROUND_OFF if exact else _ROUND_OFF)
        return [
            Outcome("releases", float(binom.sf(correct - 1, runs, allowed))),
            *results,
            *test.noise,
            Outcome("sensitivity", float(moved <= longest)),
            Outcome("head_from_releases", float(test.head_change == 0)),
            unobserved,
        ]

    def _factor_of_one_number(self, level: float) -> float:
        """Returns the smallest factor of missing noise that is detected in one released number."""
        mechanisms = self.plan.mechanisms
        most = max(item.count for item in mechanisms) * self.shape.num_classes
        numbers = 4 * len(mechanisms) * most * (self.shape.dimension + 1) ** 2
        share = smallest_caught_share(self.runs, numbers, level, PROBABILITY)
        return 1 / math.sqrt(share)

    def _relative_strength(self, accuracy: float) -> float:
        """Returns the test's separation (mu) divided by the plan's separation, at most 1."""
        if self.plan.selection is not None:
            return 0.0
        best = self.family.separation
        reached = (
            self._piloted_attack[1] if self.family.exact else compute_separation(2 * accuracy - 1)
        )
        return min(1.0, reached / best)

    def attack_controls(self, label: str) -> tuple[list[dict[str, Any]], dict[str, Runs]]:
        """Attacks all broken mechanisms; returns one record per control, and runs by control."""
        if self.plan.selection is not None:
            reason = "a search publishes only its best head, so there is no release to break"
            return [{"name": name, "not_applicable": reason} for name in CONTROLS], {}
        records, tested = [], {}
        controls = make_controls(
            self.attack, self.shape, group=self.canary_count, seed=self.seed, made=self.made
        )
        for control in controls:
            runs, record = self.attack_control(control, f"{label}, {control.name}")
            records.append(record)
            if runs is not None:
                tested[control.name] = runs
        return records, tested

    def attack_control(self, control: Control, label: str) -> tuple[Runs | None, dict[str, Any]]:
        """Attacks a broken mechanism; returns its runs and its record."""
        if isinstance(control.attack, str):
            return None, {"name": control.name, "not_applicable": control.attack}
        replayed: Replay | None = None
        for runs in CONTROL_RUNS:
            test = self.run_attack(control.attack, runs, control.name, label)
            test.replay = replayed
            if not _list_refuting(self.list_tests(test), looks=len(CONTROL_RUNS)):
                replayed = test.replay = replayed or self.replay(control.attack)
            tests = self.list_tests(test)
            if refuting := _list_refuting(tests, looks=len(CONTROL_RUNS)):
                break
        return test, {
            "name": control.name,
            "breaks": control.breaks,
            "runs": runs,
            "refuted_by": refuting,
            "p_value": min(item.p_value for item in tests),
            "level": _share_error(tests, looks=len(CONTROL_RUNS)),
            "caught": bool(refuting),
        }

    def _bound_directly(
        self, scores: npt.NDArray[np.float64], members: npt.NDArray[np.bool_]
    ) -> float:
        if members.all() or not members.any():
            return 0.0
        return epsilon_lower_bound(
            scores[members],
            scores[~members],
            self.plan.delta,
            self.confidence,
            group=self.canary_count,
        )

    def _name_test(self) -> str:
        if self.plan.selection is not None:
            return HEADS
        sampled = any(item.sample_rate < 1 for item in self.plan.mechanisms)
        name = SAMPLED if sampled else JOINT
        return name if self.method.is_exact else f"{name}, as real numbers"

    def _describe_canary(self) -> str:
        rows = (
            "a synthetic row"
            if self.canary_count == 1
            else f"{self.canary_count} equal synthetic rows"
        )
        if self.plan.selection is not None:
            return f"{rows}, with a label that differs from the labels of similar rows"
        return (
            f"{rows} at the clipping norm, with a label that differs from the labels of similar "
            "rows"
        )

    def _describe_rows(self) -> str:
        others = min(OTHERS, self.plan.n - self.canary_count)
        return (
            f"{others} synthetic rows of {self.shape.dimension} features in "
            f"{self.shape.num_classes} classes; the remaining rows of n = {self.plan.n} are null "
            "rows"
        )


def _count_right_releases(test: Runs) -> tuple[int, int]:
    """Returns the number of right guesses from all releases, and the number of runs."""
    return int(((test.releases > 0) == test.members).sum()), len(test.members)


def _count_right_heads(test: Runs) -> tuple[int, int]:
    """Returns the number of right guesses from heads only, and the number of guessed runs.

    The first quarter of the runs sets a threshold on the score, and decides whether scores above or
    below it mean "in". Later runs are guessed.
    """
    pilot = max(1, round(_PILOT * len(test.members)))
    scores, members = test.bundle[:pilot], test.members[:pilot]
    middle = float(np.median(scores))
    above = ((scores > middle) == members).mean() >= 0.5
    guesses = (test.bundle[pilot:] > middle) == above
    return int((guesses == test.members[pilot:]).sum()), len(guesses)


def _share_error(tests: Sequence[Outcome], *, looks: int = 1) -> float:
    """Returns the level per test at which all tests together refute 1 in 1,000 correct plans.

    Args:
      looks: the number of times that the tests are evaluated, each after more runs.
    """
    return (1 - REFUTED) / looks / sum(item.name not in EXACT_TESTS for item in tests)


def _list_refuting(tests: Sequence[Outcome], *, looks: int = 1) -> list[str]:
    """Returns the names of the tests that refute the claim (Bonferroni over all tests)."""
    level = _share_error(tests, looks=looks)
    return [item.name for item in tests if item.p_value <= level]
