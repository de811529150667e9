"""Which bundles are read, and what a reader would load of them, held against stored answers."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.artifacts import read_json, write_json
from dpprobe.errors import DataError
from dpprobe.release import bundle
from dpprobe.release.bundle import FACTS_FILE, HEAD_FILE, SUMS_FILE
from dpprobe.release.predict import Predictor
from dpprobe.release.verification import files
from tests.support.bundles import write_example
from tests.support.stored_records import answer_of, check_values

DIGEST = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_example(Path("bundle"))


def of_timm(**options: Any) -> dict[str, Any]:
    return {"backbone.options": {"family": "timm", "model": "test_vit", **options}}


# New values by their places in bundle.json.
EDITS: list[dict[str, Any]] = [
    {},
    *({name: value} for name in ("name", "study", "dataset") for value in ("a/b", "a\\b", 1)),
    *({"class_names": names} for names in ([], ["a", "a", "b"], ["a", "b"], "abc", [1, 2, 3])),
    *({"dimension": value} for value in (0, 1, 65, 64.0, "64")),
    {"format": "x"},
    {"format_version": 2},
    {"more": 1},
    {"multi_label": 1},
    {"backbone.more": 1},
    {"backbone.trained": True},
    {"backbone.checkpoint": "w.pt"},
    *({"backbone.trained": True, "backbone.checkpoint": name} for name in ("w.pt", "../w.pt", "")),
    {"backbone.options.checkpoint": "/etc/w"},
    {"backbone.options.checkpoint": None},
    {"backbone.probe": {}},
    {"backbone.probe.norm": "x"},
    {"backbone.probe.sha256": "0"},
    *({"backbone.weights_sha256": each} for each in (DIGEST, DIGEST.upper(), DIGEST[1:])),
    {"backbone.precision": "bfloat16"},
    {"backbone.precision": "float64"},
    {"backbone.dtype": "bfloat16"},
    {"head.link": "x"},
    {"head.options": {"head": "none"}},
    {"head.options.steps": -1},
    {"head.chosen": 1},
    {"head.class_priors": [0.5]},
    {"card.license": 1},
    {"card.more": "x"},
    of_timm(),
    of_timm(checkpoint="mine.pt"),
    of_timm(model="local-dir:/tmp/mine"),
    of_timm(model_args={"pretrained_cfg_overlay": {"file": "/tmp/mine"}}),
    of_timm(model_args={"cache_dir": "/tmp"}),
    of_timm(model_args={"depth": 1}),
    *(of_timm(family="open_clip", pretrained=tag) for tag in ("/tmp/mine.pt", "a.pt", "laion_2-b")),
    of_timm(pretrained=False),
    of_timm(layers=[0, 1]),
    of_timm(layers=[0], token="class"),
    *(of_timm(model=f"{prefix}:somebody/weights") for prefix in ("hf-hub", "hf_hub", "other")),
    {"backbone.options": {"family": "imported", "module": "no_such_package.nets:build"}},
    {"backbone.options": {"family": "unknown"}},
    {"backbone.options": {}},
]


def test_facts_of_strangers_are_read_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without and with leave to load from the Hub and to import; nothing is loaded before."""

    def load(options: Any, *, runtime: Any) -> None:
        raise DataError(f"loads in {runtime.precision} {options.extraction_params()}"[:200])

    monkeypatch.setattr("dpprobe.backbones.loading.load_backbone", load)
    written, found = read_json(folder / FACTS_FILE), {}
    for edit in EDITS:
        values = copy.deepcopy(written)
        for place, value in edit.items():
            *parents, last = place.split(".")
            inner = values
            for key in parents:
                inner = inner[key]
            inner[last] = value
        write_json(folder / FACTS_FILE, values)
        bundle.write_sums(folder)
        read = answer_of(bundle.read_bundle, folder)
        found[str(edit)] = (
            read
            if not isinstance(read, bundle.Bundle)
            else [
                answer_of(
                    Predictor.load_bundle,
                    folder,
                    device="cpu",
                    allow_hub=hub,
                    allow_module=not hub,
                    checkpoint=file,
                    precision=precision,
                )
                for hub, file, precision in (
                    (False, None, None),
                    (True, None, "float16"),
                    (True, "w.pt", None),
                )
            ]
        )
    check_values("facts_of_strangers", found)


def edit_sums(change: Callable[[list[str]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
        (folder / SUMS_FILE).write_text("".join(change(lines)))

    return edit


def replace_head(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        make((folder / HEAD_FILE).rename("h") and folder / HEAD_FILE)

    return edit


def alter_byte(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


ALTERED: dict[str, Callable[[Path], Any]] = {
    **{
        f"a byte of {name}": lambda folder, name=name: alter_byte(folder, name)  # type: ignore[misc]
        for name in bundle.LISTED_FILES
    },
    "nothing": lambda _: None,
    "more": lambda folder: (folder / "notes.txt").touch(),
    "several": lambda folder: [(folder / name).write_text("") for name in "zbacy"],
    "hidden": lambda folder: (folder / ".notes").touch(),
    "folder": lambda f: (f / "x").mkdir(),
    **{
        f"no {name}": lambda folder, name=name: (folder / name).unlink()  # type: ignore[misc]
        for name in bundle.BUNDLE_FILES
    },
    "empty signature": lambda folder: (folder / bundle.SIGNATURE_FILE).touch(),
    "linked signature": lambda folder: (folder / bundle.SIGNATURE_FILE).symlink_to(HEAD_FILE),
    "linked head": replace_head(lambda path: path.symlink_to("../h")),
    "pipe": replace_head(os.mkfifo),
    "sums of more": edit_sums(lambda lines: [*lines, f"{DIGEST}  ../more\n"]),
    "sums of less": edit_sums(lambda lines: lines[1:]),
    "sums twice": edit_sums(lambda lines: [*lines, lines[0]]),
    "sums twice, wrong": edit_sums(lambda lines: [*lines, DIGEST + lines[0][64:]]),
    "sums in order": edit_sums(lambda lines: lines[::-1]),
    "upper sums": edit_sums(lambda lines: [line[:64].upper() + line[64:] for line in lines]),
    "one space": edit_sums(lambda lines: [line.replace("  ", " ") for line in lines]),
    "three spaces": edit_sums(lambda lines: [line.replace("  ", "   ") for line in lines]),
    "no newline": edit_sums(lambda lines: "".join(lines)[:-1]),
    "no sums": edit_sums(lambda _: ""),
    "no text": lambda folder: (folder / SUMS_FILE).write_bytes(b"\xff\n"),
}


def test_folders_are_checked_as_before(folder: Path) -> None:
    whole, found = Path(folder.rename("whole")), {}
    for name, alter in ALTERED.items():
        shutil.copytree(whole, folder)
        alter(folder)
        found[name] = [
            answer_of(check, folder)
            for check in (
                bundle.check_files,
                bundle.damaged_files,
                files.check_hashes,
                lambda folder: bundle.read_bundle(folder).facts.name,
            )
        ]
        shutil.rmtree(folder)
    check_values("folders_of_bundles", found)


def test_large_files_and_outputs_in_a_bundle_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    head = sizes.pop(HEAD_FILE)
    for text, tensors, fault in ((0, 0, None), (-1, 0, "but the limit"), (0, -1, HEAD_FILE)):
        monkeypatch.setattr(bundle, "LARGEST_TEXT", max(sizes.values()) + text)
        monkeypatch.setattr(bundle, "LARGEST_HEAD", head + tensors)
        said = str(answer_of(bundle.check_files, folder))
        assert fault in said if fault else said == "6"
    for inside in (folder / "x.csv", folder / "a/b/x.csv", folder / "a/../x.csv"):
        assert "is a bundle, which must not change" in str(answer_of(bundle.check_outside, inside))
    (folder / SUMS_FILE).unlink()
    for outside in (folder / "x.csv", Path("x.csv")):
        assert answer_of(bundle.check_outside, outside) is None


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
    bundle.STATEMENT_FILE: [
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
