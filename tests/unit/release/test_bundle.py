"""Which folders are read as bundles, and which facts of a stranger's bundle.json are accepted."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.errors import ConfigError, DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.release import bundle
from dpprobe.release.bundle import (
    CARD_FILE,
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    PAGE_FILE,
    STATEMENT_FILE,
    SUMS_FILE,
)
from dpprobe.release.verification import verify
from tests.support.bundles import write_example
from tests.support.refusals import change_values, check_tokens, refusal_of, refuses

DIGEST = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_example(Path("bundle"))


# Edits of bundle.json, with words of the refusal, or None if the bundle is read.
STRANGERS: list[tuple[dict[str, Any], tuple[object, ...] | None]] = [
    ({}, None),
    *(
        ({key: name}, (name, "path", "name"))
        for key in ("name", "study", "dataset")
        for name in ("a/b", "a\\b")
    ),
    *(({key: 1}, (key, 1)) for key in ("name", "study", "dataset")),
    ({"class_names": []}, ("class_names",)),
    ({"class_names": ["a", "a", "b"]}, ("class_names",)),
    ({"class_names": ["a", "b"]}, (HEAD_FILE, "[3, 65]", "[2, 65]")),
    ({"class_names": "abc"}, ("class_names", "'abc'")),
    ({"class_names": [1, 2, 3]}, ("class_names.0", 1)),
    ({"dimension": 0}, ("dimension", 0, 1)),
    ({"dimension": 65}, (HEAD_FILE, "[3, 65]", "[3, 66]")),
    ({"dimension": 64.0}, ("dimension", 64.0)),
    ({"dimension": "64"}, ("dimension", "'64'")),
    ({"format": "x"}, ("format", "'x'", "'dpprobe-bundle'")),
    ({"format_version": 2}, ("format_version", 2, 1)),
    *(({f"{place}more": 1}, (f"{place}more",)) for place in ("", "backbone.", "card.")),
    ({"multi_label": 1}, ("multi_label", 1)),
    ({"backbone.trained": True}, None),
    ({"backbone.checkpoint": "w.pt"}, ("backbone", "checkpoint")),
    ({"backbone.trained": True, "backbone.checkpoint": "w.pt"}, None),
    ({"backbone.trained": True, "backbone.checkpoint": "../w.pt"}, ("../w.pt",)),
    ({"backbone.options.checkpoint": "/etc/w"}, ("backbone.options.checkpoint",)),
    ({"backbone.options.checkpoint": None}, None),
    ({"backbone.probe": {}}, ("backbone.probe", "sha256", "norm", "sample")),
    ({"backbone.probe.norm": "x"}, ("backbone.probe", "sha256", "norm", "sample")),
    ({"backbone.probe.sha256": "0"}, ("backbone.probe", "sha256", "norm", "sample")),
    ({"backbone.weights_sha256": DIGEST}, None),
    (
        {"backbone.weights_sha256": DIGEST.upper()},
        ("weights_sha256", DIGEST.upper()),
    ),
    ({"backbone.weights_sha256": DIGEST[1:]}, ("weights_sha256", DIGEST[1:])),
    ({"backbone.precision": "bfloat16"}, None),
    ({"backbone.precision": "float64"}, ("backbone.precision", "'float64'")),
    ({"backbone.dtype": "float16"}, None),
    ({"backbone.dtype": "bfloat16"}, ("backbone.dtype", "'bfloat16'")),
    ({"head.link": "x"}, ("head.link", "'x'")),
    ({"head.options": {"head": "none"}}, ("head", "'none'")),
    ({"head.options.steps": -1}, ("head", "steps", -1, 1)),
    ({"head.chosen": 1}, ("head.chosen", 1)),
    ({"card.license": 1}, ("card.license", 1)),
]


@pytest.mark.parametrize(("change", "fault"), STRANGERS)
def test_each_fact_of_a_stranger_is_checked(
    folder: Path, change: dict[str, Any], fault: tuple[object, ...] | None
) -> None:
    """Facts are checked even if all hashes are right."""
    write_json(folder / FACTS_FILE, change_values(read_json(folder / FACTS_FILE), change))
    bundle.write_sums(folder)
    said = refusal_of(bundle.read_bundle, folder)
    assert (said is None) == (fault is None), said
    if said is not None:
        assert "\n" not in said
        check_tokens(said, "bundle", *fault or ())


def edit_sums(change: Callable[[list[str]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
        (folder / SUMS_FILE).write_text("".join(change(lines)))

    return edit


def alter_byte(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", LISTED_FILES)
def test_an_altered_or_missing_file_is_named(folder: Path, name: str) -> None:
    assert bundle.damaged_files(folder) == []
    alter_byte(folder, name)
    assert bundle.check_files(folder) == 6
    assert bundle.damaged_files(folder) == [name]
    with refuses(DataError, "bundle", name, "SHA256SUMS"):
        bundle.read_bundle(folder)
    with refuses(DataError, name, "SHA256SUMS"):
        verify.check_hashes(folder)
    (folder / name).unlink()
    assert bundle.damaged_files(folder) == [name]
    for call in (bundle.check_files, bundle.read_bundle):
        with refuses(DataError, "bundle", name):
            call(folder)


def test_a_folder_without_a_sums_file_is_not_accepted_as_a_bundle(folder: Path) -> None:
    (folder / SUMS_FILE).unlink()
    for call in (bundle.check_files, bundle.read_bundle):
        with refuses(DataError, "bundle", "folder"):
            call(folder)
    with refuses(DataError, "SHA256SUMS"):
        bundle.damaged_files(folder)


@pytest.mark.parametrize(
    ("names", "said"), [(["notes.txt"], "notes.txt"), (["z", "b", "a"], "a, b, z"), ([".n"], ".n")]
)
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_foreign_files_of_a_bundle_are_named(
    folder: Path, names: list[str], said: str, make: Callable[[Path], None]
) -> None:
    for name in names:
        make(folder / name)
    for call in (bundle.check_files, bundle.read_bundle):
        with refuses(DataError, "bundle", said):
            call(folder)


def test_links_and_pipes_are_not_accepted_as_bundle_files(folder: Path) -> None:
    """A reader might follow a link out of the folder, or wait forever at a pipe."""
    signature, head = folder / bundle.SIGNATURE_FILE, folder / HEAD_FILE
    signature.touch()
    assert bundle.check_files(folder) == 7
    assert bundle.read_bundle(folder)
    signature.unlink()
    signature.symlink_to(HEAD_FILE)
    with refuses(DataError, "SHA256SUMS.sig", "plain"):
        bundle.read_bundle(folder)
    signature.unlink()
    head.rename("h")
    for replace in (lambda: head.symlink_to("../h"), lambda: os.mkfifo(head)):
        replace()
        with refuses(DataError, HEAD_FILE, "plain"):
            bundle.read_bundle(folder)
        head.unlink()


# Edits of SHA256SUMS, with the files that then differ, or the kind of error.
SUMS: dict[str, tuple[Callable[[list[str]], Any], list[str] | str]] = {
    "a name outside": (lambda lines: [*lines, f"{DIGEST}  ../more\n"], ["../more"]),
    "a line less": (lambda lines: lines[1:], [CARD_FILE]),
    "another hash last": (lambda lines: [*lines, DIGEST + lines[0][64:]], [CARD_FILE]),
    "upper case": (
        lambda lines: [line[:64].upper() + line[64:] for line in lines],
        [*LISTED_FILES],
    ),
    "nothing": (lambda _: "", [*LISTED_FILES]),
    "one space": (lambda lines: [line.replace("  ", " ") for line in lines], "unreadable"),
    "a line twice": (lambda lines: [*lines, lines[0]], "form differs"),
    "another order": (lambda lines: lines[::-1], "form differs"),
    "no newline": (lambda lines: "".join(lines)[:-1], "form differs"),
}


@pytest.mark.parametrize("case", SUMS)
def test_a_list_of_hashes_has_one_form(folder: Path, case: str) -> None:
    """`verify` refuses variants of the form because readers may interpret them differently."""
    change, found = SUMS[case]
    edit_sums(change)(folder)
    if found == "form differs":
        assert bundle.damaged_files(folder) == []
        with refuses(DataError, "SHA256SUMS", "form"):
            verify.check_hashes(folder)
        return
    for call in (bundle.read_bundle, verify.check_hashes):
        words = found if isinstance(found, str) else ", ".join(found)
        assert words in str(refusal_of(call, folder))
    if not isinstance(found, str):
        assert bundle.damaged_files(folder) == found


def test_sums_are_as_sha256sum_writes_them(folder: Path) -> None:
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in (CARD_FILE, FACTS_FILE, HEAD_FILE, STATEMENT_FILE, PAGE_FILE)
    ]
    assert (folder / SUMS_FILE).read_text() == "".join(lines)
    assert bundle.bundle_digest(folder) == hashlib.sha256("".join(lines).encode()).hexdigest()
    (folder / SUMS_FILE).write_bytes(b"\xff\n")
    assert "SHA256SUMS: unreadable" in str(refusal_of(bundle.damaged_files, folder))


def test_large_files_are_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    head = sizes.pop(HEAD_FILE)
    for text, tensors, fault in ((0, 0, None), (-1, 0, "but the limit"), (0, -1, HEAD_FILE)):
        monkeypatch.setattr(bundle, "LARGEST_TEXT", max(sizes.values()) + text)
        monkeypatch.setattr(bundle, "LARGEST_HEAD", head + tensors)
        said = refusal_of(bundle.check_files, folder)
        assert (said is None) == (fault is None)
        assert fault is None or fault in str(said)


def test_outputs_in_a_bundle_are_refused(folder: Path) -> None:
    for inside in (folder / "x.csv", folder / "a/b/x.csv", folder / "a/../x.csv"):
        with refuses(ConfigError, folder.name):
            bundle.check_outside(inside)
    bundle.check_outside(Path("x.csv"))
    (folder / SUMS_FILE).unlink()
    bundle.check_outside(folder / "x.csv")


WEIGHTS = np.zeros((3, 65), np.float32)
FOREIGN: dict[str, list[bytes]] = {
    HEAD_FILE: [
        b"",
        b"x" * 99,
        save({}),
        save({"weight": WEIGHTS}),
        save({"weights": WEIGHTS[:, 1:]}),
        save({"weights": WEIGHTS.astype(np.float64)}),
        save({"weights": WEIGHTS + np.inf}),
        save({"weights": WEIGHTS, "class_priors": np.zeros(3, np.int32)}),
    ],
    FACTS_FILE: [b"", b"{", b"[]", b"{}", b'"x"', b"[" * 9999],
    STATEMENT_FILE: [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"7",
        b'{"calibration": 3}',
        b'{"calibration": {}}',
        b'{"calibration": {"scale": 1, "offset": 0, "sets": [3]}}',
    ],
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_stranger_s_file_with_its_right_hash_is_refused_in_one_line(
    folder: Path, name: str
) -> None:
    for content in FOREIGN[name]:
        (folder / name).write_bytes(content)
        bundle.write_sums(folder)
        with pytest.raises(DataError, match=str(folder)) as caught:
            bundle.read_bundle(folder)
        assert "\n" not in str(caught.value)


def test_a_written_bundle_is_read_back(folder: Path, tmp_path: Path) -> None:
    facts = bundle.read_facts(folder)
    weights = np.random.default_rng(1).normal(size=(3, 65)).astype(np.float32)
    arrays = {"centre": np.arange(64, dtype=np.float32)}
    statement = read_json(folder / STATEMENT_FILE) | {"more": [1, None]}
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    bundle.write_bundle(other, facts, weights=weights, arrays=arrays, statement=statement)
    bundle.write_sums(other)
    read = bundle.read_bundle(other)
    assert (read.facts, read.statement, read.folder) == (facts, statement, other)
    np.testing.assert_array_equal(read.weights, weights)
    assert read.arrays.keys() == arrays.keys()
    np.testing.assert_array_equal(read.arrays["centre"], arrays["centre"])
    assert (read.link, read.calibration) == (facts.head.link, None)
