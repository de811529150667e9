"""Bundles of every earlier version verify, predict as before, and reveal edits.

`tests/support/make_stored_releases.py` made `tests/stored/releases/<version>/<kind>.zip` with
the code of the version.
"""

from __future__ import annotations

import copy
import csv
import functools
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from PIL import Image

from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import (
    FACTS_FILE,
    LISTED_FILES,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    write_sums,
)
from dpprobe.release.checks import Report
from dpprobe.release.predict import Predictor
from dpprobe.release.verification.verify import verify_bundle
from tests.conftest import REPOSITORY
from tests.support.command_line import run_main
from tests.support.edited_bundles import failed
from tests.support.make_stored_releases import ABOUT, KINDS, PREDICTIONS, SUMS_FILE

RELEASES = REPOSITORY / "tests/stored/releases"
VERSIONS = sorted(path.name for path in RELEASES.iterdir() if path.is_dir())
ZIPS = sorted(RELEASES.glob("*/*.zip"))
# One kind for each family of backbones that ONNX files can contain.
FAMILIES = ("network", "vectors")
# Columns of predictions that contain the version of dpprobe.
OF_THE_VERSION = {"dpprobe"}

Place = tuple[str | int, ...]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Stored:
    """An unpacked zip: `folder` contains the bundle, its predecessors and inputs of commands."""

    version: str
    kind: str
    folder: Path
    about: Mapping[str, Any]

    @property
    def bundle(self) -> Path:
        return self.folder / self.about["bundle"]

    @property
    def predecessors(self) -> list[Path]:
        return [self.folder / name for name in self.about["predecessors"]]

    def locate(self, key: str) -> Path | None:
        return self.folder / self.about[key] if self.about[key] else None

    def verify(self) -> Report:
        return verify_bundle(
            self.bundle,
            public_key=self.locate("public_key"),
            checkpoint=self.locate("checkpoint"),
            predecessors=self.predecessors,
        )

    @property
    def weights(self) -> list[object]:
        """Returns the options with which commands find the backbone's weights."""
        checkpoint = self.locate("checkpoint")
        return ["--checkpoint", checkpoint] if checkpoint else []


def unpack(path: Path, folder: Path) -> Stored:
    with zipfile.ZipFile(path) as file:
        file.extractall(folder)
    return Stored(path.parent.name, path.stem, folder, read_json(folder / ABOUT))


def name_zip(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def zips_of(*kinds: str) -> list[Path]:
    return [path for path in ZIPS if path.stem in kinds]


@pytest.fixture(params=ZIPS, ids=name_zip)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    return unpack(request.param, tmp_path)


@pytest.fixture(autouse=True, scope="module")
def _compile_templates_once() -> Iterator[None]:
    """Compiles the templates of model card and page only once: compiling takes most of a check."""
    compiled: dict[Any, Any] = {}
    compile_template = jinja2.Environment.compile

    @functools.wraps(compile_template)
    def remember(self: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        key = (self.autoescape, source, arguments, tuple(options.items()))
        if key not in compiled:
            compiled[key] = compile_template(self, source, *arguments, **options)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", remember)
        yield


# the corpus


@pytest.mark.parametrize("version", VERSIONS)
def test_stored_releases_never_change(version: str) -> None:
    lines = (RELEASES / version / SUMS_FILE).read_text().splitlines()
    stated = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (RELEASES / version).glob("*.zip")
    }
    assert found == stated


def test_the_corpus_is_small_and_has_every_kind() -> None:
    assert {path.stem for path in ZIPS} == set(KINDS)
    sizes = [path.stat().st_size for path in ZIPS]
    assert max(sizes) < 200_000
    assert sum(sizes) < 6_000_000


def test_a_stored_zip_records_its_kind_and_dpprobe_version(stored: Stored) -> None:
    facts = read_json(stored.bundle / FACTS_FILE)
    assert stored.about["kind"] == stored.kind
    assert f"g{stored.version}" in stored.about["dpprobe"]
    assert facts["dpprobe"] == stored.about["dpprobe"]


# use


def test_stored_releases_verify(stored: Stored) -> None:
    report = stored.verify()
    assert failed(report) == []
    assert report.passed
    outcomes = {check.name: check.passed for check in report.checks}
    assert outcomes["price"] is True
    assert all(verify_bundle(each).passed for each in stored.predecessors)
    if stored.about["public_key"]:
        assert (stored.bundle / SIGNATURE_FILE).exists()
        assert outcomes["signature"] is True
    if stored.about["predecessors"]:
        assert outcomes["predecessors"] is True
    if stored.about["checkpoint"]:
        assert outcomes["backbone"] is True


def test_stored_releases_predict_as_before(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stored.folder)  # ids are file paths
    words = [*stored.about["inputs"], "--output", "now.csv", "--device", "cpu", *stored.weights]
    assert run_main(monkeypatch, "predict", stored.about["bundle"], *words) == 0
    before, now = read_rows(Path(PREDICTIONS)), read_rows(Path("now.csv"))
    assert len(before) == len(now) >= 6
    for old, new in zip(before, now, strict=True):
        assert not old["error"]
        assert_same_row(old, new)


def assert_same_row(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Compares all columns that the older version wrote."""
    for column, value in old.items():
        if column.startswith(("probability_", "score_")):
            assert float(new[column]) == pytest.approx(float(value), abs=1e-5), column
        elif column not in OF_THE_VERSION:
            assert new[column] == value, column


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_passports_of_stored_releases_are_written(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = stored.folder / "passport", stored.locate("public_key")
    words: list[object] = ["--published", "2026-12-01", "--output", folder]
    words += ["--public-key", key] if key else []
    assert run_main(monkeypatch, "passport", stored.bundle, *words) == 0
    for name in LISTED_FILES:
        assert (folder / "bundle" / name).read_bytes() == (stored.bundle / name).read_bytes()
    crate = (folder / "ro-crate-metadata.json").read_text()
    statement = read_json(stored.bundle / STATEMENT_FILE)
    assert stored.about["bundle"] in crate
    assert f"{statement['epsilon_target']:g}" in crate


@pytest.mark.parametrize("path", zips_of("successor", "cohort", "horizon"), ids=name_zip)
def test_release_notes_compare_it_with_its_predecessor(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = unpack(path, tmp_path)
    (before,) = stored.predecessors
    assert run_main(monkeypatch, "release-notes", stored.bundle, before) == 0
    notes = capsys.readouterr().out
    assert {stored.bundle.name, before.name} <= set(re.findall(r"\w+", notes))
    total = read_json(stored.bundle / STATEMENT_FILE)["ledger"]["epsilon"]
    assert f"{total:.3g}"[:3] in notes


@pytest.mark.slow
@pytest.mark.parametrize("path", zips_of(*FAMILIES), ids=name_zip)
def test_onnx_files_of_stored_releases_predict_the_same(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = unpack(path, tmp_path)
    file = tmp_path / "head.onnx"
    assert run_main(monkeypatch, "export", stored.bundle, "--onnx", file, *stored.weights) == 0
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (entered,) = session.get_inputs()
    (values,) = session.run(None, {entered.name: transform_inputs(stored)})[:1]
    rows = read_rows(tmp_path / PREDICTIONS)
    columns = [name for name in rows[0] if name.startswith("probability_")]
    expected = [[float(row[name]) for name in columns] for row in rows]
    np.testing.assert_allclose(values, expected, atol=1e-4)


def transform_inputs(stored: Stored) -> npt.NDArray[Any]:
    """Returns the inputs of an ONNX file's network: vectors, or images as bytes."""
    paths = [stored.folder / name for name in stored.about["inputs"]]
    if paths[0].suffix == ".npy":
        return np.concatenate([np.load(path) for path in paths])
    predictor = Predictor.load_bundle(
        stored.bundle, checkpoint=stored.locate("checkpoint"), device="cpu"
    )
    images = [Image.open(path) for path in paths]
    assert predictor.backbone is not None
    return np.stack([np.asarray(predictor.backbone.transform(image)) for image in images])


# edits


def scale(factor: float) -> Change:
    return lambda value: value * factor


# The facts that people read first, with false values. `verification/test_verify.py` and
# `test_verify_edited_parts.py` test that every other edit is noticed too.
EDITS: dict[Place, Change] = {
    ("format_version",): lambda _: 99,
    ("private",): lambda _: False,
    ("epsilon_realised",): scale(0.9),
    ("delta",): scale(0.5),
    ("mechanisms", 0, "noise_multiplier"): scale(1.1),
    ("mechanisms", 0, "sensitivity"): scale(0.5),
    ("allows", "balanced_accuracy"): scale(0.95),
    ("patients", "epsilon"): scale(0.9),
    ("evaluation", "value"): lambda _: 0.01,
    ("evaluation", "epsilon"): scale(0.9),
    ("calibration", "scale"): scale(2.0),
    ("calibration", "epsilon"): scale(0.9),
    ("monitor", "epsilon"): scale(0.9),
    ("ledger", "epsilon"): scale(0.25),
    ("predecessor", "sha256"): lambda digest: digest[::-1],
    ("cohort", "noise_growth"): scale(0.9),
    ("sites", "smallest_share"): scale(0.5),
    ("parts", "classes"): lambda digest: digest[::-1],
}
# The newest releases of each statement version: edits are tried only in these, to save time.
EDITED = [path for path in ZIPS if path.parent.name in ("429d023c", "e0a20a62", VERSIONS[-1])]


def edit(values: Mapping[str, Any], place: Place, change: Change) -> dict[str, Any] | None:
    """Returns the values with one fact changed; None if the values do not contain the fact."""
    edited = copy.deepcopy(dict(values))
    inner: Any = edited
    *parents, key = place
    try:
        for parent in parents:
            inner = inner[parent]
        inner[key] = change(before := inner[key])
    except (KeyError, IndexError, TypeError):
        return None
    return None if inner[key] == before else edited


@pytest.mark.parametrize("path", EDITED, ids=name_zip)
def test_edited_facts_are_refused(path: Path, tmp_path: Path) -> None:
    """Hashes are recomputed after the edit; the check uses no signer's key and no weights."""
    stored = unpack(path, tmp_path)
    file = stored.bundle / STATEMENT_FILE
    values, believed = read_json(file), []
    for place, change in EDITS.items():
        if edited := edit(values, place, change):
            file.write_text(json.dumps(edited, indent=2))
            write_sums(stored.bundle)
            if verify_bundle(stored.bundle, predecessors=stored.predecessors).passed:
                believed.append(place)
    assert believed == []


@pytest.mark.parametrize("path", zips_of("vectors", "signed"), ids=name_zip)
@pytest.mark.parametrize("name", LISTED_FILES)
def test_a_damaged_file_is_refused(path: Path, name: str, tmp_path: Path) -> None:
    stored = unpack(path, tmp_path)
    content = bytearray((stored.bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (stored.bundle / name).write_bytes(content)
    assert not stored.verify().passed


@pytest.mark.parametrize("path", zips_of("signed"), ids=name_zip)
def test_an_edit_with_new_hashes_breaks_the_signature(path: Path, tmp_path: Path) -> None:
    """This includes a person's free text, which no other file contradicts."""
    stored = unpack(path, tmp_path)
    file = stored.bundle / FACTS_FILE
    values = read_json(file)
    values["card"]["contact"] = "somebody@else.example"
    file.write_text(json.dumps(values, indent=2))
    write_sums(stored.bundle)
    assert "signature" in failed(stored.verify())
