"""Jobs request resources of a cluster by the size of their data, and more for each retry."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.files.json_files import read_json
from tests.conftest import REPOSITORY
from tests.support.programs import run_program

from .conftest import PREPARED, TIMEOUT, Template, WarmPython, Workspace, write_scripts
from .test_fine_tuning import NETWORK, VIT

# Records the properties of a job, and refuses the job.
RECORDER = """
sed -n 's/^# properties = //p' "$1" >>properties.txt
exit 1
"""


def asked(
    workspace: Workspace, study: dict[str, Any], *arguments: str, retries: int = 0
) -> list[dict[str, Any]]:
    """Returns the resources of every job that would be submitted, in order."""
    write_scripts(workspace.directory, recorder=RECORDER)
    found = workspace.directory / "properties.txt"
    found.unlink(missing_ok=True)
    words = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", "./recorder"]
    words += ["--jobs", "4", "--keep-going", "--seconds-between-status-checks", "1"]
    words += ["--retries", str(retries), *arguments]
    assert workspace.run(study, *words, check=False).returncode
    jobs = [json.loads(line) for line in found.read_text().splitlines()]
    return [
        {"rule": job.get("rule"), "threads": job["threads"], **job["resources"]} for job in jobs
    ]


def forget_records(workspace: Workspace) -> None:
    """Deletes the records of written files, so that an edited file is accepted."""
    shutil.rmtree(workspace.directory / "results/.written")


def test_each_attempt_asks_for_more(workspace: Workspace, small: dict[str, Any]) -> None:
    first, second = asked(workspace, small, retries=1)
    assert first["rule"] == second["rule"] == "prepare_data"
    assert second["mem_mb"] == 2 * first["mem_mb"]
    assert first["runtime"] < 30, "1,797 small images"
    assert second["runtime"] >= 2 * first["runtime"]


def test_extraction_asks_for_time_by_the_rows(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, "data")
    few = asked(workspace, small, "features")
    assert {job["rule"] for job in few} == {"extract_features"}
    assert all(job["runtime"] < 30 for job in few)
    info = workspace.directory / "data/digits/dataset.json"
    written = info.stat().st_mtime_ns
    content = read_json(info)
    content["splits"]["train"]["rows"] = 10_000_000
    info.write_text(json.dumps(content))
    os.utime(info, ns=(written, written))
    forget_records(workspace)
    many = {runtime for job in asked(workspace, small, "features") if (runtime := job["runtime"])}
    assert min(many) < 30, "the test split is as small as before"
    assert max(many) > 6 * 60


def test_vectors_ask_for_less_time_than_images(workspace: Workspace) -> None:
    """The rows of all parts are counted before any job: 20 minutes, plus 1 per 60,000 rows."""
    rows = 90_000
    for part in range(2):
        np.save(workspace.directory / f"x_{part}.npy", np.ones((rows, 1), np.float16))
        table = pa.table({"kind": ["a", "b"] * (rows // 2)})
        pq.write_table(table, workspace.directory / f"x_{part}.parquet")
    vectors = {"source": "embeddings", "train": "x_*.npy", "table": "x_*.parquet"}
    study = {
        "datasets": {"x": vectors | {"label_column": "kind", "class_names": ["a", "b"]}},
        "backbones": {"m": {"family": "external", "model": "m", "each_by_itself": True}},
        "methods": {"squares": {"head": "least_squares"}},
        "epsilons": [1],
        "delta": 1e-8,
    }
    (job,) = asked(workspace, study, "data")
    assert (job["rule"], job["runtime"]) == ("prepare_data", 23)


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
    forget_records(workspace)
    (large,) = asked(workspace, small, "heads")
    assert large["mem_mb"] > one["mem_mb"] + 1_000
    assert large["runtime"] > one["runtime"] + 10


def test_short_shards_are_one_job_with_one_gpu(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    """Uses the lines of docs/cluster.md and of the Slurm profile, for four shards in sequence."""
    template(workspace, small, "data")
    small["features"] = {"shards": 8}
    grouped = [
        "--set-resources",
        "extract_features:gpu=1",
        "--groups",
        "extract_features=extraction",
        "--group-components",
        "extraction=4",
        "--resources",
        "gpu=1",
        "--set-resource-scopes",
        "gpu=local",
    ]
    alone = asked(workspace, small, "features")
    together = asked(workspace, small, "features", *grouped)
    assert {job["rule"] for job in alone} == {"extract_features"}
    assert {job["rule"] for job in together} == {None}
    assert len(together) == len(alone) / 4
    for job in together:
        assert job["gpu"] == 1
        assert job["mem_mb"] == alone[0]["mem_mb"]
        assert job["runtime"] == 4 * alone[0]["runtime"]


def test_a_dry_run_by_the_slurm_profile_shows_what_is_submitted(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    study = small | {"backbones": {"vit": VIT}, "device": "cpu"}
    template(workspace, study, "data")
    write_scripts(workspace.directory, recorder=RECORDER)
    command = [sys.executable, "-m", "snakemake", "--quiet", "host", "--retries", "0"]
    command += ["--snakefile", str(workspace.repository / "Snakefile")]
    command += ["--profile", str(workspace.repository / "profiles/slurm")]
    command += ["--directory", str(workspace.directory), "--cluster-generic-submit-cmd"]
    command += ["./recorder", "--configfile", str(workspace.write(study)), "--", "features"]
    planned, said = (
        run_program(
            WarmPython.asked([*command[:3], *more, *command[3:]]),
            joined=True,
            check=False,
            timeout=TIMEOUT,
        ).stdout
        for more in (["-n", "-p"], [])
    )
    assert "Error submitting jobscript" in said, said
    lines = (workspace.directory / "properties.txt").read_text().splitlines()
    numbers = ("threads", "mem_mb", "runtime")
    submitted = [job | job["resources"] for job in map(json.loads, lines)]
    extraction = read_requests(planned)["extract_features"]
    # the jobs of the two splits may come in either order
    assert sorted([job[name] for name in numbers] for job in submitted) == sorted(
        [job[name] for name in numbers] for job in extraction
    )
    assert [(job["threads"], job["mem_mb"]) for job in extraction] == [(4, 4800)] * 2


# GPUs.

PARTITIONS = "main*|(null)\nmixed|lscratch:1,gpu:a100:2\n"
RUN_NETWORKS = {"extract_features", "extract_cut", "search_options", "tune_network", "measure_law"}
USE_DEVICE = {"train_heads", "probe_few_shot", "audit_cells"}
Requests = dict[str, list[dict[str, int]]]


@pytest.fixture
def networks(small: dict[str, Any]) -> dict[str, Any]:
    """Returns a study with jobs that run networks, and jobs that only use the study's device."""
    digits = small["datasets"]["digits"] | {"subsample": {"per_class": 30}}
    blocks = NETWORK | {"tune": {"blocks": 1}, "steps": 2000}
    search = {"trials": 2, "space": {"learning_rate": [0.1, 0.5]}, "held_out": 0.3}
    return small | {
        "datasets": {"digits": digits},
        "backbones": {"vit": VIT},
        "methods": {**small["methods"], "blocks": blocks, "searched": blocks | {"search": search}},
        "few_shot": {"backbones": ["vit"]},
        "audit": {"methods": ["sgd"], "membership": {}},
        "representation_law": {"methods": ["blocks"]},
    }


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a fake `sinfo`, which prints `partitions` and logs to `questions`."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    write_scripts(folder, sinfo=f"echo asked >>{folder}/questions\ncat {folder}/partitions")
    (folder / "partitions").write_text(PARTITIONS)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def on_slurm(*resources: str) -> list[str]:
    """Returns the options of a run that submits jobs; no Slurm is needed, since it is a dry run."""
    words = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", "false"]
    return [*words, "--jobs", "4", "--default-resources", "mem_mb=1000", *resources]


def read_requests(output: str) -> Requests:
    """Returns the resources that each rule's jobs request in a dry run."""
    found: Requests = {}
    for rule, asked in re.findall(r"^(\w+): (threads=.*)$", output, re.MULTILINE):
        parts = (part.split("=", 1) for part in asked.split(", "))
        numbers = {name: int(value) for name, value in parts if value.isdigit()}
        found.setdefault(rule, []).append(numbers)
    return found


def count_gpus(requests: Requests) -> dict[str, set[int | None]]:
    return {rule: {job.get("gpu") for job in jobs} for rule, jobs in requests.items()}


def test_jobs_that_run_a_network_ask_for_the_gpu_of_this_machine(
    workspace: Workspace, networks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    for visible in ("", "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        seen[visible] = read_requests(workspace.run(networks, "--dry-run").stdout)
    without, with_gpu = map(count_gpus, seen.values())
    device = RUN_NETWORKS | USE_DEVICE
    assert {rule for rule, gpus in without.items() if gpus != {None}} == device
    assert all(without[rule] == {0} for rule in device)
    assert all(with_gpu[rule] == {1} for rule in RUN_NETWORKS)
    assert {rule: gpus for rule, gpus in with_gpu.items() if rule not in RUN_NETWORKS} == {
        rule: gpus for rule, gpus in without.items() if rule not in RUN_NETWORKS
    }
    for rule in without:
        slow, fast = ([job["runtime"] for job in each[rule]] for each in seen.values())
        shorter = rule in {"search_options", "tune_network", "measure_law"}
        assert sum(fast) < sum(slow) if shorter else sum(fast) <= sum(slow), rule
    # with `device: cuda`, each job on the study's device requests a GPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    insists = count_gpus(read_requests(workspace.run(networks | {"device": "cuda"}, "-n").stdout))
    assert {rule for rule, asked in insists.items() if asked == {1}} == device
    # the number of jobs depends on the study, but not on the machine
    assert {rule: len(jobs) for rule, jobs in seen[""].items()} == {
        rule: len(jobs) for rule, jobs in seen["0"].items()
    }


def test_a_network_on_two_processes_has_two_gpus(
    workspace: Workspace, networks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory doubles too; other jobs do not change."""
    several = networks | {"fine_tuning": {"processes": 2}}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    one, two = (
        read_requests(workspace.run(study, "--dry-run", "networks").stdout)
        for study in (networks, several)
    )
    for before, after in zip(one.pop("tune_network"), two.pop("tune_network"), strict=True):
        assert (before["gpu"], after["gpu"]) == (1, 2)
        assert after["mem_mb"] == 2 * before["mem_mb"]
        assert after["runtime"] == before["runtime"]
    assert one == two
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    refused = workspace.run(several, "networks", check=False)
    assert refused.returncode
    said = "dpprobe: fine_tuning.processes: 2, but this machine has 1 GPU(s); write `processes: 1` "
    assert said in refused.stdout
    assert not (workspace.directory / "data").exists(), "before any work"


def test_heads_ask_for_a_gpu_where_a_fit_pays_on_it(
    workspace: Workspace,
    small: dict[str, Any],
    template: Template,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small["methods"] = {"sgd": {"head": "sgd", "batch_size": 32, "steps": 10}}
    template(workspace, small, *PREPARED)
    (manifest,) = (workspace.directory / "results/features").rglob("train/manifest.json")
    written, content = manifest.stat().st_mtime_ns, read_json(manifest)
    full = {"full": {"head": "sgd", "batch_size": "full", "steps": 10}}
    few, many = content["rows"], 10**7

    def gpus(device: str, visible: str, rows: int, **methods: Any) -> set[int | None]:
        manifest.write_text(json.dumps(content | {"rows": rows}))
        os.utime(manifest, ns=(written, written))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        study = small | {"device": device, "methods": small["methods"] | methods}
        return count_gpus(read_requests(workspace.run(study, "-n", "heads").stdout))["train_heads"]

    assert gpus("cuda", "", many) == {0}, "small batches"
    assert gpus("cuda", "", few, **full) == {0}
    assert gpus("cuda", "", many, **full) == {1}
    assert gpus("auto", "0", many, **full) == {1}
    assert gpus("auto", "", many, **full) == {0}
    assert gpus("cpu", "0", many, **full) == {0}


@pytest.mark.parametrize(
    ("device", "resources", "gpus", "questions"),
    [
        ("auto", ["slurm_partition=mixed"], 1, 1),
        ("auto", [], 0, 1),
        ("auto", ["slurm_partition=main", "gpu_partition=mixed"], 1, 1),
        ("auto", ["slurm_partition=mixed", "--resources", "gpu=0"], 0, 0),
        ("cpu", ["slurm_partition=mixed"], 0, 0),
        ("cuda", [], 1, 0),
    ],
)
def test_jobs_on_slurm_ask_for_a_gpu_of_their_partition(
    workspace: Workspace,
    networks: dict[str, Any],
    sinfo: Path,
    device: str,
    resources: list[str],
    gpus: int,
    questions: int,
) -> None:
    study = networks | {"device": device}
    output = workspace.run(study, "--dry-run", "cuts", "features", *on_slurm(*resources)).stdout
    asked = count_gpus(read_requests(output))
    assert {rule: asked[rule] for rule in ("extract_features", "extract_cut")} == {
        "extract_features": {gpus},
        "extract_cut": {gpus},
    }
    written = sinfo / "questions"
    assert (len(written.read_text().splitlines()) if written.exists() else 0) == questions


def test_only_networks_ask_slurm(
    workspace: Workspace, networks: dict[str, Any], sinfo: Path
) -> None:
    pixels = networks | {"backbones": {"pixels": {"family": "pixels"}}}
    pixels["methods"] = {"sgd": networks["methods"]["sgd"]}
    for key in ("few_shot", "audit", "representation_law"):
        del pixels[key]
    words = on_slurm("slurm_partition=mixed")
    output = workspace.run(pixels, "--dry-run", "features", *words).stdout
    assert count_gpus(read_requests(output))["extract_features"] == {0}
    assert not (sinfo / "questions").exists()


SLURM = {"sbatch", "sinfo", "squeue"}


def leave_out_slurm(folder: Path) -> str:
    """Returns this machine's PATH without Slurm's commands."""
    parts = []
    for place, part in enumerate(map(Path, os.environ["PATH"].split(":"))):
        if any((part / name).exists() for name in SLURM):
            linked = folder / f"path-{place}"
            linked.mkdir()
            for command in part.iterdir():
                if command.name not in SLURM:
                    (linked / command.name).symlink_to(command)
            part = linked
        parts.append(str(part))
    return ":".join(parts)


def test_a_machine_without_slurm_is_refused_before_any_job(
    workspace: Workspace,
    networks: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", leave_out_slurm(tmp_path))
    submit = str(REPOSITORY / "profiles/slurm/submit.py")
    words = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", submit]
    refused = workspace.run(networks, *words, "--jobs", "2", "data", check=False)
    assert "this machine has no sbatch and no squeue; log in to the cluster" in refused.stdout
    assert "Trying to restart" not in refused.stdout
    assert not (workspace.directory / "data").exists()


@pytest.mark.parametrize("fails", [True, False])
def test_no_run_takes_a_slurm_that_says_nothing_for_one_without_gpus(
    workspace: Workspace,
    networks: dict[str, Any],
    sinfo: Path,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "error: no controller" if fails else "command not found"
    write_scripts(sinfo, sinfo=f"echo sinfo: {said} >&2\nexit 1")
    if not fails:
        monkeypatch.setenv("PATH", leave_out_slurm(sinfo))
    words = ("features", *on_slurm("slurm_partition=mixed"))
    for dry in (["--dry-run"], []):
        refused = workspace.run(networks, *dry, *words, check=False)
        assert refused.returncode
        (line,) = (line for line in refused.stdout.splitlines() if "sinfo" in line)
        assert line.startswith(f"dpprobe: device: auto: sinfo: {said}, so no partition is known")
        assert "`device: cpu`" in line
        assert "Traceback" not in refused.stdout
    assert not (workspace.directory / "data").exists(), "before any work"
    unasked = [("cpu", [], 0), ("cuda", [], 1), ("auto", ["--resources", "gpu=0"], 0)]
    for device, resources, gpus in unasked:
        study = networks | {"device": device}
        output = workspace.run(study, "--dry-run", *words, *resources).stdout
        assert count_gpus(read_requests(output))["extract_features"] == {gpus}
        assert "sinfo" not in output
    # with `device: cuda` the run continues, but warns that GPUs were not checked
    submitted = workspace.run(networks | {"device": "cuda"}, *words, check=False).stdout
    assert f"dpprobe: sinfo: {said}: jobs request GPUs unchecked\n" in submitted
    assert "device: cuda" not in submitted


def test_a_run_says_at_its_start_that_networks_have_no_gpu(
    workspace: Workspace, networks: dict[str, Any], sinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused = workspace.run(networks | {"device": "cuda"}, "features", check=False)
    assert refused.returncode
    said = "dpprobe: device: cuda: no GPU on this machine; write auto or cpu\n"
    assert said in refused.stdout
    words = on_slurm("slurm_partition=main", "--resources", "gpu=1")
    refused = workspace.run(networks | {"device": "cuda"}, "features", *words, check=False)
    assert "device: cuda: no GPU in partition main (gpu_partition in the prof" in refused.stdout
    assert not (workspace.directory / "data").exists(), "before any work"
    # submission fails, after the run's first messages
    submitted = workspace.run(networks, "features", *words, check=False)
    lines = [line for line in submitted.stdout.splitlines() if "no GPU" in line]
    assert len(lines) == 1, submitted.stdout
    assert lines[0].startswith("dpprobe: no GPU in partition main (")
    assert lines[0].endswith("): networks run on the CPU")
    assert not (sinfo / "questions").read_text().replace("asked\n", "", 2)
    # a run without networks prints no message
    here = workspace.run(networks, "data")
    assert "no GPU" not in here.stdout
    here = workspace.run(networks, "features")
    assert here.stdout.count("no GPU on this machine: networks run on the CPU") == 1, here.stdout
    # results made without a GPU stay up to date with a GPU: plans do not depend on devices
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "Nothing to be done" in workspace.run(networks, "features").stdout
