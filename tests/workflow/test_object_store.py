"""A study whose data and results lie in an object store, by Snakemake's s3 plugin."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.object_store import BUCKET, CREDENTIALS, object_store

from .conftest import TIMEOUT, Template, Workspace

PREFIX = f"s3://{BUCKET}/folder"
STORE = ["--default-storage-provider", "s3", "--default-storage-prefix", PREFIX]
CELLS = "folder/results/cells/"


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    small["epsilons"] = [1, 2]
    return small


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with object_store() as (address, client):
        monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_ENDPOINT_URL", address)
        yield client


def keys(client: Any, prefix: str = "") -> dict[str, str]:
    """The objects of the bucket, with the hash of each one's content."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}


def kill_when(workspace: Workspace, study: dict[str, Any], reached: Callable[[], bool]) -> None:
    """Runs heads with the store, and kills Snakemake and its jobs once a state is reached."""
    command = workspace.command("heads", *STORE, "--configfile", str(workspace.write(study)))
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + TIMEOUT
    while not reached():
        assert process.poll() is None, "finished before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_run_goes_on_with_what_is_in_the_bucket_and_gives_the_bytes_of_a_disk(
    module_workspace: Callable[[str], Workspace],
    workspace: Workspace,
    study: dict[str, Any],
    template: Template,
    bucket: Any,
) -> None:
    disk = module_workspace("disk")
    template(disk, study, "heads")

    def has_shard() -> bool:
        return any(key.endswith(".h5") for key in keys(bucket))

    kill_when(workspace, study, has_shard)
    finished = keys(bucket, "folder/data/")
    assert len(finished) == 3
    workspace.run(study, "--unlock", *STORE)
    workspace.run(study, "heads", "--rerun-incomplete", *STORE)
    assert keys(bucket, "folder/data/") == finished
    for epsilon in ("1", "2"):
        body = bucket.get_object(
            Bucket=BUCKET, Key=f"{CELLS}digits/pixels/sgd/eps-{epsilon}/metrics.json"
        )["Body"].read()
        assert body == (disk.cell("sgd", epsilon) / "metrics.json").read_bytes()
    # logs stay, copies do not
    assert list((workspace.directory / "results/logs").rglob("*.log"))
    assert not list((workspace.directory / "results").rglob("*.h5"))
    assert not [key for key in keys(bucket) if "/logs/" in key or "/benchmarks/" in key]

    # a machine that has nothing but the study sees what is there, and what is not of this study
    elsewhere = module_workspace("elsewhere")
    assert not elsewhere.planned(study, "heads", *STORE)["train_heads"]
    study["methods"]["sgd"]["batch_size"] = 128
    assert elsewhere.planned(study, "heads", *STORE)["train_heads"] == 2


def test_a_study_that_cannot_work_there_is_told_in_one_line(
    workspace: Workspace, study: dict[str, Any], bucket: Any
) -> None:
    study["results_dir"] = str(workspace.directory / "results")
    result = workspace.run(study, "--dry-run", *STORE, check=False)
    assert result.returncode
    assert f"dpprobe: results_dir: {study['results_dir']}: with an object store" in result.stdout
    assert "Traceback" not in result.stdout
    assert not keys(bucket)
