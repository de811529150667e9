"""Errors name the reason, and a remedy that works when it is pasted."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import imagefolder
from dpprobe.data.sources.embedding_files import explain_damage, open_embeddings
from dpprobe.draft.csv_guesses import Wishes, look_at_csv
from dpprobe.errors import ConfigError, DataError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.shards import png
from tests.support.small_study import STUDY
from tests.support.sources import write_manifest, write_parquet, write_table


def make_images(root: Path, names: list[str]) -> str:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))
    return str(root)


def refusal(path: str, **more: object) -> str:
    with pytest.raises(ConfigError) as caught:
        imagefolder.list_images(imagefolder.Options(path=path, **more))
    return str(caught.value)


def test_a_locked_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = np.zeros((3, 2))
        file.create_group("obs")
        file.flush()
        code = (
            "from pathlib import Path; "
            "from dpprobe.data.sources.embedding_files import open_embeddings; "
            f"open_embeddings(Path({str(path)!r}), option='train').columns"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert "another program is writing it: close the file there" in found.stderr
    assert open_embeddings(path, option="train").columns == ()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError("unable to lock file, errno = 11"), "close the file there"),
        (BlockingIOError(11, "unavailable"), "close the file there"),
        (PermissionError(13, "denied"), "correct its permissions"),
        (OSError("truncated file"), "create the file again"),
    ],
)
def test_remedies_fit_reasons(error: OSError, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy), explain_damage(Path("x.h5ad")):
        raise error


@pytest.mark.parametrize("names", [["cat", "dog"], {"0": "cat", "1": "dog"}, ["0", "1"]])
def test_labels_that_became_floats_are_read(tmp_path: Path, names: object) -> None:
    labels = [0.0, 1.0] * 4
    np.savez(tmp_path / "x.npz", X=np.eye(8), kind=np.array(labels))
    options: Any = dataset_options(
        {
            "source": "embeddings",
            "root": str(tmp_path),
            "train": "x.npz",
            "label_column": "kind",
            "class_names": names,
        }
    )
    assert options.read_index().labels("train") == [0, 1] * 4


def test_float_labels_with_names_of_their_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.eye(3), kind=np.array([0.0, 1.5, 2.0]))
    options: Any = dataset_options(
        {
            "source": "embeddings",
            "root": str(tmp_path),
            "train": "x.npz",
            "label_column": "kind",
            "class_names": {"0.0": "a", "0": "b", "1": "c"},
        }
    )
    assert options.read_index().labels("train")[0] == 2  # its own class, which is sorted last
    assert options.read_index().labels("train")[1] < 0


def test_inner_folders_of_parts_are_told(tmp_path: Path) -> None:
    parts = [f"{part}/images/{kind}/1.png" for part in ("train", "test") for kind in "ab"]
    message = refusal(make_images(tmp_path, parts))
    assert f"{tmp_path}/train has fewer than two class folders (images)" in message
    assert "move the folders in images/ up, in both parts" in message
    assert "`path:" not in message
    alone = refusal(make_images(tmp_path / "other", ["images/a/1.png", "images/b/2.png"]))
    (path,) = re.findall("`path: (.*)`", alone)
    assert imagefolder.list_images(imagefolder.Options(path=path)).class_names == ("a", "b")


@pytest.mark.parametrize("name", ["empty", "with space", 'with "quotes"', "a: b", "no", "[x]"])
def test_exclude_can_be_pasted(tmp_path: Path, name: str) -> None:
    path = make_images(tmp_path, ["a/1.png", "b/2.png", "old/3.png"])
    (tmp_path / name).mkdir()
    message = refusal(path, exclude=["old"])
    (written,) = re.findall("`(exclude: .*)`", message)
    options = imagefolder.Options(path=path, **yaml.safe_load(written))
    assert imagefolder.list_images(options).class_names == ("a", "b")


def test_a_part_beside_classes_can_be_excluded(tmp_path: Path) -> None:
    path = make_images(tmp_path, ["a/1.png", "b/2.png", "train/3.png", "old/4.png"])
    (written,) = re.findall("`(exclude: .*?)`", refusal(path, exclude=["old"]))
    options = imagefolder.Options(path=path, **yaml.safe_load(written))
    assert imagefolder.list_images(options).class_names == ("a", "b")


def test_convmv_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "my $HOME images"
    path = make_images(folder, ["a/1.png"])
    (folder / "caf\udce9").mkdir()
    (command,) = re.findall("`(convmv .*)`", refusal(path))
    assert shlex.split(command)[-1] == str(folder)


@pytest.mark.parametrize(("values", "ignored"), [(["f", "F", "m"], True), (["f", "m", "x"], False)])
def test_groups_in_two_cases_are_one(tmp_path: Path, values: list[str], ignored: bool) -> None:
    rows = [
        {"path": f"{row}.png", "label": "ab"[row % 2], "sex": values[row % 3]} for row in range(12)
    ]
    make_images(tmp_path, [row["path"] for row in rows])
    write_table(tmp_path / "x.csv", rows)
    seen = look_at_csv(str(tmp_path / "x.csv"), Wishes())
    groups = seen.make_options().list_groups()  # type: ignore[attr-defined]
    assert groups["group_sex"].ignore_case == ignored


ROWS = [
    {"path": f"{row}.png", "kind": "ab"[row % 2], "sex": ("f", "F", "m")[row % 3]}
    for row in range(12)
]
GROUPED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "csv": lambda root: write_manifest(root, ROWS, class_names=["a", "b"]),
    "parquet": lambda root: {
        "source": "parquet",
        "train": write_parquet(root / "a.parquet", [0, 1] * 6, sex=[row["sex"] for row in ROWS]),
    },
}


@pytest.mark.parametrize("source", GROUPED)
def test_a_check_says_that_a_run_refuses_groups_in_two_cases(tmp_path: Path, source: str) -> None:
    block = GROUPED[source](tmp_path)
    found: dict[str, Any] = {}
    for name, groups in (
        ("refused", ["sex"]),
        ("merged", {"sex": {"column": "sex", "ignore_case": True}}),
    ):
        options: Any = dataset_options(block | {"group_columns": groups})
        found[name], _ = options.judge_units()
        with nullcontext() if name == "merged" else pytest.raises(DataError):
            prepare_dataset(options, tmp_path / name)
    assert found["merged"] == ()
    (fault,) = found["refused"]
    assert "sex: 'f' and 'F' are separate groups" in fault
    assert "`ignore_case: true`" in fault
    assert "'f' and 'F' are separate groups" in (tmp_path / "refused/problems.csv").read_text()


def test_a_check_of_a_study_by_hand_refuses_class_folders_in_two_cases(tmp_path: Path) -> None:
    path = make_images(tmp_path, [f"{name}/{row}.png" for name in "fFm" for row in range(9)])
    study = load_study(STUDY | {"datasets": {"pics": {"source": "imagefolder", "path": path}}})
    with pytest.raises(ConfigError, match="class folders 'F' and 'f' are spellings of one name"):
        check_study(study)
