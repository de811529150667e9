"""The price of publishing the best of several private cells."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads.registry import method_options
from dpprobe.privacy import accountants
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement import Statement
from dpprobe.privacy.target import Target
from dpprobe.results.best_head_price import choice_price

SEEDS, ROWS, DELTA = 3, 300, 1e-4
FULL = {"head": "sgd", "batch_size": "full", "steps": 4}
SMALL = {"head": "sgd", "batch_size": 30, "steps": 12}
COVARIANCE = {"head": "feature_covariance"}
TUNED = {"head": "tuned", "base": FULL, "search": {"learning_rate": [0.1, 1]}}


def planned(options: dict[str, Any], folder: Path) -> Plan:
    method = method_options(options)
    return calibrate(
        method.list_mechanisms(ROWS),
        Target(n=ROWS, epsilon=1.0, delta=DELTA),
        cache=folder / "cache",
        selection=method.priced_selection(ROWS),
    )


def stated(folder: Path, *candidates: dict[str, Any]) -> tuple[list[Path], list[Plan]]:
    """Writes the statements of these candidates; returns their paths and plans."""
    plans = [planned(options, folder) for options in candidates]
    paths = [folder / f"{index}/privacy.json" for index in range(len(plans))]
    for path, plan, options in zip(paths, plans, candidates, strict=True):
        values = Statement(
            plan=plan,
            method="m",
            options=options,
            mode="benchmark",
            seeds=range(SEEDS),
            public_data={"trained": True, "near_duplicate_check": "not run"},
            epsilon_all_heads=accountants.price_together(
                plan.mechanisms, DELTA, SEEDS, plan.selection
            ),
            private_choices=None,
            priced_normalisation=False,
            engine_limits=None,
        )
        write_json(path, values.to_dict())
    return paths, plans


def price(paths: list[Path]) -> float:
    found = choice_price(paths)
    assert found is not None
    return found


def test_without_sampling_it_is_the_exact_price_of_all_heads(tmp_path: Path) -> None:
    paths, plans = stated(tmp_path, FULL, COVARIANCE, FULL)
    square = SEEDS * sum(accountants.gaussian_mu(plan.mechanisms) ** 2 for plan in plans)
    exact = accountants.gaussian_epsilon(math.sqrt(square), DELTA)
    assert exact <= price(paths) <= exact * (1 + 1e-5)
    assert price(paths[::-1]) == price(paths)
    assert price(paths) > read_json(paths[0])["epsilon_all_heads"] > 1
    write_json(paths[1], read_json(paths[1]) | {"delta": 10 * DELTA})
    looser = accountants.gaussian_epsilon(math.sqrt(square), 10 * DELTA)
    assert looser <= price(paths) <= looser * (1 + 1e-5)


def test_with_sampling_it_is_an_upper_bound(tmp_path: Path) -> None:
    paths, plans = stated(tmp_path, FULL, SMALL, SMALL)
    heads = [item.repeat_count(SEEDS) for plan in plans for item in plan.mechanisms]
    tight = accountants.compute_epsilon(heads, DELTA, "pld")
    assert tight <= price(paths) <= 1.3 * tight


def test_a_search_is_composed_with_the_others(tmp_path: Path) -> None:
    paths, plans = stated(tmp_path, TUNED, FULL)
    _, tuned = stated(tmp_path / "again", TUNED)
    alone = accountants.price_together(tuned[0].mechanisms, DELTA, SEEDS, tuned[0].selection)
    assert plans[0].selection is not None
    assert alone < price(paths)
    # Cheaper than if all trials (ten on average) had been published.
    heads = [item.repeat_count(10 * SEEDS) for plan in plans for item in plan.mechanisms]
    assert price(paths) < accountants.compute_epsilon(heads, DELTA, "rdp")


def test_an_error_names_a_damaged_statement_of_a_private_cell(tmp_path: Path) -> None:
    paths, _ = stated(tmp_path, FULL, FULL)
    assert choice_price(paths[:1]) is choice_price([]) is None, "no choice"
    values = read_json(paths[1])
    wrong: list[dict[str, Any]] = [{"delta": None}, {"delta": "x"}, {"mechanisms": 3}]
    for damaged in ({}, *(values | each for each in wrong)):
        write_json(paths[1], damaged)
        with pytest.raises(DataError, match="1/privacy.json"):
            choice_price(paths)
