"""What checks say of edited statements, facts, heads and texts, held against stored answers."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from dpprobe.artifacts import read_json
from dpprobe.heads.registry import method_options
from dpprobe.privacy.calibration import calibrate, price_of_group
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.running_sums import Cohort, Factorisation
from dpprobe.privacy.target import Target
from dpprobe.release import bundle
from dpprobe.release.counted_units import compose_test_price, price_words
from dpprobe.release.leak_check import check_keys, check_published, check_text
from dpprobe.release.ledger import Ledger
from dpprobe.release.parts.calibration import measure as calibrated
from dpprobe.release.parts.choice.measure import check_choice
from dpprobe.release.parts.cohort import measure as cohorts
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.parts.evaluation import show
from dpprobe.release.parts.evaluation.show import check_evaluation
from dpprobe.release.parts.monitor.measure import monitor_head, monitor_mechanisms, monitor_words
from dpprobe.release.parts.part import Stated
from dpprobe.release.parts.spent.measure import check_ledger
from dpprobe.release.release_statement import published_options, release_statement
from dpprobe.release.signing import read_private_key
from dpprobe.release.verification import files, method, rewritten_documents, stated_plan
from dpprobe.release.verification.checks import Checks
from dpprobe.release.verification.tested_plans import make_tested_plan, price_tested
from dpprobe.release_part_registry import load_readers
from tests.support.bundles import LEDGER, PRIORS, write_example
from tests.support.releases import of_sites
from tests.support.shown_scores import head, of_test_rows
from tests.support.stored_records import check_values
from tests.unit.release.parts.evidence.test_measure import EVIDENCE
from tests.unit.release.parts.test_many_settings import answer
from tests.unit.release.test_ledger import FREE, booking, gaussian, part
from tests.unit.release.test_signing import write_keys
from tests.unit.release.verification import test_verify as verified

BOTH = (bundle.FACTS_FILE, bundle.STATEMENT_FILE)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundle")
    folder = write_example(
        place / "whole",
        classes=("a", "b", "c"),
        evaluation=verified.evaluation(place / "calibration"),
        subsample={"fraction": 0.25, "public_seed": 7},
    )
    verified.documented(folder)
    return folder


def failures(folder: Path, facts: Any, values: Any) -> list[str]:
    """Runs the checks that read no files but the head; returns each failure, numbers rounded."""
    checks = Checks()
    facts = checks.run_check("facts", lambda: ("", bundle.BundleFacts.model_validate(facts)))
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
    return refused(checks)


def refused(checks: Checks) -> list[str]:
    """Each failure, with rounded numbers."""
    return [
        f"{one.name}: " + re.sub(r"\d+\.\d+(e-\d+)?", lambda m: f"{float(m[0]):.4g}", one.detail)
        for one in checks.done
        if one.passed is False
    ]


def test_edits_are_named_as_before(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewritten_documents, "code_version", lambda: "0.1.0")
    written = {name: read_json(original / name) for name in BOTH}
    found: dict[str, Any] = {"none": failures(original, *written.values())}
    assert found["none"] == []
    for name, content in written.items():
        for place in verified.leaves(content):
            if "sample" in place or "probe" in place or "not_covered" in place[:-1]:
                continue
            for edit in (verified.other, lambda _: None, lambda value: 2 * value if value else -1):
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
        edit(values[bundle.STATEMENT_FILE]["mechanisms"])
        found[edit.__name__] = failures(original, *values.values())
    for said in (
        {},
        1,
        *({"fraction": each, "public_seed": 7} for each in (2, 0, -0.5)),
        {"fraction": 0.25, "public_seed": -1},
        {"fraction": 0.25, "public_seed": 2**64},
        {"fraction": 1.0, "public_seed": 0},
        {"fraction": 0.25, "public_seed": 7, "n": 9},
    ):
        values = copy.deepcopy(written)
        values[bundle.STATEMENT_FILE]["public_data"]["subsample"] = said
        found[f"subsample {said}"] = [text[:160] for text in failures(original, *values.values())]
    facts = copy.deepcopy(written)
    facts[bundle.FACTS_FILE]["dpprobe"] = "2.0"
    facts[bundle.STATEMENT_FILE]["promise"] = "none"
    found["another version"] = failures(original, *facts.values())
    values = copy.deepcopy(written)
    values[bundle.STATEMENT_FILE]["chosen_from"] = {"head": "newton", "rule": "auto rule 1"}
    found["chosen by nobody"] = failures(original, *values.values())
    del written[bundle.STATEMENT_FILE]["parts"]
    found["without parts"] = failures(original, *written.values())
    check_values("edits_of_bundles", found)


def test_plans_and_public_files_are_checked_at_their_limits(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = read_json(original / bundle.STATEMENT_FILE)
    plan = stated_plan.read_plan(values)[1]
    found: dict[str, Any] = {}
    for epsilon, delta in (
        (0.01, 1e-5),
        (0.00999, 1e-5),
        (100.0, 1e-5),
        (100.1, 1e-5),
        (1, 1e-10),
        (1, 9.99e-11),
        (1, 1 / 1501),
        (1, 1 / 1499),
    ):
        asked = replace(plan, epsilon=epsilon, delta=delta, realised_epsilon=epsilon)
        found[f"{epsilon} {delta}"] = str(answer(stated_plan.require_bounded, asked))[:80]
    worth = round_up(price_of_group(plan, 3))
    for images, factor in itertools.product((3, None), (1, 1 + 5e-5, 1 - 5e-5, 1.0002, None)):
        patients = Patients(images=images, epsilon=factor and worth * factor)
        found[f"{images} {factor}"] = (
            answer(stated_plan._check_patients, replace(plan, patients=patients)) is None
        )
    tested = make_tested_plan(values["evaluation"], plan)
    for above, shares in itertools.product(
        (False, True), ([None], [], [0.98], [0.9901], [None, 2.0], [2.0, 0.98])
    ):
        epsilon = tested.realised_epsilon * (1 + (2 * above - 1) * 1e-6)
        given = replace(tested, epsilon=epsilon, realised_epsilon=epsilon)
        priced: list[Plan] = []

        def compare(plan: Plan, shares: Any = shares, priced: Any = priced) -> Any:
            priced.append(plan)
            others = {str(each): each and each * plan.realised_epsilon for each in shares}
            return "", others, {}

        module = "dpprobe.release.verification.tested_plans"
        monkeypatch.setattr(f"{module}.second_opinions", compare)
        made = answer(price_tested, given)
        lower = priced[0].realised_epsilon <= given.epsilon
        found[f"tested {above} {shares}"] = [isinstance(made, str), lower]
    paths = {"init_file": "/x/start.safetensors", "public_covariance": "/y/rows.npy"}
    options = method_options({"head": "feature_covariance", "init": "file", **paths})
    found["published"] = published_options(options)
    hashes = dict(zip(paths.values(), ("ab" * 32, "cd" * 32), strict=True))
    stated = release_statement(
        plan,
        method="m",
        options=options,
        study="s",
        public_data=values["public_data"],
        file_hashes=hashes,
        blocks={},
        parts=None,
    )
    found["public files"] = [stated["public_files"], stated["public_data"]]
    for changes in ({"rows.npy": "x"}, {"more": "ab" * 32}, {"start.safetensors": None}):
        changed = stated | {"public_files": stated["public_files"] | changes}
        found[f"{changes}"] = answer(rewritten_documents.check_words, changed, plan, options, None)
    check_values("limits_of_plans", found)


# Classes, metric of the test result, and the epsilons of its own calibration and of a monitor.
MEASURED: dict[str, tuple[int, Any, float | None, bool]] = {
    "accuracy": (3, "accuracy", None, False),
    "recalls": (3, "macro_accuracy", None, True),
    "area": (2, "auc", None, False),
    "areas": (3, "auc", None, True),
    "calibrated": (3, "macro_accuracy", 2.0, True),
    "two": (2, "accuracy", 2.0, False),
    "two of the area": (2, "auc", 0.0, True),
    "not measurable": (3, "macro_accuracy", None, False),
}


def measure_parts(folder: Path, plan: Plan, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What facts and a statement have of a release whose parts are measured on 500 test units."""
    classes, metric, own, monitored = MEASURED[kind]
    several, generator = kind == "areas", np.random.default_rng(0)
    drawn: Any = generator.integers(0, 2 if several else classes, (500, classes)[: 1 + several])
    rows = of_test_rows(
        generator.normal(drawn if several else np.eye(classes)[drawn], 1 if several else 0.5),
        drawn.astype(np.uint8) if several else drawn,
    )
    heads = replace(head(classes), typical=np.eye(1, classes, dtype=np.float32)[None])

    def planned(mechanisms: Any, epsilon: float) -> Plan:
        target = Target(n=500, epsilon=epsilon, delta=1e-5)
        return calibrate(mechanisms, target, cache=folder / "calibration")

    wanted = results.evaluation_mechanisms(metric, classes=classes, multi_label=several)
    tested = planned(wanted, 0.1 if kind == "not measurable" else 8.0)
    parts = [tested]
    evaluation = results.evaluate_heads(
        heads,
        rows,
        tested,
        SEEDED,
        metric=metric,
        link="sigmoid" if several else "softmax",
        composition=results.composition_words(plan, tested, split=verified.SPLIT),
        keep_counts=own == 0,
    )
    blocks = {"evaluation": evaluation, "ledger": LEDGER | {"releases": 2, "epsilon": 20.0}}
    if own == 0:
        blocks["calibration"] = calibrated.calibrate_from_counts(evaluation, tested)
    elif own:
        wanted = calibrated.calibration_mechanisms(classes=classes, multi_label=False)
        parts.append(planned(wanted, own))
        words = price_words(parts[1], compose_test_price(*parts) or tested, *calibrated.PRICED)
        made = calibrated.calibrate_head(heads, rows, parts[1], SEEDED, composition=words)
        blocks["calibration"] = made
    if monitored:
        parts.append(planned(monitor_mechanisms(unusual=True), 2.0))
        words = monitor_words(parts[-1], compose_test_price(*parts) or tested)
        blocks["monitor"] = monitor_head(
            heads,
            rows,
            parts[-1],
            SEEDED,
            probe_norm=1.5,
            link="softmax",
            calibration=None,
            composition=words,
        )
    return {"class_names": tuple("abc"[:classes]), "multi_label": several}, blocks


EARLIER = [{"release": f"r{place}", "cohort": f"c{place}", "n": 500} for place in (1, 2)]
# What is not measured, beside some of these parts.
BESIDE: dict[str, dict[str, Any]] = {
    "accuracy": {"evidence": EVIDENCE, "sites": of_sites()},
    "area": {"sites": of_sites("a")},
    "two": {
        "cohort": cohorts.describe_cohort("now", EARLIER, horizon=4, n=1500, unit="image"),
        "predecessor": {"name": "r2", "sha256": "ab" * 32},
    },
}


@pytest.mark.parametrize("kind", MEASURED)
def test_edits_of_parts_are_noticed_and_named_as_before(original: Path, kind: str) -> None:
    """Of numbers in lists, the first two are edited; the record names the edits that pass."""
    values, facts = read_json(original / bundle.STATEMENT_FILE), bundle.read_facts(original)
    plan, (_, options) = stated_plan.read_plan(values)[1], method.read_options(facts)
    changes, blocks = measure_parts(original.parent, plan, kind)
    probe = facts.backbone.probe | {"norm": 1.5}
    facts = facts.model_copy(
        update=changes | {"backbone": facts.backbone.model_copy(update={"probe": probe})}
    )
    blocks |= BESIDE.get(kind, {})

    def verify(blocks: dict[str, Any]) -> str:
        checks = Checks()
        stated = Stated(
            folder=None,
            facts=facts,
            options=options,
            values={**values, **blocks},
            plan=plan,
            predecessors=(),
        )
        for reader in load_readers():
            reader.verify(checks, stated)
        return "; ".join(text[:90] for text in refused(checks))

    assert verify(blocks) == ""
    found: dict[str, list[str]] = {}
    for place in verified.leaves(blocks):
        if any(isinstance(key, int) and key > 1 for key in place):
            continue
        for edit in (verified.other, lambda _: None, lambda value: [value, value]):
            edited = copy.deepcopy(blocks)
            inner = edited
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = edit(inner[place[-1]])
            if edited != blocks:
                found.setdefault(verify(edited), []).append(
                    f"{'.'.join(map(str, place))} {str(inner[place[-1]])[:9]}"
                )
    said = show.state_measured(blocks["evaluation"])
    check_values(f"edits_of_parts_{kind.replace(' ', '_')}", [said, found])


def test_heads_and_documents_are_checked_as_before(original: Path, tmp_path: Path) -> None:
    head = {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"}
    folder = write_example(tmp_path / "priors", options=head)
    verified.documented(folder)
    facts, values = (read_json(folder / name) for name in BOTH)
    plan, read = stated_plan.read_plan(values)[1], bundle.BundleFacts.model_validate(facts)
    options, weights = method_options(head), np.ones((3, 65), np.float32)
    content = (folder / bundle.HEAD_FILE).read_bytes()
    start = content[8 : 8 + int.from_bytes(content[:8], "little")]
    marked = json.loads(start)["__metadata__"]
    found: list[Any] = [answer(method.check_head, folder, read, options, plan, values)]
    tensors: Any
    for tensors, mark in (
        ({"weights": weights, "class_priors": PRIORS}, marked),
        ({"weights": weights, "class_priors": PRIORS}, None),
        ({"weights": weights}, marked),
        ({"weights": weights[1:], "class_priors": PRIORS}, marked),
        ({"weights": weights, "class_priors": PRIORS[::-1]}, marked),
        ({"weights": weights, "class_priors": PRIORS * np.float32(1.1)}, marked),
        ({"weights": weights, "class_priors": PRIORS * np.float32(0)}, marked),
        *(
            ({"weights": weights, "class_priors": np.array(each, np.float32)}, marked)
            for each in ([0.7, 0.3, 0.0], [0.8, 0.3, -0.1])
        ),
        ({"weights": weights * np.nan, "class_priors": PRIORS}, marked),
        ({"weights": weights.astype(np.int32), "class_priors": PRIORS}, marked),
    ):
        arrays = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
        (folder / bundle.HEAD_FILE).write_bytes(save(arrays, metadata=mark))
        found.append(answer(method.check_head, folder, read, options, plan, values))
    for size in (4 * (3 * 65 + 3), 4 * (3 * 65 + 3) + 2**20 + 1):  # no header, and too long a one
        (folder / bundle.HEAD_FILE).write_bytes(bytes(size))
        found.append(answer(method.check_head, folder, read, options, plan, values))
    facts, values = (read_json(original / name) for name in BOTH)
    read = bundle.BundleFacts.model_validate(facts)
    for name in ("README.md", "release.html", "SHA256SUMS"):
        text = (original / name).read_bytes()
        for change in (b"Epsilon", b"/home/anna/x", b"2026-01-31 12:30", b"epsilon"):
            changed = text[:-1] if name == "SHA256SUMS" else text.replace(b"epsilon", change, 1)
            (original / name).write_bytes(changed)
            found.append(answer(files.check_hashes, original))
            if name != "SHA256SUMS":
                bundle.write_sums(original)
                found.append(answer(rewritten_documents.check_documents, original, read, values))
                found.append(answer(files.check_leaks, original))
        (original / name).write_bytes(text)
        bundle.write_sums(original)
    said = "\n".join(map(str, found)).replace(str(original), "").replace(str(tmp_path), "")
    said = re.sub(r"; this is dpprobe .*|tensors \{.*\};", "", said)
    check_values("heads_and_documents", said.splitlines())


SEARCHED = {
    "head": "tuned",
    "base": {**verified.SAMPLED, "steps": 5},
    "trials": 3,
    "search": {"learning_rate": {"low": 0.1, "high": 1.0}, "max_grad_norm": [0.5, 1.0]},
}
CHOSEN: dict[str, Any] = {"score": 0.5, "learning_rate": 0.7, "max_grad_norm": 1.0}
HEADS: dict[str, dict[str, Any]] = {
    "covariance": {"head": "feature_covariance"},
    "squares": {"head": "least_squares"},
    "sums": {"head": "prototypes"},
    "steps": verified.SAMPLED,
    "labels": {**verified.SAMPLED, "loss": "sigmoid"},
    "priors": verified.BALANCED,
    "closed": {**verified.SAMPLED, "engine": "closed_form"},
    "search": SEARCHED,
    "auto": {"head": "auto"},
}


def test_options_of_heads_are_checked_as_before(original: Path) -> None:
    facts = bundle.read_facts(original)
    found: dict[str, Any] = {}
    for name, link, several, priors, whole in itertools.product(
        HEADS, ("softmax", "sigmoid", "none"), (False, True), (None, (0.5, 0.5)), (True, False)
    ):
        options = method_options(HEADS[name]).model_dump(mode="json") if whole else HEADS[name]
        if not (whole or (link, several, priors) == ("softmax", False, None)):
            continue
        for chosen in (None, {}, CHOSEN) if (several, priors) == (False, None) else (None,):
            head = facts.head.model_copy(
                update={"options": options, "link": link, "class_priors": priors, "chosen": chosen}
            )
            changed = facts.model_copy(update={"head": head, "multi_label": several})
            read = answer(method.read_options, changed)
            found[f"{name} {link} {several} {priors} {whole} {chosen}"] = (
                read if isinstance(read, str) else [read[0], answer(method.check_engine, read[1])]
            )
    searched: Any = method_options(SEARCHED)
    changes: list[dict[str, Any]] = [
        {},
        *({"learning_rate": rate} for rate in (0.09, 0.1, 1, 1.1, "x", True, None)),
        *({"max_grad_norm": norm} for norm in (0.5, 0.7, 1, True, "1.0")),
        {"score": None},
        {"score": 1e300},
        {"steps": 5},
    ]
    for change in changes:
        found[f"{change}"] = answer(method._check_chosen, searched, CHOSEN | change)
    channels = {"kind": "channels", "channels": 16, "max_mean_norm": 1.0, "max_deviation_norm": 1.0}
    given = method_options({"head": "feature_covariance", "normalize": channels}).normalize
    found["channels"] = method._expected_arrays(given, 64)
    for missing in CHOSEN:
        rest = {name: value for name, value in CHOSEN.items() if name != missing}
        found[f"without {missing}"] = answer(method._check_chosen, searched, rest)
    check_values("options_of_bundles", found)


def test_private_texts_and_keys_are_found_as_before() -> None:
    texts = (
        "/home/anna",
        "x/home/anna",
        "</data/x",
        " /data",
        "/data/",
        "C:\\Users",
        "D:\\\\Data",
        "file://x",
        "~/x",
        "a~/x",
        "2026-01-31",
        "2026-01-31 10:00",
        "1899-01-31 10:00",
        "2026-01-31T23:59",
        "1999-12-31 23:59",
        "0" * 32,
        "0" * 31,
        "0" * 33,
        "AB" * 16,
        "x" + "ab" * 16,
    )
    keys = (
        "seed",
        "seeds",
        "my_seed",
        "seedy",
        "public_seed",
        "crop_seed",
        "Time",
        "times",
        "date",
        "git_commit",
        "gitcommit",
        "history",
        "histories",
        "prediction",
        "test_ids",
        "hostname",
        "host",
        "identity",
        "seconds_more",
    )
    found = {text: answer(check_text, text, where="card") for text in texts}
    found |= {
        key: [
            answer(check_keys, value, where="f")
            for value in ({key: 1}, [{"a": {key: 1}}], {"a": [[{key: 1}]]}, [key])
        ]
        for key in keys
    }
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
    chain = cohorts.Chain(factorisation=Factorisation.make(12))
    names = [f"m{n}" for n in range(1, 13)]
    for number, name in enumerate(names):
        ledger = Ledger.of_dataset(tmp_path, f"data_{name}")
        sums = {"gram": np.arange(4) + number, "other": np.arange(2)}
        cohort = Cohort(
            n=10 + number,
            outputs={"gram": np.arange(3.0) * number, "b": np.ones(1)},
            sums=sums if number else {},
            steps={"gram": 0.5 + number, "b": 1.0},
            weights=np.full((2, 3), number, np.float32) if number % 2 else None,
        )
        entry = ledger.book_release(booking(name, part("train", gaussian(50.0))), FREE)
        path = cohorts.cohort_path(ledger.path.parent, name, entry.number)
        assert path.name == f"cohort-{name}.entry-1.safetensors"
        cohorts.write_cohort(path, chain, cohort, label=f"label {name}", binds={"method": "x"})
        for state in ("open", "closed"):
            read = answer(cohorts.read_chain, tmp_path, dataset=f"data_{name}", release=name)
            assert isinstance(read, cohorts.Chain) == (state == "closed")
            if state == "open":
                assert "has no finished release of this name" in read
                ledger.close_entry(1, "d" * 64)
        assert read.factorisation == chain.factorisation
        assert read.binds == {"method": "x"}
        link = cohorts.Link(f"data_{name}", name, f"label {name}", 10 + number)
        assert read.links == (*chain.links, link)
        np.testing.assert_equal(vars(read.cohorts[-1]), vars(cohort))
        assert path.stat().st_mode & 0o777 == 0o600
        chain = read
    assert [each.n for each in chain.cohorts] == [*range(10, 22)]
    said = answer(cohorts.read_chain, tmp_path, dataset="data_m1", release="m2")
    assert "no finished release" in said
    content = path.read_bytes()
    for damaged, fault in (
        (b"", "cannot be used"),
        (content[:-1], "cannot be used"),
        (content.replace(b"steps", b"stepz"), "cannot be used"),
        (content[:-9] + b"x" + content[-8:], "numbers have changed"),
        (None, "missing; "),
    ):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        assert fault in answer(cohorts.read_cohort, path)
