"""Pure parts of bench/accuracy.py: regret, what makes a kept score stale, rows of some classes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, repository: Path) -> Load:
    """Imports a module of bench/, whose modules import each other by their plain names."""
    monkeypatch.syspath_prepend(repository / "bench")
    return importlib.import_module


def test_no_regret_where_the_best_head_was_chosen(load: Load) -> None:
    heads = {"newton": [70.0, 72.0, 71.0], "adam": [60.0, 61.0, 62.0]}
    assert load("pairs_regret").regret(heads["newton"], heads) == ("newton", 0.0, 0.0, 0.0)


def test_regret_is_the_difference_of_means(load: Load) -> None:
    heads = {"newton": [70.0, 72.0, 71.0, 71.0], "adam": [60.0, 61.0, 62.0, 61.0]}
    regret = load("pairs_regret").regret(heads["adam"], heads)
    assert (regret.best, regret.points, regret.unbiased) == ("newton", 10.0, pytest.approx(10.0))
    # each mean's variance is 2 / 3 over 4 seeds
    assert regret.error == pytest.approx((2 * (2 / 3) / 4) ** 0.5)


def test_the_best_of_equal_heads_is_not_flattered_on_other_seeds(load: Load) -> None:
    generator = torch.Generator().manual_seed(0)
    regrets = []
    for _ in range(200):
        draws = torch.randn(7, 5, generator=generator).tolist()
        heads = {str(place): draw for place, draw in enumerate(draws[1:])}
        regrets.append(load("pairs_regret").regret(draws[0], heads))
    mean = sum(one.points for one in regrets) / len(regrets)
    unbiased = sum(one.unbiased for one in regrets) / len(regrets)
    assert mean > 0.4
    assert abs(unbiased) < 0.15


def test_a_head_is_stale_by_its_statements_alone(load: Load) -> None:
    statements = load("pairs_scores").statements
    plain = statements("def f(x):\n    return x + 1\n")
    assert statements('def f(x):\n    """Adds."""\n    return x + 1  # one\n') == plain
    assert statements("def f(x):\n    return x + 2\n") != plain


def test_a_heads_code_is_all_of_the_room_that_it_imports(load: Load) -> None:
    reached = load("pairs_scores")._reached("dpprobe.heads.newton")
    assert {"dpprobe.heads.newton", "dpprobe.heads.second_order", "dpprobe.heads.fit"} <= reached
    assert "dpprobe.heads.adam" not in reached


def test_scores_outlive_a_run_that_was_killed_while_it_wrote(load: Load, tmp_path: Path) -> None:
    module = load("pairs_scores")
    line = {"key": "k", "seed": 0, "accuracy": 50.0, "macro": 40.0, "fault": None, "pair": "p"}
    (tmp_path / "p.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    kept = list(module._read(tmp_path / "p.jsonl"))
    assert kept == [module.Score(key="k", seed=0, accuracy=50.0, macro=40.0)]


def test_macro_accuracy_weighs_classes_alike(load: Load) -> None:
    labels = torch.tensor([0, 0, 0, 0, 1])
    assert load("pairs_scores").macro(torch.zeros(5, dtype=torch.long), labels) == 0.5


def test_some_classes_are_numbered_anew(load: Load) -> None:
    data = load("pairs_rows").Features(
        torch.arange(4.0)[:, None], torch.tensor([3, 0, 5, 3]),
        torch.arange(2.0)[:, None], torch.tensor([5, 1]),
    )  # fmt: skip
    kept = load("pairs").of_classes(data, (3, 5))
    assert kept.train[:, 0].tolist() == [0.0, 2.0, 3.0]
    assert (kept.train_labels.tolist(), kept.test_labels.tolist()) == ([0, 1, 0], [1])
