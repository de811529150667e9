"""What checks say of edited statements, facts, heads and texts, held against stored answers."""

from __future__ import annotations

import copy
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.artifacts import read_json
from dpprobe.heads.registry import method_options
from dpprobe.privacy.running_sums import Cohort, Factorisation
from dpprobe.release.bundle import FACTS_FILE, HEAD_FILE, STATEMENT_FILE, BundleFacts, write_sums
from dpprobe.release.leak_check import check_keys, check_published, check_text
from dpprobe.release.ledger import Ledger
from dpprobe.release.parts.choice.measure import check_choice
from dpprobe.release.parts.cohort.measure import Chain, Link, cohort_path, read_chain, write_cohort
from dpprobe.release.parts.evaluation.show import check_evaluation
from dpprobe.release.parts.spent.measure import check_ledger
from dpprobe.release.signing import read_private_key
from dpprobe.release.verification import files, method, rewritten_documents, stated_plan
from dpprobe.release.verification.checks import Checks
from tests.support.bundles import PRIORS, write_example
from tests.support.stored_records import check_values
from tests.unit.release.parts.test_many_settings import answer
from tests.unit.release.test_ledger import FREE, booking, gaussian, part
from tests.unit.release.test_signing import write_keys
from tests.unit.release.verification.test_verify import documented, evaluation, leaves, other


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle")
    folder = write_example(
        place / "whole", evaluation=evaluation(place / "calibration"), classes=("a", "b", "c"),
        subsample={"fraction": 0.25, "public_seed": 7},
    )  # fmt: skip
    documented(folder)
    return folder


def failures(folder: Path, facts: Any, values: Any) -> list[str]:
    """Runs the checks that read no files but the head; returns each failure, numbers rounded."""
    checks = Checks()
    facts = checks.run_check("facts", lambda: ("", BundleFacts.model_validate(facts)))
    options = checks.run_check("options", method.read_options, facts)
    checks.run_check("engine", method.check_engine, options)
    plan = checks.run_check("plan", stated_plan.read_plan, values)
    checks.run_check("mechanisms", method.check_mechanisms, options, plan)
    checks.run_check("words", rewritten_documents.check_words, values, plan, options, facts)
    checks.run_check("head", method.check_head, folder, facts, options, plan, values)
    checks.run_check("parts", rewritten_documents.check_parts, values, facts)
    checks.run_check("evaluation", check_evaluation, values, plan, facts)
    checks.run_check("choice", check_choice, values, plan, facts)
    checks.run_check("ledger", check_ledger, values, plan)
    return [
        f"{one.name}: " + re.sub(r"\d+\.\d+(e-\d+)?", lambda m: f"{float(m[0]):.4g}", one.detail)
        for one in checks.done if one.passed is False
    ]  # fmt: skip


def test_edits_are_named_as_before(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewritten_documents, "code_version", lambda: "0.1.0")
    written = {name: read_json(original / name) for name in (FACTS_FILE, STATEMENT_FILE)}
    found: dict[str, Any] = {"none": failures(original, *written.values())}
    assert found["none"] == []
    for name, content in written.items():
        for place in leaves(content):
            if "sample" in place or "probe" in place or "not_covered" in place[:-1]:
                continue
            for edit in (other, lambda _: None, lambda value: 2 * value if value else -1):
                values = copy.deepcopy(written)
                inner = values[name]
                for key in place[:-1]:
                    inner = inner[key]
                try:
                    inner[place[-1]] = edit(inner[place[-1]])
                except TypeError:
                    continue
                case = f"{name} {'.'.join(map(str, place))} {str(inner[place[-1]])[:12]}"
                found[case] = [text[:160] for text in failures(original, *values.values())]
    for edit in (list.pop, list.reverse, list.clear):
        values = copy.deepcopy(written)
        edit(values[STATEMENT_FILE]["mechanisms"])
        found[edit.__name__] = failures(original, *values.values())
    facts = copy.deepcopy(written)
    facts[FACTS_FILE]["dpprobe"] = "2.0"
    facts[STATEMENT_FILE]["promise"] = "none"
    found["another version"] = failures(original, *facts.values())
    check_values("edits_of_bundles", found)


def test_heads_and_documents_are_checked_as_before(original: Path, tmp_path: Path) -> None:
    head = {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"}
    folder = write_example(tmp_path / "priors", options=head)
    documented(folder)
    facts, values = (read_json(folder / name) for name in (FACTS_FILE, STATEMENT_FILE))
    plan, read = stated_plan.read_plan(values)[1], BundleFacts.model_validate(facts)
    options, weights = method_options(head), np.ones((3, 65), np.float32)
    content = (folder / HEAD_FILE).read_bytes()
    start = content[8 : 8 + int.from_bytes(content[:8], "little")]
    marked = json.loads(start)["__metadata__"]
    found: list[Any] = [answer(method.check_head, folder, read, options, plan, values)]
    for tensors, mark in (
        ({"weights": weights, "class_priors": PRIORS}, marked),
        ({"weights": weights, "class_priors": PRIORS}, None),
        ({"weights": weights}, marked), ({"weights": weights[1:], "class_priors": PRIORS}, marked),
        ({"weights": weights, "class_priors": PRIORS[::-1]}, marked),
        ({"weights": weights, "class_priors": PRIORS * np.float32(1.1)}, marked),
        ({"weights": weights, "class_priors": PRIORS * np.float32(0)}, marked),
        ({"weights": weights * np.nan, "class_priors": PRIORS}, marked),
        ({"weights": weights.astype(np.int32), "class_priors": PRIORS}, marked),
    ):  # fmt: skip
        arrays = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
        (folder / HEAD_FILE).write_bytes(save(arrays, metadata=mark))
        found.append(answer(method.check_head, folder, read, options, plan, values))
    facts, values = (read_json(original / name) for name in (FACTS_FILE, STATEMENT_FILE))
    read = BundleFacts.model_validate(facts)
    for name in ("README.md", "release.html", "SHA256SUMS"):
        text = (original / name).read_bytes()
        for change in (b"Epsilon", b"/home/anna/x", b"2026-01-31 12:30", b"epsilon"):
            changed = text[:-1] if name == "SHA256SUMS" else text.replace(b"epsilon", change, 1)
            (original / name).write_bytes(changed)
            found.append(answer(files.check_hashes, original))
            if name != "SHA256SUMS":
                write_sums(original)
                found.append(answer(rewritten_documents.check_documents, original, read, values))
                found.append(answer(files.check_leaks, original))
        (original / name).write_bytes(text)
        write_sums(original)
    said = "\n".join(map(str, found)).replace(str(original), "").replace(str(tmp_path), "")
    said = re.sub(r"; this is dpprobe .*|tensors \{.*\};", "", said)
    check_values("heads_and_documents", said.splitlines())


def test_private_texts_and_keys_are_found_as_before() -> None:
    texts = ("/home/anna", "x/home/anna", "</data/x", " /data", "/data/", "C:\\Users", "D:\\\\Data",
             "file://x", "~/x", "a~/x", "2026-01-31", "2026-01-31 10:00", "1899-01-31 10:00",
             "2026-01-31T23:59", "0" * 32, "0" * 31, "0" * 33, "AB" * 16,
             "x" + "ab" * 16)  # fmt: skip
    keys = ("seed", "seeds", "my_seed", "seedy", "public_seed", "crop_seed", "Time", "times",
            "date", "git_commit", "gitcommit", "history", "histories", "prediction", "test_ids",
            "hostname", "host", "identity", "seconds_more")  # fmt: skip
    found = {text: answer(check_text, text, where="card") for text in texts}
    found |= {key: [answer(check_keys, value, where="f") for value in ({key: 1}, [{"a": {key: 1}}],
                    {"a": [[{key: 1}]]}, [key])] for key in keys}  # fmt: skip
    blocks: tuple[Any, ...] = ({"a": "~/x"}, {"date": 1}, {"a": 1}, None, ["/tmp/x"])
    found["published"] = [answer(check_published, {"block": block}) for block in blocks]
    check_values("private_texts", found)


def test_a_key_is_read_from_a_plain_file_alone(tmp_path: Path) -> None:
    private, _ = write_keys(tmp_path)
    assert read_private_key(private)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(pipe, private.read_bytes())
    threading.Timer(0.3, os.close, [pipe]).start()
    assert "unreadable" in answer(read_private_key, tmp_path / "pipe")


def test_chains_of_cohorts_are_read_as_they_were_written(tmp_path: Path) -> None:
    chain, names = Chain(factorisation=Factorisation.make(12)), [f"m{n}" for n in range(1, 13)]
    for number, name in enumerate(names):
        ledger = Ledger.of_dataset(tmp_path, f"data_{name}")
        sums = {"gram": np.arange(4) + number}
        cohort = Cohort(
            n=10 + number, outputs={"gram": np.arange(3.0) * number}, sums=sums if number else {},
            steps={"gram": 0.5 + number}, weights=np.full((2, 3), number, np.float32)
            if number % 2 else None,
        )  # fmt: skip
        entry = ledger.book_release(booking(name, part("train", gaussian(50.0))), FREE)
        path = cohort_path(ledger.path.parent, name, entry.number)
        assert path.name == f"cohort-{name}.entry-1.safetensors"
        write_cohort(path, chain, cohort, label=f"label {name}", binds={"method": "x"})
        for state in ("open", "closed"):
            read = answer(read_chain, tmp_path, dataset=f"data_{name}", release=name)
            assert isinstance(read, Chain) == (state == "closed")
            if state == "open":
                assert "has no finished release of this name" in read
                ledger.close_entry(1, "d" * 64)
        assert read.factorisation == chain.factorisation
        assert read.binds == {"method": "x"}
        link = Link(f"data_{name}", name, f"label {name}", 10 + number)
        assert read.links == (*chain.links, link)
        np.testing.assert_equal(vars(read.cohorts[-1]), vars(cohort))
        assert path.stat().st_mode & 0o777 == 0o600
        chain = read
    assert [each.n for each in chain.cohorts] == [*range(10, 22)]
    assert "no finished release" in answer(read_chain, tmp_path, dataset="data_m1", release="m2")
