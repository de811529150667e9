"""A job decides its auto methods by the features' facts, and trains what was chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpprobe.errors import DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads import auto, auto_rule
from dpprobe.heads.auto import trained_head
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.target import Target
from dpprobe.results.cell_record import recorded_facts
from dpprobe.results.cell_results import read_cell_results
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import decide_methods, read_plans, write_plans
from dpprobe.training.tasks import open_job
from tests.support.training_jobs import make_job
from tests.unit.training.test_head_job import CLASSES, DIMENSION, ROWS, Run, write_features

AUTO = method_options({"head": "auto"})
SGD = method_options({"head": "sgd", "batch_size": 30, "steps": 12})
FACTS = DataFacts(
    n=ROWS["train"], dimension=DIMENSION, classes=CLASSES, multi_label=False, epsilon=4.0,
    delta=1e-4, unit="image",
)  # fmt: skip
TARGET = Target(n=FACTS.n, epsilon=FACTS.epsilon, delta=FACTS.delta)


@pytest.fixture
def run(tmp_path: Path, calibration: Path) -> Run:
    write_features(tmp_path)
    return Run(tmp_path, make_job(methods={"auto": AUTO, "sgd": SGD}), calibration)


def opened(run: Run, **changes: Any) -> Any:
    return open_job(
        replace(run.job, **changes),
        train=run.folder / "train/manifest.json",
        test=run.folder / "test/manifest.json",
        plans=run.folder / f"plans-{changes.get('epsilon', '4')}.json",
        cells=run.folder / "cells",
        overlap=None,
        tables=None,
    )


def statement(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run.cell("auto") / "privacy.json").read_text())
    return values


def test_a_cell_of_auto_is_the_chosen_head_s_bit_for_bit(run: Run) -> None:
    run.train()
    chosen = method_options(auto_rule.choose_head(FACTS))
    values = run.record("auto")
    assert values["head"] == "auto"
    assert values["options"]["rule"] == auto_rule.RULE
    assert values["options"]["chosen"] == chosen.model_dump(mode="json")
    task = opened(run).make_task("auto", device="cpu")
    assert task.fingerprint == values["fingerprint"]
    seeds = [cell_seed(task.identity, index) for index in range(2)]
    store = FeatureStore(run.folder / "train/manifest.json")
    data = FitInputs(store, "image").read_rows(device="cpu", memory_mb=100)
    alone = fit_heads(chosen, data, task.plan, seeds)
    weights = load_file(run.cell("auto") / "heads.safetensors")["weights"]
    np.testing.assert_array_equal(weights, alone.weights)


def test_the_statement_names_the_rule_what_it_chose_and_the_facts(run: Run) -> None:
    run.train()
    said = statement(run)
    chosen = auto_rule.choose_head(FACTS)["head"]
    assert said["chosen_from"] == {
        "rule": f"auto rule {auto_rule.RULE}", "head": chosen, **FACTS.to_dict(),
    }  # fmt: skip
    assert any(f"auto rule {auto_rule.RULE}" in text and chosen in text for text in said["public"])
    assert said["private"] is True
    assert 0.98 * 4 < said["epsilon_realised"] <= 4
    other = json.loads((run.cell("sgd") / "privacy.json").read_text())
    assert "chosen_from" not in other


def test_a_current_cell_is_kept_and_a_new_rule_makes_it_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before, other = run.contents("auto"), run.contents("sgd")
    run.train()
    assert run.contents("auto") == before
    monkeypatch.setattr(auto, "RULE", auto_rule.RULE + 1)
    run.train()
    assert run.contents("auto") != before
    assert run.record("auto")["options"]["rule"] == auto_rule.RULE + 1
    assert run.contents("sgd") == other


def test_what_a_rule_chooses_otherwise_is_another_cell(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train()
    before = run.record("auto")["fingerprint"]
    monkeypatch.setattr(auto, "choose_head", lambda _: {"head": "least_squares"})
    run.train()
    assert run.record("auto")["fingerprint"] != before
    assert run.record("auto")["options"]["chosen"]["head"] == "least_squares"


def test_without_privacy_auto_chooses_too(run: Run) -> None:
    run.train(epsilon="inf", methods={"auto": AUTO})
    cell = run.folder / "cells/toy/none/auto/eps-inf"
    values = json.loads((cell / "metrics.json").read_text())
    facts = replace(FACTS, epsilon=float("inf"))
    assert values["options"]["chosen"]["head"] == auto_rule.choose_head(facts)["head"]
    said = json.loads((cell / "privacy.json").read_text())
    assert said["private"] is False
    assert said["chosen_from"]["epsilon"] == "inf"
    assert values["summary"]["accuracy"]["mean"] > 0.7


def test_the_facts_of_a_record_are_those_that_decided(run: Run) -> None:
    run.train()
    assert recorded_facts(run.record("auto"), epsilon=4.0, delta=1e-4) == FACTS
    store = FeatureStore(run.folder / "train/manifest.json")
    assert FitInputs(store, "image").read_facts(TARGET) == FACTS


def test_a_choice_that_cannot_be_trained_does_not_keep_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"head": "sgd", "batch_size": 1000, "steps": 3}
    monkeypatch.setattr(auto, "choose_head", lambda _: few)
    with pytest.raises(DpprobeError, match="auto: batch_size 1000 is above the 300"):
        run.train()
    monkeypatch.undo()
    assert run.staged("sgd").exists()
    run.train()
    assert run.cell("sgd").exists()


def test_methods_that_all_fail_are_no_failure_of_auto(tmp_path: Path) -> None:
    few = method_options({"head": "sgd", "batch_size": 1000, "steps": 3})
    path = tmp_path / "plans.json"
    write_plans({"auto": AUTO, "sgd": few}, TARGET, output=path, cache=tmp_path, seeds=2)
    assert set(read_plans(path).failures) == {"sgd"}
    with pytest.raises(DpprobeError, match="batch_size 1000"):
        write_plans({"sgd": few}, TARGET, output=path, cache=tmp_path, seeds=2)


def test_deciding_prices_all_seeds_together_as_for_any_method(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    chosen = method_options(auto_rule.choose_head(FACTS))
    both, more = {"auto": AUTO, "alone": chosen}, dict[str, Any](cache=tmp_path, seeds=3)
    write_plans(both, TARGET, output=path, **more)
    calibrated = read_plans(path)
    methods, plans = decide_methods(both, calibrated, FACTS, TARGET, **more)
    assert methods["alone"] is chosen
    assert trained_head(methods["auto"]) == chosen
    assert plans.plans["auto"].to_dict() == plans.plans["alone"].to_dict()
    assert plans.together["auto"] == plans.together["alone"]
    alone = decide_methods({"alone": chosen}, calibrated, FACTS, TARGET, **more)
    assert alone[1] is calibrated


def test_readers_of_results_see_what_was_trained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"head": "momentum", "steps": 3}
    monkeypatch.setattr(auto, "choose_head", lambda _: steps)
    run.train()
    (result,) = read_cell_results([run.cell("auto") / "metrics.json"])
    assert result.head == "auto"
    assert result.base_options["head"] == "momentum"
    assert result.batch_size == ROWS["train"]
    assert result.visited_rows == 2 * 3 * ROWS["train"]
