"""Methods that cannot train on so many features are known before there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads import dimension_limits, second_order
from dpprobe.heads.dimension_limits import SECOND_ORDER
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.target import Target


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
