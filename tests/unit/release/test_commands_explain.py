"""`dpprobe explain` rewrites a bundle's documents from its verified facts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import (
    CARD_FILE,
    FACTS_FILE,
    PAGE_FILE,
    STATEMENT_FILE,
    read_facts,
    write_sums,
)
from dpprobe.release.documents.model_card import make_card
from dpprobe.release.documents.page import make_page
from dpprobe.release.verification.verify import verify_bundle
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.edited_bundles import edit_file
from tests.support.refusals import check_tokens
from tests.unit.release.verification.test_verify import documented

DOCUMENTS = {"card.md": CARD_FILE, "page.html": PAGE_FILE}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_example(tmp_path_factory.mktemp("bundle") / "lesions_v1")
    documented(folder)
    return folder


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "lesions_v1"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_explain_rewrites_documents_of_this_version_exactly(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(bundle)
    assert run_main(monkeypatch, "explain", str(bundle)) == 0
    assert capsys.readouterr().out.encode() == before[CARD_FILE]
    for name, document in DOCUMENTS.items():
        assert run_main(monkeypatch, "explain", str(bundle), "--output", str(tmp_path / name)) == 0
        assert capsys.readouterr().out == ""
        assert (tmp_path / name).read_bytes() == before[document]
    assert contents(bundle) == before


def test_explain_writes_verified_facts_instead_of_old_texts(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in DOCUMENTS.values():
        (bundle / name).write_text("The head costs epsilon 0.01.\n", encoding="utf-8")
    edit_file(bundle, FACTS_FILE, lambda facts: facts.update(dpprobe="99.5"))
    assert verify_bundle(bundle).passed
    stated = read_facts(bundle), read_json(bundle / STATEMENT_FILE)
    for name, write in (("card.md", make_card), ("page.html", make_page)):
        assert run_main(monkeypatch, "explain", str(bundle), "--output", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_text(encoding="utf-8") == write(*stated)


@pytest.mark.parametrize("name", ["card.txt", "card", "page.htm", "card.md.gz"])
def test_an_output_is_a_card_or_a_page(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    said = run_main(monkeypatch, "explain", str(bundle), "--output", str(tmp_path / name))
    check_tokens(str(said), "--output", tmp_path / name, ".html", ".md")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["card.md", "README.md", "release.html", "a/page.html"])
def test_an_output_inside_a_bundle_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = contents(bundle)
    said = run_main(monkeypatch, "explain", str(bundle), "--output", str(bundle / name))
    check_tokens(str(said), bundle.name)
    assert contents(bundle) == before


@pytest.mark.parametrize("name", [None, "card.md", "page.html"])
def test_a_bundle_that_does_not_verify_is_not_explained(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
) -> None:
    """One changed fact is enough, even if the hashes are recomputed."""
    edit_file(bundle, STATEMENT_FILE, lambda values: values.update(epsilon_realised=0.5))
    documented(bundle)
    output = ["--output", str(tmp_path / name)] if name else []
    said = run_main(monkeypatch, "explain", str(bundle), *output)
    check_tokens(str(said), bundle, "0.5", f"dpprobe verify {bundle}")
    assert capsys.readouterr().out == ""
    assert name is None or not (tmp_path / name).exists()


def test_an_edited_document_of_this_version_is_a_bundle_that_does_not_verify(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle / CARD_FILE).write_text("edited\n")
    write_sums(bundle)
    check_tokens(str(run_main(monkeypatch, "explain", str(bundle))), bundle, CARD_FILE)
