"""One page for people: `results/report.html`, a single file that opens offline.

Everything on it comes from files that other stages wrote: summaries, privacy statements, tables
and figures. Nothing is computed anew but which private result is best and how far it is from the
ceiling. The page asks for nothing from outside, which its own Content-Security-Policy enforces.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dpprobe.artifacts import canonical_json, read_json, write_text
from dpprobe.data.addresses import public_addresses
from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.errors import DataError
from dpprobe.privacy.limits import INFINITE, epsilon_value
from dpprobe.reporting.html_page import content_policy
from dpprobe.results.best_private import Best, best_private, highlights
from dpprobe.results.record import HEADLINES
from dpprobe.results.summary import Grid, read_grid, read_summaries, rounded_up

logger = logging.getLogger("dpprobe")

FIGURES_BYTES = 16 << 20  # of figure files within the page; what is above becomes a link
SVG_BYTES = 400_000  # a larger drawing is shown as its PNG
TABLE_BYTES = 300_000  # of a Markdown table; a longer one becomes a link
CELLS_SHOWN = 2000
STATEMENTS_SHOWN = 400
LIBRARIES = (
    "dpprobe", "dp-accounting", "opacus", "torch", "timm", "open_clip_torch", "kymatio",
    "scikit-learn", "numpy", "scipy", "numba", "pyarrow", "h5py", "safetensors", "snakemake",
    "mlflow", "matplotlib", "openTSNE",
)  # fmt: skip
NOT_PRIVATE = (
    ("This report", "its test results, t-SNE pictures and fingerprints are functions of the data."),
    ("Features and their shards", "numbers that describe each single image; keep them as safe as "
     "the images."),
    ("t-SNE and every other picture of features", "drawn from the features, without noise."),
    ("Test results", "computed on the test split without noise; private where that split is."),
    ("Training losses and learning curves", "functions of the training rows, without noise."),
    ("Rows at epsilon inf and the non-private ceilings", "trained without any noise."),
    ("Zero-shot and few-shot baselines", "few-shot heads are trained on private rows without "
     "noise; zero-shot results are test results."),
    ("The best of several", "choosing a method, backbone or epsilon by looking at results on "
     "private data is not covered by any promise below."),
    ("Seeds, fingerprints and logs", "in benchmark mode the seeds give the noise away."),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files that a report shows."""

    summaries: Sequence[Path]
    statements: Sequence[Path]  # privacy.json of the cells
    datasets: Mapping[str, Path]  # name: dataset.json
    manifests: Sequence[Path] = ()  # of the train splits' features
    tables: Sequence[Path] = ()  # Markdown is shown; CSV and LaTeX beside it are linked
    figures: Sequence[Path] = ()  # figures/<dataset>/<name>.svg and .png, or figures/<name>
    zero_shot: Sequence[Path] = ()
    captions: Sequence[Path] = ()  # <beginning of a figure's or table's name>.rst


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the results come from."""

    study: Mapping[str, Any]  # the study as checked, defaults filled in
    results: Path
    call: Sequence[str] = ()  # options of `snakemake` that select the study
    commit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A privacy statement, and the cells that it holds for."""

    dataset: str
    epsilon: str
    anchor: str
    content: Mapping[str, Any]
    cells: Sequence[tuple[str, Path]]  # backbone, privacy.json
    extra_not_covered: Sequence[str] = ()


@dataclass
class Budget:
    """Bytes of figures that still fit the page."""

    left: int
    linked: list[str] = field(default_factory=list)


def write_report(output: Path, sources: Sources, origin: Origin, *, template: Path) -> None:
    """Writes the page.

    Args:
      output: the page; figures too large for it are linked relative to its folder.
      template: folder of report.html.j2, style.css and script.js.

    Raises:
      DataError: when a file is not what its name says.
    """
    origin = replace(origin, study=public_addresses(origin.study))
    grid = read_grid(sources.summaries)
    summary = read_summaries(sources.summaries).to_pandas()
    infos = {name: read_info(path) for name, path in sources.datasets.items()}
    zero_shot = read_zero_shot(sources.zero_shot)
    statements = read_statements(sources.statements, order=list(grid.measures))
    common = common_limits(statements)
    bests = best_private(grid, zero_shot)
    budget = Budget(left=FIGURES_BYTES)
    shown = _Shown(sources, output.parent, budget)
    cells = list_cells(summary, statements, origin)
    datasets = [
        {
            "name": name,
            "measure": measure,
            "figures": shown.figures(name, _figure_facts(bests, name)),
            "tables": shown.tables(name),
            "cells": [cell for cell in cells if cell["dataset"] == name],
            "statements": [item for item in statements if item.dataset == name],
        }
        for name, measure in grid.measures.items()
    ]
    style = (template / "style.css").read_text(encoding="utf-8")
    script = (template / "script.js").read_text(encoding="utf-8")
    page = _environment(template).get_template("report.html.j2").render(
        study=origin.study,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        date=_date(sources.summaries),
        run=_what_was_run(origin.study, grid, infos, statements, summary),
        bests=bests,
        has_zero_shot=bool(zero_shot),
        highlights=[_sentence(best, infos[best.dataset]) for best in highlights(bests)],
        datasets=datasets,
        overview={"figures": shown.figures(None, {}), "tables": shown.tables(None)},
        cells_left_out=max(0, len(cells) - CELLS_SHOWN),
        statements_shown=STATEMENTS_SHOWN,
        statements_count=len(statements),
        cells_count=len(cells),
        not_covered=common,
        not_private=NOT_PRIVATE,
        provenance=_provenance(origin, infos, sources),
        linked=budget.linked,
        reproduce=_reproduce(origin),
        relative=lambda path: _relative(path, output.parent),
    )  # fmt: skip
    write_text(output, page)
    logger.info("%s: %.1f MB, %d cells", output, output.stat().st_size / 1e6, len(cells))


def _sentence(best: Best, info: DatasetInfo) -> dict[str, str]:
    """The parts of a headline."""
    measure = best.measure.title
    gap = ""
    if best.gap is not None and best.ceiling is not None:
        points = f"{abs(best.gap):.1f}\u00a0points"
        side = f"{points} below" if best.gap >= 0.05 else f"{points} above"
        side = "level with" if abs(best.gap) < 0.05 else side
        gap = (
            f"{side} the non-private ceiling of the same backbone ({best.ceiling.mean:.1f}\u00a0%)"
        )
    zero = ""
    if best.zero_shot is not None:
        backbone, metric, value = best.zero_shot
        zero = f"zero-shot {backbone} reaches {value:.1f}\u00a0%"
        if metric != best.measure.headline:
            zero += f" {HEADLINES[metric]}"
    return {
        "dataset": best.dataset,
        "value": f"{best.entry.mean:.1f}\u00a0%",
        "half": "" if best.entry.half is None else f"±\u00a0{best.entry.half:.1f}",
        "what": f"best private test {measure} at ε\u00a0=\u00a0{best.epsilon}",
        "by": f"{best.method} on {best.backbone}",
        "gap": gap,
        "zero_shot": zero,
        "untested": _untested(info),
    }


def _untested(info: DatasetInfo) -> str:
    """Which classes the results say nothing of; empty where all are tested."""
    names = info.untested
    if not names:
        return ""
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return (
        f"not tested, for no test image is of it: {len(names)} of {info.num_classes} classes "
        f"({shown})"
    )


def read_zero_shot(paths: Sequence[Path]) -> dict[tuple[str, str], tuple[str, float]]:
    """The zero-shot result of each (dataset, backbone): its own headline metric, and percent.

    Raises:
      DataError: when a file has none.
    """
    found = {}
    for path in paths:
        record = read_json(path)
        try:
            name = str(record["headline"])
            value = 100 * float(record["metrics"][name])
            found[record["dataset"], record["backbone"]] = name, value
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path}: not a zero-shot record; delete it and run again") from None
    return found


def read_statements(paths: Iterable[Path], *, order: Sequence[str]) -> list[Statement]:
    """The statements of cells, those that say the same of several backbones once.

    The paths end in <dataset>/<backbone>/<method>/eps-<epsilon>/privacy.json. Seeds are left out:
    they differ in every cell.

    Args:
      order: of the datasets.
    """
    groups: dict[str, tuple[dict[str, Any], list[tuple[str, Path]]]] = {}
    for path in paths:
        dataset, backbone, _, epsilon = path.parts[-5:-1]
        record = read_json(path)
        content = {k: v for k, v in record.items() if k not in ("seeds", "public_data")}
        content["dataset"], content["epsilon"] = dataset, epsilon.removeprefix("eps-")
        content["assumption"] = record.get("public_data", {}).get("assumption")
        key = canonical_json(content)
        groups.setdefault(key, (content, []))[1].append((backbone, path))
    ordered = sorted(
        groups.values(),
        key=lambda item: (
            order.index(item[0]["dataset"]),
            item[0].get("method", ""),
            epsilon_value(item[0]["epsilon"]),
        ),
    )  # fmt: skip
    common = set(_shared([content.get("not_covered", ()) for content, _ in ordered]))
    return [
        Statement(
            dataset=content["dataset"],
            epsilon=content["epsilon"],
            anchor=f"statement-{index}",
            content=content,
            cells=sorted(cells),
            extra_not_covered=[t for t in content.get("not_covered", ()) if t not in common],
        )
        for index, (content, cells) in enumerate(ordered)
    ]


def common_limits(statements: Sequence[Statement]) -> list[str]:
    """What no statement covers."""
    return _shared([item.content.get("not_covered", ()) for item in statements])


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    """What stands in all lists, in the order of the first."""
    if not lists:
        return []
    sets = [set(own) for own in lists]
    return [text for text in lists[0] if all(text in own for own in sets)]


def list_cells(
    summary: Any, statements: Sequence[Statement], origin: Origin
) -> list[dict[str, Any]]:
    """One record a cell, for the tables of all cells."""
    anchors = {}
    for index, item in enumerate(statements):
        for backbone, _ in item.cells:
            key = (item.dataset, backbone, item.content.get("method"), item.epsilon)
            anchors[key] = item.anchor if index < STATEMENTS_SHOWN else None
    cells = []
    keys = ["dataset", "backbone", "method", "epsilon_token"]
    for key, rows in summary.groupby(keys, sort=False):
        first = rows.iloc[0]
        name = str(first.headline)
        values = {part: float(first[f"{name}_{part}"]) for part in ("low", "high")}
        cells.append(
            {
                **dict(zip(("dataset", "backbone", "method", "epsilon"), key, strict=True)),
                "value": 100 * float(rows[name].mean()),
                "low": 100 * values["low"],
                "high": 100 * values["high"],
                "interval": not math.isnan(values["low"]),
                "private": bool(first.private),
                "realised": _number(first.realised_epsilon),
                "seeds": len(rows),
                "anchor": anchors.get(key),
                "command": cell_command(origin, *key),
            }
        )
    return cells


def cell_command(origin: Origin, dataset: str, backbone: str, method: str, epsilon: str) -> str:
    """What makes one cell again, typed in the folder that the study ran in."""
    path = origin.results / "cells" / dataset / backbone / method / f"eps-{epsilon}/metrics.json"
    return _snakemake(origin, path.as_posix())


def _snakemake(origin: Origin, *targets: str) -> str:
    """A call of Snakemake; the options come last, --configfile takes all that follows it."""
    return shlex.join(["snakemake", *targets, "--cores", "all", *origin.call])


def _reproduce(origin: Origin) -> dict[str, str]:
    commit, _, changes = (origin.commit or "").partition(" ")
    checkout = f"git checkout {commit}" if commit else ""
    if changes:
        checkout += f"  # {changes}, which the commit does not have"
    return {
        "checkout": checkout,
        "study": _snakemake(origin),
        "delete": f"rm -r {origin.results.as_posix()}/cells/DATASET/BACKBONE/METHOD/eps-EPSILON",
    }


class _Shown:
    """Tables and figures as the page shows them, each once."""

    def __init__(self, sources: Sources, folder: Path, budget: Budget) -> None:
        self.sources = sources
        self.folder = folder
        self.budget = budget
        self.seen: set[bytes] = set()
        self.names = set(sources.datasets)

    def figures(self, dataset: str | None, facts: Mapping[str, str]) -> list[dict[str, Any]]:
        """The figures of a dataset, or those of none.

        Overlap figures are left out: they hold private photographs, and a page is sent around.
        """
        groups: dict[str, dict[str, Path]] = {}
        for path in self.sources.figures:
            if path.name.startswith("overlap_"):
                continue
            if self._figure_owner(path) == dataset:
                groups.setdefault(path.stem, {})[path.suffix] = path
        ordered = sorted(groups, key=lambda name: (name.startswith("tsne"), name))
        return [self._figure(name, groups[name], dataset, facts) for name in ordered]

    def _figure(
        self, name: str, files: Mapping[str, Path], dataset: str | None, facts: Mapping[str, str]
    ) -> dict[str, Any]:
        svg, png = files.get(".svg"), files.get(".png")
        path = svg if svg is not None and svg.stat().st_size <= SVG_BYTES else png or svg
        assert path is not None
        title = _title(name, dataset)
        size = path.stat().st_size
        data = None
        if size <= self.budget.left:
            self.budget.left -= size
            kind = "image/svg+xml" if path.suffix == ".svg" else "image/png"
            data = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        else:
            self.budget.linked.append(title)
        return {
            "title": title,
            "main": not name.startswith("tsne"),
            "data": data,
            "alt": f"{title}. {facts.get(name.partition('_')[0], '')}".strip(),
            "caption": _caption(name, self.sources.captions),
            "links": [(own.suffix[1:].upper(), _relative(own, self.folder))
                      for own in files.values()],
        }  # fmt: skip

    def tables(self, dataset: str | None) -> list[dict[str, Any]]:
        """The tables of a dataset, or those of none."""
        found = []
        for path in self.sources.tables:
            if path.suffix != ".md" or self._table_owner(path) != dataset:
                continue
            content = path.read_bytes()
            digest = hashlib.sha256(content).digest()
            if digest in self.seen:
                continue  # with one dataset the table of all is that dataset's
            self.seen.add(digest)
            beside = [p for p in self.sources.tables if p.with_suffix(".md") == path]
            name = path.stem if dataset is None else path.stem.removeprefix(f"{dataset}_")
            heading, text = _headed(content.decode())
            title = heading or _title(name, dataset)
            whole = len(content) <= TABLE_BYTES
            found.append(
                {
                    "title": title,
                    "folder": path.parent.name,
                    "html": markdown(text, title) if whole else None,
                    "links": [
                        (own.suffix[1:].upper(), _relative(own, self.folder)) for own in beside
                    ],
                }
            )
        return found

    def _figure_owner(self, path: Path) -> str | None:
        """The dataset of figures/<dataset>/<name>; none of figures/<name>."""
        folders = Path(_relative(path, self.folder)).parts[1:-1]
        return folders[0] if folders and folders[0] in self.names else None

    def _table_owner(self, path: Path) -> str | None:
        """The dataset of tables/<dataset>_<name>; none of a folder within, the papers' tables."""
        if len(Path(_relative(path, self.folder)).parts) > 2:
            return None
        owners = [name for name in self.names if path.stem.startswith(f"{name}_")]
        return max(owners, key=len, default=None)


def _headed(text: str) -> tuple[str, str]:
    """The heading that a Markdown file begins with, if any, and what follows it."""
    first, _, rest = text.partition("\n")
    return (first.removeprefix("# "), rest) if first.startswith("# ") else ("", text)


def markdown(text: str, title: str) -> Markup:
    """Tables and paragraphs of our own Markdown tables as HTML; anything else is shown as text."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if len(lines) > 1 and lines[0].startswith("|") and set(lines[1]) <= set("|-: "):
            blocks.append(_table(lines, title))
        elif not lines:
            continue  # a file that has a heading alone
        elif lines[0].startswith("#"):
            title = lines[0].lstrip("# ")
            blocks.append(Markup("<h4>{}</h4>").format(title))
        else:
            body = Markup(" ").join(map(_inline, lines))
            blocks.append(Markup('<p class="note">{}</p>').format(body))
    return Markup("\n").join(blocks)


def _table(lines: Sequence[str], title: str) -> Markup:
    header, rule, *rows = [_split_row(line) for line in lines]
    right = ["num" if cell.endswith(":") else "" for cell in rule]
    head = Markup("").join(
        Markup('<th scope="col" class="{}">{}</th>').format(kind, _breakable(cell))
        for cell, kind in zip(header, right, strict=True)
    )
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup('<td class="{}">{}</td>').format(kind, _inline(cell))
                for cell, kind in zip(row, right, strict=False)
            )
        )
        for row in rows
    )
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="{0}"><table class="sortable">'
        "<caption>{0}</caption><thead><tr>{1}</tr></thead><tbody>{2}</tbody></table></div>"
    ).format(title, head, body)


def _split_row(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _breakable(text: str) -> Markup:
    """A column's name that may break after a plus sign and at underscores."""
    return Markup(str(escape(text)).replace("_", "_<wbr>"))


def _inline(text: str) -> Markup:
    safe = str(escape(text))
    safe = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", safe))


def _title(name: str, dataset: str | None) -> str:
    kind, _, rest = name.partition("_")
    words = {"accuracy": "Results against epsilon", "tsne": "t-SNE"}
    if kind in words:
        text = words[kind] + (f" of {rest} features" if rest else "")
    else:
        text = name.replace("_", " ").capitalize()
    return text if dataset is None else f"{text}, {dataset}"


def _caption(name: str, captions: Sequence[Path]) -> str:
    """The caption whose name the figure's name begins with, the longest."""
    own = [path for path in captions if name.startswith(path.stem)]
    if not own:
        return ""
    chosen = max(own, key=lambda path: len(path.stem))
    return " ".join(chosen.read_text(encoding="utf-8").split())


def _figure_facts(bests: Sequence[Best], dataset: str) -> dict[str, str]:
    """What a figure shows, for those who do not see it."""
    own = [best for best in bests if best.dataset == dataset]
    if not own:
        return {}
    points = "; ".join(
        f"epsilon {best.epsilon}: {best.entry.mean:.1f} % by {best.method} on {best.backbone}"
        for best in own
    )
    return {"accuracy": f"Best private results: {points}.", "tsne": "A scatter plot by class."}


def _what_was_run(
    study: Mapping[str, Any],
    grid: Grid,
    infos: Mapping[str, DatasetInfo],
    statements: Sequence[Statement],
    summary: Any,
) -> dict[str, Any]:
    datasets = [
        {
            "name": name,
            "train": info.train_rows,
            "test": info.test_rows,
            "classes": info.num_classes,
            "labels": "several labels a row" if info.multi_label else "one label a row",
            "measure": grid.measures[name].title if name in grid.measures else "",
            "delta": f"{grid.deltas[name]:g}" if name in grid.deltas else "none",
            "source": _short(dict(info.source)),
            "untested": _untested(info),
        }
        for name, info in infos.items()
    ]
    dimensions = summary.groupby("backbone").dimension.unique()
    backbones = [
        {
            "name": name,
            "options": _short(options),
            "dimension": ", ".join(str(int(d)) for d in dimensions.get(name, ())),
        }
        for name, options in study["backbones"].items()
    ]
    methods = [
        {"name": name, "head": options["head"], "options": _short(options, skip=("head",))}
        for name, options in study["methods"].items()
    ]
    return {
        "datasets": datasets,
        "backbones": backbones,
        "public_data": _public_data(statements),
        "methods": methods,
        "epsilons": ", ".join(map(str, study["epsilons"])),
    }


def _public_data(statements: Sequence[Statement]) -> list[dict[str, str]]:
    """What is assumed of a backbone's pretraining for each dataset, and whether it was checked."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for item in statements:
        for backbone, path in item.cells:
            if (item.dataset, backbone) not in found:
                public = read_json(path).get("public_data", {})
                found[item.dataset, backbone] = {
                    "dataset": item.dataset,
                    "backbone": backbone,
                    "assumption": str(public.get("assumption", "")),
                    "check": _near_duplicates(public.get("near_duplicate_check", "not run")),
                }
    return [found[key] for key in sorted(found)]


def _near_duplicates(check: Any) -> str:
    if not isinstance(check, Mapping):
        return str(check)
    return f"{check['near']} of {check['private_rows']} private rows look like public ones"


def _short(options: Mapping[str, Any], skip: Sequence[str] = ()) -> str:
    """Options in one line, without those that are not set."""
    parts = []
    for name, value in options.items():
        if name in skip or value in (None, [], {}, ()):
            continue
        if isinstance(value, Mapping):
            inner = _short(value)
            parts.append(f"{name} ({inner})")
        else:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _provenance(
    origin: Origin, infos: Mapping[str, DatasetInfo], sources: Sources
) -> dict[str, Any]:
    versions = []
    for name in LIBRARIES:
        try:
            versions.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    fingerprints = [
        (f"data of {name}", "content", info.fingerprint) for name, info in infos.items()
    ]
    weights: dict[str, str] = {}
    for path in sources.manifests:
        record = read_json(path)
        dataset, backbone, split = path.parts[-4:-1]
        what = f"{split} features of {dataset}, {backbone}"
        fingerprints.append((what, "values", record["features_sha256"]))
        weights[backbone] = record["weights_sha256"] or "no weights"
    fingerprints += [(f"weights of {name}", "SHA-256", value) for name, value in weights.items()]
    return {
        "commit": origin.commit or "not a git checkout",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "fingerprints": fingerprints,
        "config": yaml.safe_dump(dict(origin.study), sort_keys=False, allow_unicode=True),
    }


def _environment(template: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda value: f"{value:.1f}"
    environment.filters["epsilon"] = lambda token: "∞" if token == INFINITE else token
    environment.filters["short"] = _short
    environment.filters["upper_first"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.globals["headlines"] = HEADLINES
    return environment


def _date(paths: Sequence[Path]) -> str:
    """The day of the newest summary."""
    newest = max((path.stat().st_mtime for path in paths), default=0.0)
    return datetime.fromtimestamp(newest, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _number(value: Any) -> str:
    return "" if value is None or math.isnan(value) else f"{rounded_up(float(value)):g}"
