"""What release parts derive and say, over many settings, held against the stored answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.special import softmax

from dpprobe.errors import DpprobeError
from dpprobe.heads import training_set
from dpprobe.heads.normalisation import L2, AroundCentre, LayerNorm, NoNormalisation
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Transform
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.release.parts.calibration import list_faults as calibration_faults
from dpprobe.release.parts.calibration import measure as calibration
from dpprobe.release.parts.calibration import noisy_counts
from dpprobe.release.parts.choice.measure import check_choice, choice_words, fits_block
from dpprobe.release.parts.cohort import list_faults as cohort_faults
from dpprobe.release.parts.cohort.measure import check_cohort, describe_cohort
from dpprobe.release.parts.evaluation import class_recalls as recalls
from dpprobe.release.parts.evaluation import list_faults as evaluation_faults
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.parts.evaluation import show
from dpprobe.release.parts.evidence.measure import check_evidence, in_words
from dpprobe.release.parts.monitor import compare_images as monitor
from dpprobe.release.parts.monitor import measure as watching
from dpprobe.release.parts.monitor.show import _check_totals
from dpprobe.release.parts.predecessor.measure import named_predecessor
from dpprobe.release.parts.sites import SitesOptions
from dpprobe.release.parts.sites import list_faults as sites_faults
from dpprobe.release.parts.sites.measure import check_sites
from dpprobe.release.parts.sites.several_sites import describe_sites
from dpprobe.release.parts.spent.measure import check_ledger, state_spent
from dpprobe.release.probabilities import Calibration
from dpprobe.wrong_keys_and_values import explain_first
from tests.support.releases import of_sites, watched
from tests.support.shown_scores import head, of_test_rows
from tests.support.stored_records import check_values

KINDS = {"two": (2, False), "four": (4, False), "labels": (3, True)}


def answer(function: Callable[..., Any], *inputs: Any, **more: Any) -> Any:
    """Returns what a function answers, or its error."""
    try:
        return function(*inputs, **more)
    except ValidationError as error:
        return f"ValidationError: {explain_first(error)}"
    except DpprobeError as error:
        return f"{type(error).__name__}: {error}"


def plan_of(mechanisms: tuple[Mechanism, ...], n: int, noise: float = 1.0, **more: Any) -> Plan:
    """A plan that nobody calibrated; its epsilons are made up."""
    facts = {"unit": "image", "epsilon": 1.0, "delta": 1e-5, "realised_epsilon": 0.98765, **more}
    return Plan(
        mechanisms=tuple(item.scale_noise(noise) for item in mechanisms),
        n=n,
        accountant="pld",
        **facts,
    )


def draw(kind: str, n: int, seed: int = 3) -> tuple[Any, Any]:
    """Scores and labels of n rows, the first of which is null; a class or label is rare."""
    classes, several = KINDS[kind]
    generator = np.random.default_rng(seed)
    scores = 2 * generator.normal(size=(n, classes))
    chances = softmax(scores - np.arange(classes) / 2, axis=1)
    labels: Any = (chances.cumsum(1) > generator.random((n, 1))).argmax(1)
    if several:
        labels = (generator.random((n, classes)) < 1 / (1 + np.exp(1 - scores))).astype(np.uint8)
    scores[0] = math.nan
    return scores, labels


def units_of(n: int, patients: bool) -> Any:
    return np.arange(n) // 3 if patients else None


@pytest.mark.parametrize("kind", KINDS)
def test_test_results_are_as_before(kind: str) -> None:
    """Of images and patients, by each metric, with little and with much noise."""
    link: Any
    found = {}
    classes, several = KINDS[kind]
    for metric in ("accuracy", "auc", "macro_accuracy"):
        wanted = answer(results.evaluation_mechanisms, metric, classes=classes, multi_label=several)
        found[metric] = wanted
        if isinstance(wanted, str):
            continue
        for rows, noise, patients, link in itertools.product(
            (30, 900), (0.3, 8.0), (False, True), ("sigmoid",) if several else ("softmax",)
        ):
            n = rows // 3 if patients else rows
            plan = plan_of(wanted, n, noise, unit="patient" if patients else "image")
            scores, labels = draw(kind, rows)
            case = f"{metric} {rows} {noise} {patients}"
            found[f"{case} telling"] = answer(results.check_telling, plan, classes=classes)
            found[f"{case} fewest"] = (
                results.enough_of_a_class(plan, classes=classes)
                if metric != "accuracy"
                else results.composition_words(plan, plan, split="id, seed 0, fraction 0.2")
            )
            made = results.evaluate_heads(
                head(classes),
                of_test_rows(scores, labels, units_of(rows, patients)),
                plan,
                SEEDED,
                metric=metric,
                link=link,
                composition="paid",
                calibration=Calibration(scale=2.0, offset=1.5, thresholds={})
                if kind == "two"
                else None,
                keep_counts=kind == "two" and not patients,
            )
            del made["mechanisms"]
            found[case] = made | {
                "said": show.state_measured(made),
                "round": show.round_result(made),
                "telling": show.is_telling(made),
            }
    check_values(f"test_results_{kind}", found, rel=1e-4)


def test_intervals_of_test_results_are_as_before() -> None:
    generator = np.random.default_rng(2)
    accuracies: dict[str, Any] = {
        f"{value} {n} {deviation}": results.accuracy_estimate(value, n, deviation)
        for value in (0.0, 0.02, 0.5, 0.93, 1.0)
        for n in (1, 40, 3000)
        for deviation in (0.1, 5.0)
    }
    areas: dict[str, Any] = {}
    for labels, rows, deviation in itertools.product((1, 3), (60, 4000), (0.5, 6.0)):
        rising = np.linspace(0.1, 2, 16)
        counts = rows / 32 * np.stack([rising, rising[::-1]]) + np.zeros((labels, 1, 1))
        counts[-1, 0] *= 0.2
        counts += generator.normal(0, deviation, counts.shape)
        areas[f"{labels} {rows} {deviation}"] = results.area_estimate(counts, deviation)
    for more in (0.0, 1e-6):  # exactly as many units as are needed
        areas[f"fewest {more}"] = [
            results.area_estimate(np.full((2, 2, 4), 0.25) + more * np.eye(2)[:, :1, None], 0.1),
            results.area_estimate(np.array([[[0.0, 1.0 + more], [1.0, 3.0]]]), 0.1),
        ]
        table = np.array([[1.0 + more, 0], [3, 2], [0, 9]])
        accuracies[f"fewest {more}"] = recalls.estimate_recalls(table, 0.1)
    ranges, ends = np.array([9.0, 2.0, 2.000001, 1.9]), np.arange(5.0)
    areas["edges"] = [results._noisy_quantiles(each, ends, 1.0, 9) for each in (ranges, -ranges)]
    hits = results.evaluation_mechanisms("accuracy", classes=2, multi_label=False)
    for n in (2, 3, 9, 10):
        accuracies[f"telling {n}"] = [
            answer(results.check_telling, plan_of(mechanisms, n, noise), classes=3)
            for mechanisms, noise in ((hits, 2.0), (recalls.recall_mechanisms(), 0.1))
        ]
    for high in (0.2, 0.200001):
        found = recalls.Estimate(0.1, 0.0, high, 0.1)
        accuracies[f"words {high}"] = results.released_words("auc", found, plan_of(hits, 9))
    for value, low, high, error in (
        (0.5, 0.4, 0.6, 0.1),
        (0.5, 0.6, 0.7, 0.1),
        (0.5, 0.3, 0.4, 0.1),
        (0.5, -0.1, 0.6, 0.1),
        (0.5, 0.4, 1.1, 0.1),
        (0.5, 0.5, 0.5, 0.1),
        (0.5, 0.4, 0.6, 0.0),
        (0.5, 0.4, 0.6, -0.1),
        (0.0, 0.0, 0.3, 0.1),
        (1.0, 0.8, 1.0, 0.1),
    ):
        block = {
            "metric": "accuracy",
            "value": value,
            "interval": [low, high],
            "standard_error": error,
            "released": "",
        }
        checked = answer(show._check_result, block, plan_of(hits, 9), ["a", "b"])
        accuracies[f"result {value} {low} {high} {error}"] = checked[:90]
    intervals = ([0.1, 0.19], [0.0, 0.1], [0.2, 0.31], [0.05, 0.9], [0.6, 0.60001], [0.0, 0.8])
    worst = {"name": "nevus", "recall": 0.3, "interval": [0.2, 0.35]}
    said = {
        f"{metric} {interval} {lowest}": [
            tell(
                {
                    "metric": metric,
                    "value": sum(interval) / 2,
                    "interval": interval,
                    "worst_class": lowest,
                }
            )
            for tell in (show.state_measured, show.round_result)
        ]
        for metric in show.METRICS
        for interval in intervals
        for lowest in (None, worst, worst | {"interval": [0.2, sum(interval) / 2]})
    }
    check_values("intervals_of_results", [accuracies, areas, said], rel=1e-4)


def test_calibrations_are_as_before() -> None:
    found: dict[str, Any] = {}
    found["labels"] = answer(calibration.calibration_mechanisms, classes=2, multi_label=True)
    for kind, rows, noise, apart in itertools.product(
        ("two", "four"), (90, 3000), (0.2, 3.0), (0.3, 4.0)
    ):
        classes = KINDS[kind][0]
        wanted = calibration.calibration_mechanisms(classes=classes, multi_label=False)
        plan = plan_of(wanted, rows, noise)
        scores, labels = draw(kind, rows)
        made = calibration.calibrate_head(
            head(classes), of_test_rows(apart * scores, labels), plan, SEEDED, composition="paid"
        )
        del made["mechanisms"]
        found[f"{kind} {rows} {noise} {apart}"] = made
        found[f"size {kind} {rows} {noise}"] = answer(calibration.check_calibration_size, plan)
    for rows, noise, keep in ((90, 0.2, 1), (3000, 0.2, 1), (3000, 4.0, 1), (3000, 0.5, 0)):
        wanted = results.evaluation_mechanisms("auc", classes=2, multi_label=False)
        plan, (scores, labels) = plan_of(wanted, rows, noise), draw("two", rows)
        measured = results.evaluate_heads(
            head(2),
            of_test_rows(keep * scores, labels),
            plan,
            SEEDED,
            metric="auc",
            link="softmax",
            composition="",
            keep_counts=True,
        )
        found[f"auc {rows} {noise} {keep}"] = calibration.calibrate_from_counts(measured, plan)
        found[f"auc size {rows} {noise}"] = answer(calibration.check_calibration_size, plan)
    mechanisms = calibration.calibration_mechanisms(classes=2, multi_label=False)
    rising = np.arange(3.0, 35.0, 2)
    for answers in itertools.product((-3.0, 1.0), repeat=6):
        noisy = {"temperature": answers, "probability_counts": [rising * 9, 300 - rising * 9]}
        described = calibration.describe_calibration(noisy, mechanisms, 200)
        found[f"{answers}"] = [described["scale"], described["offset"]]
    found["rare"] = noisy_counts.describe_classes(
        np.ones((11, 2)), np.ones(16), n=40, deviation=50.0
    )
    one_bin, three = np.array([0.0, 300.0, 0.0]), np.arange(3.0)
    for n, other in itertools.product((9, 99), (-20.0, 0.0, 7.0, 300.0)):
        for pair in (
            (one_bin, one_bin * other / 300),
            (one_bin * other / 300, one_bin),
            (three * 9, 3 * other - three),
        ):
            found[f"fit {n} {other} {len(found)}"] = noisy_counts.fit_logistic(
                three, *pair, n=n, deviation=0.5
            )
    for n, coverage in itertools.product((50, 99, 2000), noisy_counts.COVERAGES):
        most, z = noisy_counts.allowed_misses(n, coverage)
        found[f"threshold {n} {coverage}"] = [
            noisy_counts.find_threshold(
                [(0.1, first, noise), (0.2, second, 0.0), (0.3, 0.0, 0.0)], n, coverage
            )
            for first, second, noise in (
                (most, most, 0.0),
                (most, most + 1e-9, 0.0),
                (-most, 0.0, 0.999 * most / z),
                (-most, 0.0, 1.001 * most / z),
            )
        ] + [noisy_counts.fewest_units(2.0, coverage)]
    ends = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    table = np.array([5.0, 5, 10, 80]), np.array([40.0, 40, 10, 10])
    found["cut-offs"] = noisy_counts._list_cut_offs(ends, *table, 0.5)
    found["certain"] = noisy_counts._list_benefits(np.ceil(ends), *table, 200, 0.5)
    for sized in (mechanisms, results.evaluation_mechanisms("auc", classes=2, multi_label=False)):
        found[f"fewest of {sized[-1].name}"] = [
            answer(calibration.check_calibration_size, plan_of(sized, n)) for n in (62, 63, 99, 100)
        ]
    check_values("calibrations", found, rel=1e-4)


def test_tables_of_new_images_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    generator = np.random.default_rng(4)
    shares = np.array([1.0, 4, 10, 20, 30, 20, 10, 4, 1]) / 100
    for n, deviation, units, shift, classes in itertools.product(
        (60, 2000), (2.0, 9.0), (0, 4, 300), (0, 3), (None, [*"abcdefghi"])
    ):
        counts = n * shares + generator.normal(0, deviation, 9)
        new = np.roll(np.round(units * shares), shift)
        found[f"{n} {deviation} {units} {shift} {classes and len(classes)}"] = (
            monitor.compare_table(
                counts,
                new,
                n=n,
                deviation=deviation,
                level=0.01,
                classes=classes,
                edges=[*range(8)],
            )
        )
    rows = generator.normal(size=(40, 9)).astype(np.float32)
    rows[0], rows[1] = 0, 1e20
    moment = torch.from_numpy(np.cov(rows[2:].T) * np.arange(1, 10))
    for spec, centre, second in itertools.product(
        (L2(), LayerNorm(), AroundCentre(kind="centred")),
        (None, rows[5]),
        (None, moment),
    ):
        typical = monitor.find_directions(centre, second, dimension=9)
        if typical is not None:
            arrays = {"centre": torch.zeros(9)} if isinstance(spec, AroundCentre) else {}
            unusual = monitor.measure_unusualness(rows, Transform(spec, arrays), typical)
            case = f"{spec.kind} {centre is None} {second is None}"
            found[case] = [typical.shape, typical.T @ typical, unusual]
    monkeypatch.setattr(training_set, "_CHUNK_BYTES", 999)  # several blocks
    for kind, noise, patients in itertools.product(KINDS, (0.3, 8.0), (False, True)):
        classes, several = KINDS[kind]
        scores, labels = draw(kind, 300)
        plan = plan_of(
            watching.monitor_mechanisms(unusual=False),
            100 if patients else 300,
            noise,
            unit="patient" if patients else "image",
        )
        made = watching.monitor_head(
            head(classes),
            of_test_rows(scores, labels, units_of(300, patients)),
            plan,
            SEEDED,
            probe_norm=2.0,
            calibration=None,
            link="sigmoid" if several else "softmax",
            composition=watching.monitor_words(plan, plan),
        )
        made["size"] = answer(watching.check_monitor_size, plan)
        found[f"{kind} {noise} {patients}"] = made
    four = watching.monitor_mechanisms(unusual=True)
    found["fewest"] = [answer(watching.check_monitor_size, plan_of(four, n)) for n in (39, 40)]
    found["edges"] = [monitor.list_edges(norm, unusual=norm > 0) for norm in (0.0, 2.0)]
    for first, more, n in (
        (300.0, 0.0, 300),
        (300.0, 1.0, 300),
        (299.0, 1.0, 299),
        (300.0, -1.0, 300),
        (-5.0, 0.0, 300),
        (299.0, 0.0, 298),
    ):
        counted = {"a": [first], "b": [first - 1, 1 + more, 0.0]}
        for noise in (0.01, 0.1):
            tested = plan_of(four, n, noise)
            said = answer(_check_totals, counted, {"a": 1, "b": 3}, tested)
            found[f"totals {first} {more} {n} {noise}"] = said
    for name, text in {
        "good": "id,group,other\na,1,x\nb,2,x\n\na,1,y\n",
        "spaces": " id , group\na,1\n",
        "two": "id,group\na,1\na,2\n",
        "short": "id,group\nb,1\na\n",
        "no id": "group\n1\n",
        "double": "id,id,group\na,b,1\n",
        "empty": "",
        "no group": "id,x\na,1\n",
        "sep": "sep=;\nid; group\na;p1\nb;p1\n",
        "quote": 'id,group\n"a,p1\n',
    }.items():
        path = tmp_path / "groups.csv"
        path.write_text(text)
        read = answer(monitor.read_groups, path)
        found[name] = (
            sorted(read.items()) if isinstance(read, dict) else read.replace(str(tmp_path), "")
        )
    verdicts = (monitor.DIFFERENT, monitor.SIMILAR, monitor.TOO_FEW)
    for given in itertools.product(verdicts, verdicts, (None, 90)):
        tables = {
            name: monitor.Comparison(
                verdict=str(verdict),
                distance=0.3,
                by_chance=0.1,
                needed=need if verdict == monitor.TOO_FEW else None,
                change="up to 3",
            )
            for name, verdict, need in zip(monitor.WORDS, given, (given[2], 60), strict=False)
        }
        report = monitor.Report(
            images=40, units=1030, test_units=9000, tables=tables, most_unusual=()
        )
        found[f"report {given}"] = [report.to_dict()["verdict"], *report.list_lines()]
    check_values("tables_of_new_images", found, rel=1e-4)


def test_new_rows_are_counted_and_compared_as_before() -> None:
    """In blocks and groups, and with tables that do not fit the head."""
    generator, classes = np.random.default_rng(6), ("a", "b", "c")
    scores, labels = 2 * generator.normal(size=(300, 3)), np.zeros(300, np.int64)
    typical = np.eye(1, 3, dtype=np.float32)
    found: dict[str, Any] = {}

    def bundle_of(unusual: bool, change: Any = None) -> Any:
        heads = replace(head(3), typical=typical[None] if unusual else None)
        plan = plan_of(watching.monitor_mechanisms(unusual=unusual), 300, 2.0)
        block = watching.monitor_head(
            heads,
            of_test_rows(scores, labels),
            plan,
            SEEDED,
            probe_norm=2.0,
            calibration=None,
            link="softmax",
            composition="",
        )
        if change is not None:
            change(block)
        facts = SimpleNamespace(class_names=classes, name="v1", dimension=3)
        arrays = {"typical_directions": typical} if unusual else {}
        return SimpleNamespace(statement={"monitor": block}, facts=facts, arrays=arrays)

    names = [f"{number}.png" for number in range(60)]
    groupings = {
        "none": {},
        "pairs": {name: f"g{n // 2}" for n, name in enumerate(names[:40])},
        "one": dict.fromkeys(names, "g"),
    }
    for unusual, count, moved, (kind, groups) in itertools.product(
        (False, True), (0, 60), (0.0, 5.0), groupings.items()
    ):
        watch = monitor.Watch(bundle_of(unusual), Transform(NoNormalisation()), groups)
        rows = (2 * np.random.default_rng(1).normal(size=(count, 3)) + moved).astype(np.float32)
        rows[5:8] = rows[:1]  # ties
        for start in range(0, count, 7):
            part = slice(start, start + 7)
            watch.add_rows(names[:count][part], softmax(rows[part], axis=1), rows[part])
        compared = watch.compare()
        found[f"{unusual} {count} {moved} {kind}"] = [
            compared.verdict,
            compared.images,
            compared.units,
            compared.test_units,
            {
                name: [one.verdict, one.distance, one.change]
                for name, one in compared.tables.items()
            },
            compared.most_unusual,
        ]
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "n": lambda block: block.update(n=0),
        "one": lambda block: block.update(n=1),
        "none": lambda block: block.update(edges=None),
        "list": lambda block: block.update(tables=[]),
        "no n": lambda block: block.pop("n"),
        "text": lambda block: block.update(n="x"),
        "table": lambda block: block["tables"].pop("unusualness"),
        "class": lambda block: block["tables"]["predicted_class"].pop(),
        "cell": lambda block: block["tables"]["feature_norm"].append(1.0),
        "edge": lambda block: block["edges"]["largest_value"].pop(),
        "edges": lambda block: block["edges"].pop("unusualness"),
        "two": lambda block: block.update(mechanisms=block["mechanisms"] * 2),
        "words": lambda block: block["tables"].update(feature_norm=["x"] * 21),
    }
    for name, change in changes.items():
        found[name] = str(answer(monitor.Watch, bundle_of(True, change), Transform(L2()), {}))[:60]
    made = bundle_of(True)
    for arrays in ({}, {"typical_directions": generator.normal(size=(1, 4))}):
        made.arrays = arrays
        found[f"{len(arrays)} arrays"] = answer(monitor.Watch, made, Transform(L2()), {})
    made.statement = {}
    found["no tables"] = answer(monitor.Watch, made, Transform(L2()), {})
    check_values("comparisons_of_rows", found, rel=1e-4)


def test_what_parts_say_and_check_is_as_before() -> None:
    facts = SimpleNamespace(is_of_estimator=False)
    mechanisms = method_options({"head": "feature_covariance"}).list_mechanisms(1000)
    plan = plan_of(mechanisms, 1000, 50.0, realised_epsilon=1.0)
    sampled = method_options({"head": "sgd", "batch_size": 50, "steps": 9}).list_mechanisms(1000)
    found: dict[str, Any] = {"fits": [fits_block(listed) for listed in (1, 2, 12)]}
    for cells, epsilon, exposed, unknown in itertools.product(
        (0, 1, 12), (None, 1.0, 1.23456), ([], ["a"], [*"abcd"]), ([], [*"xyz"], [*"wxyz"])
    ):
        words = choice_words(cells, epsilon, exposed, unknown=unknown, delta=1e-5)
        block = {"cells": cells, "epsilon": epsilon, "words": words}
        found[f"choice {cells} {epsilon} {exposed} {unknown}"] = [
            words if cells == 12 and epsilon != 1 else len(words),
            answer(check_choice, {"choice": block}, plan, facts),
            answer(check_choice, {"choice": block | {"words": f"{words} More."}}, plan, facts),
        ][epsilon == 1.0 :]
    for count, horizon in itertools.product((0, 1, 3, 4, 11), (None, 0, 1, 4, 12)):
        earlier = [{"release": f"r{n}", "cohort": f"c{n}", "n": 500 + n} for n in range(count)]
        made = answer(describe_cohort, "now", earlier, horizon=horizon, n=1000, unit="image")
        found[f"cohort {count} {horizon}"] = made
        if isinstance(made, dict):
            for before in (None, {"name": "r0"}, {"name": f"r{count - 1}"}):
                values = {"cohort": made, "predecessor": before}
                found[f"check cohort {count} {horizon} {before}"] = answer(
                    check_cohort, values, plan
                )
    block = {
        "entry": 2,
        "releases": 1,
        "unit": "image",
        "delta": 1e-5,
        "epsilon": 1.0,
        "exact": True,
    }
    tested = watched() | {"epsilon": 2.0, "epsilon_target": 2.0, "delta": 1e-5, "n": 10}
    for change, result, other, rate in itertools.product(
        (
            {},
            {"releases": 3},
            {"epsilon": 1.00009},
            {"epsilon": 1.0002},
            {"epsilon": 0.99991},
            {"epsilon": 0.9998},
            {"epsilon": 2.0},
            {"exact": False, "releases": 12},
            {"exact": 1},
            {"unit": "patient"},
            {"delta": 1e-6},
            {"entry": 0},
            {"releases": True},
        ),
        (None, {"delta": 1e-5, "epsilon": 2.0}, {"delta": 1e-6, "epsilon": 2.0}),
        ({}, {"monitor": tested}),
        (False, True),
    ):
        values = {"ledger": block | change, "evaluation": result, **other}
        priced = plan_of(sampled, 1000, 5.0, realised_epsilon=1.0) if rate else plan
        found[f"ledger {change} {result} {bool(other)} {rate}"] = answer(
            check_ledger, values, priced
        )
    found["spent"] = [
        state_spent(block | {"releases": releases, "unit": unit, "exact": exact, "epsilon": 1.2345})
        for releases in (1, 2, 1234)
        for unit in ("image", "patient", "group")
        for exact in (False, True)
    ]
    audit = {
        "audited": "2026-01-31",
        "code": "dpprobe 0.1.0, audit 1",
        "runs": 1000,
        "tests": 3,
        "confidence": 0.95,
        "epsilon_lower": 0.71234,
        "caught_factor": 1.52,
        "probability": 0.9,
    }
    for change in (
        {},
        {"epsilon_lower": 1.0},
        {"epsilon_lower": 1.00001},
        {"confidence": 1.0},
        {"caught_factor": None},
        {"runs": 10**10},
        {"tests": 1001},
    ):
        evidence = audit | change
        found[f"evidence {change}"] = [
            answer(check_evidence, {"evidence": evidence}, plan),
            in_words(evidence),
        ]
    found["cheap choice"] = [
        answer(
            check_choice,
            {
                "choice": {
                    "cells": cells,
                    "epsilon": epsilon,
                    "words": choice_words(cells, epsilon, delta=1e-5),
                }
            },
            plan,
            facts,
        )
        for cells, epsilon in ((1, 0.5), (-1, None), (2, 1.1))
    ]
    for names in (3, "ab", ["a"], ["a", "a"], ["b", "a"], ["a", 1]):
        sites = of_sites() | {"names": names, "packed_by": "a", "aggregator": "a"}
        found[f"sites {names}"] = answer(check_sites, {"sites": sites}, plan)
    for names, colluders, aggregator, unit in itertools.product(
        ("ab", "abcd"), (0, 1, 2, 3), (None, "b"), ("image", "patient")
    ):
        if colluders < len(names):
            found[f"sites {names} {colluders} {aggregator} {unit}"] = describe_sites(
                names,
                packed_by="a",
                aggregator=aggregator,
                colluders=colluders,
                agreement="x",
                smallest_share=9e3,
                coordinates=7,
                unit=unit,
            )
    found["predecessors"] = [
        answer(named_predecessor, {"predecessor": {"name": name, "sha256": digest}})
        for name in ("a", "a/b", 3)
        for digest in ("ab" * 32, "AB" * 32, "ab" * 31, None)
    ]
    check_values("words_of_parts", found)


def test_faults_of_parts_in_a_study_are_as_before() -> None:
    found: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {
        "covariance": {"head": "feature_covariance", "normalize": "l2"},
        "sampled": {"head": "sgd", "batch_size": 50},
        "auto": {"head": "auto"},
    }

    def asked(**more: Any) -> Any:
        facts = {"cohort": None, "horizon": None, "predecessor": None, "dataset": "new", **more}
        blocks = SimpleNamespace(block=lambda _: more.get("options"), test_metric=more.get("test"))
        return SimpleNamespace(**facts, **vars(blocks))

    releases = {
        "first": asked(cohort="a", dataset="one", horizon=4),
        "second": asked(cohort="b", dataset="two", horizon=4, predecessor="first"),
        "plain": asked(dataset="three"),
        "without": asked(cohort="c", dataset="four"),
    }
    for method, cohort, horizon, before, dataset in itertools.product(
        methods,
        (None, "c"),
        (None, 4, 5),
        (None, "first", "second", "plain", "without", "elsewhere"),
        ("new", "one", "two"),
    ):
        release = asked(
            cohort=cohort,
            horizon=horizon,
            predecessor=before,
            dataset=dataset,
            method=method,
            options={},
        )
        wanted: Any = SimpleNamespace(
            study=SimpleNamespace(releases=releases),
            release=release,
            method=method_options(methods[method]),
        )
        case = f"{method} {cohort} {horizon} {before} {dataset}"
        if faults := [*cohort_faults(wanted), *(sites_faults(wanted) if dataset == "new" else ())]:
            found[case] = faults
    for epsilon, metric, several, options in itertools.product(
        (None, 1.0), ("auc", "accuracy", None), (False, True), (False, True)
    ):
        block = SimpleNamespace(epsilon=epsilon, metric=metric) if options else None
        shown = SimpleNamespace(datasets={"new": SimpleNamespace(metric=epsilon and "auc")})
        wanted = SimpleNamespace(
            release=asked(options=block, test=metric),
            multi_label=several,
            classes=2 if epsilon else 3,
            study=shown,
        )
        found[f"{epsilon} {metric} {several} {options}"] = [
            *calibration_faults(wanted),
            *evaluation_faults(wanted),
        ]
    for name, sites, colluders, aggregator in itertools.product(
        "ax", (1, 2, 3), (0, 1, 2, 3), (None, "a", "x")
    ):
        members = dict.fromkeys("abc"[:sites], "a" * 64)
        values = {
            "name": name,
            "members": members,
            "colluders": colluders,
            "key": "k",
            "exchange": "e",
            "aggregator": aggregator,
        }
        made = answer(SitesOptions.model_validate, values)
        found[f"{name} {sites} {colluders} {aggregator}"] = made if isinstance(made, str) else True
    for normalize, kind, dimension in itertools.product(
        ("l2", "centred", "whitened"),
        ("feature_covariance", "least_squares", "prototypes"),
        (1, 5, 999),
    ):
        try:
            head_options = method_options({"head": kind, "normalize": normalize})
        except DpprobeError:
            continue
        plan = plan_of(head_options.list_mechanisms(100), 100)
        counted = watching.count_typical(plan, head_options.normalize, dimension)
        found[f"{normalize} {kind} {dimension}"] = counted
    check_values("faults_of_parts", found)
