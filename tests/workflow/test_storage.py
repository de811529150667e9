"""Data and results can be in a storage provider, for jobs without a shared disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import WarmPython, Workspace, contents, copy_code, on_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("rsync") is None, reason="the plugin needs rsync"),
]

# Runs a job in an empty folder, with the sources and the snapshot that Snakemake provides. Jobs run
# one by one in a folder of fixed name, so rules are compiled only once.
SUBMIT = """
rm -rf {jobs}/here
mkdir -p {jobs}/here/.snakemake
cp -r {code}/* {jobs}/here
cp -r .snakemake/dpprobe {jobs}/here/.snakemake
cd {jobs}/here
log=$(mktemp {jobs}/XXXXXX)
{job} >$log 2>&1 && touch $log.done
basename $log
"""
STATUS = "test -e {jobs}/$1.done && echo success || echo failed"


@pytest.fixture(scope="module")
def storage(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Path]:
    """Returns a working directory with the code, and the provider's folder."""
    root = tmp_path_factory.mktemp("storage")
    directory = copy_code(repository, root / "code")
    shutil.rmtree(directory / "src")  # jobs import the installed package
    return Workspace(repository=directory, directory=directory), root / "bucket"


def words(bucket: Path, *, elsewhere: bool = True) -> list[str]:
    """Returns a run's options for the provider; `elsewhere` runs each job in an empty folder."""
    options = ["--default-storage-provider", "fs", "--default-storage-prefix", str(bucket)]
    options += ["--shared-fs-usage", "none"]
    if elsewhere:
        code, jobs = bucket.with_name("sources"), bucket.with_name("jobs")
        jobs.mkdir(exist_ok=True)
        submit = SUBMIT.format(jobs=jobs, code=code, job=WarmPython.job())
        options += on_cluster(bucket.parent, submit, STATUS.format(jobs=jobs))
    return options


def test_a_study_needs_no_shared_disk(
    storage: tuple[Workspace, Path], small: dict[str, Any], tmp_path: Path
) -> None:
    workspace, bucket = storage
    shutil.copytree(workspace.directory, bucket.with_name("sources"))
    targets = ("heads", "summaries", "figures", "html_report")
    workspace.run(small, *targets, *words(bucket))
    assert not (workspace.directory / "results/cells").exists()
    cell = bucket / "results/cells/digits/pixels/sgd/eps-2"
    assert (bucket / "results/report.html").is_file()
    again = workspace.run(small, *targets, *words(bucket))
    assert "Nothing to be done" in again.stdout

    on_disk = Workspace(repository=workspace.repository, directory=tmp_path)
    on_disk.run(small, "heads")
    for name in ("heads.safetensors", "predictions.parquet", "privacy.json"):
        assert (cell / name).read_bytes() == (on_disk.cell("sgd", "2") / name).read_bytes()

    # a failed job does not delete other jobs' cells
    before = contents(cell)
    small["epsilons"] = [2, 4]
    fails = on_cluster(bucket.parent, "echo 17", "echo failed")
    options = [*words(bucket, elsewhere=False), *fails]
    failed = workspace.run(small, "heads", *options, check=False)
    assert failed.returncode
    assert "Error in rule calibrate" in failed.stdout
    assert contents(cell) == before
    planned = workspace.planned(small, "heads", *words(bucket))
    assert (planned["calibrate"], planned["train_heads"]) == (1, 1)


def test_releases_refuse_a_storage_provider(
    storage: tuple[Workspace, Path], small: dict[str, Any]
) -> None:
    workspace, bucket = storage
    small["datasets"]["digits"]["split_by"] = "id"
    small["methods"]["sums"] = {"head": "feature_covariance", "normalize": "l2"}
    small["privacy"] = {"max_epsilon": 12}
    small["releases"] = {
        "first": {"dataset": "digits", "backbone": "pixels", "method": "sums", "epsilon": 2}
    }
    options = words(bucket, elsewhere=False)
    result = workspace.run(small, "release_first", *options, check=False)
    assert result.returncode
    assert "releases need a ledger with locks" in result.stdout
    assert not (bucket / "data/digits/ledger.jsonl").exists()
    small["results_dir"] = str(bucket / "absolute")
    result = workspace.run(small, "data", *options, check=False)
    assert "is an absolute path; write results_dir and data_dir relative" in result.stdout
