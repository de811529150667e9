"""A study from an earlier version of dpprobe, made in another folder, continues with today's code.

The archives in tests/stored/studies are complete studies, named after the commit that made them.
This is part of `make test` without a separate step in `.ci/run`, and needs no network.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.stats import norm

from dpprobe.release.ledger.ledger import Ledger
from dpprobe.results.cell_files import METRICS_FILE, STATEMENT_FILE, WEIGHTS_FILE
from dpprobe.versions import VERSIONS
from tests.conftest import REPOSITORY

from .conftest import Workspace, contents, count_rules

pytestmark = pytest.mark.slow

ARCHIVE = REPOSITORY / "tests/stored/studies/429d023c.tar.xz"
STATEMENT = 6  # version of this stage when the archive was made
SECOND = {
    "dataset": "digits",
    "backbone": "pixels",
    "method": "covariance",
    "epsilon": 1,
    "predecessor": "first",
}
# Methods of the archive whose current `fit_version` is higher than in the archive.
CHANGED = {"covariance"}
LEDGER = "data/digits/ledger.jsonl"
# An update does not change features, heads of other methods, or the first release.
KEPT = (
    "data/digits/*.parquet",
    "results/features/**/*.h5",
    f"results/cells/**/{WEIGHTS_FILE}",
    "results/releases/first/*",
)


def read_kept(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for kind in KEPT for path in folder.glob(kind)}


@dataclass(frozen=True)
class Updated:
    """The study with a second release, before and after the first run with today's code."""

    workspace: Workspace
    study: dict[str, Any]
    kept: dict[Path, bytes]
    ledger: bytes
    planned: str
    output: str
    statement: int  # version of this stage in the files

    @property
    def results(self) -> Path:
        return self.workspace.directory / "results"


def lower_statements(folder: Path) -> int:
    """Returns the stage `statement`'s version in Snakemake's records; lowers a current version."""
    if VERSIONS["statement"] != STATEMENT:
        return STATEMENT
    for path in (folder / ".snakemake/metadata").iterdir():
        noted = json.loads(path.read_text())
        if noted["rule"].startswith("train_heads"):
            noted["params"].remove(f"{STATEMENT}")
            path.write_text(json.dumps(noted | {"params": [*noted["params"], f"{STATEMENT - 1}"]}))
    return STATEMENT - 1


@pytest.fixture(scope="module")
def updated(module_workspace: Callable[[str], Workspace]) -> Updated:
    workspace = module_workspace("updated")
    folder = workspace.directory
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    study = yaml.safe_load((folder / "study.yaml").read_text())
    study["releases"]["second"] = SECOND
    statement = lower_statements(folder)
    kept, ledger = read_kept(folder), (folder / LEDGER).read_bytes()
    planned = workspace.run(study, "--dry-run", "all", "releases").stdout
    output = workspace.run(study, "all", "releases").stdout
    return Updated(workspace, study, kept, ledger, planned, output, statement)


def test_an_update_keeps_data_and_features_and_lists_reruns(updated: Updated) -> None:
    jobs = count_rules(updated.planned)
    assert jobs["train_heads"] + jobs["train_heads_without_privacy"] == 3
    assert not {"prepare_data", "extract_features", "write_manifest", "embed_tsne"} & jobs.keys()
    for said in (updated.planned, updated.output):
        (line,) = [
            line
            for line in said.splitlines()
            if line.startswith("dpprobe: ") and "stage statement" in line
        ]
        numbers = Counter(map(int, re.findall(r"\d+", line)))
        assert numbers == Counter([5, VERSIONS["statement"], updated.statement]), (
            "cells, and both versions"
        )


def test_only_changed_heads_are_trained_again_and_the_first_release_stays(updated: Updated) -> None:
    weights = [path for path in updated.kept if path.name == WEIGHTS_FILE]
    assert len(weights) == 5
    assert len([path for path in updated.kept if "first" in path.parts]) > 5
    stale = {path for path in weights if path.parts[-3] in CHANGED}
    now = read_kept(updated.workspace.directory)
    assert {path for path, content in updated.kept.items() if now[path] != content} == stale
    assert now.keys() == updated.kept.keys()
    log = "\n".join(
        path.read_text() for path in (updated.results / "logs").glob("train_heads*/**/*.log")
    )
    trained = re.findall(r"(\w+): training seeds 0, 1\n", log)
    assert sorted(trained) == sorted(path.parts[-3] for path in stale)
    for path in weights:
        cell = json.loads((path.parent / METRICS_FILE).read_text())
        assert [seed["index"] for seed in cell["seeds"]] == [0, 1]
        assert (path.parent / STATEMENT_FILE).is_file()
    assert "pixels" in (updated.results / "report.html").read_text()
    assert "Nothing to be done" in updated.workspace.run(updated.study, "all", "releases").stdout


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """Returns epsilon at delta of a Gaussian mechanism with sensitivity 1 and deviation 1 / mu."""

    def excess(epsilon: float) -> float:
        low, high = -epsilon / mu - mu / 2, -epsilon / mu + mu / 2
        return float(norm.cdf(high) - math.exp(epsilon) * norm.cdf(low) - delta)

    return float(brentq(excess, 0, 100, xtol=1e-12))


def test_the_second_release_is_booked_on_the_old_ledger(updated: Updated) -> None:
    text = (updated.workspace.directory / LEDGER).read_bytes()
    assert text.startswith(updated.ledger)
    assert len(text) > len(updated.ledger)
    ledger = Ledger.of_dataset(updated.workspace.directory / "data", "digits")
    entries = ledger.read_entries()
    assert [(each.number, each.booking.release, each.state) for each in entries] == [
        (1, "first", "closed"),
        (2, "second", "closed"),
    ]

    # compute the total epsilon from the noise in the ledger's lines
    booked = [json.loads(line)["booking"] for line in text.splitlines() if b'"book"' in line]
    squares: Counter[str] = Counter()
    for booking in booked:
        (train, *_) = [part for part in booking["parts"] if part["side"] == "train"]
        for each in train["mechanisms"]:
            assert each["sample_rate"] == 1
            squares[booking["release"]] += each["count"] / each["noise_multiplier"] ** 2
    delta = 1e-5
    alone = {name: epsilon_of_gaussian(math.sqrt(mu), delta) for name, mu in squares.items()}
    assert alone["first"] == pytest.approx(3, abs=1e-3)
    assert alone["second"] == pytest.approx(1, abs=1e-3)
    mu = math.sqrt(squares.total())
    total = epsilon_of_gaussian(mu, delta)
    assert 3 < total < 4
    pessimistic = from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    assert pessimistic.get_epsilon_for_delta(delta) == pytest.approx(total, abs=1e-3)
    spent = ledger.compute_spent(delta)
    assert spent.entries == 2
    assert spent.epsilon == pytest.approx(total, abs=1e-5)
    assert spent.epsilon >= total
    statement = json.loads((updated.results / "releases/second/privacy.json").read_text())
    assert f"{spent.epsilon:g}" in json.dumps(statement)


def test_tracking_makes_the_store_of_the_other_folder_again(updated: Updated) -> None:
    here = (updated.results / "mlartifacts").as_uri()
    with closing(sqlite3.connect(updated.results / "mlflow.db")) as connection:
        addresses = [uri for (uri,) in connection.execute("select artifact_uri from runs")]
        models = connection.execute("select name, version from model_versions").fetchall()
    assert all(uri.startswith(f"{here}/") for uri in addresses)
    receipts = [
        json.loads(path.read_text()) for path in (updated.results / "tracking").rglob("[!.]*.json")
    ]
    assert len(addresses) == sum(len(receipt["runs"]) for receipt in receipts)
    assert sorted(models) == [("stored.release.first", 1), ("stored.release.first", 2)]
    with closing(sqlite3.connect(updated.results / "mlflow.db.moved")) as connection:
        (old,) = connection.execute("select count(*) from runs").fetchone()
    assert old == len(addresses) - 1, "all but the second release"
    lines = [line for line in updated.output.splitlines() if "mlflow.db.moved" in line]
    assert len(lines) == 1


def test_the_old_release_passes_for_a_predecessor(updated: Updated) -> None:
    """Today's code verifies the second release's bundle with the first as its predecessor."""
    bundle = updated.results / "releases/second"
    assert contents(bundle)
    verified = updated.workspace.dpprobe(
        "verify", "results/releases/second", "--predecessor", "results/releases"
    )
    assert (verified.returncode, verified.stdout.split(":")[0]) == (0, "verified"), verified
