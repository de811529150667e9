"""A study whose data and results lie in an object store, by Snakemake's s3 plugin.

Skipped without the plugin, which `make s3` adds; `make s3-test` insists on it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.object_store import BUCKET, CREDENTIALS, check_keys_after, object_store

from .conftest import TIMEOUT, Template, Workspace, count_rules

pytestmark = pytest.mark.skipif(
    not find_spec("snakemake_storage_plugin_s3") and not os.environ.get("DPPROBE_REQUIRE_S3"),
    reason="needs `make s3`",
)

PREFIX = f"s3://{BUCKET}/folder"
STORE = ["--default-storage-provider", "s3", "--default-storage-prefix", PREFIX]
CELLS = "folder/results/cells/"
SHARD = "results/features/digits/pixels/train/shard-00000-of-00002.h5"


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    small["epsilons"] = [1, 2]
    small["features"] = {"shards": 2}
    return small


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with object_store() as (address, client):
        monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_ENDPOINT_URL", address)
        yield client


def address() -> str:
    return os.environ["SNAKEMAKE_STORAGE_S3_ENDPOINT_URL"]


def keys(client: Any, prefix: str = "") -> dict[str, str]:
    """The objects of the bucket, with the hash of each one's content."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}


def cell_files(client: Any) -> dict[str, str]:
    """The files of cells; a job's mark goes when it starts."""
    return {key: tag for key, tag in keys(client, CELLS).items() if not key.endswith(".done")}


def content(client: Any, key: str) -> bytes:
    body: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


def kill_after(workspace: Workspace, study: dict[str, Any], rule: str) -> None:
    """Runs heads with the store, and kills Snakemake and its jobs once a job of a rule is done."""
    command = workspace.command("heads", *STORE, "--configfile", str(workspace.write(study)))
    log = workspace.directory / "killed.log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
    deadline = time.monotonic() + TIMEOUT
    while not re.search(rf"Finished jobid: \d+ \(Rule: {rule}\)", log.read_text()):
        assert process.poll() is None, log.read_text()
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

    kill_after(workspace, study, "extract_features")
    finished = keys(bucket, "folder/data/")
    assert len(finished) == 3
    workspace.run(study, "--unlock", *STORE)
    second = workspace.run(study, "heads", "--rerun-incomplete", *STORE).stdout
    jobs = count_rules(second)
    assert not jobs["prepare_data"]
    assert jobs["extract_features"] < 4
    assert jobs["train_heads"] == 2
    (following,) = [line for line in second.splitlines() if line.startswith("done; next: ")]
    assert following.endswith(shlex.join([*STORE, "--storage-s3-endpoint-url", address()]))
    assert keys(bucket, "folder/data/") == finished
    for epsilon in ("1", "2"):
        for name in ("heads.safetensors", "privacy.json"):
            made = content(bucket, f"{CELLS}digits/pixels/sgd/eps-{epsilon}/{name}")
            assert made == (disk.cell("sgd", epsilon) / name).read_bytes()
    # logs stay, copies do not
    assert list((workspace.directory / "results/logs").rglob("*.log"))
    assert not list((workspace.directory / "results").rglob("*.h5"))
    assert not [key for key in keys(bucket) if "/logs/" in key or "/benchmarks/" in key]
    # the credentials are nowhere
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    written = [path for path in workspace.directory.rglob("*") if path.is_file()]
    assert not [path for path in written if secret in path.read_bytes()]
    assert secret.decode() not in second

    # what is made is not made again, here or on a machine that has nothing but the study
    assert "Nothing to be done" in workspace.run(study, "heads", *STORE).stdout
    elsewhere = module_workspace("elsewhere")
    assert not elsewhere.planned(study, "heads", *STORE)
    study["methods"]["sgd"]["batch_size"] = 128
    heads = {"train_heads": 2, "heads": 1}
    assert elsewhere.planned(study, "heads", *STORE) == heads
    assert workspace.planned(study, "heads", *STORE) == {"calibrate": 2, **heads}

    # jobs that fail over finished cells, here for plans of the old option, take none of them away
    before = cell_files(bucket)
    failed = elsewhere.run(study, "heads", "--keep-going", *STORE, check=False)
    assert failed.returncode
    assert "calibrate for this method" in failed.stdout
    assert cell_files(bucket) == before

    # a damaged object is refused by name
    shard = bytearray(content(bucket, f"folder/{SHARD}"))
    shard[len(shard) // 2] ^= 1
    bucket.put_object(Bucket=BUCKET, Key=f"folder/{SHARD}", Body=bytes(shard))
    failed = workspace.run(study, "heads", "--keep-going", *STORE, check=False)
    assert failed.returncode
    assert f"{SHARD}: the shard cannot be read" in failed.stdout
    assert "Traceback" not in failed.stdout
    assert cell_files(bucket) == before


def test_a_study_that_cannot_work_there_is_told_in_one_line(
    workspace: Workspace, study: dict[str, Any], bucket: Any
) -> None:
    study["results_dir"] = str(workspace.directory / "results")
    result = workspace.run(study, "--dry-run", *STORE, check=False)
    assert result.returncode
    assert f"dpprobe: results_dir: {study['results_dir']}: with an object store" in result.stdout
    assert "Traceback" not in result.stdout
    assert not keys(bucket)


@pytest.mark.usefixtures("bucket")
def test_a_table_of_a_person_in_the_folder_of_data_is_read_there(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    folder = workspace.directory / "data"
    folder.mkdir()
    rows = "".join(f"{index}.png,{index % 2}\n" for index in range(200))
    (folder / "labels.csv").write_text("file,label\n" + rows)
    study["datasets"] = {
        "lesions": {
            "source": "csv", "root": "data", "train": "labels.csv", "path_column": "file",
            "label_column": "label", "class_names": ["0", "1"], "test_fraction": 0.5,
        }
    }  # fmt: skip
    assert workspace.planned(study, "data", *STORE)["prepare_data"] == 1


def test_a_prefix_without_a_provider_does_not_run_on_disk(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    result = workspace.run(study, "-n", "--default-storage-prefix", PREFIX, check=False)
    assert result.returncode
    assert "without --default-storage-provider s3 the run would be on this disk" in result.stdout


@pytest.mark.usefixtures("bucket")
def test_a_wrong_bucket_or_key_is_told_in_one_line_before_any_work(
    workspace: Workspace, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(prefix: str) -> str:
        words = ["--default-storage-provider", "s3", "--default-storage-prefix", prefix]
        result = workspace.run(study, "heads", *words, check=False)
        assert result.returncode
        assert "Traceback" not in result.stdout
        assert "Building DAG" not in result.stdout
        return result.stdout.splitlines()[-1]

    elsewhere = told("s3://elsewhere/folder")
    assert elsewhere.startswith("dpprobe: --default-storage-prefix s3://elsewhere/folder: cannot")
    assert "NoSuchBucket" in elsewhere
    check_keys_after(address(), 0)  # it knows no key
    assert "InvalidAccessKeyId" in told(PREFIX)
    monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_ENDPOINT_URL", "htp://elsewhere")
    wrong = told(PREFIX)
    assert wrong.startswith("dpprobe: --storage-s3-endpoint-url htp://elsewhere: no address of a")
    assert not list(workspace.directory.rglob(".object_store.json"))
