"""Snakemake makes each final release once and adds it to MLflow; commands can use releases."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dpprobe.release.bundle import BUNDLE_FILES, bundle_digest
from dpprobe.release.ledger.ledger import Ledger

from .conftest import SMALL, Workspace, contents, count_rules

STUDY: dict[str, Any] = copy.deepcopy(SMALL) | {
    "datasets": {"digits": {"source": "sklearn", "name": "digits", "split_by": "id"}},
    "methods": {
        "sgd": {"head": "sgd", "batch_size": 64, "epochs": 2},
        "covariance": {"head": "feature_covariance", "normalize": "l2"},
    },
    "features": {"shards": 1},
    "privacy": {"max_epsilon": 12},
    "releases": {
        "first": {
            "dataset": "digits",
            "backbone": "pixels",
            "method": "covariance",
            "epsilon": 8,
            "evaluate": {"epsilon": 2},
            "card": {"license": "apache-2.0"},
        },
        "second": {
            "dataset": "digits",
            "backbone": "pixels",
            "method": "covariance",
            "epsilon": 1,
            "predecessor": "first",
        },
    },
}

RELEASES = "results/releases"


def changed(**options: Any) -> dict[str, Any]:
    """Returns the study with `options` added to its second release."""
    study = copy.deepcopy(STUDY)
    study["releases"]["second"] |= options
    return study


@pytest.fixture(scope="module")
def workspace(module_workspace: Callable[[str], Workspace]) -> Workspace:
    """Returns a folder with both releases, which the tests do not change."""
    workspace = module_workspace("releases")
    releases = workspace.directory / RELEASES
    workspace.run(STUDY, "release_first")
    assert not (releases / "second").exists(), "only what was asked for is made"
    assert not (workspace.directory / "results/cells").exists(), "no benchmark is needed"
    workspace.run(STUDY, "releases")
    return workspace


@pytest.fixture(scope="module")
def made(workspace: Workspace) -> dict[str, dict[str, bytes]]:
    """Returns the files of both releases."""
    return {name: contents(workspace.directory / RELEASES / name) for name in ("first", "second")}


def test_a_release_is_made_once(workspace: Workspace, made: dict[str, dict[str, bytes]]) -> None:
    releases = workspace.directory / RELEASES
    assert all(set(files) == set(BUNDLE_FILES) for files in made.values())
    assert "Nothing to be done" in workspace.run(STUDY, "releases").stdout

    # releases are final: even if Snakemake repeats the rule, no noise is drawn again
    (releases / ".second.done").unlink()
    forced = workspace.run(STUDY, "releases", "--forcerun", "prepare_data", "make_release")
    assert count_rules(forced.stdout)["make_release"] == 2
    assert {name: contents(releases / name) for name in made} == made
    ledger = Ledger.of_dataset(workspace.directory / "data", "digits")
    assert [entry.state for entry in ledger.read_entries()] == ["closed", "closed"]
    for entry in ledger.read_entries():
        assert entry.digest == bundle_digest(releases / entry.booking.release)


def test_changed_options_and_exceeded_budgets_are_refused(
    workspace: Workspace, made: dict[str, dict[str, bytes]]
) -> None:
    """Tries a finished release's name and a new name."""
    releases = workspace.directory / RELEASES
    output = workspace.run(changed(epsilon=2), "release_second", check=False)
    assert output.returncode
    assert "a release is final: give this one another name" in output.stdout
    third = changed()
    third["releases"]["third"] = third["releases"]["second"] | {"epsilon": 11}
    output = workspace.run(third, "release_third", check=False)
    assert output.returncode
    assert "max_epsilon" in output.stdout
    assert not (releases / "third").exists()
    assert {name: contents(releases / name) for name in made} == made


def test_mlflow_and_the_commands_know_a_release(
    workspace: Workspace, made: dict[str, dict[str, bytes]]
) -> None:
    for number, name in enumerate(made, 1):
        receipt = workspace.directory / f"results/tracking/releases/{name}.json"
        assert json.loads(receipt.read_text())["models"] == {"small.release.first": str(number)}

    # commands
    verified = workspace.dpprobe("verify", "results/releases/first")
    assert (verified.returncode, verified.stdout.split(":")[0]) == (0, "verified"), verified
    chained = ("verify", "results/releases/second", "--predecessor", "results/releases")
    verified = workspace.dpprobe(*chained)
    assert (verified.returncode, "first: undamaged" in verified.stdout) == (0, True), verified
    rolled_back = workspace.dpprobe("rollback", "results/releases/second")
    assert "@released: version 1, first" in rolled_back.stdout, rolled_back
    shown = workspace.dpprobe("ledger", "data/digits")
    assert shown.returncode == 0, shown
    assert "first" in shown.stdout
    images = workspace.directory / "images"
    images.mkdir()
    digits = load_digits()
    for row in range(200):
        pixels = (digits.images[row] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(images / f"{row:03d}.png")
    (images / "broken.png").write_text("no image")
    predicted = workspace.dpprobe("predict", "results/releases/first", "images")
    assert predicted.returncode == 3, predicted.stderr
    rows = [line.split(",") for line in predicted.stdout.splitlines()]
    classes = [row[1] for row in rows[1:201]]
    right = np.mean(
        [name == str(target) for name, target in zip(classes, digits.target[:200], strict=True)]
    )
    assert right > 0.8


def test_exchanged_folders_are_reported_in_one_line(
    workspace: Workspace, made: dict[str, dict[str, bytes]]
) -> None:
    releases = workspace.directory / RELEASES
    other = releases.with_name("other")
    told = "releases/first (and 1 more) holds the release 'second'; `dpprobe doctor`"
    for exchanged in (True, False):
        for name, new in (("first", other), ("second", releases / "first")):
            (releases / name).rename(new)
        other.rename(releases / "second")
        output = workspace.run(STUDY, "releases", "--dry-run").stdout
        assert output.count("holds the release") == exchanged
        assert (told in output) == exchanged
    assert {name: contents(releases / name) for name in made} == made
    assert {path.name for path in (workspace.directory / "data/digits").glob("release-*")} == {
        "release-folders.jsonl"
    }


def test_an_edited_release_is_reported_and_only_restored(
    workspace: Workspace, made: dict[str, dict[str, bytes]]
) -> None:
    releases = workspace.directory / RELEASES
    altered = releases / "first/bundle.json"
    altered.write_text(altered.read_text().replace('"0"', '"o"', 1))
    assert workspace.dpprobe("verify", "results/releases/first").returncode == 1
    output = workspace.run(STUDY, "releases", "--forcerun", "make_release", check=False)
    assert output.returncode
    assert "bundle.json: differs from the stored release first; delete it" in output.stdout
    altered.unlink()
    workspace.run(STUDY, "releases")
    assert {name: contents(releases / name) for name in made} == made
