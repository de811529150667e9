"""Every bundle of every earlier version: it verifies, predicts as it did, and hides no edit.

`tests/stored/releases/<version>/<kind>.zip` is what `tests/support/make_stored_releases.py` made
with the code of that version.
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
# A kind of each family of backbones that ONNX files can contain.
FAMILIES = ("network", "vectors")
# Columns of predictions that name the version that predicts.
OF_THE_VERSION = {"dpprobe"}

Place = tuple[str | int, ...]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Stored:
    """An unpacked zip: `folder` holds the bundle, its predecessors, and what commands need."""

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
        """The options of commands that compute with the backbone."""
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
    """Keeps the compiled templates of model card and page: compiling takes most of a check."""
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


def test_a_zip_names_its_kind_and_the_code_that_made_it(stored: Stored) -> None:
    facts = read_json(stored.bundle / FACTS_FILE)
    assert stored.about["kind"] == stored.kind
    assert f"g{stored.version}" in stored.about["dpprobe"]
    assert facts["dpprobe"] == stored.about["dpprobe"]


# use


def test_it_verifies(stored: Stored) -> None:
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


def test_it_predicts_what_its_version_predicted(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stored.folder)  # the ids of rows are the paths of their files
    words = [*stored.about["inputs"], "--output", "now.csv", "--device", "cpu", *stored.weights]
    assert run_main(monkeypatch, "predict", stored.about["bundle"], *words) == 0
    before, now = read_rows(Path(PREDICTIONS)), read_rows(Path("now.csv"))
    assert len(before) == len(now) >= 6
    for old, new in zip(before, now, strict=True):
        assert not old["error"]
        assert_same_row(old, new)


def assert_same_row(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Compares all columns that the older version knew."""
    for column, value in old.items():
        if column.startswith(("probability_", "score_")):
            assert float(new[column]) == pytest.approx(float(value), abs=1e-5), column
        elif column not in OF_THE_VERSION:
            assert new[column] == value, column


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_passport_of_it_is_written(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("path", zips_of(*FAMILIES), ids=name_zip)
def test_its_onnx_file_predicts_the_same(
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
    """Returns what the network of an ONNX file takes: vectors, or images as bytes."""
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


def times(factor: float) -> Change:
    return lambda value: value * factor


def become(value: Any) -> Change:
    return lambda _: value


def rename(value: str) -> str:
    return f"{value}x"


def another_unit(value: str) -> str:
    """Returns another unit in the words of version 2."""
    image = "one training image"
    return image if value != image else "one patient (all of their training images together)"


def another_hash(value: str) -> str:
    return value[::-1]


# One fact or two of each key and block of privacy.json, and what somebody might write instead.
EDITS: dict[Place, Change] = {
    ("format",): rename,
    ("format_version",): become(99),
    ("private",): become(False),
    ("unit_of_privacy",): another_unit,
    ("multi_label",): lambda several: not several,
    ("unit",): lambda unit: "patient" if unit == "image" else "image",
    ("relation",): rename,
    ("outputs", 0): rename,
    ("public", 0): rename,
    ("not_covered", 0): rename,
    ("patients", "epsilon"): times(0.9),
    ("patients", "images"): become(1),
    ("epsilon_target",): times(0.9),
    ("epsilon_realised",): times(0.9),
    ("risk_target", "advantage"): times(0.5),
    ("mu",): times(0.9),
    ("delta",): times(0.5),
    ("allows", "balanced_accuracy"): times(0.95),
    ("allows", "true_positives", "0.01"): times(0.5),
    ("accountant",): become("rdp (dp-accounting 0.6.0)"),
    ("checks", 0): times(0.9),
    ("mechanisms", 0, "name"): rename,
    ("mechanisms", 0, "noise_multiplier"): times(1.1),
    ("mechanisms", 0, "sensitivity"): times(0.5),
    ("mechanisms", 0, "count"): lambda count: count + 1,
    ("selection", "mean"): lambda mean: mean - 1,
    ("method",): rename,
    ("options", "head"): rename,
    ("options", "max_grad_norm"): times(0.5),
    ("options", "intercept"): lambda number: number + 0.25,
    ("chosen_from", "dimension"): lambda number: number + 1,
    ("chosen_from", "epsilon"): times(0.5),
    ("mode",): become("benchmark"),
    ("public_data", "backbone"): rename,
    ("declared_public", "options", "normalize.public"): rename,
    ("public_data", "trained"): lambda trained: not trained,
    ("evaluation", "metric"): rename,
    ("evaluation", "value"): become(0.01),
    ("evaluation", "epsilon"): times(0.9),
    ("evaluation", "n"): lambda number: number + 50,
    ("evaluation", "mechanisms", 0, "noise_multiplier"): times(1.1),
    ("calibration", "scale"): times(2.0),
    ("calibration", "epsilon"): times(0.9),
    ("calibration", "sets", 0, "threshold"): times(0.5),
    ("monitor", "tables", "predicted_class", 0): lambda count: count + 500.0,
    ("monitor", "epsilon"): times(0.9),
    ("choice", "epsilon"): become(0.001),
    ("ledger", "epsilon"): times(0.25),
    ("ledger", "unit"): rename,
    ("predecessor", "name"): rename,
    ("predecessor", "sha256"): another_hash,
    ("cohort", "noise_growth"): times(0.9),
    ("cohort", "units"): lambda number: number + 100,
    ("cohort", "place"): lambda number: number + 1,
    ("cohort", "earlier", 0, "release"): rename,
    ("test_units", "n"): lambda number: number + 50,
    ("test_units", "split", "by"): rename,
    ("test_units", "compared"): become(["names"]),
    ("choice", "uncovered", "reason"): rename,
    ("sites", "packed_by"): rename,
    ("sites", "aggregator"): rename,
    ("sites", "smallest_share"): times(0.5),
    ("evidence", "epsilon_lower"): become(50.0),
    ("evidence", "caught_factor"): become(0.5),
    ("parts", "classes"): another_hash,
    ("parts", "backbone"): another_hash,
}
# One fact or two of bundle.json.
FACTS: dict[Place, Change] = {
    ("class_names", 0): rename,
    ("multi_label",): lambda several: not several,
    ("dimension",): lambda number: number + 1,
    ("backbone", "architecture"): rename,
    ("backbone", "probe", "norm"): lambda norm: norm + 1.0,
    ("head", "method"): rename,
    ("head", "options", "head"): rename,
    ("head", "link"): lambda link: "sigmoid" if link == "softmax" else "softmax",
}
# Keys of which no edit is tested here, with the reason. The docstring of `verification/verify.py`
# lists the undetectable changes.
NOT_EDITED = {
    "n": "undetectable without sampling",
    "public_files": "the hash of a public file, which only the file contradicts",
    "check_notes": "empty in all stored releases",
    **dict.fromkeys(
        ("promise", "neighbouring_relation", "release", "engine_limits"), "a sentence of version 2"
    ),
}
# Edits that nothing in a bundle contradicts, by kind, with the reason.
TESTED: dict[Place, str] = {("evaluation", "n"): "nothing else in a bundle follows from it"}
UNDETECTABLE: dict[str, dict[Place, str]] = {
    "audit": {
        ("evidence", "caught_factor"): "an audit's numbers below the guarantee",
        (
            "evidence",
            "epsilon_lower",
        ): "a correct release exceeds the bound by chance; verify says so",
    },
    "labels": TESTED,
    "macro_accuracy": TESTED,
}


# Sentences of version 2, which `verify` ignores, and a fact that only its bundle.json has.
IGNORED_IN_2 = {("public", 0), ("not_covered", 0), ("multi_label",)}
# The newest releases of each version of statements: for time, edits are tried in these alone.
EDITED = [path for path in ZIPS if path.parent.name in ("429d023c", "e0a20a62", VERSIONS[-1])]


def find(values: Any, place: Place) -> tuple[Any, Any]:
    """Returns the object that holds a place's value, and its key; a number may count keys."""
    for depth, key in enumerate(place):
        if isinstance(values, dict) and isinstance(key, int):
            key = [*values][key]
        if depth == len(place) - 1:
            return values, key
        values = values[key]
    raise AssertionError


def edit(values: Mapping[str, Any], place: Place, change: Change) -> dict[str, Any] | None:
    """Returns the values with one fact changed; None if they do not state that fact."""
    edited = copy.deepcopy(dict(values))
    try:
        inner, key = find(edited, place)
        before = inner[key]
        inner[key] = change(before)
    except (KeyError, IndexError, TypeError):
        return None
    return None if inner[key] == before else edited


def list_believed(stored: Stored, file: str, edits: Mapping[Place, Change]) -> list[Place]:
    """Makes each edit, with new hashes, and returns those that `verify` believes."""
    path = stored.bundle / file
    written, values = path.read_bytes(), read_json(path)
    known, believed = UNDETECTABLE.get(stored.kind, {}), []
    version = read_json(stored.bundle / STATEMENT_FILE)["format_version"]
    for place, change in edits.items():
        edited = edit(values, place, change)
        ignored = place in IGNORED_IN_2 and version == 2
        if edited is None or place in known or ignored:
            continue
        path.write_text(json.dumps(edited, indent=2))
        write_sums(stored.bundle)
        # without the signer's key, which would tell every edit, and without the network's weights
        if verify_bundle(stored.bundle, predecessors=stored.predecessors).passed:
            believed.append(place)
    path.write_bytes(written)
    write_sums(stored.bundle)
    return believed


@pytest.mark.parametrize("path", EDITED, ids=name_zip)
def test_edited_facts_are_refused(path: Path, tmp_path: Path) -> None:
    stored = unpack(path, tmp_path)
    assert list_believed(stored, STATEMENT_FILE, EDITS) == []
    assert list_believed(stored, FACTS_FILE, FACTS) == []


def test_every_block_of_every_statement_is_edited() -> None:
    """Also one that a later version adds: it needs an edit above, or a reason for none."""
    edited: set[str] = set()
    for path in ZIPS:
        with zipfile.ZipFile(path) as file:
            about = json.loads(file.read(ABOUT))
            values = json.loads(file.read(f"{about['bundle']}/{STATEMENT_FILE}"))
        stated = {key for key, value in values.items() if value not in (None, {}, [])}
        here = {str(place[0]) for place, change in EDITS.items() if edit(values, place, change)}
        assert stated <= here | NOT_EDITED.keys(), name_zip(path)
        edited |= here
    assert edited == {str(place[0]) for place in EDITS}


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
    """Also of words that a person wrote, which nothing else contradicts."""
    stored = unpack(path, tmp_path)
    file = stored.bundle / FACTS_FILE
    values = read_json(file)
    values["card"]["contact"] = "somebody@else.example"
    file.write_text(json.dumps(values, indent=2))
    write_sums(stored.bundle)
    assert "signature" in failed(stored.verify())
