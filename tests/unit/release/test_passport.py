"""A passport states exactly what its bundle states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dpprobe.code_version import code_version
from dpprobe.errors import ConfigError, DataError
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.release import passport
from dpprobe.release.bundle import bundle_digest, read_bundle
from dpprobe.release.passport import write_passport
from dpprobe.release.signing import sign_bundle
from dpprobe.release.verification.verify import verify_bundle
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.edited_bundles import edit_file
from tests.support.refusals import refuses
from tests.unit.release.test_signing import write_keys
from tests.unit.release.verification.test_verify import documented

DAY = date(2026, 11, 29)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_example(tmp_path_factory.mktemp("bundle") / "lesions_v1")
    documented(folder)
    return folder


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "lesions_v1"))


def entities(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the entities of a crate by identifier; each appears once."""
    crate = json.loads((folder / "ro-crate-metadata.json").read_text())
    found = {each["@id"]: each for each in crate["@graph"]}
    assert len(found) == len(crate["@graph"])
    return found


def references(value: Any) -> Iterator[str]:
    """Yields every reference from one entity to another."""
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict) and set(value) == {"@id"}:
        yield value["@id"]


def test_a_crate_lists_every_file_with_its_size_and_hash(bundle: Path) -> None:
    """RO-Crate 1.1 requires a descriptor, a root, and files that the root references."""
    folder = write_passport(bundle, published=DAY)
    found = entities(folder)
    descriptor = found["ro-crate-metadata.json"]
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert found["./"]["@type"] == "Dataset"
    assert found["./"]["datePublished"] == "2026-11-29"
    for entity in found.values():
        for value in entity.values():
            assert {place for place in references(value) if "://" not in place} <= set(found)
    parts = {place for name in ("./", "bundle/") for place in references(found[name]["hasPart"])}
    files = {name for name, entity in found.items() if entity["@type"] == "File"}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == there - {"ro-crate-metadata.json"} == parts - {"bundle/"}
    assert {"questions.md", "registry.yaml", "leaderboard.yaml"} <= files
    for name in files:
        content = (folder / name).read_bytes()
        assert found[name]["sha256"] == sha256(content).hexdigest()
        assert found[name]["contentSize"] == str(len(content))


def test_a_crate_states_the_guarantee_the_software_and_the_run(bundle: Path) -> None:
    found = entities(write_passport(bundle, published=DAY))
    statement = json.loads((bundle / "privacy.json").read_text())
    values = {each["name"]: each["value"] for each in map(found.get, stated(found)) if each}
    spent = statement["ledger"]["epsilon"]
    words = explain_statement(statement)
    assert values == {
        **{name: statement[name] for name in ("epsilon_realised", "delta", "n")},
        "unit": words.unit.whole,
        "relation": words.relation,
        "ledger.epsilon": spent,
    }
    run = found["#run"]
    assert run["@type"] == "CreateAction"
    assert found[run["instrument"]["@id"]]["version"] == code_version()
    assert {"@id": "bundle/head.safetensors"} in run["result"]
    assert not {"startTime", "endTime", "agent"} & set(run), "a bundle knows neither"


def stated(found: dict[str, dict[str, Any]]) -> list[str]:
    return list(references(found["./"]["variableMeasured"]))


def test_the_copy_is_the_bundle_and_the_bundle_stays(bundle: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    sign_bundle(bundle, private)
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    folder = write_passport(bundle, tmp_path / "new/place", published=DAY, public_key=public)
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert verify_bundle(folder / "bundle", public_key=public).passed
    assert bundle_digest(folder / "bundle") == bundle_digest(bundle)


def test_a_bundle_that_does_not_verify_gets_no_passport(bundle: Path, tmp_path: Path) -> None:
    edit_file(bundle, "privacy.json", lambda it: it.update(epsilon_realised=0.5))
    read_bundle(bundle)  # its hashes are right
    with refuses(DataError, bundle, "epsilon", f"dpprobe verify {bundle}"):
        write_passport(bundle, published=DAY)
    assert not (tmp_path / "lesions_v1.passport").exists()


def test_no_file_is_overwritten_and_no_bundle_extended(bundle: Path, tmp_path: Path) -> None:
    with refuses(ConfigError, bundle):
        write_passport(bundle, bundle / "passport", published=DAY)
    kept = tmp_path / "kept"
    kept.mkdir()
    write_passport(bundle, kept, published=DAY)  # an empty folder is filled
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    for taken in (kept, kept / "ro-crate-metadata.json"):
        with refuses(ConfigError, taken):
            write_passport(bundle, taken, published=date(2030, 1, 1))
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before


def test_a_passport_appears_whole_or_not_at_all(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        assert (next(tmp_path.glob(".lesions_v1.passport.*")) / "passport/bundle").is_dir()
        raise OSError("disk full")

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(passport, "describe_crate", fail)
    with pytest.raises(OSError, match="disk full"):
        write_passport(bundle, published=DAY)
    assert sorted(tmp_path.iterdir()) == before


def test_a_bundle_that_changes_during_the_copy_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_bundle(bundle)

    def swap(*_: Any, **__: Any) -> Any:
        (bundle / "README.md").write_text("edited meanwhile")
        return read

    monkeypatch.setattr(passport, "read_verified", swap)
    with refuses(DataError, bundle):
        write_passport(bundle, published=DAY)


def test_the_passport_command_lists_the_files_it_wrote(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "passport", str(bundle)) == 2  # a bundle has no publication date
    capsys.readouterr()
    assert run_main(monkeypatch, "passport", str(bundle), "--published", "2026-11-29") == 0
    folder = bundle.with_name("lesions_v1.passport")
    assert capsys.readouterr().out.splitlines() == [str(path) for path in sorted(folder.iterdir())]
