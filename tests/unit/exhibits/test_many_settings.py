"""Tables, figures' parts, published numbers and declarations over many settings."""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from dpprobe.analyses.fairness.show import gap_figure
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.errors import NothingToShow
from dpprobe.exhibits import html_page, make, published, style, tables
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.exhibits.exhibit import Exhibit, many, one, waits
from dpprobe.exhibits.make import make_exhibit
from dpprobe.privacy.risk import RiskEpsilon
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.registry import EXHIBITS
from tests.support.fairness_records import RECORD
from tests.support.figures import describe_figure, save_bytes, write_embedding, write_summary
from tests.support.stored_records import check_values


def made_table(**changes: Any) -> tables.Table:
    rows = [
        tables.make_row("a_b <c> | d", tables.mean_cell(0.5, 0.25, 0.75), "[x] 5 % ± 2^17"),
        tables.make_row("two\nlines", tables.mean_cell(0.123456, 0.1, 0.2, digits=2), "*"),
        tables.make_row(
            tables.TableCell(text="'q' \"\\{}~^", bold=True, citation="key_2020"),
            tables.mean_cell(1234.5678, scale=1, digits=0),
            tables.BLANK,
        ),
        tables.make_row("", tables.TableCell(text="0", value=0.0, bold=True), "ε ≥ δ → ∞ × ρ ‡"),
    ]
    return replace(
        tables.make_table(
            "a_table",
            "100% of <b> & $x$",
            ("<a_b", "±mean", "n|m"),
            rows,
            ["Run `a --b 'c' \"d\"` -- or _not_.", "No <code>."],
        ),
        **changes,
    )


def test_tables_are_written_as_stored(tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    plain = tables.make_table("n", "", ("x",), [tables.make_row("1")])
    several = {"all": made_table(), "untitled": plain, "numbers": made_table(numbers=plain)}
    for name, table in several.items():
        made[name] = [table.columns, str(tables.write_html(table, caption="<&>")).splitlines()]
        for ending in ("md", "csv", "tex"):
            tables.save_table(table, tmp_path / f"t.{ending}")
            made[name].append((tmp_path / f"t.{ending}").read_text().splitlines())
    made["intervals"] = [
        tables.interval_text(mean, mean - below, mean + above, digits=digits)
        for mean, below, above in ((1.0, 0.5, 0.5), (0.0, 0.04, 0.06), (-2.0, 0.0, 0.3))
        for digits in (0, 1, 3)
    ]
    made["means"] = [tables.mean_cell(0.5, *ends) for ends in ((), (0.4,), (None, 0.6))]
    policies = [html_page.content_policy("s", script) for script in (None, "x")]
    digest = base64.b64encode(hashlib.sha256(b"s").digest()).decode()
    assert all(f"style-src 'sha256-{digest}'; script-src" in policy for policy in policies)
    made["page"] = [
        *policies,
        html_page.embed_picture(b"abc"),
        html_page.embed_picture(b"", "png"),
        html_page.relative_path(Path("r/a/b"), Path("r/c")),
    ]
    check_values("tables", made)


def test_looks_words_and_places_are_as_stored() -> None:
    made: dict[str, Any] = {
        "looks": [str(look) for look in style.choose_looks(27)],
        "markers": style.choose_markers(["a", "b", "c"]),
        "seeds": [style.counted_seeds(counts) for counts in ([1], [5], [1, 3], [2, 3, 9])],
        "names": [
            style.wrap_name(name, width)
            for name in ("a_long_name-of/parts here", "abcdefghijkl", "", "ab cd", "a  b")
            for width in (4, 5, 6, 11)
        ],
        "short": [style.shorten_middle("abcdefghij", width) for width in (3, 4, 8, 9, 10)],
        "fitted": style.fit_name("x" * 30 + "_" + "y" * 60, 20),
        "lines": [style.count_lines(texts) for texts in ([], ["a"], ["a\nb", "", "c\n"])],
    }
    for panels, columns in ((1, None), (2, None), (3, 2), (4, None), (7, 3)):
        figure, grid = style.panel_grid(panels, legend=20 if panels == 2 else 3, columns=columns)
        style.label_outer_panels(grid, "label")
        figure.legend(handles=style.make_handles([("a", ("red", ("-", "o")))], joined=panels > 2))
        style.title_figure(figure, "t" * 30 + " title", "a caption of words " * 5, panels=panels)
        made[f"{panels} panels"] = [len(grid), *describe_figure(figure)]
    for wide in (False, True):
        figure = Figure(figsize=(5, 3))
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], label="a curve of some length" * (1 + 9 * wide))
        axes.legend(
            handles=[
                *style.make_dot_handles([("d", "blue", "^")]),
                style.make_ceiling_handle(linewidth=2.0),
            ]
        )
        if wide:
            axes.legend()
        style.title_axes(axes, "title", "many words in one line " * 4 + "\nand another")
        values: list[Any] = [(0.5, 0.2, 0.9), (0.6, None, None), (0.7, 0.75, 0.65)]
        style.draw_error_bars(axes, [0, 1, 2], values, color="red")
        style.draw_banded(axes, [0, 1, 2], values, ("green", ("--", "s")))
        made[f"titled {wide}"] = describe_figure(figure)
        if not wide:
            assert style.draw_svg(figure).startswith(b"<?xml")
    made["reason"] = describe_figure(style.write_reason("nothing to see here " * 8))
    check_values("styles", made, rel=1e-4)


def test_axes_of_epsilons_are_as_stored() -> None:
    made: dict[str, Any] = {}
    risk = RiskEpsilon(0.46, "advantage-0.1")
    settings: dict[str, tuple[Any, ...]] = {
        "usual": ((0.5, 1.0, 10.0), True, 3),
        "none": ((), True, 9),
        "one": ((2.0,), False, 1),
        "nothing": ((), False, 1),
        "close": ((0.01, 1.0, 1.1, 1.2, 10.0), True, 20),
        "a risk": ((0.4, risk, 0.5, 8.0), False, 5),
    }
    for name, (finite, infinite, curves) in settings.items():
        scale = EpsilonScale(finite=finite, infinite=infinite, curves=curves)
        places = [scale.place_of(each) for each in (0.1, *finite, math.inf)]
        made[name] = [scale.gap, scale.start_place, scale.end_place, places]
        for shown, others, width in ((None, (), 1.0), (finite[:1], (0.3, 1.05, 3.0), 0.3)):
            figure = Figure()
            axes = figure.add_subplot()
            draw_epsilon_axis(axes, scale, shown, others=others, width=width)
            made[name] += [*describe_figure(figure)[1:], axes.get_xticks()]
    check_values("epsilon_axes", made, rel=1e-6)


def test_published_numbers_are_as_stored() -> None:
    table: dict[str, Any] = {
        "paper": "a_2020",
        "table": "1",
        "title": "t",
        "metric": "accuracy",
        "dataset": "cifar10",
        "epsilon": 8.0,
        "columns": {
            "x": {"title": "Accuracy", "epsilon": [0.5, 2.0]},
            "y": {"title": "Y"},
            "z": {"title": "Z", "metric": "auc", "dataset": "chest", "delta": 1e-5},
        },
        "rows": [
            {"row": "r1", "values": {"x": 70, "y": 71.25, "z": 0.8}, "inferred": {"delta": ["z"]}},
            {"row": "r2", "values": {"y": "random chance", "x": 60.0}, "citation": "b_2019"},
            {"row": "r3", "values": {"y": 80.0}, "tuning": "full", "model": "m", "epsilon": 1.0},
            {"row": "r4", "values": {"y": 50.5}, "train_rows": 10, "epsilon": float("inf")},
            {"row": "r5", "values": {"y": 65.0}, "epsilon": 1.0, "metric": "throughput"},
            {"row": "r6", "values": {"x": 1.5, "y": -2.0}, "metric": "accuracy change"},
            {"row": "r7", "values": {"y": 72.0}},
            {"row": "r8", "values": {"y": 90.0, "x": 91.0}, "model": "m", "epsilon": 2.0},
            *(
                {"row": f"r{e}", "values": {"y": 50}, "model": "m", "epsilon": e}
                for e in (0.25, 0.5, 4.0)
            ),
        ],
    }
    work = {"short": "A", "authors": "Ann, Bob", "title": "On", "year": 2020, "venue": "V"}
    few = published.Published.model_validate(
        {
            "citations": {"b_2019": work | {"title": None, "note": "n"}, "a_2020": work},
            "tables": [table, table | {"table": "2", "title": "u", "rows": table["rows"][:1]}],
        }
    )
    made: dict[str, Any] = {"bibliography": published.write_bibliography(few)}
    made["numbers"] = [
        f"{n.row} {n.column} {n.text} {n.metric} {n.percent:g} {n.epsilon} {n.epsilon_range} "
        f"{n.single_epsilon} {n.model_or_column} {n.citation} {n.inferred} {n.delta} {n.dataset}"
        for n in few.numbers
    ]
    for networks in (False, True):
        made[f"points {networks}"] = [
            f"{n.row} {n.value}" for n in few.mark_points("cifar10", "accuracy", networks=networks)
        ]
    real = published.read_published()
    for dataset in ("cifar10", "imagenet", "chexpert", "eurosat"):
        made[dataset] = [
            f"{n.citation} {n.model_or_column} {n.epsilon} {n.text}"
            for metric in ("accuracy", "auc")
            for n in real.mark_points(dataset, metric, networks=dataset == "chexpert")
        ]
    made["selected"] = [n.row for n in few.select_numbers(tuning="full", metric="accuracy")]
    made["table"] = [few.of_table("a_2020", each).title for each in "12"]
    check_values("published_numbers", made)


def test_declared_exhibits_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for exhibit in EXHIBITS:
        outputs: Any = callable(exhibit.files) or exhibit.list_outputs(None)
        if isinstance(outputs, list):
            outputs = [
                f"{each.name} {each.paths} {each.several} {each.caption} {dict(each.labels)}"
                for each in outputs
            ]
        made[exhibit.name] = [list(exhibit.per), exhibit.locate_log("logs", ".txt"), outputs]
    check_values("exhibits", made)


def test_a_job_makes_its_files_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exhibit = Exhibit(
        name="draw",
        kind="figure",
        files={"": "figures/{dataset}/x", "law": "figures/{dataset}/y"},
        needs={"a": one(lambda *_: None), "b": many(lambda *_: []), "c": waits(lambda *_: [])},
        make="m:f",
        words="w",
        category=None,
    )
    assert not [each.caption for each in exhibit.list_outputs(None) if each.caption or each.labels]
    shown = replace(exhibit, category="c", caption={"law": "l.rst"}).list_outputs(None)
    captions = {"svg": None, "png": "draw.rst", "law_svg": None, "law_png": "l.rst"}
    assert {each.name: each.caption for each in shown} == captions
    heard: list[Any] = []

    def draw(
        *,
        a: Any,
        b: Any,
        study: Any,
        published: Any,
        folder: Any,
        results: Any,
        name: Any,
        dataset: Any,
    ) -> Any:
        assert mpl.rcParams["font.size"] == style.SETTINGS["font.size"]
        heard.append([a, b, study, len(published.citations) > 9, str(folder), str(results)])
        assert (name, dataset) == (f"the {dataset}", str(folder)[-1])
        if b:
            raise NothingToShow("no cell to draw")
        return [Figure(), Figure()]

    monkeypatch.setattr(make, "find_function", lambda _: draw)
    monkeypatch.chdir(tmp_path)
    for name, paths in (("d", []), ("e", ["x", "y"])):
        outputs = {"svg": [f"r/figures/{name}/x.svg"]}
        with mpl.rc_context({"font.size": 30.0}):
            make_exhibit(
                exhibit,
                inputs={"a": [], "b": paths, "c": ["z"]},
                outputs=outputs,
                params={"name": f"the {name}", "version": 1},
                wildcards={"dataset": name},
                read_study=lambda: "study",  # type: ignore[arg-type, return-value]
            )
        written = sorted(path.name for path in Path(f"r/figures/{name}").iterdir())
        assert written == ["x.png", "x.svg", "y.png", "y.svg"]
        heard[-1][1] = [str(path) for path in heard[-1][1]]
    assert heard == [
        [None, paths, "study", True, f"r/figures/{name}", "r"]
        for name, paths in (("d", []), ("e", ["x", "y"]))
    ]
    monkeypatch.setattr(make, "find_function", lambda _: lambda: made_table())
    study: Any = "study"
    for files, read in (
        (lambda study: {"": f"tables/{study}"}, lambda: study),
        ({"": "tables/{dataset}"}, lambda: pytest.fail("nobody asked for the study")),
    ):
        make_exhibit(
            replace(exhibit, kind="table", files=files, needs={}),
            inputs={},
            read_study=read,
            outputs={"csv": ["r/tables/d.csv"]},
            params={},
            wildcards={"dataset": "d"},
        )
    assert Path("r/tables/study.md").read_bytes() == Path("r/tables/d.md").read_bytes()
    assert Path("r/tables/d.csv").read_text() == tables.comma_separated(made_table())
    assert Path("r/tables/d.md").read_text() == tables.write_markdown(made_table())
    empty, reason = (Path(f"r/figures/{name}/x.svg").read_text() for name in "de")
    assert empty != reason, "the reason is drawn"
    monkeypatch.undo()
    assert make.find_function("dpprobe.exhibits.tables:make_row") is tables.make_row


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    embedding = write_embedding(tmp_path / "digits/clip/tsne.parquet", classes=4, seed=0)
    for draw in (
        lambda: epsilon_accuracy(summary, published=published.read_published(), name="mnist"),
        lambda: plot_tsne(embedding=embedding, dataset="digits", backbone="clip", split="test"),
        lambda: gap_figure([RECORD]),
    ):
        first, second = (save_bytes(draw(), tmp_path / "figure") for _ in range(2))
        assert first == second
        assert b"<dc:date>" not in first[0]
