"""Canaries just below, at and just above the clipping norm reveal clipping that is 1% too loose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.audit import controls, white_box
from dpprobe.analyses.audit.canary_attack import Attack, Runs, make_worlds
from dpprobe.analyses.audit.clip_edges import near_clip
from dpprobe.analyses.audit.controls import lengthen_late_rows
from dpprobe.analyses.audit.white_box import NEAR_CLIP, audit_plan, audited_shape
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.second_order import Design
from tests.support.audits import METHODS, head, plan_of

N, WIDE, CLASSES = 300, 12, 4
ROWS = {
    f"{name}_rows": head(name, normalize="none")
    for name in ("least_squares", "prototypes", "newton")
}
ALL = METHODS | ROWS
Patch = Callable[[], AbstractContextManager[object]]


@contextmanager
def spare_band() -> Iterator[None]:
    """Leaves rows up to 1% above the clipping norm unclipped, and clips longer rows correctly."""
    make_design = Design.__init__

    def make_loose(design: Design, *args: Any, **options: Any) -> None:
        make_design(design, *args, **options)
        design.scale[(design.scale >= 1 / 1.01) & (design.scale < 1)] = 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Design, "__init__", make_loose)
        yield


@contextmanager
def loosen_all() -> Iterator[None]:
    """Clips to 1.01 times the norm in the code of every engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controls, "LATE_ROW", 0)
        patch.setattr(controls, "UNCLIPPED", 1.01)
        with lengthen_late_rows():
            yield


def make_cell(method: MethodOptions, patch: Patch) -> tuple[white_box.AuditedCell, Attack]:
    plan = plan_of(method, N, noise=3.0)
    shape = audited_shape(method, plan, WIDE, CLASSES, multi_label=False)
    cell = white_box.AuditedCell(method, plan, shape, 3, 8, 0.95)
    return cell, Attack(method=method, plan=plan, claim=plan, worlds=(), patch=patch)


def measure(method: MethodOptions, patch: Patch = nullcontext) -> dict[str, float]:
    """Returns the largest change of each sum by canaries near the clipping norm."""
    empty = np.zeros(0)
    runs = Runs(members=empty.astype(bool), releases=empty, bundle=empty)
    cell, attack = make_cell(method, patch)
    cell.add_near_clip(attack, runs)
    return runs.used


@pytest.mark.parametrize("name", ALL)
def test_no_sum_of_right_code_changes_by_more_than_its_sensitivity(name: str) -> None:
    used = measure(ALL[name])
    assert max(used.values()) <= 1 + (1e-12 if ALL[name].is_exact else 1e-5)
    assert max(used.values()) > 0.999
    assert set(used) == {item.name for item in plan_of(ALL[name], N).mechanisms}


@pytest.mark.parametrize("name", ALL)
def test_a_clip_that_is_looser_by_one_percent_changes_sums_by_more(name: str) -> None:
    """The excess is at least that of the canary above the norm."""
    assert max(measure(ALL[name], loosen_all).values()) > 1.0049


@pytest.mark.parametrize("name", ROWS)
def test_a_clip_that_spares_norms_just_above_shows_only_at_these_norms(name: str) -> None:
    method = ALL[name]
    # the row is 1.005 long; the constant, half the norm, is not clipped
    least = math.hypot(1.005, 0.5) / math.hypot(1, 0.5)
    assert max(measure(method, spare_band).values()) > least - 1e-4
    cell, _ = make_cell(method, spare_band)
    for length in (30.0, 1000.0):  # long canaries are clipped correctly
        plan = plan_of(method, N, noise=3.0)
        worlds = make_worlds(cell.shape, group=1, length=length, seed=3)
        long = Attack(method=method, plan=plan, claim=plan, worlds=(), patch=spare_band)
        assert max(map(np.max, long.measure_changes(worlds, 3).values())) <= 1 + 1e-12


@pytest.mark.parametrize("name", ["sgd", "exact_sgd", "sampled_exact_sgd", "momentum_centred"])
def test_the_first_gradient_of_each_canary_has_its_share_of_the_clip(name: str) -> None:
    cell, attack = make_cell(ALL[name], nullcontext)
    worlds = make_worlds(cell.shape, group=1, length=1.0, seed=3)
    firsts = [
        each.measure_changes(worlds, 3)[GRADIENTS][0]
        for each in near_clip(attack, worlds, 3, NEAR_CLIP)
    ]
    assert firsts == pytest.approx([0.99, 1.0, 1.0], abs=5e-4)


@pytest.mark.parametrize("name", ["sgd", "exact_sgd", "least_squares_rows"])
@pytest.mark.parametrize("patch", [nullcontext, loosen_all, spare_band])
def test_an_audit_fails_only_with_a_loose_clip(name: str, patch: Patch) -> None:
    if patch is spare_band and name != "least_squares_rows":
        pytest.skip("these heads clip gradients, not rows")
    with patch():
        parts, _ = audit_plan(
            ALL[name],
            plan_of(ALL[name], N, noise=3.0),
            dimension=WIDE,
            num_classes=CLASSES,
            multi_label=False,
            runs=8,
            confidence=0.95,
            seed=3,
            controls=False,
            progress_label="audit",
        )
    box = parts["white_box"]
    assert box["holds"] == (patch is nullcontext)
    (value,) = (test["p_value"] for test in box["tests"] if test["name"] == "sensitivity")
    assert value == float(patch is nullcontext)
    assert (max(box["sensitivity_used"].values()) > 1.0049) == (patch is not nullcontext)


def test_a_clip_that_a_method_leaves_out_has_no_canary() -> None:
    counts = head("newton", max_grad_norm=None)
    cell, attack = make_cell(counts, nullcontext)
    worlds = make_worlds(cell.shape, group=1, length=1.0, seed=3)
    assert len(list(near_clip(attack, worlds, 3, NEAR_CLIP))) == len(NEAR_CLIP), "rows alone"
