"""An edit of one place in a statement with measured parts is found by the check of that part."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.files.json_files import read_json
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan, state_together
from dpprobe.privacy.target import Target
from dpprobe.release import bundle, stated_plans
from dpprobe.release.checks import Checks
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.parts.calibration import measure as calibrated
from dpprobe.release.parts.calibration.operating_point import WantedPoint
from dpprobe.release.parts.cohort import measure as cohorts
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.parts.monitor.measure import monitor_head, monitor_mechanisms
from dpprobe.release.parts.part import Stated
from dpprobe.release.verification import method
from dpprobe.release_part_registry import load_readers
from tests.support.bundles import LEDGER, write_example
from tests.support.releases import of_sites, with_tested
from tests.support.shown_scores import draw_of, head, of_test_rows
from tests.unit.release.parts.evidence.test_measure import EVIDENCE
from tests.unit.release.verification import test_verify as verified

TEST_UNITS = 500
# Number of classes, test metric, epsilon of a separate calibration, and whether to monitor.
MEASURED: dict[str, tuple[int, Any, float | None, bool]] = {
    "accuracy": (3, "accuracy", None, False),
    "recalls": (3, "macro_accuracy", None, True),
    "area": (2, "auc", None, False),
    "areas": (3, "auc", None, True),
    "calibrated": (3, "macro_accuracy", 2.0, True),
    "two": (2, "accuracy", 2.0, False),
    "two of the area": (2, "auc", 0.0, True),
    "not measurable": (3, "macro_accuracy", None, False),
}
EARLIER = [{"release": f"r{place}", "cohort": f"c{place}", "n": 500} for place in (1, 2)]
POINT = WantedPoint(positive_class="b", position=1, sensitivity=0.4)
# Parts without measurements, added to some of these parts.
BESIDE: dict[str, dict[str, Any]] = {
    "accuracy": {"evidence": EVIDENCE, "sites": of_sites()},
    "area": {"sites": of_sites("a")},
    "two": {
        "cohort": cohorts.describe_cohort("now", EARLIER, horizon=4, n=1500),
        "predecessor": {"name": "r2", "sha256": "ab" * 32},
    },
}

# Edits that nothing in a bundle contradicts, with the reason. All others are noticed.
AN_AREA = "the counts of an area are not published unless a calibration needs them"
ONE_COUNT = "a change of 1% of one noisy count changes no total beyond its noise, and no result"
AS_SURE = "a slightly larger sensitivity, of which the same threshold is as sure"
BLIND: dict[str, dict[str, str]] = {
    "": {
        "ledger.entry": "the ledger is private",
        "ledger.releases": "the ledger is private",
        "ledger.epsilon": "the ledger is private, and a larger total is possible",
        "ledger.exact": "a bound is weaker than an exact total",
        "evaluation.n": "a ranking and recalls follow from counts, whatever n is",
    },
    "accuracy": {
        "sites.names.0": "only the sites know their names",
        **{
            f"evidence.{name}": "an audit cannot be repeated from its bundle"
            for name in (
                *("runs", "confidence", "epsilon_lower", "probability", "tests", "caught_factor"),
            )
        },
    },
    "area": {
        "evaluation": AN_AREA,
        "sites.colluders": "an aggregator adds all noise, so colluders change nothing",
        "sites.coordinates": "an aggregator adds all noise, so shares cost nothing",
    },
    "areas": {"evaluation": AN_AREA, "monitor.tables": ONE_COUNT},
    "recalls": {"monitor.tables": ONE_COUNT},
    "calibrated": {
        "calibration.temperature": ONE_COUNT,
        "calibration.label_counts": ONE_COUNT,
        "calibration.class_counts_by_probability": ONE_COUNT,
        "calibration.operating_point.wanted": AS_SURE,
        "monitor.tables": ONE_COUNT,
    },
    "two": {
        "calibration.temperature": ONE_COUNT,
        "cohort.name": "only the maker names a cohort",
        "cohort.earlier.0.release": "names of earlier cohorts are in their bundles",
        "cohort.earlier.0.cohort": "labels of earlier cohorts are in their bundles",
        "cohort.earlier.1.cohort": "labels of earlier cohorts are in their bundles",
    },
    "two of the area": {
        "evaluation.score_counts.edges.1": ONE_COUNT,
        "calibration.operating_point.wanted": AS_SURE,
        "monitor.tables": ONE_COUNT,
    },
    "not measurable": {"evaluation.class_counts": ONE_COUNT},
}
UNKNOWN = {"sites.names"}  # only the sites know how many they are
AREAS = {"value", "interval", "standard_error", "labels_left_out"}
# Other checks that may find an edit of a block because their numbers follow from the block.
FOLLOWING = {"evaluation": {"calibration", "monitor"}, "predecessor": {"cohort", "predecessors"}}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("bundle") / "whole", classes=("a", "b", "c"))


def measure_parts(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns facts and statement of a release with parts that are measured on 500 test units."""
    classes, metric, own, monitored = MEASURED[kind]
    several, generator = kind == "areas", np.random.default_rng(0)
    drawn: Any = generator.integers(
        0, 2 if several else classes, (TEST_UNITS, classes)[: 1 + several]
    )
    rows = of_test_rows(
        generator.normal(drawn if several else np.eye(classes)[drawn], 1 if several else 0.5),
        drawn.astype(np.uint8) if several else drawn,
    )
    heads = replace(head(classes), typical=np.eye(1, classes, dtype=np.float32)[None])

    def planned(mechanisms: Any, epsilon: float) -> Plan:
        target = Target(n=TEST_UNITS, epsilon=epsilon, delta=1e-5)
        return calibrate(mechanisms, target, cache=folder / "calibration")

    wanted = results.evaluation_mechanisms(metric, classes=classes, multi_label=several)
    tested = planned(wanted, 0.1 if kind == "not measurable" else 8.0)
    parts, draw = [tested], draw_of(heads, rows)
    evaluation = results.evaluate_heads(
        draw,
        tested,
        metric=metric,
        link="sigmoid" if several else "softmax",
        keep_counts=own == 0,
    )
    blocks = {"evaluation": evaluation, "ledger": LEDGER | {"releases": 2, "epsilon": 20.0}}
    if own == 0:
        blocks["calibration"] = calibrated.calibrate_from_counts(evaluation, tested, point=POINT)
    elif own:
        point = POINT if monitored else None
        wanted = calibrated.calibration_mechanisms(
            classes=classes, multi_label=False, with_point=point is not None
        )
        parts.append(planned(wanted, own))
        together = state_together(parts[1], compose_test_price(*parts))
        blocks["calibration"] = calibrated.calibrate_head(
            draw, parts[1], together=together, point=point
        )
    if monitored:
        parts.append(planned(monitor_mechanisms(unusual=True), 2.0))
        together = state_together(parts[-1], compose_test_price(*parts))
        blocks["monitor"] = monitor_head(
            draw, parts[-1], probe_norm=1.5, link="softmax", calibration=None, together=together
        )
    return {"class_names": tuple("abc"[:classes]), "multi_label": several}, blocks


def is_blind(kind: str, place: str) -> bool:
    known = {**BLIND[""], **BLIND[kind]}
    if known.get("evaluation") == AN_AREA and place.split(".")[1] in AREAS:
        return place.startswith("evaluation.")
    known.pop("evaluation", None)
    return any(place == each or place.startswith(f"{each}.") for each in known)


def measured_statement(
    original: Path, kind: str
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, str]]]:
    """Returns a statement's blocks of measured parts, and a function that lists their faults."""
    values, facts = read_json(original / bundle.STATEMENT_FILE), bundle.read_facts(original)
    plan, (_, options) = stated_plans.read_plan(values)[1], method.read_options(facts)
    changes, blocks = measure_parts(original.parent, kind)
    probe = facts.backbone.probe | {"norm": 1.5}
    backbone = facts.backbone.model_copy(update={"probe": probe})
    facts = facts.model_copy(update=changes | {"backbone": backbone})

    def list_faults(blocks: dict[str, Any]) -> dict[str, str]:
        checks = Checks()
        stated = Stated(
            folder=None,
            facts=facts,
            options=options,
            values=with_tested({**values, **blocks}),
            plan=plan,
            predecessors=(),
        )
        for reader in load_readers().values():
            reader.verify(checks, stated)
        return {each.name: each.detail for each in checks.done if each.passed is False}

    return blocks, list_faults


@pytest.mark.parametrize("kind", MEASURED)
def test_an_edit_of_a_part_is_named_by_its_check(original: Path, kind: str) -> None:
    """Only the first two numbers of each list are edited."""
    blocks, list_faults = measured_statement(original, kind)
    blocks |= BESIDE.get(kind, {})
    assert list_faults(blocks) == {}
    unnoticed, unnamed = {}, {}
    for keys in verified.leaves(blocks):
        if any(isinstance(key, int) and key > 1 for key in keys):
            continue
        place = ".".join(map(str, keys))
        for edit in (verified.other, lambda _: None, lambda value: [value, value]):
            edited = copy.deepcopy(blocks)
            inner = edited
            for key in keys[:-1]:
                inner = inner[key]
            before, inner[keys[-1]] = inner[keys[-1]], edit(inner[keys[-1]])
            if edited == blocks:
                continue
            faults, lie = list_faults(edited), f"{before!r:.40} -> {inner[keys[-1]]!r:.40}"
            if not faults:
                small = edit is verified.other or place == "evidence.caught_factor"
                if not (small and is_blind(kind, place)):
                    unnoticed[place] = lie
            elif not {keys[0], *FOLLOWING.get(keys[0], ())} & set(faults):
                unnamed[place] = f"{lie}: {faults}"
    assert unnoticed == {}, "verify believes these lies"
    assert unnamed == {}, "verify blames another block"


def list_containers(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all lists and objects, but only for the first two items of a list."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    yield place
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from list_containers(inner, (*place, key))


def resize(value: Any) -> list[Any]:
    """Returns a list or an object with one item fewer, and with one more."""
    if isinstance(value, dict):
        last = [*value][-1:]
        return [{k: v for k, v in value.items() if k not in last}, {**value, "another": 1}]
    return [value[:-1], [*value, *(value[-1:] or [1])]]


@pytest.mark.parametrize("kind", MEASURED)
def test_an_item_less_or_more_is_named_by_its_check(original: Path, kind: str) -> None:
    blocks, list_faults = measured_statement(original, kind)
    blocks |= BESIDE.get(kind, {})
    missed = []
    for block in blocks:
        for keys in list_containers(blocks[block], (block,)):
            edited = copy.deepcopy(blocks)
            inner = edited
            for key in keys[:-1]:
                inner = inner[key]
            for changed in resize(inner[keys[-1]]):
                inner[keys[-1]] = changed
                place = ".".join(map(str, keys))
                named = {block, *FOLLOWING.get(block, ())} & set(list_faults(edited))
                if not named and place not in UNKNOWN:
                    missed.append((place, f"{changed!r:.60}"))
    assert missed == []


@pytest.mark.parametrize(
    "place", [("monitor", "tables", "predicted_class", 0), ("evaluation", "class_counts", 0, 0)]
)
def test_a_count_that_changes_beyond_its_noise_is_noticed(
    original: Path, place: tuple[Any, ...]
) -> None:
    """The unnoticed edits listed above are small changes."""
    blocks, list_faults = measured_statement(original, "recalls")
    inner: Any = blocks
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] += 200.0
    assert list(list_faults(blocks)) == [place[0]]
