"""Runs the default study, with fewer epsilons and seeds, and checks a first-time user's results.

`tests/workflow/test_planned_jobs.py` checks all its jobs.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.files.json_files import read_json
from tests.support.picture_texts import find_stale, load_pictures, page_text, read_texts
from tests.support.programs import run_program

from .conftest import Workspace, count_rules

SAID = "said.txt"  # output of the run of `finished`


@pytest.fixture(scope="module")
def study(repository: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((repository / "config.yaml").read_text())
    return values | {"epsilons": [0.5, 8], "seeds": 2, "features": {"shards": 2}}


@pytest.fixture(scope="module")
def trained(module_workspace: Callable[[str], Workspace], study: dict[str, Any]) -> Workspace:
    """Returns the study with all cells."""
    workspace = module_workspace("default")
    workspace.run(study, "heads")
    return workspace


@pytest.fixture(scope="module")
def finished(trained: Workspace, study: dict[str, Any]) -> Workspace:
    """Returns the finished study."""
    (trained.directory / SAID).write_text(trained.run(study).stdout)
    return trained


def metrics(workspace: Workspace, backbone: str, method: str, epsilon: str) -> dict[str, Any]:
    return read_json(workspace.cell(method, epsilon, backbone) / "metrics.json")


def test_accuracies_are_those_of_real_digits(trained: Workspace) -> None:
    def accuracy(backbone: str, method: str, epsilon: str) -> float:
        return float(metrics(trained, backbone, method, epsilon)["summary"]["accuracy"]["mean"])

    for backbone in ("scattering", "pixels"):
        ceiling = accuracy(backbone, "nonprivate", "inf")
        assert ceiling > 0.94
        assert accuracy(backbone, "auto", "8") > 0.85
        assert accuracy(backbone, "sgd", "8") > 0.7
        assert accuracy(backbone, "sgd", "0.5") < accuracy(backbone, "sgd", "8") < ceiling + 0.01


def test_every_private_cell_states_what_was_promised(trained: Workspace) -> None:
    statements = list((trained.directory / "results/cells").rglob("privacy.json"))
    assert len(statements) == 2 * (4 * 2 + 1)
    for path in statements:
        statement = read_json(path)
        record = read_json(path.parent / "metrics.json")
        if record["private"]:
            target = float(record["cell"]["epsilon"])
            assert 0.99 * target <= record["realised_epsilon"] <= target
            assert statement["mode"] == "benchmark"
        else:
            assert record["cell"]["epsilon"] == "inf"


def test_demo_prints_next_steps(finished: Workspace) -> None:
    done = run_program(
        [sys.executable, "-m", "dpprobe", "results"], cwd=finished.directory, timeout=120
    )
    assert (finished.directory / SAID).read_text().endswith(done.stdout), "as every run ends"
    lines = done.stdout.splitlines()
    store = "server --backend-store-uri sqlite:///results/mlflow.db"
    assert sum(store in line for line in lines) == 1
    assert sum("http://127.0.0.1:5000" in line for line in lines) == 1
    assert any("webbrowser results/report.html" in line for line in lines)
    assert any(line.startswith("scattering") for line in lines)
    assert any("the best private head reaches" in line for line in lines)
    assert len(lines) <= 25


HEALED = (
    "data/digits/dataset.json",
    "results/features/digits/pixels/test/manifest.json",
    "results/calibration/digits/eps-8.json",
    "results/cells/digits/pixels/sgd/eps-8/predictions.parquet",
    "results/embeddings/digits/pixels/tsne.parquet",
    "results/summary/digits.parquet",
    "results/figures/digits/accuracy.svg",
    "results/figures/digits/tsne_pixels.png",
    "results/tables/accuracy.md",
    "results/tables/digits_accuracy.csv",
    "results/tracking/digits.json",
    "results/tracking/_study.json",
    "results/report.html",
)


@contextmanager
def deleted(workspace: Workspace, names: Sequence[str]) -> Iterator[None]:
    """Moves files and folders of a workspace away for a while."""
    aside = workspace.directory / "aside"
    try:
        for name in names:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace.directory / name).rename(aside / name)
        yield
    finally:
        for name in names:
            (aside / name).rename(workspace.directory / name)
        shutil.rmtree(aside)


def test_deleted_files_are_planned_again(finished: Workspace, study: dict[str, Any]) -> None:
    """The reason must be the missing file itself, not another job that runs again."""
    with deleted(finished, HEALED):
        output = finished.run(study, "--dry-run").stdout
    missing = ", ".join(re.findall(r"Missing output files: ([^;\n]*)", output)).split(", ")
    assert set(HEALED) <= set(missing), "nothing would make them again"


# For each target: deleted files, and jobs that recreate them. The study has one dataset with two
# splits in two shards each, two backbones, and epsilons 0.5, 8 and inf (only its ceiling).
STAGES: dict[str, tuple[list[str], dict[str, int]]] = {
    "data": (["data/digits"], {"prepare_data": 1}),
    "features": (["results/features"], {"extract_features": 2 * 2 * 2, "write_manifest": 2 * 2}),
    "calibrations": (["results/calibration"], {"calibrate": 3}),
    "heads": (
        ["results/cells", "results/calibration"],
        {"calibrate": 3, "train_heads": 2 * 2, "train_heads_without_privacy": 2},
    ),
    "embeddings": (["results/embeddings"], {"embed_tsne": 2}),
    "summaries": (["results/summary"], {"summarise": 1}),
    "tables": (
        ["results/tables", "results/summary"],
        {"summarise": 1, "write_dataset_table": 1, "write_tables": 1},
    ),
    "paper_tables": (["results/tables"], {"write_paper_tables": 1}),
    "figures": (
        ["results/figures"],
        {
            "plot_accuracy": 1,
            "plot_comparison": 1,
            "plot_dataset_tsne": 1,
            "plot_time_cost": 1,
            "plot_tsne": 2,
        },
    ),
    "html_report": (["results/report.html"], {"write_report": 1}),
    "tracking": (["results/tracking"], {"track": 1, "write_study_run": 1}),
}


@pytest.mark.parametrize("target", STAGES)
def test_a_stage_makes_all_that_it_names(
    finished: Workspace, study: dict[str, Any], target: str
) -> None:
    names, jobs = STAGES[target]
    with deleted(finished, names):
        assert finished.planned(study, target) == {target: 1, **jobs}


# Rules whose jobs belong to the whole study.
STUDY_WIDE = {
    "all",
    "plot_datasets",
    "plot_distribution_shift",
    "write_tables",
    "write_paper_tables",
    "write_report",
    "write_study_run",
}


def test_a_dataset_s_target_makes_all_of_the_dataset(
    finished: Workspace, study: dict[str, Any]
) -> None:
    for names in (
        ["data/digits", "results/calibration/digits"],
        ["results/embeddings/digits", "results/figures/digits", "results/cells/digits"],
    ):
        with deleted(finished, names):
            whole = finished.planned(study)
            dataset = finished.planned(study, "track_digits")
        assert dataset.pop("track_digits") == 1
        assert dataset == {rule: count for rule, count in whole.items() if rule not in STUDY_WIDE}


def test_a_deleted_mlflow_store_is_written_again(
    finished: Workspace, study: dict[str, Any]
) -> None:
    (finished.directory / "results/mlflow.db").unlink()
    finished.planned(study)
    receipt = finished.directory / "results/tracking/digits.json"
    assert receipt.is_file(), "a dry run removes nothing"
    jobs = count_rules(finished.run(study).stdout)
    assert set(jobs) == {"track", "write_study_run", "all"}
    assert (finished.directory / "results/mlflow.db").is_file()


def test_deleting_one_shard_redoes_only_what_descends_from_it(
    finished: Workspace, study: dict[str, Any]
) -> None:
    features = finished.directory / "results/features/digits/pixels/train"
    shard = next(iter(sorted(features.glob("shard-*.h5"))))
    kept = shard.read_bytes()
    shard.unlink()
    output = finished.run(study, "features", "heads").stdout
    jobs = count_rules(output)
    assert jobs["extract_features"] == 1
    assert jobs["prepare_data"] == jobs["calibrate"] == 0
    assert "scattering" not in "".join(
        line for line in output.splitlines() if line.strip().startswith(("Finished", "Job "))
    )
    # equal rows give equal features, so no head is trained again: its cells are reused
    assert jobs["train_heads"] + jobs["train_heads_without_privacy"] == 3
    folder = finished.directory / "results/logs/train_heads/digits/pixels"
    logs = [path.read_text() for path in folder.glob("*.log")]
    assert len(logs) == 3
    assert all("reused" in log and "training seeds" not in log for log in logs)
    assert len(shard.read_bytes()) == len(kept)
    assert "Nothing to be done" in finished.run(study, "features", "heads").stdout


def test_the_pictures_of_the_readme_show_what_a_run_writes_today(
    finished: Workspace,
) -> None:
    results = finished.directory / "results"
    report = page_text(results / "report.html")
    figure = (results / "figures/digits/accuracy.svg").read_text(encoding="utf-8")
    drawn = "\n".join(load_pictures().read_svg_texts(figure))
    # two heads of the picture are as good as their baseline, but none with this study's epsilons
    stale = find_stale(read_texts("report.png"), report)
    assert [text for text in stale if "CI includes 0" not in text] == []
    noiseless = {"∞", "(no noise)"}  # only the picture's study has epsilon inf
    assert set(find_stale(read_texts("digits_accuracy.png"), drawn)) == noiseless
    # from the pictures of 25 November, which were stale three days later
    old = [
        "How accurate is a private classifier on these images?",
        "public learning curves predict 82% (64 to 95) with twice the images, 84% (67 to 96) "
        "with twice the budget, and 72% (49 to 91) here, where 92.4% was measured (details)",
    ]
    assert find_stale(old, report) == old
    assert find_stale(["mean of 5 seeds; bands: 95 %, t over seeds"], drawn) != []


# Each MLflow picture: experiment and key of the shown view.
VIEWS = {
    "mlflow_runs.png": ("digits", "dpprobe"),
    "mlflow_charts.png": ("digits/summary", "dpprobe"),
    "mlflow_private.png": ("digits", "dpprobe-private"),
    "mlflow_studies.png": ("all studies", "dpprobe"),
}


def test_the_pictures_of_mlflow_show_the_notes_and_views_of_today(
    finished: Workspace,
) -> None:
    store = finished.directory / "results/mlflow.db"
    with contextlib.closing(sqlite3.connect(store)) as database:
        tags = {
            (name, key): value
            for name, key, value in database.execute(
                "SELECT name, key, value FROM experiment_tags "
                "JOIN experiments USING (experiment_id)"
            )
        }
    for picture, (experiment, key) in VIEWS.items():
        shown = "\n".join(read_texts(picture))
        view = json.loads(tags[experiment, f"mlflow.sharedViewState.{key}"])["name"]
        # a link shows only its text
        note = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", tags[experiment, "mlflow.note.content"])
        assert find_stale([note, view], shown) == [], f"{picture}: run `make screenshots`"
