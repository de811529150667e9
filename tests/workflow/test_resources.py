"""What jobs ask a cluster for: by the size of their data, and more when they are tried again."""

from __future__ import annotations

import json
import os
from typing import Any

from .conftest import PREPARED, Template, Workspace

# Takes what Snakemake says of a job, and refuses the job.
RECORDER = """#!/bin/sh
sed -n 's/^# properties = //p' "$1" >>properties.txt
exit 1
"""


def asked(
    workspace: Workspace, study: dict[str, Any], *arguments: str, retries: int = 0
) -> list[dict[str, Any]]:
    """The resources of every job that would be submitted, first come first."""
    recorder = workspace.directory / "recorder.sh"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    found = workspace.directory / "properties.txt"
    found.unlink(missing_ok=True)
    words = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(recorder)]
    words += ["--jobs", "4", "--keep-going", "--seconds-between-status-checks", "1"]
    words += ["--retries", str(retries), *arguments]
    assert workspace.run(study, *words, check=False).returncode
    jobs = [json.loads(line) for line in found.read_text().splitlines()]
    return [
        {"rule": job.get("rule"), "threads": job["threads"], **job["resources"]} for job in jobs
    ]


def test_each_attempt_asks_for_more(workspace: Workspace, small: dict[str, Any]) -> None:
    first, second = asked(workspace, small, retries=1)
    assert first["rule"] == second["rule"] == "prepare_data"
    assert second["mem_mb"] == 2 * first["mem_mb"]
    assert first["runtime"] < 30, "1,797 small images"
    assert second["runtime"] >= 2 * first["runtime"]


def test_extraction_asks_for_time_by_the_rows(workspace: Workspace, small: dict[str, Any]) -> None:
    workspace.run(small, "data")
    few = asked(workspace, small, "features")
    assert {job["rule"] for job in few} == {"extract_features"}
    assert all(job["runtime"] < 30 for job in few)
    info = workspace.directory / "data/digits/dataset.json"
    written = info.stat().st_mtime_ns
    content = json.loads(info.read_text())
    content["splits"]["train"]["rows"] = 10_000_000
    info.write_text(json.dumps(content))
    os.utime(info, ns=(written, written))
    many = {runtime for job in asked(workspace, small, "features") if (runtime := job["runtime"])}
    assert min(many) < 30, "the test split is as small as before"
    assert max(many) > 6 * 60


def test_a_damaged_record_of_tables_is_told_by_the_job_that_reads_it(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    workspace.run(small, "data")
    info = workspace.directory / "data/digits/dataset.json"
    info.write_text(info.read_text()[:60])
    failed = workspace.run(small, "features", check=False)
    assert failed.returncode
    assert "data/digits/dataset.json: " in failed.stdout
    assert "JSONDecodeError" not in failed.stdout


def test_training_asks_by_features_and_heads(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, *PREPARED)
    (one,) = asked(workspace, small, "heads")
    (shard, *_) = (workspace.directory / "results/features").rglob("train/shard-*.h5")
    written = shard.stat().st_mtime_ns
    with shard.open("ab") as stream:
        stream.truncate(2_000_000_000)  # sparse
    os.utime(shard, ns=(written, written))
    (large,) = asked(workspace, small, "heads")
    assert large["mem_mb"] > one["mem_mb"] + 1_000
    assert large["runtime"] > one["runtime"] + 10


def test_short_shards_are_one_job_with_one_gpu(workspace: Workspace, small: dict[str, Any]) -> None:
    """By the lines of docs/cluster.md and of the Slurm profile: four shards after each other."""
    workspace.run(small, "data")
    small["features"] = {"shards": 8}
    grouped = [
        "--set-resources", "extract_features:gpu=1",
        "--groups", "extract_features=extraction",
        "--group-components", "extraction=4",
        "--resources", "gpu=1",
        "--set-resource-scopes", "gpu=local",
    ]  # fmt: skip
    alone = asked(workspace, small, "features")
    together = asked(workspace, small, "features", *grouped)
    assert {job["rule"] for job in alone} == {"extract_features"}
    assert {job["rule"] for job in together} == {None}
    assert len(together) == len(alone) / 4
    for job in together:
        assert job["gpu"] == 1
        assert job["mem_mb"] == alone[0]["mem_mb"]
        assert job["runtime"] == 4 * alone[0]["runtime"]
