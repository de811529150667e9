"""The unpriced search resumes with the same trials, has one writer, and repeats no trial."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from dpprobe.errors import ConfigError, StoreError
from dpprobe.finetune.options import Options
from dpprobe.finetune.unpriced_search import Trial, best_trial, run_trials, suggest_values
from dpprobe.heads.registry import method_options

SPACE: dict[str, Any] = {
    "learning_rate": {"low": 1e-3, "high": 10, "log": True},
    "backbone_rate": {"low": 0, "high": 1},
    "clipping": ["fixed", "automatic"],
    "optimiser": ["sgd", "adam", "momentum"],
}


def searched(trials: int = 14, **changes: Any) -> Options:
    values = {
        "head": "fine_tune",
        "tune": {"blocks": 1},
        "steps": 3,
        "search": {"trials": trials, "space": SPACE},
        **changes,
    }
    options = method_options(values)
    assert isinstance(options, Options)
    return options


def quality(options: Options, number: int) -> float:  # noqa: ARG001
    """Is best at a rate of 0.3 with automatic clipping; diverges above 5."""
    if options.learning_rate > 5:
        return math.nan
    miss = math.log10(options.learning_rate / 0.3) ** 2 + (options.backbone_rate - 0.5) ** 2
    return math.exp(-miss) + 0.1 * (options.clipping == "automatic")


class Counted:
    """An objective that records its trials and may stop at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.numbers: list[int] = []
        self.stop = stop

    def __call__(self, options: Options, number: int) -> float:
        if number == self.stop:
            raise KeyboardInterrupt
        self.numbers.append(number)
        assert options.search is None
        return quality(options, number)


def test_a_search_is_a_function_of_its_seed_with_values_of_its_space(tmp_path: Path) -> None:
    first = run_trials(searched(), quality, log=tmp_path / "a.json", seed=1)
    assert run_trials(searched(), quality, log=tmp_path / "b.json", seed=1) == first
    assert run_trials(searched(), quality, log=tmp_path / "c.json", seed=2) != first
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    for trial in run_trials(searched(30), quality, log=tmp_path / "log.json", seed=3):
        values = trial.values
        assert set(values) == set(SPACE)
        assert 1e-3 <= values["learning_rate"] <= 10  # type: ignore[operator]
        assert 0 <= values["backbone_rate"] <= 1  # type: ignore[operator]
        assert values["clipping"] in SPACE["clipping"]
        assert values["optimiser"] in SPACE["optimiser"]
        assert float(f"{values['learning_rate']:.6g}") == values["learning_rate"]


def test_it_learns_from_earlier_trials(tmp_path: Path) -> None:
    trials = run_trials(searched(60), quality, log=tmp_path / "log.json", seed=4)
    scores = [trial.score or 0.0 for trial in trials]
    assert sum(scores[-20:]) / 20 > 1.2 * sum(scores[:10]) / 10
    assert abs(math.log10(best_trial(trials).values["learning_rate"] / 0.3)) < 0.3  # type: ignore[operator]


@pytest.mark.parametrize("stop", [0, 1, 6, 11, 13])
def test_an_interrupted_search_ends_as_if_it_had_not_been(tmp_path: Path, stop: int) -> None:
    whole = run_trials(searched(), quality, log=tmp_path / "whole.json", seed=5)
    log = tmp_path / "log.json"
    with pytest.raises(KeyboardInterrupt):
        run_trials(searched(), Counted(stop), log=log, seed=5)
    again = Counted()
    assert run_trials(searched(), again, log=log, seed=5) == whole
    assert again.numbers == list(range(stop, 14))
    assert log.read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_more_trials_continue_from_fewer(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    run_trials(searched(5), quality, log=log, seed=8)
    more = Counted()
    trials = run_trials(searched(12), more, log=log, seed=8)
    assert more.numbers == list(range(5, 12))
    assert trials == run_trials(searched(12), quality, log=tmp_path / "whole.json", seed=8)
    assert run_trials(searched(5), Counted(stop=0), log=log, seed=8) == trials[:5]


OTHER_SPACE = {"trials": 3, "space": SPACE | {"clipping": ["automatic", "fixed"]}}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 10},
        {"identity": {"data": "b"}},
        {"max_grad_norm": 2.0},
        {"search": OTHER_SPACE},
        "",
        "{",
        "{}",
    ],
)
def test_a_log_of_another_search_is_not_believed(
    tmp_path: Path, change: dict[str, Any] | str, caplog: pytest.LogCaptureFixture
) -> None:
    log, again = tmp_path / "log.json", Counted()
    asked: dict[str, Any] = {"seed": 9, "identity": {"data": "a"}}
    run_trials(searched(3), quality, log=log, **asked)
    if isinstance(change, str):
        log.write_text(change)
        change = {}
    options = {name: value for name, value in change.items() if name not in asked}
    asked |= {name: value for name, value in change.items() if name in asked}
    run_trials(searched(3, **options), again, log=log, **asked)
    assert again.numbers == [0, 1, 2]
    assert "starts from its first trial" in caplog.text


def test_there_is_one_writer(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    lock = FileLock(tmp_path / "log.json.lock", fallback_to_soft=False)
    with lock, pytest.raises(StoreError, match="another process is running this search"):
        run_trials(searched(2), quality, log=log, seed=1)
    assert len(run_trials(searched(2), quality, log=log, seed=1)) == 2


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_diverged_trial_ranks_worst_and_does_not_stop_the_search(
    tmp_path: Path, bad: float
) -> None:
    def one_good(options: Options, number: int) -> float:  # noqa: ARG001
        return 0.01 if number == 3 else bad

    trials = run_trials(searched(12), one_good, log=tmp_path / "log.json", seed=2)
    assert [trial.score for trial in trials] == [None] * 3 + [0.01] + [None] * 8
    assert best_trial(trials).number == 3
    with pytest.raises(ConfigError, match="all 3 trials diverged"):
        best_trial(trials[:3])


def test_a_search_distinguishes_int_and_float_values_that_compare_equal() -> None:
    options = searched(search={"trials": 2, "space": {"learning_rate": [1, 1.0, 2]}})
    assert options.search is not None
    trials = [Trial(number=0, values={"learning_rate": 1.0}, score=0.5)]
    assert suggest_values(options.search, trials, 0)["learning_rate"] in (1, 2)
    restored = Trial.model_validate_json(trials[0].model_dump_json())
    assert type(restored.values["learning_rate"]) is float


@pytest.mark.parametrize(
    "space",
    [
        {"learning_rate": [0.003, 0.01, 0.03, 0.06]},
        {
            "learning_rate": [0.1, 1.0],
            "clipping": ["fixed", "automatic"],
        },
    ],
)
def test_lists_are_tried_whole_before_anything_comes_twice(
    space: dict[str, Any], tmp_path: Path
) -> None:
    for seed in range(5):
        options = searched(search={"trials": 6, "space": space})
        trials = run_trials(options, quality, log=tmp_path / f"{seed}.json", seed=seed)
        first = [tuple(trial.values.values()) for trial in trials[:4]]
        assert len(set(first)) == 4
        assert {tuple(trial.values.values()) for trial in trials} == set(first)
    narrow = space | {"backbone_rate": {"low": 0.5, "high": 0.5000001}}  # rounds to one number
    options = searched(search={"trials": 12, "space": narrow})
    trials = run_trials(options, quality, log=tmp_path / "log.json", seed=1)
    assert {trial.values["backbone_rate"] for trial in trials} == {0.5}


def test_values_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    space: dict[str, tuple[Any, ...]] = {"ema_decay": (0.9, 0.99), "average": ("ema", "last")}
    options = searched(30, average="ema", search={"trials": 2, "space": {"ema_decay": [0.9, 0.8]}})
    assert options.search is not None
    search = options.search.model_copy(update={"space": space})
    clashing = options.model_copy(update={"search": search.model_copy(update={"trials": 30})})
    with pytest.raises(ConfigError, match=r"search.space: ema_decay .*average 'last': ema_decay"):
        run_trials(clashing, quality, log=tmp_path / "log.json", seed=1)


def test_every_value_of_a_search_is_checked() -> None:
    space = {
        "learning_rate": [0.01 * number for number in range(1, 301)],
        "max_grad_norm": [1.0, 2.0],
        "backbone_rate": [1.0, -1.0],
    }
    with pytest.raises(ConfigError, match=r"search.space: backbone_rate -1\.0"):
        method_options({"head": "fine_tune", "tune": "all", "search": {"space": space}})
