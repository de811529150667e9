"""What releases count, book, say and refuse, over many settings, held against stored answers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dpprobe.artifacts import read_json, write_json
from dpprobe.data.options import Headline
from dpprobe.errors import DpprobeError
from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from dpprobe.privacy.risk import Risk
from dpprobe.release import counted_units, documents, prediction_table, stated_values
from dpprobe.release.bundle import read_facts
from dpprobe.release.ledger import Ledger, describe_ledger
from dpprobe.release.ledger_file import Booking, check_delta
from dpprobe.release.ledger_prices import Limits, bound_bookings, compose_bookings, refuse_excess
from dpprobe.release.probabilities import Calibration, SetRule
from dpprobe.release.release_notes import _compare_classes, _list_changes, state_difference
from dpprobe.release.unit_hashes import Units, count_moved, load_key, share_units
from dpprobe.release.usefulness import benchmark_faults, check_metric, check_usefulness
from dpprobe.release.verification.checks import DEPENDS, NOT_COVERED, Check, Checks, Report
from dpprobe.release.verification.tested_plans import agree
from dpprobe.results.cell_record import read_cell
from dpprobe.wrong_keys_and_values import explain_first
from tests.support.bundles import write_example
from tests.support.cell_files import write_cell
from tests.support.shown_scores import head, of_test_rows
from tests.support.stored_records import check_values, to_plain
from tests.unit.release.test_ledger import DELTA, gaussian, part

FACTS = DataFacts(
    n=20_000, dimension=768, classes=2, multi_label=False, epsilon=1.0, delta=1e-6, unit="image"
)


def answer(function: Callable[..., Any], *inputs: Any, **more: Any) -> Any:
    """Returns what a function answers, or its error."""
    try:
        return function(*inputs, **more)
    except ValidationError as error:
        return f"ValidationError: {explain_first(error)}"
    except DpprobeError as error:
        return f"{type(error).__name__}: {error}"


def plan_of(mechanisms: tuple[Mechanism, ...], n: int, noise: float = 1.0, **more: Any) -> Plan:
    """A plan that nobody calibrated; its epsilons are made up."""
    facts = {"unit": "image", "epsilon": 1.0, "delta": 1e-5, "realised_epsilon": 0.98765, **more}
    return Plan(
        mechanisms=tuple(item.scale_noise(noise) for item in mechanisms),
        n=n,
        accountant="pld",
        **facts,
    )


def test_counts_of_test_units_are_as_before() -> None:
    found: dict[str, Any] = {}
    generator = np.random.default_rng(1)
    places = np.round(generator.normal(size=(40, 2)), 1)
    present, units = places > generator.normal(size=(40, 2)), np.arange(40.0) % 5
    edges = [np.array([-9, -0.5, 0.0, 0.3, 9]), np.array([-9, 0.1, 0.2, 1.0, 9])]
    for flags, count in itertools.product((None, present), (0, 1, 40)):
        rows = slice(count)
        found[f"{flags is None} {count}"] = counted_units.label_counts(
            places[rows], None if flags is None else flags[rows], units[rows], edges
        )
    found["middles"] = counted_units.bin_middles(np.array([-50, -1, -0.01, 0.0, 0.02, 3, 70.0]))
    scores = np.array([[0, 1], [math.nan, 1], [1, math.inf], [-math.inf, 0], [2, 2]])
    found["usable"] = counted_units.find_usable(scores)
    for n in (1, 40, 10**6):
        found[f"steps {n}"] = counted_units.count_steps(np.array([0, 1 / 3, 0.5, 1.0]), n)
    first, second = (
        plan_of((gaussian(sigma, name=name),), 100, epsilon=epsilon, realised_epsilon=epsilon)
        for sigma, name, epsilon in ((5.0, "a", 1.0), (9.0, "b", 0.5))
    )
    for plans in itertools.permutations((None, first, second, None), 3):
        together = counted_units.compose_test_price(*plans)
        found[" ".join(plan.mechanisms[0].name if plan else "-" for plan in plans)] = together and (
            [(item.name, item.noise_multiplier) for item in together.mechanisms],
            together.epsilon,
            together.realised_epsilon,
            together.accountant,
            counted_units.price_words(first, together, "This", "All of it"),
        )
    found["priced"] = counted_units.priced_values(first)
    for wanted in (
        (gaussian(1.0, name="a"),),
        (gaussian(1.0, name="a"), gaussian(2.0, name="b")),
        (gaussian(1.0, name="b"),),
        (gaussian(1.0, 2, name="a"),),
    ):
        both = plan_of((*first.mechanisms, gaussian(10.0, name="b")), 100)
        for plan in (first, both):
            found[f"wanted {len(wanted)} {wanted[-1].name} {wanted[-1].count} {plan is both}"] = (
                answer(counted_units.check_mechanisms, plan, wanted)
            )
    one = head(2)
    two = replace(
        one, weights=np.concatenate([one.weights] * 2), seeds=(1, 2), transforms=one.transforms * 2
    )
    searched = replace(first, selection=Selection(mean=4, repeated=("a",)))
    public = plan_of((gaussian(0.0, name="a"),), 100, epsilon=math.inf, realised_epsilon=math.inf)
    for heads, plan in itertools.product((one, two), (first, second, searched, public)):
        case = f"{len(heads.seeds)} {plan.mechanisms[0].name} {plan.epsilon} {plan.selection}"
        opened = answer(
            counted_units.open_releases, heads, plan, first.mechanisms, entropy=SEEDED, shared=None
        )
        found[case] = opened if isinstance(opened, str) else opened.seeds
    scores[1:3] = 0.5
    for unit, n, agreed, codes in itertools.product(
        ("image", "patient"),
        (3, 5, 7),
        (None, 7),
        (None, [0, 0, 1, 2, 2], [4] * 5, [2, 0, 0, 1, 2]),
    ):
        named = None if codes is None else np.array(codes)
        shown = of_test_rows(scores, np.zeros(5, np.int64), named)
        found[f"{unit} {n} {agreed} {codes}"] = answer(
            counted_units.weights_of_rows,
            replace(shown, agreed_test_n=agreed),
            plan_of(first.mechanisms, n, unit=unit),
        )
    found["scores"] = counted_units.score_test_rows(two, shown)
    check_values("counted_units", found)


def test_prices_and_limits_of_bookings_are_as_before() -> None:
    """Epsilons are held against other libraries by `test_ledger`."""
    sampled = Mechanism(
        name="s", released="", sensitivity=1.0, noise_multiplier=2.0, sample_rate=0.1, count=20
    )
    search = Selection(mean=4, repeated=("gradients",))
    parts = {
        "train": part("train", gaussian(5.0)),
        "test": part("test", gaussian(7.0)),
        "sampled": part("train", sampled),
        "several": part("train", gaussian(5.0, 3), sampled),
        "search": part("train", gaussian(9.0), selection=search),
    }

    def made(names: str, **more: Any) -> Booking:
        values = {"split": "hash_20", **more}
        return Booking(
            release=names,
            study="clinic",
            unit="image",
            identity="i",
            parts=tuple(parts[name] for name in names.split()),
            **values,
        )

    cases: dict[str, Sequence[Booking]] = {
        "none": [],
        "one": [made("train")],
        "both": [made("train test")],
        "two": [made("train"), made("train test")],
        "test": [made("test"), made("train")],
        "splits": [made("train test"), made("train test", split="other")],
        "eight": [made("train test", split=f"{n}") for n in range(8)],
        "sampled": [made("sampled"), made("several")],
        "one sampled": [made("sampled test")],
        "search": [made("search")],
        "search and more": [made("search"), made("train")],
        "chain": [made("train test", place=f"a/b {n}") for n in (1, 2)],
        "chains": [made("several", place="a/b 1"), made("train", place="c/d 1"), made("train")],
        "training chain": [made("train", place=f"a/b {n}") for n in (1, 2, 3)],
        "sampled chain": [made("several", place=f"a/b {n}") for n in (1, 10)],
        "more chain": [*(made("train", place=f"a/b {n}") for n in (1, 2)), made("train")],
    }
    found: dict[str, Any] = {}
    rates = (0.001, 0.01, 0.1)
    unattacked = {
        "test",
        "eight",
        "sampled",
        "search",
        "search and more",
        "chains",
        "sampled chain",
    }
    for name, bookings in cases.items():
        if name != "none":
            found[name] = compose_bookings(bookings, 1e-3 if name in ("both", "search") else DELTA)
            if name not in unattacked:
                found[f"{name} attacks"] = bound_bookings(bookings, rates, DELTA)
        for limits in (
            Limits(delta=DELTA, max_epsilon=1.2),
            Limits(delta=1e-3, max_epsilon=9.0, max_risk=Risk(advantage=0.1)),
        ):
            if name in ("none", "one", "test", "chain"):
                found[f"{name} {limits.delta} limit"] = answer(
                    refuse_excess, bookings, made("train"), limits, ledger="the ledger"
                )
    for delta in (0.0, 9.9e-11, 1e-10, 0.999, 1.0, math.nan):
        found[f"delta {delta}"] = answer(check_delta, delta)
    check_values("prices_of_bookings", found, rel=1e-4)


def test_ledgers_are_printed_and_refuse_as_before(tmp_path: Path) -> None:
    both = (part("train", gaussian(4.0)), part("test", gaussian(30.0)))
    free, key_units = Limits(delta=DELTA), {}
    for dataset, *names in (
        ("a", "Ann", "Bo"),
        ("b", "Cy"),
        ("c", "Bo", "Di"),
        ("d", "Ed"),
        ("g", "Flo"),
        ("h", "Gus", "Al"),
        ("i", "Hal", "Gus"),
    ):
        key_units[dataset] = Units(names={"train": names[:1], "test": names[1:]}, tables=None)
    found: list[Any] = []

    def book(dataset: str, release: str, **more: Any) -> None:
        options = {key: more.pop(key) for key in ("other_units_than", "datasets") if key in more}
        named = more.pop("named", dataset)
        values = {
            "unit": "image",
            "split": "hash_20",
            "parts": both,
            "identity": "options x",
            **more,
        }
        asked = Booking(release=release, study="clinic", **values)
        units = key_units[named] if named else None
        ledger = Ledger.of_dataset(tmp_path, dataset)
        made = answer(ledger.book_release, asked, free, units=units, **options)
        shown = str({key: value for key, value in more.items() if key != "parts"})
        found.append([dataset, release, shown, made if isinstance(made, str) else made.number])
        found.append(answer(ledger.check_room, asked, Limits(delta=DELTA, max_epsilon=1.5)))

    book("a", "first", identity="o1 d1")
    book("a", "first")
    book("a", "second", unit="patient")
    book("a", "second", column="case", same_units_as="a")
    book("b", "second", same_units_as="nowhere")
    book("b", "second", identity="o2 d1")
    book("b", "second", identity="o2 d2", same_units_as="d", datasets=["d"])
    book("c", "third", identity="o3 d3")
    book("c", "third", identity="o3 d3", other_units_than=["a"])
    book("c", "fourth", identity="o3 d3", other_units_than=["a"], same_units_as="a", column="x")
    book("d", "place", place="a/b 1", named=None)
    book("d", "again", place="a/b 1", named=None)
    book("d", "later", place="a/b 2", split="other", unit="patient")
    for number in range(12):
        book("d", f"r{number}", split=f"s{number % 3}", named=None)
    book("d", "late", place="a/b 1", named=None)
    book("f", "alone", parts=both[1:], named=None)
    one, other = (Ledger.of_dataset(tmp_path, name) for name in "df")
    digest, reasons = "d" * 64, ("x", "1234 ", " 12345 ", "two\nlines", "no power")
    steps = [
        *itertools.product([one.abandon_entry], (1, 2, 3, 99), reasons),
        *itertools.product([one.close_entry], (1, 4, 4, 5, 99), (digest, "e" * 64)),
        (one.abandon_entry, 4, reasons[-1]),
        (other.abandon_entry, 1, reasons[-1]),
    ]
    for step in steps:
        found.append([answer(*step), one.path.read_bytes().count(b"\n")])
    book("d", "place", named=None)
    book("d", "r1", named=None)
    book("d", "r2", named=None)
    book("g", "none", named=None, parts=[replace(each, delta=1e-7) for each in both])
    book("g", "one", identity="o5")
    book("g", "two", identity="o6", named="h")  # other units than of the entry before
    book("h", "third", identity="o7", named="i")
    book("h", "third", identity="o7", named="d", same_units_as="g")
    book("i", "fourth", identity="o9", named=None, same_units_as="h")
    (tmp_path / "units.key").unlink()
    book("g", "lost", identity="o8")
    for dataset, delta in itertools.product("abcdefghi", (None, 1e-3)):
        ledger = Ledger.of_dataset(tmp_path, dataset)
        found.append(
            [
                describe_ledger(ledger, delta=delta),
                ledger.list_added(),
                ledger.compute_spent(1e-4),
                [entry.state for entry in ledger.read_entries()],
                [booking.split for booking in ledger.list_bookings()],
            ]
        )
    for name in ("second", "r0", "r2", "gone"):
        entry = Ledger.of_dataset(tmp_path, "d").entry_of(name)
        found.append(entry and entry.number)
    text = json.dumps(to_plain(found)).replace(str(tmp_path), "")
    times = [
        entry.booked
        for name in "abcdfghi"
        for entry in Ledger.of_dataset(tmp_path, name).read_entries()
    ]
    for time in times:
        text = text.replace(time, "NOW")
    check_values("ledgers", json.loads(text))


def test_hashes_of_units_meet_where_units_do(tmp_path: Path) -> None:
    names: list[list[str]] = [["Ann"], ["ann ", "Bo"], ["Bo"], [], ["Cy"] * 3]
    key = load_key(tmp_path, used=False)
    assert (tmp_path / "units.key").read_bytes() == key == load_key(tmp_path, used=True)
    made = [
        Units(names={"train": one, "test": other}, tables=None).hash_with(key)
        for one, other in itertools.product(names, repeat=2)
    ]
    shared = [share_units(one, other, "names") for one in made for other in made]
    assert not any(share_units(one, other, "images") for one in made for other in made)
    images = [
        {"train.images": np.array(one, np.uint64), "test.images": np.array(other, np.uint64)}
        for one, other in itertools.product(([1, 2], [2, 3], [], [1]), repeat=2)
    ]
    moved = [count_moved(one, other) for one in images for other in images]
    for content, used in ((b"", True), (b"x" * 31, False), (None, True)):
        (tmp_path / "units.key").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "units.key").write_bytes(content)
        assert "restore the file from a backup" in answer(load_key, tmp_path, used=used)
    check_values("hashes_of_units", ["".join("01"[each] for each in shared), moved])


def test_useless_heads_are_named_as_before(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    headlines: tuple[Headline, ...] = ("accuracy", "auc", "macro_accuracy")
    for classes, quality, headline, missed in itertools.product(
        (2, 8), (0.0, 0.2, 4.0), headlines, (0, 1, 2)
    ):
        if (classes > 2 and headline == "auc") or (missed and quality == 0.2):
            continue
        names = "abcdefgh"[:classes]
        shares = (1.05 - 0.05 * classes, *[0.05] * (classes - 1)) if quality else None
        path = write_cell(
            tmp_path,
            class_names=names,
            quality=quality,
            headline=headline,
            rows=120,
            shares=shares,
            seeds=2,
        )
        record = read_json(path)
        for seed in record["seeds"][:missed]:
            seed["never_predicted"] = [*range(1, classes)]
        write_json(path, record)
        case = f"{classes} {quality} {headline} {missed}"
        found[case] = [*benchmark_faults(read_cell(path))]
        assert ("never predicts b" in "".join(found[case])) == (missed > 0)
        refused = answer(check_usefulness, "v1", benchmark=path, facts=FACTS)
        assert (refused is None) == (not found[case])
    one = read_cell(path)
    of_labels = read_cell(write_cell(tmp_path, class_names="abc", multi_label=True, quality=0.0))
    for low, headline, known, each in itertools.product(
        (None, 0.5, 0.500001), headlines, (None, 0.5), (one, of_labels)
    ):
        if headline in each.summary:
            summary = {
                name: value.model_copy(update={"both_low": low})
                for name, value in each.summary.items()
            }
            shown = each.model_copy(
                update={"summary": summary, "headline": headline, "constant_accuracy": known}
            )
            for seed in shown.seeds:
                seed["never_predicted"] = [*range(6 if known else 5)]
            found[f"{low} {headline} {known} {each.multi_label}"] = [*benchmark_faults(shown)]
    for n, classes, epsilon, unit in itertools.product(
        (40, 3000), (2, 40), (0.1, 2.0), ("image", "patient")
    ):
        for several in (False, True):
            facts = DataFacts(
                n=n,
                dimension=64,
                classes=classes,
                multi_label=several,
                epsilon=epsilon,
                delta=1e-5,
                unit=unit,
            )
            found[f"{facts}"] = answer(check_usefulness, "v1", benchmark=None, facts=facts)
    for counts, metric in itertools.product(
        ([60, 30], [61, 30], [30, 61], [50, 45, 5], [9, 9, 9], [7]), headlines
    ):
        labels = np.repeat(np.arange(len(counts)), counts)
        found[f"{counts} {metric}"] = answer(check_metric, "v1", metric, labels)
    for sums, metric in itertools.product(([20, 20], [20, 13], [20, 27], [14, 26]), headlines):
        labels = (np.arange(40)[:, None] < sums).astype(np.int8)
        found[f"labels {sums} {metric}"] = answer(check_metric, "v1", metric, labels)
    check_values("useless_heads", found)


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


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("ranks", [True, False])
def test_a_benchmark_that_balances_otherwise_tells_only_how_well_the_head_ranks(
    tmp_path: Path, classes: int, ranks: bool
) -> None:
    """Of two classes the AUC counts; of more the planner judges, by public facts."""
    shares = (1.05 - 0.05 * classes, *[0.05] * (classes - 1))
    path = write_cell(
        tmp_path,
        class_names="abcde"[:classes],
        quality=4.0 if ranks else 0.0,
        rows=400,
        shares=shares,
        seeds=2,
    )
    record = read_json(path)
    for seed in record["seeds"]:
        seed["never_predicted"] = [1]
    write_json(path, record)
    facts = replace(FACTS, n=50_000, classes=classes, epsilon=4.0)
    for balanced in (None, False):  # the cell is as the release: never predicting b counts
        refused = answer(check_usefulness, "v1", benchmark=path, facts=facts, balanced=balanced)
        assert "never predicts b" in refused
    other = answer(check_usefulness, "v1", benchmark=path, facts=facts, balanced=True)
    if classes == 2:
        assert (other is None) == ranks
        assert other is None or "the ranking may be chance" in other
    else:
        assert other is None, "enough examples, says the planner"
        few = replace(facts, n=20, epsilon=0.1)
        refused = answer(check_usefulness, "v1", benchmark=path, facts=few, balanced=True)
        assert "the planner says" in refused
