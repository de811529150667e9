"""Draws pictures of docs from records in bench/results and by the planner, without running a study.

Each picture stores its texts, so that a test notices if the program would write other texts.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from dpprobe.analyses.sites.show import plot_sites
from dpprobe.analyses.sites.sites_record import Estimate, SitesCell, SitesRecord
from dpprobe.exhibits import style
from dpprobe.heads.registry import HEADS

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "images"
RECORDS = ROOT / "bench" / "results"
TEXTS = "dpprobe-texts"  # keyword of the PNG chunk with a picture's texts, one per line
COLOURS = 256
LARGEST = 300_000  # bytes of a picture
# Maps the rows of bench/results/cohorts.md to the legend, in the words of docs/cohorts.md.
WAYS = {
    "train again": "train again each month",
    "add sums": "cohort alone",
    "horizon": "with horizon: 12",
}


def main() -> None:
    for name, draw in DRAWN.items():
        write_picture(name, *draw())


def write_picture(name: str, picture: bytes, texts: Sequence[str]) -> None:
    """Writes a picture of docs with its texts; exits with a message if the picture is too large."""
    content = optimise(picture, texts)
    if len(content) > LARGEST:
        sys.exit(f"{name} has {len(content):,} bytes, over {LARGEST:,}; show less")
    (PICTURES / name).write_bytes(content)
    print(f"docs/images/{name}: {len(content) / 1000:.0f} kB")


def optimise(picture: bytes, texts: Sequence[str]) -> bytes:
    """Returns the picture as a small PNG with a palette, which stores the texts."""
    with Image.open(io.BytesIO(picture)) as image:
        flat = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    info = PngInfo()
    info.add_itxt(TEXTS, "\n".join(clean(texts)))
    stream = io.BytesIO()
    flat.save(stream, "PNG", optimize=True, pnginfo=info)
    return stream.getvalue()


def clean(texts: Sequence[str]) -> list[str]:
    """Returns the texts on one line each, without duplicates and empty texts."""
    return [text for text in dict.fromkeys(" ".join(own.split()) for own in texts) if text]


def read_texts(picture: Path) -> list[str] | None:
    """Returns the texts stored in a picture; None if dpprobe did not make the picture."""
    with Image.open(picture) as image:
        image.load()
        found = getattr(image, "text", {}).get(TEXTS)
    return None if found is None else found.splitlines()


def read_svg_texts(svg: str) -> list[str]:
    """Returns the texts of a figure, which Matplotlib writes as comments in the SVG."""
    return re.findall(r"<!-- (.*?) -->", svg, flags=re.DOTALL)


def plan() -> tuple[bytes, list[str]]:
    """Draws the figure in docs/planner.md by running the first command of the page."""
    page = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
    command = re.search(r"^    python (-m dpprobe plan .*) --figure plan\.svg$", page, re.MULTILINE)
    assert command is not None
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch, name) for name in ("plan.png", "plan.svg")]
        for file in files:
            words = [*shlex.split(command[1]), "--figure", str(file)]
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return files[0].read_bytes(), read_svg_texts(files[1].read_text(encoding="utf-8"))


def cohorts() -> Figure:
    """Draws bench/results/cohorts.md: accuracy by month, for each way to spend one budget."""
    text = (RECORDS / "cohorts.md").read_text(encoding="utf-8")
    heads = ("least_squares", "feature_covariance")
    figure, panels = style.panel_grid(len(heads), legend=len(WAYS), columns=len(heads))
    for axes, head in zip(panels, heads, strict=True):
        names, *rows = read_table(text.partition(f"## {head}\n")[2])
        months = [int(name.removeprefix("month ")) for name in names[1:]]
        found = {way: values for way, *values in rows}
        for (way, label), look in zip(WAYS.items(), style.choose_looks(len(WAYS)), strict=True):
            colour, (dashes, marker) = look
            means = [float(value.split()[0]) for value in found[way]]
            axes.plot(months, means, color=colour, ls=dashes, marker=marker, label=label)
        axes.set(title=head, xlabel="month", xticks=months)
        axes.grid(axis="y")
    panels[0].set_ylabel("test accuracy (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def few_patients() -> Figure:
    """Draws bench/results/few_patients.md: balanced accuracy by number of patients, per epsilon."""
    names, *rows = read_table((RECORDS / "few_patients.md").read_text(encoding="utf-8"))
    epsilons = list(dict.fromkeys(row[1] for row in rows))
    shown = {place: name.replace("`", "") for place, name in enumerate(names) if "auto" in name}
    shown = {names.index("rule 2"): "before"} | shown
    figure, panels = style.panel_grid(len(epsilons), legend=len(shown), columns=len(epsilons))
    for axes, epsilon in zip(panels, epsilons, strict=True):
        chosen = [row for row in rows if row[1] == epsilon]
        for place, look in zip(shown, style.choose_looks(len(shown)), strict=True):
            colour, (dashes, marker) = look
            values = [[float(x) for x in re.findall(r"[\d.]+", row[place])[:2]] for row in chosen]
            means, halves = zip(*values, strict=True)
            lines = {"color": colour, "ls": dashes, "marker": marker, "capsize": 2}
            axes.errorbar(range(len(chosen)), means, halves, label=shown[place], **lines)
        axes.set(title=f"ε = {epsilon}", xlabel="patients")
        axes.set_xticks(range(len(chosen)), [row[0] for row in chosen])
        axes.grid(axis="y")
    panels[0].set_ylabel("balanced accuracy (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def methods() -> Figure:
    """Draws bench/results/method_cards.csv: mean accuracy of every head with its defaults."""
    means: dict[str, dict[float, float]] = defaultdict(dict)
    with (RECORDS / "method_cards.csv").open(encoding="utf-8", newline="") as stream:
        for method, token, *values in list(csv.reader(stream))[1:]:
            means[method][float(token)] = fmean(map(float, filter(None, values)))
    (ceiling,) = {*means["nonprivate"].values()}
    heads = sorted(set(HEADS) - {"nonprivate"}, key=lambda head: -means[head][1.0])
    figure, (axes,) = style.panel_grid(1, legend=len(heads) + 1)
    for head, (colour, (dashes, marker)) in zip(heads, style.choose_looks(len(heads)), strict=True):
        epsilons = [epsilon for epsilon in sorted(means[head]) if epsilon < float("inf")]
        accuracies = [means[head][epsilon] for epsilon in epsilons]
        axes.plot(epsilons, accuracies, color=colour, ls=dashes, marker=marker, label=head)
    axes.axhline(ceiling, color=style.NEUTRAL, ls=style.CEILING_STYLE, lw=1)
    axes.set(xscale="log", xlabel="privacy budget ε (log scale)", ylabel="test accuracy (%)")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title("digits, every head with its defaults")
    axes.grid(axis="y")
    handles, labels = axes.get_legend_handles_labels()
    ceiling_line = style.make_ceiling_handle()
    figure.legend(
        [*handles, ceiling_line],
        [*labels, str(ceiling_line.get_label())],
        loc="outside right upper",
        handlelength=3,
    )
    return figure


def sites() -> Figure:
    """Draws a study's figure of sites: the hospitals of bench/results/chest_xray.md, epsilon 1."""
    record = read_sites((RECORDS / "chest_xray.md").read_text(encoding="utf-8"), epsilon="1")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "record.json")
        record.write(path)
        return plot_sites(path)


def read_sites(text: str, *, epsilon: str) -> SitesRecord:
    """Reads the figure's values from the table of simulated hospitals."""
    part = text.partition("## Simulated hospitals\n")[2]
    pooled = re.search(rf"([\d.]+ \([\d.]+ to [\d.]+\)) at ε = {epsilon}\b", part)
    assert pooled is not None
    cells = tuple(
        SitesCell(
            split=split,
            sites=int(count),
            epsilon=epsilon,
            smallest=0,
            largest=0,
            alone=_estimate(alone),
            averaged=_estimate(averaged),
            together=_estimate(together),
            worst=_fraction(between.split(" to ")[0]),
            best=_fraction(between.split(" to ")[1]),
            pooled=_estimate(pooled[1]),
            untrained=0,
            reason="",
            one_class=0,
        )
        for budget, split, count, alone, between, averaged, together in read_table(part)
        if budget == epsilon
    )
    return SitesRecord(
        dataset="chest_xray",
        backbone="mobilenetv2",
        method="least_squares",
        metric="auc",
        unit="patient",
        n=2106,
        colluders=1,
        seeds=5,
        cells=cells,
    )


def _estimate(text: str) -> Estimate:
    mean, low, high = map(_fraction, re.findall(r"[\d.]+", text))
    return Estimate(mean=mean, low=low, high=high)


def _fraction(percent: str) -> float:
    return float(percent) / 100


def read_table(text: str) -> Iterator[list[str]]:
    """Yields the cells of each row of the first Markdown table in a text; the heading first."""
    table = re.search(r"(?m)(?:^\|.*\n)+", text)
    assert table is not None
    for line in table[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            yield cells


def drawn(draw: Callable[[], Figure]) -> tuple[bytes, list[str]]:
    """Returns a figure as PNG, and its texts."""
    with style.use_settings(), tempfile.TemporaryDirectory() as scratch:
        figure = draw()
        style.save_figure(figure, Path(scratch, "figure.png"))
        content = Path(scratch, "figure.png").read_bytes()
        return content, read_svg_texts(style.draw_svg(figure).decode())


DRAWN: Mapping[str, Callable[[], tuple[bytes, list[str]]]] = {
    "plan.png": plan,
    "cohorts.png": lambda: drawn(cohorts),
    "few_patients.png": lambda: drawn(few_patients),
    "sites.png": lambda: drawn(sites),
    "methods/all.png": lambda: drawn(methods),
}

if __name__ == "__main__":
    main()
