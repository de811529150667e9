"""Methods that cannot train on so many features are known before there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads import dimension_limits, second_order
from dpprobe.heads.dimension_limits import MOST_FEATURES, SECOND_ORDER, dimension_fault
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.target import Target


@pytest.mark.parametrize("head", sorted(SECOND_ORDER))
def test_second_order_heads_are_refused_above_it(head: str) -> None:
    options = method_options({"head": head})
    assert dimension_fault(options, MOST_FEATURES) is None
    fault = dimension_fault(options, 15_552)
    assert fault is not None
    assert fault.startswith(f"head {head}: 15552 features")
    assert f"up to {MOST_FEATURES}" in fault
    assert "write head: momentum" in fault
    search = {"ridge": {"low": 1, "high": 10, "log": True}}
    tuned = method_options({"head": "tuned", "base": {"head": head}, "search": search})
    assert dimension_fault(tuned, 15_552) == fault


def test_whitening_is_refused_above_it() -> None:
    options = method_options({"head": "momentum", "normalize": "whitened"})
    assert dimension_fault(options, MOST_FEATURES) is None
    assert "write normalize: centred" in str(dimension_fault(options, MOST_FEATURES + 1))


@pytest.mark.parametrize("head", ["momentum", "sgd", "prototypes", "nonprivate"])
def test_others_take_any_number(head: str) -> None:
    assert dimension_fault(method_options({"head": head}), 10**6) is None


@pytest.mark.parametrize("head", [*sorted(SECOND_ORDER), "prototypes", "momentum", "nonprivate"])
def test_heads_that_sum_outer_products_are_the_listed_ones(
    head: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = head in SECOND_ORDER
    options = method_options({"head": head})
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    plan = calibrate(
        options.list_mechanisms(30),
        Target(n=30, epsilon=1.0 if options.private else float("inf"), delta=1e-3),
        cache=tmp_path,
    )
    data = TrainingSet(rows, torch.arange(30) % 2, 2)
    summed: list[int] = []
    second_moment = second_order.second_moment

    def counted(design: second_order.Design, *args: Any) -> GridSum:
        summed.append(design.rows.dimension)
        return second_moment(design, *args)

    monkeypatch.setattr(second_order, "second_moment", counted)
    fit_heads(options, data, plan, [1])
    assert bool(summed) == refused
    monkeypatch.setattr(dimension_limits, "MOST_FEATURES", 4)
    summed.clear()
    if refused:
        with pytest.raises(ConfigError, match=f"head {head}: 5 features.* write head: momentum"):
            fit_heads(options, data, plan, [1])
    else:
        fit_heads(options, data, plan, [1])
    assert not summed


def test_parts_of_a_row_must_divide_it() -> None:
    groups = {"kind": "group_norm", "groups": 27}
    options = method_options({"head": "momentum", "learning_rate": 1, "normalize": groups})
    assert dimension_fault(options, 15_552) is None
    assert dimension_fault(options, 1280) == (
        "normalize.groups: 27 does not divide 1280, the number of features; write a divisor of 1280"
    )
    channels = {"kind": "channels", "channels": 243, "max_mean_norm": 1, "max_deviation_norm": 1}
    options = method_options({"head": "momentum", "learning_rate": 1, "normalize": channels})
    assert dimension_fault(options, 15_552) is None
    assert str(dimension_fault(options, 1280)).startswith("normalize.channels: 243 does not divide")
