"""What releases count, book, say and refuse, over many settings, held against stored answers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.heads.facts import DataFacts
from dpprobe.release import documents, prediction_table, stated_values
from dpprobe.release.bundle import read_facts
from dpprobe.release.probabilities import Calibration, SetRule
from dpprobe.release.release_notes import _compare_classes, _list_changes, state_difference
from dpprobe.release.verification.checks import DEPENDS, NOT_COVERED, Check, Checks, Report
from dpprobe.release.verification.tested_plans import agree
from tests.support.bundles import write_example
from tests.support.stored_records import check_values
from tests.unit.release.parts.test_many_settings import answer

FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


def test_rows_of_predictions_are_named_as_before(tmp_path: Path) -> None:
    facts = read_facts(write_example(tmp_path / "bundle"))
    found: dict[str, Any] = {}
    rows = [(0.2, 0.3, 0.5), (0.5, 0.5, 0.0), (0.7, 0.1, 0.2), (0.51, 0.6, 0.9), (0.1, 0.1, 0.1)]
    for several, link in ((False, "softmax"), (True, "sigmoid"), (False, "none")):
        changed = {
            "class_names": ("a", "b", "c"),
            "multi_label": several,
            "head": facts.head.model_copy(update={"link": link}),
        }
        other = facts.model_copy(update=changed)
        for given in (
            {},
            {"a": 0.7},
            {"b": 0.1, "c": 0.5},
            {"a": 0.0, "b": 1.0, "c": 0.5},
            {"d": 0.5},
            {"a": 1.5},
            {"a": -0.1},
            {"a": math.nan},
        ):
            checked = answer(prediction_table.check_thresholds, given, other)
            found[f"{several} {link} {given}"] = (
                checked
                if isinstance(checked, str)
                else [
                    prediction_table.label_of(np.array(row, np.float32), other, checked)
                    for row in rows
                ]
            )
    made = Calibration(scale=2.0, offset=0.5, thresholds={0.8: 0.6, 0.95: 0.2, 0.99: 0.1})
    for calibration, coverage, below in itertools.product(
        (
            None,
            made,
            Calibration(scale=1.0, offset=0.0, thresholds={0.8: 0.3}),
            Calibration(scale=1.0, offset=0.0, thresholds={}),
            Calibration(scale=1.0, offset=0.0, thresholds={0.99: 0.1, 0.95: 0.2, 0.8: 0.6}),
        ),
        (None, 0.8, 0.9, 0.95, 0.99),
        (None, 0.0, 0.5, 0.7, 1.0, 1.1, -0.1),
    ):
        rule = answer(SetRule.choose_rule, calibration, coverage=coverage, abstain_below=below)
        case = f"{calibration and [*calibration.thresholds]} {coverage} {below}"
        found[case] = (
            str(rule)
            if not isinstance(rule, SetRule)
            else [prediction_table.name_set(np.array(row, np.float32), rule, "abc") for row in rows]
        )
    for scale, offset, sets in itertools.product(
        (0.0, 2, -1.0, math.inf, "x", math.nan),
        (0.0, 1, math.inf, None),
        ([], [{"coverage": 0.9, "threshold": 0.2}], [{}], 3),
    ):
        read = answer(Calibration.from_block, {"scale": scale, "offset": offset, "sets": sets})
        found[f"block {scale} {offset} {sets}"] = (
            read
            if isinstance(read, str)
            else str((read, read.rescale(np.array([[0.1, 0.2]])).round(6).tolist()))
        )
    origin = prediction_table.Origin("v1", "ab" * 32, "1.0", {"a": 0.5, "b": 0.25})
    values = np.array([0.1, 0.9], np.float32)
    predictions = [
        prediction_table.Prediction(*each)
        for each in (
            ("i,1", "a", values, None, ("a|b", True)),
            ('i"2', None, None, "bad"),
            ("3", "b", values[::-1], None, ("b", False)),
        )
    ]
    for suffix, sets in itertools.product((".csv", ".parquet", ".CSV"), (False, True)):
        path = tmp_path / f"out{suffix}"
        columns = prediction_table.value_columns("ab", "none" if sets else "softmax")
        with prediction_table.open_predictions(path, columns, origin, with_sets=sets) as write:
            write([])
            for _ in range(2):
                write(predictions)
            if suffix == ".parquet" and not sets:
                write((predictions * 1400)[:4090])  # exactly a group
                write(predictions)
                write(predictions * 1400)
        found[f"table {suffix} {sets}"] = _read_table(path)
    for name, target in (
        ("folder.csv", tmp_path),
        ("alias.csv", tmp_path / "out.csv"),
        ("link", tmp_path / "bundle"),
    ):
        (tmp_path / name).symlink_to(target)
    for name, inputs in itertools.product(
        (
            "out.csv",
            "alias.csv",
            "new.CSV",
            "new.Parquet",
            "new.txt",
            "folder.csv",
            "bundle/new.csv",
            "link/new.csv",
            "folder.csv/bundle/within/../new.csv",
        ),
        (["gone.csv"], ["gone.csv", "out.parquet", "out.csv"]),
    ):
        found[f"output {name} {inputs}"] = str(
            answer(
                prediction_table.check_output, tmp_path / name, [tmp_path / each for each in inputs]
            )
        ).replace(str(tmp_path), "")
    check_values("rows_of_predictions", found)


def _read_table(path: Path) -> Any:
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8")
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    table = file.read()
    schema = [f"{field.name}: {field.type}" for field in table.schema]
    return [schema, groups, table.schema.metadata, table.slice(0, 7).to_pylist()]


def test_words_of_documents_are_as_before() -> None:
    found: dict[str, Any] = {}
    texts = (
        "",
        "plain, 3.5 %",
        "a|b*c_d`e\\f",
        "<b>&\"'",
        "---",
        "+ x",
        "# h",
        "= x",
        "1. one",
        "12) b",
        "12",
        "3.5",
        "-",
        "two\n\n lines",
        "\u202eturned",
        "a\u200db\u200bc",
        "[x](y)",
        "~x~ $y$",
    )
    shown = (
        documents.in_markdown,
        documents.as_code,
        documents.one_line,
        documents.in_paragraphs,
        documents.as_word,
        documents.as_sentence,
    )
    found["texts"] = {text: [str(function(text)) for function in shown] for text in texts}
    numbers = (0.0, 1e-5, 0.00012, 0.001, 0.00999, 0.01, 0.123456, 0.5, 0.99996, 1.0, 1.23401, 12.0)
    found["numbers"] = {
        str(number): [
            documents.format_price(number),
            documents.format_small(number),
            documents._write_limit(number),
            *([documents.percent_up(number)] if number <= 1 else []),
        ]
        for number in numbers
    }
    for name, each in documents.html_environment().filters.items():
        if name in ("count", "percent", "rate", "digits"):
            found[f"filter {name}"] = [each(number) for number in (0, 0.12345, 1234567)]
    for metric, value, margin in itertools.product(
        ("accuracy", "auc", "macro_accuracy"), (0.75, 0.79, 0.83, 0.85), (0.0, 0.02, 0.05)
    ):
        ours, theirs = (
            {"metric": metric, "value": one, "interval": [one - m, one + m]}
            for one, m in ((value, 0.02), (0.79, margin))
        )
        found[f"{metric} {value} {margin}"] = state_difference(ours, theirs)
    for old, new in itertools.product(
        (["a", "b", "c"], ["a"], ["x", "y"], ["x", "b", "z"], ["b", "z", "c"]), repeat=2
    ):
        for order in (1, -1):
            found[f"classes {old} {new} {order}"] = _compare_classes(new[::order], old)
    nested = {"a": {"b": 1, "c": {"d": None}}, "e": [1], "f": "x"}
    other = {"a": {"b": 2, "c": {"d": 3}}, "e": [1], "g": None, "f": {"y": True}}
    found["changes"] = [_list_changes(one, two) for one in (nested, other) for two in (nested, {})]
    found["changes"].append(_list_changes(other, nested))
    for rates in ((0.49, 0.5), (0.5, 0.1), (0.9, 0.51)):
        table = [
            documents.Attack(false=false, trained=rate, tested=None)
            for false, rate in zip((0.001, 0.01), rates, strict=True)
        ]
        found[f"weak {rates}"] = documents.is_weak(table)
    for images, epsilon in ((None, None), (5, None), (5, math.inf), (5, 2.34561), (1, 0.5)):
        patients = {"images": images, "epsilon": epsilon}
        found[f"patients {images} {epsilon}"] = documents.to_patients(
            {"patients": patients, "delta": 1e-5}
        )
    check_values("words_of_documents", found)


def test_checks_of_bundles_are_told_as_before() -> None:
    results = [
        ("price", True, "p"),
        ("files", True, "f"),
        ("head", False, "bad"),
        ("parts", None, DEPENDS),
        ("backbone", None, "pass it"),
        (NOT_COVERED, None, "n"),
        ("words", False, "x" * 700),
    ]
    found: dict[str, Any] = {}
    for chosen in itertools.product((False, True), repeat=len(results)):
        report = Report(
            tuple(Check(*one) for one, kept in zip(results, chosen, strict=True) if kept)
        )
        case = "".join("01"[kept] for kept in chosen)
        if not chosen[6]:
            found[case] = [report.passed, *report.summarize()]
        if sum(chosen) > 5:
            found[f"{case} all"] = report.list_checks()
    checks = Checks()
    for text in ("x" * 600, "a" * 400 + "b" * 400, "t\tn\nr\x1b[2J"):
        checks.note_check("noted", True, text)
    ran: list[Any] = [
        checks.run_check("ran", lambda *inputs: ("fine", inputs), *given)
        for given in ((), (1, None), (0, False))
    ]
    ran.append(checks.run_check("none", lambda: ("nothing", None)))
    ran.append(checks.run_check("raised", lambda: ("", stated_values.read_block("x", 1, set()))))
    check_values("checks_of_bundles", [found, ran, checks.done])


def test_stated_values_are_read_as_before() -> None:
    values: list[Any] = [
        0,
        1,
        -1,
        1.0,
        1e300,
        -1e300,
        9.9e299,
        True,
        None,
        "x",
        [1],
        {"a": 1},
        {"a": 1.0},
        10**10,
        10**10 + 1,
        "ab" * 32,
        "AB" * 32,
    ]
    found: list[Any] = [
        [
            str(answer(read, "v", value))
            for read in (stated_values.read_real, stated_values.read_whole)
        ]
        + [stated_values.is_hash(value), str(answer(stated_values.read_block, "v", value, {"a"}))]
        for value in values
    ]
    found += [
        [answer(stated_values.require_same, "v", one, two) for two in values]
        for one in (1, 1.0, {"a": 1}, "y" * 101, "y" * 98)
    ]
    close: list[Any] = [
        1.0,
        1.00009,
        1.0002,
        1,
        "1",
        None,
        [1, 2],
        [1],
        [1, 2.0001],
        {"a": 1},
        {"a": 1.00001},
        {"b": 1},
        0.0,
        9e-10,
        2e-9,
    ]
    found.append(["".join(str(answer(agree, one, two))[0] for two in close) for one in close])
    check_values("stated_values", found)
