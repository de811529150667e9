"""Writes the reproduction page: every published number once, with our result or a command."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from dpprobe.exhibits.published import Number, PrintedTable, Published
from dpprobe.exhibits.tables import TableCell, make_row, make_table, mean_cell, write_markdown
from dpprobe.json_values import canonical_json
from dpprobe.reporting.paper_tables.common import epsilon_cell
from dpprobe.study import catalog
from dpprobe.study.ablations import keep_unique
from reproduction.compare import CHANGE, Comparison, compare_all, title
from reproduction.facts import Facts, Weights
from reproduction.record import Record, all_results, read_throughput

WIDTH = 118
COMMAND = "python bench/reproduction_page.py RESULTS_DIR..."
LIKE, MET, STAND_IN = "like for like", "met", "stand-in"
WAITING, NEVER = "ready", "not comparable"
STATES = (LIKE, MET, STAND_IN, WAITING, NEVER)
NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
INTRODUCTION = (
    "Reference: which published numbers were run here, and with which result? Each number of "
    "[resources/published.yaml](../resources/published.yaml) has one of five states. "
    f"*{LIKE.capitalize()}*: dataset, weights, ε, δ and method are as published, as far as the "
    f"paper says. *{MET.capitalize()}*: a fact that holds without a study. "
    f"*{STAND_IN.capitalize()}*: another setting, so a difference would say nothing. "
    f"*{WAITING.capitalize()}*: not run, but a study is ready. *{NEVER.capitalize()}*: not run, "
    "and no study here can run it, or only their owners have its weights.",
    "Accuracy is in percent, AUC a fraction. The difference is ours minus the published value. The "
    "interval (95%) covers seeds (Student's t), with one seed test images; for a change it is "
    "Welch's. With a sweep of learning rates, a change compares the best of both sweeps by test "
    "result; epsilon does not cover that choice.",
)
WRITTEN = (
    "A command writes this page. It keeps the results of studies in "
    "[reproduced.json](../bench/reproduction/reproduced.json), and reads the needs of each number "
    "in [reproduction.yaml](../bench/reproduction/reproduction.yaml). Without a folder it uses "
    "what it kept:"
)
READY = (
    "A row per study of numbers that were not run like for like. Its command is `snakemake TARGET "
    "--cores all --configfile STUDY`, without a target if the row names none. Hours are images "
    "divided by a rate, for extraction or for one network, without heads: on a CPU core here at "
    "the measured [rates](../bench/results/rates.json), or on a core of TPUv4 at the rates of "
    "Mehta et al. 2022, table 8. An H200 with 16 CPU cores extracts 1,760 to 1,890 photographs per "
    "second ([measured](gpu.md#measured)). Data and weights are GB to fetch, features GB to "
    "store; split tables with images take as much again as data. [Licences and "
    "logins](data.md#by-name-the-catalog)."
)


def compare_record(published: Published, facts: Facts, record: Record) -> list[Comparison]:
    results = all_results(record, facts.kept)
    return compare_all(published, facts, results, read_throughput())


def reproduction_page(published: Published, facts: Facts, record: Record) -> str:
    """Returns the page; raises ConfigError unless each published number is in exactly one entry."""
    comparisons = compare_record(published, facts, record)
    by_state = {name: [c for c in comparisons if state(c) == name] for name in STATES}
    not_run = [c for c in comparisons if state(c) in (WAITING, NEVER)]
    parts = [
        "# Reproduction: the published numbers and ours",
        _paragraph(INTRODUCTION[0]),
        _counts(published, comparisons),
        distinct_paragraph(comparisons),
        _paragraph(INTRODUCTION[1]),
        _paragraph(WRITTEN),
        f"    {COMMAND}",
        f"## {LIKE.capitalize()}",
        *_like_for_like(published, facts, by_state[LIKE]),
        f"## {MET.capitalize()}",
        *(_line(published, group, group[0].entry.met) for group in _by_entry(by_state[MET])),
        f"## {STAND_IN.capitalize()}s",
        *_stand_ins(published, facts, by_state[STAND_IN]),
        "## Not run",
        *_not_run(published, not_run),
        "## Studies that are ready",
        *_ready(published, facts, [*by_state[STAND_IN], *not_run]),
        "## Studies that were run",
        _runs(facts, record),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def readme_paragraph(published: Published, comparisons: Sequence[Comparison]) -> str:
    """Returns the README's text: how many results are like for like, and what was not run."""
    papers = [c for c in comparisons if not _is_leaderboard(published, c.number.paper)]
    board = [c for c in comparisons if c not in papers]
    waiting, never = (sum(state(c) == name for c in comparisons) for name in (WAITING, NEVER))
    sources = len({c.number.paper for c in papers})
    summary = _paragraph(
        f"[All numbers](docs/reproduction.md): {len(papers)} of {_word(sources)} papers and "
        f"{len(board)} of the private ML leaderboard. Of these, {waiting} still need "
        f"computing time or data, and {never} are not comparable."
    )
    return f"{distinct_paragraph(comparisons)}\n\n{summary}"


def distinct_paragraph(comparisons: Sequence[Comparison]) -> str:
    """States how many distinct results of ours are like for like, and which they are."""
    like = [c for c in comparisons if state(c) == LIKE]
    distinct = {distinct_key(c): c for c in like}
    gaps: dict[str, list[float]] = {}
    for comparison in distinct.values():
        if comparison.gap is not None:
            name = title(comparison.number.dataset or "")
            gaps.setdefault(name, []).append(-comparison.gap)
    counts = " and ".join(f"{_word(len(of))} on {name}" for name, of in gaps.items())
    below = " and ".join(f"{max(of):.1f} points on {name}" for name, of in gaps.items())
    return _paragraph(
        f"{_word(len(distinct)).capitalize()} of our results are like for like: {counts}. Papers "
        f"and the leaderboard print them {len(like)} times. Our accuracy is lower by at most "
        f"{below}, whose images we had only as JPEG copies. All are baselines without public data: "
        "ScatterNets with a linear classifier, and a CNN. We repeated no number of a foundation "
        "model like for like, because we could not fetch its weights or data."
    )


def distinct_key(comparison: Comparison) -> tuple[str, str, str, float] | None:
    """Returns the key of our result; several published numbers may share one result."""
    result = comparison.result
    if result is None:
        return None
    return result.study, result.dataset, result.method, result.epsilon


def _word(number: int) -> str:
    return NUMERALS[number].lower() if number < len(NUMERALS) else str(number)


def _is_leaderboard(published: Published, paper: str) -> bool:
    return "leaderboard" in published.citations[paper].short.lower()


def state(comparison: Comparison) -> str:
    if comparison.entry.met:
        return MET
    if comparison.run:
        return LIKE if comparison.like_for_like else STAND_IN
    runs = comparison.entry.study or comparison.entry.command
    return WAITING if runs and not comparison.needs_private_weights else NEVER


def _by_entry(comparisons: Iterable[Comparison]) -> list[list[Comparison]]:
    """Groups comparisons whose entries differ at most in table, rows, columns, recipe or cells."""
    groups: dict[str, list[Comparison]] = {}
    places = {"table", "rows", "columns", "recipe", "ours"}
    for comparison in comparisons:
        said = comparison.entry.model_dump(mode="json", exclude=places)
        groups.setdefault(canonical_json(said), []).append(comparison)
    return list(groups.values())


def _counts(published: Published, comparisons: Sequence[Comparison]) -> str:
    """Makes the table with the counts of each paper's numbers by state."""
    papers = keep_unique(comparison.number.paper for comparison in comparisons)
    boards = [paper for paper in papers if _is_leaderboard(published, paper)]
    groups = {_short(published, paper): [paper] for paper in papers if paper not in boards}
    groups["All papers"] = [paper for paper in papers if paper not in boards]
    groups |= {_short(published, paper): [paper] for paper in boards}
    rows = []
    for name, of_group in (groups | {"All": papers}).items():
        of = [state(c) for c in comparisons if c.number.paper in of_group]
        rows.append(make_row(name, str(len(of)), *(str(of.count(each)) for each in STATES)))
    columns = ("<Paper", "Numbers", *map(_upper, STATES))
    return write_markdown(make_table("counts", "", columns, rows, []))


def _like_for_like(
    published: Published, facts: Facts, comparisons: Sequence[Comparison]
) -> list[str]:
    """Writes the table of numbers that were run as published, and the reasons for differences."""
    rows = [
        make_row(
            _place(published, c.number),
            c.number.row,
            *_privacy([c.number]),
            f"{_column(c.number, _printed(published, c.number))} {c.number.text}",
            _ours(c),
            _gap(c),
            _study(c, facts),
            "; ".join(c.silent),
        )
        for c in comparisons
    ]
    columns = (
        "<Place",
        "<Row",
        "ε",
        "δ",
        "<Published",
        "<Ours",
        "Difference",
        "<Study, method",
        "<Not stated by the paper",
    )
    table = write_markdown(make_table("like", "", columns, rows, []))
    reasons = keep_unique(reason for c in comparisons for reason in c.entry.reasons)
    return [table, _paragraph(f"Why ours differ: {' '.join(reasons)}")]


def _stand_ins(published: Published, facts: Facts, comparisons: Sequence[Comparison]) -> list[str]:
    """Writes one table per printed table and study, below the differences that all rows share."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(
            (_heading(published, c.number), _study(c, facts, method=False)), []
        ).append(c)
    parts: list[str] = []
    for (heading, study), group in groups.items():
        shared = [each for each in group[0].unlike if all(each in c.unlike for c in group)]
        words = f"{study}. Other than published: {'; '.join(shared)}." if shared else f"{study}."
        silent = keep_unique(each for c in group for each in c.silent)
        words += f" Not stated by the paper: {'; '.join(silent)}." if silent else ""
        settings = keep_unique(c.measured["settings"] for c in group if c.measured)
        words += "".join(f" Measured with {each}." for each in settings)
        words = " ".join([words, *keep_unique(each for c in group for each in c.entry.reasons)])
        columns = ("<Row", "ε", "δ", "<Published", "<Ours", "<Remark")
        rows = [_stand_in_row(published, c, shared) for c in group]
        parts += [] if heading in parts else [heading]
        parts.append(_paragraph(words))
        parts.append(write_markdown(make_table("section", "", columns, rows, [])))
    return parts


def _heading(published: Published, number: Number) -> str:
    return f"### {_place(published, number)}\n\n{_paragraph(_printed(published, number).title)}."


def _stand_in_row(
    published: Published, comparison: Comparison, shared: Sequence[str]
) -> tuple[TableCell, ...]:
    number, result = comparison.number, comparison.result
    remarks = [] if result is None else [f"`{result.method}`"]
    remarks += [each for each in comparison.unlike if each not in shared]
    if number.metric == CHANGE:
        remarks.append(_direction(comparison))
    return make_row(
        number.row,
        *_privacy([number]),
        f"{_column(number, _printed(published, number))} {number.text}",
        _ours(comparison),
        "; ".join(remarks),
    )


def _not_run(published: Published, comparisons: Sequence[Comparison]) -> list[str]:
    """Writes one line per group of numbers that nothing in this project can run."""
    never = [c for c in comparisons if not (c.entry.study or c.entry.command)]
    private = sum(c.needs_private_weights for c in comparisons)
    return [
        *(_line(published, group, group[0].entry.missing) for group in _by_entry(never)),
        _paragraph(
            f"{private} numbers need weights that only their owners have, pre-trained on JFT above "
            "all. They cannot be run like for like; their studies, below, take public weights."
        ),
        f"The other {len(comparisons) - len(never) - private} wait for hours or data.",
    ]


def _ready(published: Published, facts: Facts, comparisons: Sequence[Comparison]) -> list[str]:
    """Makes the table of studies for numbers not run like for like, with time and disk space."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in comparisons:
        if run := c.entry.study or c.entry.command:
            groups.setdefault((run, c.entry.target or ""), []).append(c)
    rows = []
    for (run, target), group in groups.items():
        needs = facts.needs.get(run)
        weights = [c.weights for c in group if c.weights]
        stand = keep_unique(c.entry.stands_in for c in group if c.entry.stands_in)
        remarks = [f"{_upper(each)}." for each in stand]
        remarks += keep_unique(c.entry.missing for c in group if c.entry.missing)
        rows.append(
            make_row(
                f"`{run}`" + (f", `{target}`" if target else ""),
                str(len(group)),
                _places(published, group),
                "; ".join(keep_unique(map(_name_weights, weights))),
                "; ".join(_data([c for c in group if c.entry.study])),
                needs.hours if needs else "",
                needs.gigabytes if needs else "",
                " ".join(remarks),
            )
        )
    columns = ("<Study, target", "Numbers", "<Of", "<Weights", "<Data", "<Hours", "<GB", "<Remark")
    return [_paragraph(READY), write_markdown(make_table("ready", "", columns, rows, []))]


def _name_weights(weights: Weights) -> str:
    if weights.nearest and weights.access == "private":
        return f"`{weights.nearest}` for {weights.title}"
    return f"{weights.title} ({weights.access})"


def _places(published: Published, group: Sequence[Comparison]) -> str:
    """Names the papers and tables of numbers, each paper once."""
    tables: dict[str, list[str]] = {}
    for number in (c.number for c in group):
        tables.setdefault(_short(published, number.paper), []).append(_table(number))
    return "; ".join(", ".join([paper, *keep_unique(of)]) for paper, of in tables.items())


def _line(published: Published, group: Sequence[Comparison], words: str | None) -> str:
    """Writes one paragraph: how many numbers of which tables, their rows, and the reason."""
    rows = keep_unique(f"{c.number.row}" for c in group)
    count = f"{len(group)} {'numbers' if len(group) > 1 else 'number'}"
    return _paragraph(f"{_places(published, group)}, {count} ({'; '.join(rows)}): {words}")


def _printed(published: Published, number: Number) -> PrintedTable:
    wanted = number.paper, number.table
    return next(t for t in published.tables if (t.paper, t.table) == wanted)


def _place(published: Published, number: Number) -> str:
    """Returns paper and table, such as "Mehta et al. 2022, table 4"."""
    return f"{_short(published, number.paper)}, {_table(number)}"


def _table(number: Number) -> str:
    return f"table {number.table}" if number.table.isdecimal() else number.table


def _short(published: Published, paper: str) -> str:
    return _upper(published.citations[paper].short)


def _study(comparison: Comparison, facts: Facts, *, method: bool = True) -> str:
    """Names our study and method, with a link if the study has differences of its own."""
    result = comparison.result
    if result is None:
        return "`bench/throughput.py`"
    name = (
        f"[{result.study}](#studies-that-were-run)" if result.study in facts.notes else result.study
    )
    return f"{name}, {result.method}" if method else name


def _runs(facts: Facts, record: Record) -> str:
    """Makes the table of studies that were run, and of results that exist only on pages."""
    rows = [
        make_row(
            f"`{study['file']}`" if study["file"] else name,
            ", ".join(
                _data_title(name, facts)
                for name in keep_unique(c["dataset"] for c in study["cells"])
            ),
            ", ".join(keep_unique(cell["backbone"] for cell in study["cells"])),
            str(len(study["cells"])),
            facts.notes.get(name, ""),
        )
        for name, study in record.studies.items()
    ]
    rows += [
        make_row(
            f"`config/{kept.study}.yaml`",
            title(kept.dataset),
            kept.backbone,
            "1",
            f"[{kept.page}](../{kept.page}) keeps it. {facts.notes.get(kept.study, '')}".strip(),
        )
        for kept in facts.kept
    ]
    columns = ("<Study", "<Data", "<Backbone", "Cells", "<Not as published")
    return write_markdown(make_table("runs", "", columns, rows, []))


def _data_title(name: str, facts: Facts) -> str:
    """Returns a dataset's title; for a part of a dataset, also its name in the study."""
    whole = facts.parts.get(name)
    return title(name) if whole is None else f"{title(whole)} ({name})"


def _privacy(numbers: Sequence[Number]) -> tuple[str, str]:
    """Returns the epsilons and the deltas of numbers; empty if the paper states none."""
    epsilons = keep_unique(
        epsilon_cell(n.epsilon).text + (" (inferred)" if "epsilon" in n.inferred else "")
        for n in numbers
        if n.epsilon is not None
    )
    deltas = keep_unique(
        f"{n.delta:g}" + (" (inferred)" if "delta" in n.inferred else "")
        for n in numbers
        if n.delta is not None
    )
    return ", ".join(epsilons), ", ".join(deltas)


def _column(number: Number, printed: PrintedTable) -> str:
    """Returns a column's title, with epsilon if the table's columns have different epsilons."""
    if any(column.epsilon is not None for column in printed.columns.values()):
        return f"{number.column_title}, ε {epsilon_cell(number.epsilon).text}:"
    return number.column_title


def _ours(comparison: Comparison) -> str:
    """Formats our value, interval and seeds, with PLD's epsilon if another accountant was used."""
    number, result = comparison.number, comparison.result
    assert comparison.value is not None
    if comparison.measured is not None:
        return f"{comparison.value:.3g}"
    assert result is not None
    seeds = f"{result.seeds} seeds" if result.seeds > 1 else "one seed"
    if result.text is not None:
        return f"{result.text}, {seeds}"
    digits = 3 if number.metric == "auc" else 1
    low, high = comparison.ends or (None, None)
    text = mean_cell(comparison.value, low, high, scale=1.0, digits=digits).text
    sign = "+" if number.metric == CHANGE and comparison.value > 0 else ""
    price = ""
    if result.noise is not None and result.pld_epsilon is not None:
        price = f"; noise {result.noise:.2f}, ε {result.pld_epsilon:.2f} by PLD"
    return f"{sign}{text}, {seeds}{price}"


def _gap(comparison: Comparison) -> str:
    """Returns our value minus the published value; empty if the paper writes words."""
    if comparison.gap is None:
        return ""
    text = f"{comparison.gap:+.{3 if comparison.number.metric == 'auc' else 1}f}"
    return text if float(text) else text[1:]  # zero has no sign


def _direction(comparison: Comparison) -> str:
    """States whether our change has the direction of the paper's change."""
    published = comparison.number.value
    low, high = comparison.ends or (-math.inf, math.inf)
    if low <= 0 <= high:
        return "Its interval holds 0" + (", as published" if published == 0 else "")
    if published == 0 or comparison.value is None:
        return "The paper has no change"
    same = (published > 0) == (comparison.value > 0)
    return "In the published direction" if same else "Against the published direction"


def _data(group: Sequence[Comparison]) -> list[str]:
    """Lists the datasets of numbers by their access."""
    by_access: dict[str, list[str]] = {}
    for name in keep_unique(c.number.dataset for c in group if c.number.dataset):
        known = name in catalog.dataset_names()
        access = catalog.dataset_entry(name).access if known else "not in the catalog"
        by_access.setdefault(access, []).append(title(name))
    return [f"{', '.join(names)} ({access})" for access, names in by_access.items()]


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
