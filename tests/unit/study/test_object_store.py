"""What of a study goes into an object store, and what is refused there."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from dpprobe.errors import ConfigError, DpprobeError
from dpprobe.study.load import load_study
from dpprobe.study.object_store import (
    PLUGIN_VERSION,
    Folders,
    changed_objects,
    check_marks,
    plain_address,
    prefix_alone,
    store_faults,
    store_words,
    write_marks,
)
from dpprobe.study.study import Study
from tests.support.small_study import STUDY, changed

PREFIX = "s3://bucket/folder"
PLACES = Folders(data=PurePosixPath("data"), results=PurePosixPath("results"))


def faults(values: dict[str, Any], **changes: Any) -> list[str]:
    call: dict[str, Any] = {
        "provider": "s3", "version": PLUGIN_VERSION, "prefix": PREFIX, "given": (),
        "address": None,
    }  # fmt: skip
    return store_faults(load_study(values), **call | changes)


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("data/digits/train.parquet", False),
        ("results/cells/digits/pixels/sgd/eps-1/metrics.json", False),
        ("results/{dataset}.parquet", False),
        ("data/downloads/digits/receipt.json", True),
        ("results/logs/train_heads/digits.log", True),
        ("results/benchmarks/train_heads/digits.tsv", True),
        ("results/tracking/digits.json", True),
        ("images/1.png", True),
        ("/elsewhere/data/digits/train.parquet", True),
        ("database/train.parquet", True),
    ],
)
def test_what_stays_on_the_disk(path: str, stays: bool) -> None:
    assert PLACES.stays(path) is stays


def test_files_that_the_study_names_stay_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/labels.csv").write_text("file,label\n" + "".join(f"{i}.png,a\n" for i in range(9)))
    source = {
        "source": "csv", "root": "./data", "train": "labels.csv", "path_column": "file",
        "label_column": "label", "class_names": ["a", "b"], "test_fraction": 0.5,
    }  # fmt: skip
    places = Folders.of(load_study(changed("datasets", {"lesions": source})))
    assert places.stays("data/labels.csv")
    assert not places.stays("data/lesions/train.parquet")


def test_a_folder_of_data_within_the_results_is_one_of_data() -> None:
    nested = Folders(data=PurePosixPath("results/data"), results=PurePosixPath("results"))
    assert nested.stays("results/data/downloads/x/receipt.json")
    assert not nested.stays("results/data/logs/train.parquet")  # a dataset called logs


def test_what_people_look_at_is_kept_on_the_disk() -> None:
    assert PLACES.shown("results/tables/accuracy.md")
    assert PLACES.shown("results/report.html")
    assert not PLACES.shown("results/features/digits/pixels/train/manifest.json")
    assert not PLACES.shown("data/tables/dataset.json")


def test_a_plain_study_has_no_faults() -> None:
    assert faults(STUDY) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"provider": "gcs", "version": "1.0"}, "--default-storage-provider gcs"),
        ({"version": "0.4.0"}, f"0.4.0: dpprobe replaces parts of {PLUGIN_VERSION}"),
        ({"prefix": ""}, "--default-storage-prefix (none)"),
        ({"prefix": "s3://bucket"}, "not a folder in a bucket"),
        ({"prefix": "s3://bucket//folder"}, "s3://bucket//folder: a folder without doubled"),
        ({"prefix": "s3://bucket/a/../b"}, "s3://bucket/a/../b: a folder without"),
        ({"prefix": "s3://bucket/run#1"}, "s3://bucket/run#1: a folder without"),
        ({"prefix": "s3://bucket/{run}"}, "s3://bucket/{run}: a folder without"),
        ({"given": ["secret_key"]}, "--storage-s3-secret-key: credentials come from"),
        ({"address": "htp://x"}, "--storage-s3-endpoint-url htp://x: no address of a server"),
    ],
)
def test_a_call_that_cannot_work_is_told(changes: dict[str, Any], told: str) -> None:
    (line,) = faults(STUDY, **changes)
    assert told in line


def test_a_folder_may_have_spaces_and_other_letters() -> None:
    assert faults(STUDY, prefix="s3://bucket/Ärzte 2026/a%20b+c") == []


def test_a_prefix_without_a_provider_is_told() -> None:
    assert prefix_alone("") is None
    assert "s3://bucket/x: without --default-storage-provider s3" in str(
        prefix_alone("s3://bucket/x")
    )


@dataclass
class Settings:
    """Those of the plugin, whose package is not needed here."""

    endpoint_url: str | None = None
    region: str | None = "us-east-1"
    access_key: str | None = None
    token: str | None = None
    retries: int = 5


def test_the_words_of_a_store_are_all_but_defaults_and_secrets() -> None:
    words = ["--default-storage-provider", "s3", "--default-storage-prefix", PREFIX]
    assert store_words("s3", PREFIX, Settings()) == words
    given = Settings("https://s3.example.org:9000", "eu-1", "key", "secret", 2)
    assert store_words("s3", PREFIX, given) == [
        *words, "--storage-s3-endpoint-url", "https://s3.example.org:9000",
        "--storage-s3-region", "eu-1", "--storage-s3-retries", "2",
    ]  # fmt: skip
    # refused, and before that written into the study's snapshot
    assert "hidden" not in str(store_words("s3", PREFIX, Settings("https://me:hidden@host")))
    assert store_words("gcs", "", given) == ["--default-storage-provider", "gcs"]


def test_the_plugin_that_is_replaced_is_the_locked_one(repository: Path) -> None:
    lock = (repository / "requirements/s3.lock").read_text()
    assert lock.startswith(f"snakemake-storage-plugin-s3=={PLUGIN_VERSION} ")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://s3.example.org:9000", True),
        ("https://s3.example.org", False),
        ("http://127.0.0.1:5000", False),
        ("http://localhost:5000", False),
        (None, False),
    ],
)
def test_an_address_without_encryption_is_warned_of(address: str | None, told: bool) -> None:
    warning = plain_address(address)
    assert (warning is not None) is told
    assert not told or "in the clear" in str(warning)


@pytest.mark.parametrize("folder", ["/scratch/results", "../results"])
def test_a_folder_outside_of_the_working_directory_is_refused(folder: str) -> None:
    (line,) = faults(changed("results_dir", folder))
    assert line.startswith(f"results_dir: {folder}")


def test_a_release_is_refused() -> None:
    release = {"dataset": "digits", "backbone": "pixels", "method": "sgd", "epsilon": 1}
    lines = faults(changed("releases", {"first": release}))
    assert [line for line in lines if line.startswith("releases: first: ")]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return load_study(STUDY)


def test_copies_of_another_store_or_of_none_are_refused(study: Study) -> None:
    check_marks(study, None)
    check_marks(study, PREFIX)
    write_marks(study, PREFIX)
    check_marks(study, PREFIX)
    for other in (None, "s3://bucket/other"):
        with pytest.raises(ConfigError, match=f"copies from {PREFIX}; run with"):
            check_marks(study, other)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"format": "dpprobe-object-store", "format_version": 2}', "newer than this dpprobe's 1"),
        ('{"format": "other", "format_version": 1}', "cannot be read .other 1, not"),
        ('{"format": "dpprobe-obj', "cannot be read .* name another data_dir"),
        ("[]", "cannot be read"),
    ],
)
def test_a_note_of_a_store_that_cannot_be_read_deletes_no_ledger(
    study: Study, text: str, told: str
) -> None:
    write_marks(study, PREFIX)
    Path("data/.object_store.json").write_text(text)
    with pytest.raises(DpprobeError, match=told) as raised:
        check_marks(study, PREFIX)
    assert "delete" not in str(raised.value)


@pytest.mark.parametrize("made", ["results/cells", "data/digits/dataset.json"])
def test_results_of_a_run_on_disk_are_not_taken_for_copies(study: Study, made: str) -> None:
    Path(made).mkdir(parents=True)
    check_marks(study, None)
    with pytest.raises(ConfigError, match=f"{made} is of a run on disk"):
        check_marks(study, PREFIX)


def test_logs_and_runs_of_mlflow_of_a_run_on_disk_do_no_harm(study: Study) -> None:
    for name in ("logs", "benchmarks", "tracking", "mlartifacts"):
        Path("results", name).mkdir(parents=True)
    check_marks(study, PREFIX)


def test_only_copies_that_are_missing_older_or_cut_short_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    for name, age, size in (("older", -1, 4), ("same", 0, 4), ("newer", 1, 4), ("short", 0, 3)):
        Path(name).write_bytes(bytes(size))
        os.utime(name, (0, stored.timestamp() + age))
    names = ["older", "same", "newer", "short", "missing"]
    keys = [*(f"folder/{name}" for name in names), "folder2/missing"]
    objects = [{"Key": key, "LastModified": stored, "Size": 4} for key in keys]
    fetched = [*changed_objects(objects, root="folder", suffix="")]
    assert [copy.path for copy in fetched] == ["older", "short", "missing"]
    assert [copy.key for copy in fetched] == ["folder/older", "folder/short", "folder/missing"]
    assert {copy.time for copy in fetched} == {stored.timestamp()}
    assert not [*changed_objects(objects, root="folder", suffix=".json")]


@pytest.mark.parametrize("name", ["results/tables/", "", "../outside", "a/../../outside", "/etc/x"])
def test_keys_that_name_no_file_of_the_study_are_left_out(name: str) -> None:
    stored = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    objects = [{"Key": f"folder/{name}", "LastModified": stored, "Size": 0}]
    assert not [*changed_objects(objects, root="folder", suffix="")]
