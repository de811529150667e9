"""Anyone who receives a bundle can verify it: edits are noticed, even with recomputed hashes."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError
from pydantic import ValidationError
from safetensors.numpy import save, save_file

from dpprobe.errors import ConfigError, DataError, DpprobeError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.auto import Options as Auto
from dpprobe.privacy import statement_words
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.noise_calibration import calibrate, price_of_group, price_plan, second_opinions
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.privacy.target import Target
from dpprobe.release import bundle as files
from dpprobe.release.checks import Check
from dpprobe.release.documents import document_values, page
from dpprobe.release.documents.model_card import make_card
from dpprobe.release.documents.page import make_page
from dpprobe.release.documents.rewritten_documents import explain_bundle
from dpprobe.release.parts.choice.measure import explain_choice
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.signing import sign_bundle
from dpprobe.release.stated_plans import check_price, read_plan
from dpprobe.release.verification.verify import read_verified, verify_bundle
from schemas import bundle_schema
from tests.support import bundles, release_study
from tests.support.bundles import write_example
from tests.support.edited_bundles import Change, edit_file, failed
from tests.support.refusals import check_tokens, refuses
from tests.support.shown_scores import draw_of, head, of_test_rows
from tests.unit.release.test_signing import write_keys

# Errors that writers of documents raise if values lack a part or have another type.
UNWRITABLE = (
    *(AttributeError, DpprobeError, LookupError, StopIteration, TypeError),
    *(UndefinedError, ValidationError),
)
SAMPLED = {
    "head": "sgd",
    "engine": "exact",
    "batch_size": 100,
    "learning_rate": 0.1,
    "normalize": "l2",
}
BALANCED = {"head": "momentum", "engine": "exact", "normalize": "l2", "class_priors": "released"}


def evaluation(folder: Path) -> dict[str, Any]:
    n = 400
    plan = calibrate(
        results.evaluation_mechanisms("accuracy", classes=3, multi_label=False),
        Target(n=n, epsilon=0.5, delta=1e-5),
        cache=folder,
    )
    labels = np.arange(n) % 3
    rows = of_test_rows(np.eye(3)[np.where(np.arange(n) < 348, labels, 0)], labels)
    return results.evaluate_heads(
        draw_of(head(3), rows),
        plan,
        metric="accuracy",
        link="softmax",
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes an intact bundle of a head that was trained without sampling."""
    place = tmp_path_factory.mktemp("bundle")
    folder = write_example(
        place / "whole",
        evaluation=evaluation(place / "calibration"),
        choice={"cells": 4, "epsilon": 5.5, "uncovered": None},
        ledger={
            "entry": 3,
            "releases": 2,
            "unit": "image",
            "delta": 1e-5,
            "epsilon": 1.6,
            "exact": True,
        },
    )
    documented(folder)
    return folder


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def documented(folder: Path) -> None:
    """Rewrites card, page and hashes from bundle.json and privacy.json."""
    facts = files.BundleFacts.model_validate(read_json(folder / files.FACTS_FILE))
    statement = read_json(folder / files.STATEMENT_FILE)
    for name, make in ((files.CARD_FILE, make_card), (files.PAGE_FILE, make_page)):
        (folder / name).write_text(make(facts, statement), encoding="utf-8")
    files.write_sums(folder)


def test_sentences_of_a_statement_are_shown_whole(original: Path) -> None:
    """A choice has several sentences, and `verify` prints them uncut."""
    stated = read_json(original / "privacy.json")
    words = [explain_choice(stated["choice"], stated), *explain_statement(stated).not_covered]
    assert max(map(len, words)) > 600, "no sentence here was ever cut"
    details = [check.detail for check in verify_bundle(original).checks]
    for each in words:
        assert any(each in detail for detail in details), f"cut: {each}"


def test_a_bundle_in_order_passes(original: Path) -> None:
    report = verify_bundle(original)
    assert failed(report) == []
    assert report.passed
    details = {check.name: check.detail for check in report.checks}
    assert "dp-accounting" in details["price"]
    assert "opacus" in details["price"]
    information = [check for check in report.checks if check.name == "not covered"]
    assert len(information) == len(read_json(original / "privacy.json")["not_covered"])
    assert {check.passed for check in information} == {None}
    assert {"statement", "documents"} <= {check.name for check in report.checks if check.passed}


@pytest.mark.parametrize(
    ("options", "arrays"),
    [
        (SAMPLED, {}),
        (BALANCED, {}),
        ({"head": "least_squares", "normalize": "centred"}, {"centre": (64,)}),
    ],
)
def test_other_heads_pass(
    tmp_path: Path, options: dict[str, Any], arrays: dict[str, tuple[int, ...]]
) -> None:
    folder = write_example(tmp_path / "bundle", options=options)
    with_tensors(
        folder,
        lambda tensors: tensors.update(
            {name: np.ones(shape, np.float32) for name, shape in arrays.items()}
        ),
    )
    edited(folder, files.STATEMENT_FILE, lambda values: values["ledger"].update(exact=False))
    assert failed(verify_bundle(folder)) == []


def edited(folder: Path, name: str, change: Change) -> Path:
    """Edits a JSON file, and recomputes documents and hashes as an attacker would."""
    edit_file(folder, name, change)
    try:
        documented(folder)
    except UNWRITABLE:
        files.write_sums(folder)
    return folder


def with_tensors(folder: Path, change: Change) -> Path:
    """Edits the head's tensors without changing its metadata."""
    from safetensors import safe_open

    with safe_open(folder / files.HEAD_FILE, framework="numpy") as stream:
        metadata = stream.metadata()
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    change(tensors)
    (folder / files.HEAD_FILE).write_bytes(save(tensors, metadata=metadata))
    documented(folder)
    return folder


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value; of samples of numbers, only the first."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*place, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            if index == 0 or not isinstance(inner, float) or "sample" not in place:
                yield from leaves(inner, (*place, index))
    else:
        yield place


def other(value: Any) -> Any:
    """Returns another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 if value else 0.5
    if isinstance(value, str):
        return f"{value}x"
    if value is None:
        return "other"
    return {"more": 1} if isinstance(value, dict) else ["more"]


# For values whose name is in no sentence, by first key: the check that must fail after an edit.
NAMED_BY = {
    "dataset": "head",
    "dimension": "head",
    "class_names": "parts",
    "format": "privacy.json",
    "format_version": "privacy.json",
    "unit": "plan",
    "patients": "plan",
    "test_units": "statement",
    "selection": "plan",
    "epsilon_target": "head",
    "epsilon_realised": "plan",
    "public_files": "statement",
}


def unnoticed(original: Path, name: str, folder: Path) -> set[str]:
    """Returns the paths of a file's values that can be edited or removed without being noticed.

    Any failed check must name the edited value by a key, or be the check of its kind.
    """
    written = read_json(original / name)
    passed, unnamed = set(), {}
    for place, edit in itertools.product(leaves(written), (other, lambda _: None)):
        values = copy.deepcopy(written)
        inner = values
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = edit(inner[place[-1]])
        if values == written:
            continue
        shutil.copytree(original, folder)
        edited(folder, name, lambda written, new=values: written.update(new))  # type: ignore[misc]
        report = verify_bundle(folder)
        faults = {one.name: one.detail for one in report.checks if one.passed is False}
        if report.passed:
            passed.add(".".join(map(str, place)))
        elif NAMED_BY.get(place[0]) not in faults:
            said = " ".join([*faults, *faults.values()])
            if not any(str(key) in said for key in place):
                unnamed[place] = faults
        shutil.rmtree(folder)
    assert unnamed == {}
    return passed


def test_verification_detects_all_edits_of_the_statement_except_listed_ones(
    original: Path, tmp_path: Path
) -> None:
    """Unsampled heads do not depend on n; only the maker knows ledger, choice and split."""
    passed = unnoticed(original, files.STATEMENT_FILE, tmp_path / "copy")
    ledger = {f"ledger.{name}" for name in ("entry", "releases", "epsilon", "exact")}
    split = {"test_units.split.public_seed", "test_units.split.fraction"}
    assert passed == {"n", "choice.cells", "choice.epsilon", *ledger, *split}


def test_verification_detects_all_edits_of_the_facts_except_names_and_texts(
    original: Path, tmp_path: Path
) -> None:
    """Names and the maker's texts cannot be derived from a bundle."""
    passed = unnoticed(original, files.FACTS_FILE, tmp_path / "copy")
    assert {place.split(".")[0] for place in passed} == {"name", "study", "dpprobe", "card"}


# Later versions may reword and restyle documents if the facts are unchanged.


def find_check(folder: Path, name: str) -> Check:
    (found,) = [check for check in verify_bundle(folder).checks if check.name == name]
    return found


@pytest.mark.parametrize("name", [files.CARD_FILE, files.PAGE_FILE])
def test_an_edited_document_fails_in_the_version_that_wrote_it(bundle: Path, name: str) -> None:
    """Recomputed hashes do not hide the edit."""
    text = (bundle / name).read_text(encoding="utf-8")
    (bundle / name).write_text(text.replace("epsilon 1", "epsilon 0.1"), encoding="utf-8")
    files.write_sums(bundle)
    report = verify_bundle(bundle)
    assert failed(report) == ["documents"]
    check_tokens(find_check(bundle, "documents").detail, name)
    assert not report.passed


@pytest.mark.parametrize("name", [files.CARD_FILE, files.PAGE_FILE])
def test_documents_of_another_version_are_not_compared_and_the_report_says_so(
    bundle: Path, name: str
) -> None:
    edited(bundle, files.FACTS_FILE, lambda values: values.update(dpprobe="99.5"))
    (bundle / name).write_text("What another version wrote.\n", encoding="utf-8")
    files.write_sums(bundle)
    report = verify_bundle(bundle)
    check = find_check(bundle, "documents")
    assert (report.passed, check.passed) == (True, None)
    check_tokens(check.detail, files.CARD_FILE, files.PAGE_FILE, "99.5", "dpprobe explain")
    assert any("99.5" in line and "documents" in line for line in report.summarize())
    edit_file(bundle, files.STATEMENT_FILE, lambda values: values.update(unit="patient"))
    assert not verify_bundle(bundle).passed, "facts are compared in any version"


def test_a_reworded_sentence_and_another_style_change_no_verdict_of_an_older_bundle(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bundle is checked as one of this version and as one of another version."""
    reworded = {
        kind: {name: f"In other words, {sentence}" for name, sentence in sentences.items()}
        for kind, sentences in statement_words.read_sentences().items()
    }
    templates = Path(shutil.copytree(document_values.TEMPLATES, tmp_path / "templates"))
    style = (templates / "style.css").read_text(encoding="utf-8")
    (templates / "style.css").write_text(f"{style}body {{ font: 9pt serif }}\n", encoding="utf-8")
    monkeypatch.setattr(statement_words, "read_sentences", lambda: reworded)
    monkeypatch.setattr(page, "TEMPLATES", templates)
    assert failed(verify_bundle(bundle)) == ["documents"], "both documents are this version's"
    before = [(bundle / name).read_bytes() for name in (files.CARD_FILE, files.PAGE_FILE)]
    edit_file(bundle, files.FACTS_FILE, lambda values: values.update(dpprobe="99.5"))
    report = verify_bundle(bundle)
    assert failed(report) == []
    assert find_check(bundle, "documents").passed is None
    told = [check.detail for check in report.checks if check.name == "not covered"]
    assert told
    assert all(each.startswith("In other words, ") for each in told)
    read = read_verified(bundle)
    for each, old in zip((False, True), before, strict=True):
        written = explain_bundle(read, page=each)
        assert "In other words, " in written
        assert written.encode() != old


PARTS: dict[str, Change] = {
    "classes": lambda facts: facts["class_names"].reverse(),
    "preprocessing": lambda facts: facts["backbone"]["preprocessing"].update(mean=0.25),
    "probe": lambda facts: facts["backbone"]["probe"].update(norm=1.0, sha256="0" * 64),
    "backbone": lambda facts: facts["backbone"]["versions"].update(torch="1.0"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_backbone_is_found_by_its_features(bundle: Path, part: str) -> None:
    report = verify_bundle(edited(bundle, files.FACTS_FILE, PARTS[part]))
    (check,) = [check for check in report.checks if check.name == "parts"]
    assert check.passed is False
    check_tokens(check.detail, part, files.FACTS_FILE, files.STATEMENT_FILE)
    facts = files.BundleFacts.model_validate(read_json(bundle / files.FACTS_FILE))
    edited(
        bundle, files.STATEMENT_FILE, lambda statement: statement.update(parts=facts.hash_parts())
    )
    noticed = ["backbone"] if part in ("preprocessing", "probe") else []
    assert failed(verify_bundle(bundle)) == noticed


def test_a_backbone_with_a_file_is_computed_where_the_file_is_named(
    bundle: Path, tmp_path: Path
) -> None:
    def name_file(facts: dict[str, Any]) -> None:
        facts["backbone"]["options"] = {"family": "timm", "model": "resnet18"}
        facts["backbone"].update(checkpoint="a.safetensors", trained=True, weights_sha256="0" * 64)

    edited(bundle, files.FACTS_FILE, name_file)
    details = {check.name: check for check in verify_bundle(bundle).checks}
    assert details["backbone"].passed is None
    check_tokens(details["backbone"].detail, "--checkpoint")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    report = verify_bundle(bundle, checkpoint=tmp_path / "a.safetensors")
    assert "backbone" in failed(report)


def test_another_n_of_a_head_that_samples_or_another_engine_fails(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "sampled", options=SAMPLED)
    edited(folder, files.STATEMENT_FILE, lambda values: values.update(n=1501))
    assert "mechanisms" in failed(verify_bundle(folder))
    folder = write_example(tmp_path / "engine", options={**SAMPLED, "engine": "closed_form"})
    documented(folder)
    assert "engine" in failed(verify_bundle(folder)), "its releases are not exact"


def test_a_release_in_another_release_s_folder_fails(bundle: Path, tmp_path: Path) -> None:
    name = read_json(bundle / "bundle.json")["name"]
    for folder, passed in ((f"releases/{name}", True), ("releases/other", False), ("mine", True)):
        place = shutil.copytree(bundle, tmp_path / "results" / folder)
        assert find_check(place, "bundle.json").passed is passed


def test_a_study_s_folder_is_answered_with_its_bundles(bundle: Path, tmp_path: Path) -> None:
    study = tmp_path / "results"
    (study / "releases").mkdir(parents=True)
    for name in ("v2", "v1", ".v2.staged"):
        shutil.copytree(bundle, study / "releases" / name)
    first, second = (study / "releases" / name for name in ("v1", "v2"))
    with refuses(DataError, study, first, second):
        verify_bundle(study)
    (first / files.FACTS_FILE).unlink()  # still a bundle without this file
    assert failed(verify_bundle(first)) == ["files"]


def test_signatures(bundle: Path, tmp_path: Path) -> None:
    def signature(key: Path | None) -> bool | None:
        report = verify_bundle(bundle, public_key=key)
        return next(check.passed for check in report.checks if check.name == "signature")

    private, public = write_keys(tmp_path)
    assert signature(None) is None
    assert signature(public) is False
    sign_bundle(bundle, private)
    assert signature(None) is None
    assert signature(public) is True
    assert verify_bundle(bundle, public_key=public).passed
    edited(bundle, files.STATEMENT_FILE, lambda values: values["ledger"].update(entry=9))
    assert failed(verify_bundle(bundle, public_key=public)) == ["signature"]
    with pytest.raises(ConfigError, match="public key"):
        verify_bundle(bundle, public_key=tmp_path / "missing.pem")


@pytest.mark.parametrize("name", [files.FACTS_FILE, files.STATEMENT_FILE])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"format": NaN}',
        b'{"format": 1e999}',
        b'{"n": 1, "n": 2}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a": ' * 900 + b"1" + b"}" * 900,
    ],
)
def test_hostile_json_fails_in_a_line(bundle: Path, name: str, content: bytes) -> None:
    (bundle / name).write_bytes(content)
    files.write_sums(bundle)
    report = verify_bundle(bundle)
    assert name in failed(report)
    assert all("\n" not in check.detail and len(check.detail) <= 600 for check in report.checks)


@pytest.mark.parametrize("junk", [None, -1, 1e308, "x", [], {}, [[[1]]], {"a": {"b": None}}, True])
def test_statement_values_of_a_wrong_type_fail_verification_without_raising(
    bundle: Path, junk: Any
) -> None:
    written = read_json(bundle / files.STATEMENT_FILE)
    for key in written:
        if written[key] == junk:
            continue
        write_json(bundle / files.STATEMENT_FILE, {**written, key: junk})
        files.write_sums(bundle)
        report = verify_bundle(bundle)
        # statements without a test result or a selection are valid, but contradict card and page
        assert failed(report), key


def test_a_hostile_head_fails_in_a_line(bundle: Path) -> None:
    for start in (b"", b"\xff" * 64, (2**40).to_bytes(8, "little"), b"\2" + bytes(7)):
        content = start + b"{}" * (len(start) == 8)
        (bundle / files.HEAD_FILE).write_bytes(content)
        files.write_sums(bundle)
        assert failed(verify_bundle(bundle)) == ["head"]


def test_control_characters_do_not_reach_a_terminal(bundle: Path) -> None:
    edited(bundle, files.STATEMENT_FILE, lambda values: values.update(method="\x1b[2J\nverified"))
    for check in verify_bundle(bundle).checks:
        assert check.detail.isprintable()
    (bundle / files.SUMS_FILE).write_text("\x1b[2J  bundle.json\n")
    assert all(check.detail.isprintable() for check in verify_bundle(bundle).checks)


def test_a_bundle_validates_by_the_schema_in_the_repository(
    original: Path, repository: Path
) -> None:
    import jsonschema

    written = json.loads((repository / "workflow/schemas/bundle.schema.json").read_text())
    assert written == bundle_schema(), "run `make schema`"
    jsonschema.validate(read_json(original / files.FACTS_FILE), written)


@pytest.mark.parametrize("patients", [None, 1, 5])
def test_the_price_to_a_patient_is_computed_again(
    tmp_path: Path, patients: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_patients(*arguments: Any, **named: Any) -> Plan:
        plan = calibrate(*arguments, **named)
        worth = patients and round_up(price_of_group(plan, patients))
        return replace(plan, patients=Patients(images=patients, epsilon=worth))

    monkeypatch.setattr(bundles, "calibrate", with_patients)
    folder = write_example(tmp_path / "bundle")
    documented(folder)
    assert failed(verify_bundle(folder)) == []
    edited(folder, files.STATEMENT_FILE, lambda values: values["patients"].update(epsilon=1.5))
    assert "price" in failed(verify_bundle(folder))


def test_a_release_with_a_public_file_passes(tmp_path: Path) -> None:
    release_study.write_features(tmp_path)
    path = tmp_path / "public-place/start.safetensors"
    path.parent.mkdir()
    save_file({"weights": np.zeros((3, 7), np.float32)}, path, metadata={"classes": "a, b, c"})
    made = release_study.study(tmp_path)
    method = made.methods["covariance"].model_copy(update={"init": "file", "init_file": str(path)})
    made = made.model_copy(update={"methods": {**made.methods, "covariance": method}})
    folder = release_study.release(tmp_path, made)
    assert failed(verify_bundle(folder)) == []
    assert all(b"public-place" not in file.read_bytes() for file in folder.iterdir())
    assert [*read_json(folder / files.STATEMENT_FILE)["public_files"]] == ["start.safetensors"]
    edited(folder, files.STATEMENT_FILE, lambda values: values.update(public_files={}))
    assert "statement" in failed(verify_bundle(folder))


def test_the_rule_of_auto_is_repeated_with_a_public_head(tmp_path: Path) -> None:
    release_study.write_features(tmp_path)
    path = tmp_path / "public-place/words.safetensors"
    path.parent.mkdir()
    save_file({"weights": np.eye(3, 7, dtype=np.float32)}, path)
    made = release_study.study(tmp_path)
    methods = {**made.methods, "covariance": Auto(public_head=str(path))}
    folder = release_study.release(tmp_path, made.model_copy(update={"methods": methods}))
    assert failed(verify_bundle(folder)) == []
    assert all(b"public-place" not in file.read_bytes() for file in folder.iterdir())
    statement = read_json(folder / files.STATEMENT_FILE)
    assert statement["public_files"] == {"words.safetensors": sha256_file(path)}
    edited(folder, files.STATEMENT_FILE, lambda values: values["options"].pop("public_head"))
    assert failed(verify_bundle(folder))


def test_a_plan_that_slightly_exceeds_its_target_epsilon_is_refused(original: Path) -> None:
    """The excess is smaller than the tolerance between a stated and a computed epsilon."""
    plan = read_plan(read_json(original / files.STATEMENT_FILE))[1]
    check_price(plan, True)
    costly = replace(plan, mechanisms=tuple(item.scale_noise(0.99999) for item in plan.mechanisms))
    assert 1 + 1e-6 < price_plan(costly) < 1 + 2e-5
    _, checks, _ = second_opinions(costly)
    costly = replace(costly, realised_epsilon=1.0, checks=checks)
    with refuses(DpprobeError, "epsilon 1", "delta 1e-05"):
        check_price(costly, True)
