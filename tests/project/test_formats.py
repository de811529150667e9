"""docs/formats.md, the code and the stored files agree on every format."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from safetensors import safe_open

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.data.downloads.download_receipt import Receipt
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import SEAL_BYTES, read_header, seal_shard
from dpprobe.features.shard_manifest import read_manifest
from dpprobe.files.json_files import read_json, read_record
from dpprobe.files.table_files import write_table
from dpprobe.privacy.plan import Plan
from dpprobe.project_files import read_yaml
from dpprobe.release.bundle import read_bundle
from dpprobe.release.comparison import Metric, Noise, ReleasedSums, estimate_difference
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_units import read_hashes
from dpprobe.release.parts.cohort.measure import read_cohort
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.results.cell_record import read_cell
from dpprobe.training.cell_task import whole_cell
from dpprobe.training.plan_file import read_plans
from tests.conftest import REPOSITORY

STORED = REPOSITORY / "tests/stored"
# Files in the calibration cache have no version: their name is the hash of all their inputs.
UNVERSIONED = {"dpprobe-calibration"}
FOLDERS = {
    "dpprobe-bundle": "bundle",
    "dpprobe-ledger": "ledger",
    "dpprobe-units": "units",
    "dpprobe-cohort": "cohort",
    "dpprobe-comparison": "comparison",
    "dpprobe-dataset": "dataset",
    "dpprobe-features": "features",
    "dpprobe-manifest": "features",
    "dpprobe-cell": "cell",
}


def documented() -> dict[str, tuple[int, list[int]]]:
    """Returns each format's written version and readable versions, from the page's tables."""
    formats = {}
    for line in (REPOSITORY / "docs/formats.md").read_text().splitlines():
        if match := re.match(r"\| `(dpprobe-[\w-]+)` \|.*?\| (\d+) \|(?: ([\d, ]+) \|)?$", line):
            read = [int(each) for each in (match[3] or match[2]).split(",")]
            formats[match[1]] = int(match[2]), read
    return formats


def written_by_the_code() -> dict[str, int]:
    """Returns the version that each format's writer uses, from the constants of every module."""
    formats: dict[str, int] = {}
    for path in sorted((REPOSITORY / "src/dpprobe").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        values = dict(_constants(tree.body))
        for name, kind in values.items():
            if name.endswith("FORMAT") and str(kind).startswith("dpprobe-"):
                version = values.get(f"{name}_VERSION", values.get("FORMAT_VERSION"))
                formats.setdefault(str(kind), version or 0)
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(body=body):
                    fields = dict(_constants(body))
                case ast.Dict(
                    keys=[ast.Constant("format"), ast.Constant("format_version")],
                    values=[ast.Constant(kind), ast.Constant(int(version))],
                ):
                    fields = {"format": kind, "format_version": version}
                case _:
                    continue
            if str(fields.get("format", "")).startswith("dpprobe-"):
                formats[str(fields["format"])] = fields["format_version"]
    header = formats["dpprobe-features"]
    return {**formats, "dpprobe-manifest": header}  # the manifest imports the version of its shards


def _constants(body: list[ast.stmt]) -> Iterator[tuple[str, Any]]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, constant in zip(names, values, strict=True):
                    if isinstance(target, ast.Name) and isinstance(constant, ast.Constant):
                        yield target.id, constant.value


def test_the_page_has_every_format_and_its_version() -> None:
    code = written_by_the_code()
    code = {kind: version for kind, version in code.items() if kind not in UNVERSIONED}
    assert len(code) > 20
    assert {kind: version for kind, (version, _) in documented().items()} == code


def test_a_file_of_every_kept_version_is_stored() -> None:
    page = documented()
    kept = {f"{FOLDERS[kind]}-{version}" for kind in FOLDERS for version in page[kind][1]}
    folders = {path.name for path in STORED.iterdir() if path.is_dir()}
    assert folders - {"releases", "studies"} == kept  # other tests read these two


def test_stored_bundle_is_read() -> None:
    """The stored weights come from a seeded generator, so every number is known."""
    bundle = read_bundle(STORED / "bundle-1")
    expected = np.random.default_rng(0).normal(size=(3, 65)).astype(np.float32)
    np.testing.assert_array_equal(bundle.weights, expected)
    assert bundle.facts.class_names == ("naevus", "melanoma", "keratosis")
    assert (bundle.statement["epsilon_target"], bundle.statement["unit"]) == (1, "image")


def test_stored_bundle_never_was_a_release() -> None:
    """The bundle was written by hand: it has a non-exact engine and no hashes of its parts."""
    checks = {check.name: check.passed for check in verify_bundle(STORED / "bundle-1").checks}
    assert {name for name, passed in checks.items() if passed is False} == {
        *("engine", "statement", "parts"),
    }
    assert all(checks[name] for name in ("hashes", "plan", "mechanisms", "price", "head"))


def test_stored_cell_is_read() -> None:
    written = json.loads((STORED / "cell-4/metrics.json").read_text())
    cell = read_cell(STORED / "cell-4/metrics.json")
    assert (cell.format_version, cell.headline, cell.n) == (4, "accuracy", 300)
    assert cell.guaranteed
    assert vars(cell.summary["accuracy"]).items() >= written["summary"]["accuracy"].items()
    assert cell.realised_epsilon == written["realised_epsilon"]


def test_stored_ledger_is_read() -> None:
    """The ledger has three releases: one abandoned, one closed, one that still counts as spent."""
    entries = Ledger(STORED / "ledger-1/ledger.jsonl").read_entries()
    assert [each.number for each in entries] == [1, 2, 3]
    assert [each.state for each in entries] == ["abandoned", "closed", "open"]
    assert [each.reason for each in entries] == ["der Rechner fiel aus", None, None]
    assert [each.digest for each in entries] == [None, "d" * 64, None]
    sides = [[part.side for part in each.booking.parts] for each in entries]
    assert sides == [["train"], ["train"], ["train", "test"]]
    noise = [part.mechanisms[0].noise_multiplier for part in entries[1].booking.parts]
    assert noise == [5.0]


def test_stored_ledger_of_sites_is_read() -> None:
    """Of three releases, one was abandoned, one closed, and several sites sent sums of the last."""
    entries = Ledger(STORED / "ledger-2/ledger.jsonl").read_entries()
    assert [each.state for each in entries] == ["abandoned", "closed", "open"]
    assert [each.sent for each in entries] == [False, False, True]
    assert [bool(each.booking.sites) for each in entries] == [True, False, True]


def test_stored_hashes_of_units_are_read() -> None:
    (path,) = (STORED / "units-1").iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    hashes = read_hashes(STORED / "units-1", digest, bytes(range(32)))
    assert {name: values.tolist() for name, values in hashes.items()} == {
        "train.names": [1, 5],
        "train.images": [2, 3],
        "test.images": [7],
    }


def test_stored_cohort_is_read() -> None:
    (path,) = (STORED / "cohort-1").iterdir()
    described, cohort = read_cohort(path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert set(arrays) == {"outputs.class_sums", "sums.class_sums", "weights"}
    np.testing.assert_array_equal(cohort.outputs["class_sums"], arrays["outputs.class_sums"])
    np.testing.assert_array_equal(cohort.sums["class_sums"], arrays["sums.class_sums"])
    np.testing.assert_array_equal(cohort.weights, arrays["weights"])
    assert (cohort.n, cohort.steps) == (300, {"class_sums": 0.5})
    assert (described["label"], described["horizon"]) == ("2026-10", 12)
    assert described["earlier"] == {"dataset": "september", "release": "clinic_09"}


def test_stored_comparison_is_read() -> None:
    """The comparison has two heads on 120 test images; its interval follows from the numbers."""
    record = read_record(
        STORED / "comparison-1/comparison.json", kind="dpprobe-comparison", version=1
    )
    assert [head["name"] for head in record["heads"]] == ["first", "third"]
    squares, difference = (each["noise_standard_deviation"] for each in record["mechanisms"])
    found = estimate_difference(
        ReleasedSums(**record["released"]),
        Noise(n=record["n"], difference=difference, squares=squares),
        Metric(tuple(record["class_frequencies"])),
    )
    assert (record["n"], record["unit"], record["entry"]) == (120, "image", 4)
    assert record["metric"] == "macro_accuracy"
    assert (record["difference"], *record["interval"]) == pytest.approx([*found])


def test_stored_split_tables_are_read() -> None:
    info = read_info(STORED / "dataset-1/dataset.json")
    assert info.class_names == ("naevus", "melanoma")
    for split, rows in (("train", 4), ("test", 2)):
        path = STORED / f"dataset-1/{split}.parquet"
        table, columns = SplitTable(path), pq.read_table(path).to_pydict()
        assert info.splits[split].rows == table.rows == rows
        assert table.read_labels().tolist() == columns["label"]
        assert [*table.read_ids()] == columns["id"]
        assert info.splits[split].per_class == (rows // 2, rows // 2)


def test_stored_features_are_read() -> None:
    """The result equals that of reading the shards one after the other with h5py."""
    store = FeatureStore(STORED / "features-2/manifest.json")
    shards = sorted((STORED / "features-2").glob("*.h5"))
    parts = []
    for shard in shards:
        with h5py.File(shard) as file:
            parts.append(file["features"][:])
    np.testing.assert_array_equal(store.read(), np.concatenate(parts))
    np.testing.assert_array_equal(store.labels, np.arange(10) % 2)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("cell-4/metrics.json", read_cell),
        ("dataset-1/dataset.json", read_info),
        ("features-2/manifest.json", read_manifest),
        ("cell-4/metrics.json", lambda path: whole_cell(path.parent, "any")),
    ],
)
def test_a_file_of_a_newer_dpprobe_is_refused_and_not_to_be_deleted(
    tmp_path: Path, stored: str, read: Callable[[Path], Any]
) -> None:
    path = tmp_path / Path(stored).name
    values = read_json(STORED / stored)
    version = values["format_version"] + 1
    path.write_text(json.dumps(values | {"format_version": version}))
    with pytest.raises(DataError, match=f"of version {version}, newer") as error:
        read(path)
    assert "delete" not in str(error.value)


@pytest.mark.parametrize(("version", "remedy"), [(4, "newer dpprobe"), (6, "delete it")])
def test_a_record_is_deleted_only_if_it_is_older(tmp_path: Path, version: int, remedy: str) -> None:
    path = tmp_path / "metrics.json"
    path.write_text('{"format": "dpprobe-cell", "format_version": 5}')
    with pytest.raises(DataError, match=remedy):
        read_record(path, kind="dpprobe-cell", version=version)


def test_a_shard_of_a_newer_dpprobe_is_not_to_be_deleted(tmp_path: Path) -> None:
    shard = tmp_path / "shard-00000-of-00002.h5"
    shutil.copy(STORED / "features-2" / shard.name, shard)
    with h5py.File(shard, "r+") as file:
        file.attrs["format_version"] = 3
    shard.write_bytes(bytes(SEAL_BYTES) + shard.read_bytes())  # stored before seals existed
    seal_shard(shard)
    with pytest.raises(DataError, match="dpprobe-features of version 3, newer than.* 2; use the n"):
        read_header(shard)


def write_embedding(path: Path, described: str) -> None:
    table = pa.table({"x": [0.0]})
    write_table(path, table.replace_schema_metadata({"dpprobe": described.encode()}))


def test_records_of_a_newer_dpprobe_are_refused_as_newer(tmp_path: Path) -> None:
    records: tuple[tuple[str, int, Any, Any], ...] = (
        ("plans", 6, Path.write_text, read_plans),
        ("download", 2, Path.write_text, Receipt.read),
        ("embedding", 2, write_embedding, read_embedding),
    )
    for kind, version, write, read in records:
        write(tmp_path / kind, f'{{"format": "dpprobe-{kind}", "format_version": {version}}}')
        with pytest.raises(DataError, match=f"dpprobe-{kind} of version {version}, newer"):
            read(tmp_path / kind)


# the privacy statement of a release

SCHEMA = REPOSITORY / "resources/schemas/release-statement-3.schema.json"


def described_names() -> dict[str, set[str]]:
    """Returns the names that docs/formats.md describes, by the field that may contain the name."""
    named: dict[str, set[str]] = {}
    for line in (REPOSITORY / "docs/formats.md").read_text().splitlines():
        if match := re.fullmatch(r"\| `([\w.]+)` \| `([\w`, ]+)` \| .* \|", line):
            named.setdefault(match[1], set()).update(match[2].split("`, `"))
    return named


def test_every_name_in_a_statement_has_a_sentence_and_a_description() -> None:
    sentences, described = read_yaml("statement.yaml"), described_names()
    for field in ("relation", "mode", "engine_limits", "outputs", "public", "not_covered"):
        assert described[field] == sentences[field].keys(), field
    assert described["near_duplicate_check"] == sentences["near_duplicates"].keys()
    assert described["unit"] == {*Plan.UNITS}
    schema = read_json(SCHEMA)["properties"]
    for field in ("outputs", "public", "not_covered"):
        assert {each["const"] for each in schema[field]["items"]["oneOf"]} == described[field]


def test_new_statements_are_valid_by_the_schema() -> None:
    """The schema accepts new statements, and refuses version 2, which has sentences."""
    schema = Draft202012Validator(read_json(SCHEMA))
    Draft202012Validator.check_schema(schema.schema)
    for version in sorted(path for path in (STORED / "releases").iterdir() if path.is_dir()):
        for path in version.glob("*.zip"):
            with zipfile.ZipFile(path) as file:
                bundle = json.loads(file.read("about.json"))["bundle"]
                statement = json.loads(file.read(f"{bundle}/privacy.json"))
            faults = [(each.json_path, each.message) for each in schema.iter_errors(statement)]
            assert bool(faults) == (statement["format_version"] == 2), (path, faults[:3])
