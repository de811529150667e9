"""Gradients of groups, compared with autograd row by row; groups that are left out, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.spatial.distance import cosine

from dpprobe.analyses.group_gradients import explain_skip, measure
from dpprobe.analyses.group_gradients.gradients_record import GradientsRecord
from dpprobe.analyses.group_gradients.options import GroupGradientsOptions
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads.registry import method_options
from tests.support.cell_files import write_cell
from tests.support.feature_stores import write_split

ROWS, DIMENSION, SEEDS = 120, 6, 2
UNUSABLE = [3, 50]
NAMES = ("a", "b", "c")
SOFTMAX = np.random.default_rng(0).integers(3, size=ROWS)
SEVERAL = (np.random.default_rng(1).random((ROWS, 3)) < 0.4).astype(np.int8)
SIDES = ["left" if row % 3 else "right" for row in range(ROWS - 9)] + ["rare"] * 7 + [""] * 2
PATIENTS = [f"p{row // 2}" if row < 80 else f"q{row}" for row in range(ROWS)]
FEATURES = np.random.default_rng(2).normal(size=(ROWS, DIMENSION)).astype(np.float32)
FEATURES[UNUSABLE] = [[np.nan], [1e20]]  # a null example, and a row too long for float32
ARRAYS = {"centre": np.random.default_rng(3).normal(size=(SEEDS, DIMENSION)).astype(np.float32) / 9}
WEIGHTS = np.random.default_rng(4).normal(size=(SEEDS, 3, DIMENSION + 1)).astype(np.float32)


def write_inputs(
    folder: Path, options: Mapping[str, Any], *, several: bool, patients: bool, **arrays: Any
) -> tuple[Path, Path]:
    """Writes a cell with random heads and its training features."""
    path = write_cell(
        folder,
        seeds=SEEDS,
        class_names=NAMES,
        multi_label=several,
        patients=9 if patients else None,
    )
    record = read_json(path) | {"dimension": DIMENSION, "options": dict(options)}
    write_json(path, record)
    save_file({"weights": WEIGHTS, **arrays}, path.with_name("heads.safetensors"))
    train = write_split(
        folder / "train",
        FEATURES,
        SEVERAL if several else SOFTMAX,
        units=PATIENTS if patients else None,
        groups={"group_side": SIDES},
        shards=2,
    )
    return path, train


def run(
    folder: Path, paths: tuple[Path, Path], *, memory_mb: int = 100, **options: Any
) -> GradientsRecord:
    measure.measure_group_gradients(
        [paths[0]],
        paths[1],
        folder / "record.json",
        options=GroupGradientsOptions(**{"minimum": 8, **options}),
        skipped={"ours": "no gradients"},
        memory_mb=memory_mb,
        dataset="digits",
        backbone="pixels",
        threads=1,
    )
    return GradientsRecord.read(folder / "record.json")


def expected_gradients(
    seed: int, *, several: bool, centre: bool, longest: float, constant: float
) -> np.ndarray:
    """Returns the gradients of all rows by autograd, float64 [rows, K, d + 1]; NaN if unusable."""
    found = []
    for row, label in zip(
        FEATURES.astype(np.float64), SEVERAL if several else SOFTMAX, strict=True
    ):
        x = row / np.linalg.norm(row)
        if centre:
            x = x - ARRAYS["centre"][seed]
            x = x / np.linalg.norm(x)
        x = x * min(1.0, longest / np.linalg.norm(x))
        weights = torch.tensor(WEIGHTS[seed].astype(np.float64))
        parameters = weights.clone()
        if constant:  # the bias is the constant times its parameter
            parameters[:, -1] /= constant
        parameters.requires_grad_()
        bias = constant * parameters[:, -1] if constant else weights[:, -1]
        logits = parameters[:, :-1] @ torch.tensor(x) + bias
        if several:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, torch.tensor(label, dtype=torch.float64), reduction="sum"
            )
        else:
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(label))
        found.append(torch.autograd.grad(loss, parameters)[0].numpy())
    return np.stack(found)


def expected_values(
    gradients: np.ndarray, each: np.ndarray, rows: np.ndarray, usable: np.ndarray, clip: float
) -> dict[str, float]:
    norms = np.linalg.norm(gradients, axis=(1, 2))
    clipped = gradients * np.minimum(1, clip / norms)[:, None, None]
    mine, whole, plain = (
        np.average(of[index], axis=0, weights=each[index]).ravel()
        for of, index in ((clipped, rows), (clipped, usable), (gradients, usable))
    )
    return {
        "median": np.median(norms[rows]),
        "p90": np.quantile(norms[rows], 0.9),
        "clipped": np.mean(norms[rows] > clip),
        "alignment": 1 - cosine(mine, whole),
        "unclipped_alignment": 1 - cosine(mine, plain),
    }


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sgd": ({"head": "sgd", "normalize": "l2", "learning_rate": 1, "max_grad_norm": 0.9}, {}),
    "class weights, centred rows": (
        {"head": "momentum", "class_weights": [1, 0.5, 0.2], "max_grad_norm": 0.6},
        {"centre": True, "constant": 0.2},
    ),
    "several labels, patients": (
        {"head": "adam", "loss": "sigmoid", "normalize": "l2", "max_grad_norm": 0.8},
        {"several": True, "constant": 0.2},
    ),
    "clipped rows": (
        {"head": "feature_covariance", "loss": "softmax", "normalize": "l2"}
        | {"max_row_norm": 0.5, "intercept": 0.6, "max_grad_norm": 0.4},
        {"longest": 0.5, "constant": 0.3},
    ),
    "no intercept": (
        {"head": "feature_covariance", "loss": "sigmoid", "intercept": 0, "max_grad_norm": 0.5},
        {"several": True, "centre": True, "constant": 0.0},
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_of_groups_equal_those_of_autograd(
    case: str, streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, changes = CASES[case]
    setting = {"several": False, "centre": False, "longest": 1.0, "constant": 1.0} | changes
    several = setting["several"]
    arrays = ARRAYS if setting["centre"] else {}
    monkeypatch.setattr(measure, "SUM_BYTES", 8 * 3 * (DIMENSION + 1) * 2)  # two groups at once
    paths = write_inputs(tmp_path, options, several=several, patients=several, **arrays)
    record = run(tmp_path, paths, groups=["side", "class"], memory_mb=0 if streamed else 100)
    (cell,) = record.cells
    clip = options["max_grad_norm"]
    assert (cell.max_grad_norm, cell.seeds, record.unusable) == (clip, SEEDS, len(UNUSABLE))
    each = np.ones(ROWS)
    if several:
        each = np.array([1 / PATIENTS.count(name) for name in PATIENTS])
    elif "class_weights" in options:
        each = np.array(options["class_weights"])[SOFTMAX]
    usable = np.setdiff1d(np.arange(ROWS), UNUSABLE)
    groups = {("all", "all"): usable}
    groups |= {
        ("side", name): np.array([row for row in usable if SIDES[row] == name])
        for name in ("left", "right")
    }
    has = SEVERAL > 0 if several else np.eye(3)[SOFTMAX] > 0
    groups |= {("class", name): usable[has[usable, k]] for k, name in enumerate(NAMES)}
    assert [(group.attribute, group.group) for group in cell.groups] == list(groups)
    gradients = [expected_gradients(seed, **setting) for seed in range(SEEDS)]
    for group, rows in zip(cell.groups, groups.values(), strict=True):
        wanted = [expected_values(of, each, rows, usable, clip) for of in gradients]
        for name in wanted[0]:
            seeds, found = [values[name] for values in wanted], getattr(group, name)
            spread = (found.mean, found.low, found.high)
            assert spread == pytest.approx((np.mean(seeds), min(seeds), max(seeds)), rel=1e-5), name
    assert 0 < cell.groups[0].clipped.mean < 1


def test_small_and_unnamed_groups_are_listed_with_a_reason(tmp_path: Path) -> None:
    record = run(tmp_path, write_inputs(tmp_path, CASES["sgd"][0], several=False, patients=False))
    (side,) = record.attributes
    found = {group.group: (group.rows, group.left_out) for group in side.groups}
    counts = {name: sum(SIDES[row] == name for row in range(ROWS)) for name in ("left", "right")}
    assert found == {
        "left": (counts["left"] - 1, None),  # one unusable row on each side, 3 and 50
        "right": (counts["right"] - 1, None),
        "rare": (7, "7 rows, 8 needed"),
        "(blank)": (2, "no group is named"),
    }
    assert [group.group for group in record.cells[0].groups] == ["all", "left", "right"]
    assert (record.rows, record.private) == (ROWS - 2, False)
    assert record.skipped == {"ours": "no gradients"}


def test_null_gradients_have_no_direction(tmp_path: Path) -> None:
    """With huge weights all rows of class a are right: gradients and clipped shares are 0."""
    paths = write_inputs(tmp_path, CASES["sgd"][0], several=False, patients=False)
    sure = np.zeros_like(WEIGHTS)
    sure[:, 0, -1] = 1e4
    save_file({"weights": sure}, paths[0].with_name("heads.safetensors"))
    record = run(tmp_path, paths, groups=["class"])
    groups = {group.group: group for group in record.cells[0].groups}
    assert groups["a"].alignment is groups["a"].unclipped_alignment is None
    assert groups["a"].p90.high == groups["a"].clipped.mean == 0
    wrong = 2**0.5 * 2**0.5  # residuals 1 and -1, for a row of norm 1 and its constant
    assert groups["b"].median.mean == pytest.approx(wrong, rel=1e-6)
    assert groups["b"].clipped.mean == 1


def test_cells_of_other_features_are_refused(tmp_path: Path) -> None:
    paths = write_inputs(tmp_path, CASES["sgd"][0], several=False, patients=False)
    write_json(paths[0], read_json(paths[0]) | {"dimension": 7})
    with pytest.raises(DataError, match=r"dimension 7 and 3 classes, but .* has 6 and 3; run the"):
        run(tmp_path, paths)


def test_a_head_that_auto_chose_may_have_no_gradients(tmp_path: Path) -> None:
    chosen = {"head": "auto", "rule": 3, "chosen": {"head": "least_squares"}}
    record = run(tmp_path, write_inputs(tmp_path, chosen, several=False, patients=False))
    assert record.cells == ()
    assert record.skipped["sgd"] == "head least_squares clips no gradients of examples"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head": "auto"}, None),
        ({"head": "lamb"}, None),
        ({"head": "newton", "max_grad_norm": 0.5}, None),
        ({"head": "newton", "max_grad_norm": None}, "head newton clips no gradients"),
        ({"head": "prototypes"}, "head prototypes clips no gradients"),
        ({"head": "nonprivate"}, "head nonprivate clips no gradients"),
        ({"head": "fine_tune", "tune": {"blocks": 2}}, "trains a network"),
        ({"head": "tuned", "base": {"head": "momentum"}}, "a search chooses options"),
        ({"head": "momentum", "normalize": "whitened"}, "a cell does not store the matrix"),
        ({"head": "momentum", "class_priors": "released"}, "class_priors change the head"),
    ],
)
def test_methods_without_such_gradients_are_named(
    options: dict[str, Any], reason: str | None
) -> None:
    found = explain_skip(method_options(options))
    assert found == reason if reason is None else str(found).startswith(reason)
