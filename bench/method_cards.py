"""The tables and pictures of docs/methods: options from the code, accuracies from real runs.

Runs config/method_cards.yaml in this process: every head with its defaults on scikit-learn's
digits, seeded, so that the same versions of libraries give the same numbers.
bench/results/method_cards.csv keeps the measurements, from which tables and pictures are drawn.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NamedTuple

import yaml

from dpprobe import artifacts
from dpprobe.heads.balance import BalanceOptions
from dpprobe.heads.clipped_row_options import RowOptions
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.normalisation import KINDS
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.preconditioned_descent import PreconditionedDescentOptions
from dpprobe.heads.registry import HEADS, METHODS, NETWORKS, method_options
from dpprobe.options import Options as Block
from dpprobe.options import options_class
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.limits import INFINITE, epsilon_value
from dpprobe.privacy.target import Target
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "config" / "method_cards.yaml"
MEASURED = ROOT / "bench" / "results" / "method_cards.csv"
CARDS = ROOT / "docs" / "methods"
CONFIGURATION = ROOT / "docs" / "configuration.md"
PICTURES = ROOT / "docs" / "images" / "methods"
CEILING = "nonprivate"
# One of the other heads, chosen by a rule: left out where these are compared with each other.
AUTO = "auto"
# The head whose card has the releases of others that release the same.
USUAL = "momentum"
DIMENSION, CLASSES = 64, 10  # of the digits
# The epsilon at which the table of releases is priced.
EPSILON = 1.0
# A network's releases are priced for this method on so many rows, CIFAR-10's.
NETWORK: dict[str, Any] = {
    "head": "fine_tune",
    "tune": {"blocks": 2},
    "steps": 100,
    "probe": {"method": {"head": "feature_covariance"}},
}
NETWORK_ROWS = 50_000
CARD_EPSILONS = ("0.2", "0.5", "1", "10", INFINITE)
INTERVAL_5 = 2.776 / math.sqrt(5)  # of a t distribution with 4 degrees of freedom, 95%
# Options that several heads have, described in the index instead of on every card: by the marker
# of their list, a more general class first. That of all heads, `normalize`, is in its words.
SHARED: dict[str, type[Block]] = {
    "all_heads": MethodOptions,
    "balance": BalanceOptions,
    "gradient_heads": GradientOptions,
    "clipped_features": RowOptions,
    "few_steps": PreconditionedDescentOptions,
}
# Heads with the same further options, each in its own file, and the marker of their list.
ALIKE, ALIKE_MARKER = ("momentum", "adam", "lamb"), "unit_features"


class Seeds(NamedTuple):
    """Test accuracies in percent, one per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.values)

    def __str__(self) -> str:
        return f"{self.mean:.1f} ({self.deviation:.1f})"


# By method and epsilon, as the study names them.
Measured = Mapping[tuple[str, str], Seeds]


def main() -> None:
    """Measures unless told not to, then writes tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--no-runs", action="store_true", help="draw what was measured before, with today's options"
    )
    study = read_study()
    if not parser.parse_args().no_runs:
        artifacts.write_text(MEASURED, to_csv(measure(study)))
    measured = read_csv(MEASURED.read_text(encoding="utf-8"))
    for path in (*sorted(CARDS.glob("*.md")), CONFIGURATION):
        text = path.read_text(encoding="utf-8")
        artifacts.write_text(path, filled(text, blocks(path, study, measured)))
    draw_all(study, measured)


def read_study() -> Study:
    return load_study(yaml.safe_load(STUDY.read_text(encoding="utf-8")))


# Runs


def measure(study: Study) -> dict[tuple[str, str], Seeds]:
    """Trains and tests every method at every epsilon."""
    import torch

    from dpprobe.heads.fit import fit_heads
    from dpprobe.heads.scoring import score_rows
    from dpprobe.heads.training_set import TrainingSet
    from dpprobe.privacy.randomness import cell_seed
    from dpprobe.results import metrics

    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        (private,) = study.datasets.values()
        features = {
            split: rows_of(extract(study, private, split, Path(folder, "private")))
            for split in ("train", "test")
        }
        rows, labels = (column.numpy() for column in features["test"])
        data = TrainingSet(*features["train"], num_classes=10)
        for name, named in study.methods.items():
            for token in study.epsilons if named.private else (INFINITE,):
                method = decided(named, study, data.rows, token)
                plan = calibrate(
                    method.list_mechanisms(data.rows),
                    Target(
                        n=data.rows,
                        epsilon=epsilon_value(token),
                        delta=study.delta,
                        accountant=study.accountant,
                    ),
                    cache=Path(folder),
                    selection=method.priced_selection(data.rows),
                )
                identity = {"method": name, "epsilon": token, "seed": study.seed}
                seeds = [cell_seed(identity, index) for index in range(study.seeds)]
                scores = score_rows(fit_heads(method, data, plan, seeds), rows)
                results[name, token] = Seeds(
                    tuple(
                        100
                        * metrics.evaluate_scores(seed_scores, labels, link=method.link)["accuracy"]
                        for seed_scores in scores
                    )
                )
                print(f"{name:24} {token:>4} {results[name, token]}", flush=True)
    return results


def decided(method: MethodOptions, study: Study, n: int, token: str) -> MethodOptions:
    """A method as it trains on n rows of the digits: of `auto` with what it chooses for them."""
    return method.resolve_choice(
        DataFacts(
            n=n,
            dimension=DIMENSION,
            classes=CLASSES,
            multi_label=False,
            epsilon=epsilon_value(token),
            delta=study.delta,
            unit="image",
        )
    )


def rows_of(manifest: Path) -> tuple[Any, Any]:
    """A split's features float32 [n, d] and labels int64 [n]."""
    import numpy as np
    import torch

    from dpprobe.features.feature_store import FeatureStore

    store = FeatureStore(manifest)
    labels = torch.from_numpy(np.asarray(store.labels).astype(np.int64))
    return torch.from_numpy(store.read()), labels


def extract(study: Study, dataset: Any, split: str, folder: Path) -> Path:
    """Extracts a split's features by the package's own stages; returns their manifest."""
    from dpprobe.data import dataset_preparation
    from dpprobe.data.table import read_info
    from dpprobe.features.extraction import extract_shard
    from dpprobe.features.shard_manifest import write_manifest

    ((backbone_name, backbone),) = study.backbones.items()
    if not (folder / "dataset.json").exists():
        dataset_preparation.prepare_dataset(dataset, folder)
    info = read_info(folder / "dataset.json")
    shard, manifest = folder / split / "shard-00000-of-00001.h5", folder / split / "manifest.json"
    extract_shard(
        table=folder / f"{split}.parquet",
        info=folder / "dataset.json",
        backbone=backbone,
        backbone_name=backbone_name,
        split=split,
        shard=0,
        shards=1,
        output=shard,
        batch_size=study.features.batch_size,
        dtype=study.features.dtype,
        device="cpu",
    )
    rows = info.splits[split].rows
    write_manifest([shard], manifest, rows=rows, dataset_fingerprint=info.fingerprint)
    return manifest


def to_csv(measured: Measured) -> str:
    """A line per method and epsilon."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    count = len(next(iter(measured.values())).values)
    writer.writerow(["method", "epsilon", *(f"accuracy_{index}" for index in range(count))])
    for (name, token), seeds in measured.items():
        writer.writerow([name, token, *(f"{value:.4f}" for value in seeds.values)])
    return out.getvalue()


def read_csv(text: str) -> Measured:
    _, *rows = csv.reader(text.splitlines())
    return {(name, token): Seeds(tuple(map(float, values))) for name, token, *values in rows}


# Tables


def filled(text: str, sections: Mapping[str, str]) -> str:
    """A page with what stands between its markers written again.

    Raises:
      KeyError: for a marker of no block.
    """

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{sections[match[2]]}\n\n<!-- end -->"

    return re.sub(r"(<!-- (\w+): .*? -->).*?<!-- end -->", fill, text, flags=re.DOTALL)


def blocks(path: Path, study: Study, measured: Measured) -> dict[str, str]:
    """The generated parts of a page, by the name of their marker."""
    if path == CONFIGURATION:
        return {"normalisations": normalisations()}
    if path.stem in NETWORKS:  # the digits are no images for one, so none was measured
        return network_blocks(path.stem)
    if path.stem not in HEADS:
        lists = {marker: options_list(rows) for marker, rows in shared_rows().items()}
        del lists["all_heads"]  # in the index's words
        return {"accuracies": accuracies(study, measured), **lists}
    parts = {
        "options": card_options(options_class(HEADS, path.stem)),
        "releases": releases_table(study, path.stem),
    }
    if len(names := [name for name, one in study.methods.items() if one.head == path.stem]) > 1:
        parts["accuracy"] = accuracy_rows(names, measured)  # of one alone the index has it
    return parts


def network_blocks(name: str) -> dict[str, str]:
    """The generated parts of a network's card: its options, those within blocks, and a price."""
    from dpprobe.finetune.options import Augment, Lora, Probe, Search

    example = method_options(NETWORK)
    parts: dict[str, type[Block]] = {
        "tune.lora": Lora,
        "augment": Augment,
        "probe": Probe,
        "search": Search,
    }
    rows = [
        [f"`{part}.{option}`", *cells]
        for part, cls in parts.items()
        for option, (_, *cells) in option_rows(cls).items()
    ]
    return {
        "options": card_options(options_class(NETWORKS, name)),
        "releases": priced_table(example, NETWORK_ROWS, delta=1e-5, accountant="pld"),
        "parts": options_list(rows),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def card_options(cls: type[Block]) -> str:
    """The options of a head that the index's lists do not have, or have with another default."""
    shared = [row for marker in shared_by(cls) for row in shared_rows()[marker]]
    return options_list(row for row in option_rows(cls).values() if row not in shared)


def options_list(rows: Iterable[Sequence[str]]) -> str:
    """Writes each option with its default, its other choices and its meaning."""
    wrapped = TextWrapper(width=120, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(
        wrapped.fill(f"- {name} ({given}): {meaning}") for name, given, meaning in rows
    )


def shared_by(cls: type[Block]) -> list[str]:
    """Returns the markers of the index's lists whose options a head has."""
    alike = [ALIKE_MARKER] if cls in [options_class(HEADS, name) for name in ALIKE] else []
    return [marker for marker, base in SHARED.items() if issubclass(cls, base)] + alike


@cache
def shared_rows() -> dict[str, list[list[str]]]:
    """The options of each of the index's lists, by marker: none twice, none that no head has."""
    heads = [list(option_rows(options_class(METHODS, name)).values()) for name in METHODS]
    lists: dict[str, list[list[str]]] = {}
    for marker, base in SHARED.items():
        general = [row for other in shared_by(base) if other in lists for row in lists[other]]
        lists[marker] = [
            row
            for row in option_rows(base).values()
            if row not in general and any(row in rows for rows in heads)
        ]
    first, *others = (list(option_rows(options_class(HEADS, name)).values()) for name in ALIKE)
    lists[ALIKE_MARKER] = [
        row
        for row in first
        if row not in option_rows(GradientOptions).values() and all(row in rows for rows in others)
    ]
    return lists


@cache
def option_rows(cls: type[Block]) -> dict[str, list[str]]:
    """Name, default with other choices, and meaning of each option, as the class has them."""
    schema = cls.model_json_schema(mode="validation")["properties"]
    rows = {}
    for name, field in cls.model_fields.items():
        if name in ("head", "kind") or name not in schema:  # written by a rule, not by a study
            continue
        text = " ".join(schema[name].get("description", "").split())
        chosen = default(cls, name, field)
        words = [] if name == "normalize" else choices(schema[name])  # its kinds have a page
        if all(word in text for word in words):
            words = []
        others = [f"`{word}`" for word in words if f"`{word}`" != chosen]
        rows[name] = [f"`{name}`", ", ".join([chosen, *others]), text]
    return rows


def choices(schema: Mapping[str, Any]) -> list[str]:
    """Returns the words that an option may be, from its JSON schema."""
    parts = schema.get("anyOf", [schema])
    return [word for part in parts for word in part.get("enum", [part.get("const")]) if word]


def default(cls: type[Block], name: str, field: Any) -> str:
    if name == "epochs" and hasattr(cls, "DEFAULT_EPOCHS"):
        return f"{cls.DEFAULT_EPOCHS:g}"
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Block):
        value = value.model_dump(mode="json")
        return f"`{value}`" if isinstance(value, str) else f"`{value['kind']}`"
    return spelt(value)


def spelt(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return plain(value)
    if isinstance(value, tuple):
        return ", ".join(map(spelt, value)) or "none"
    return f"`{value}`"


def plain(value: float) -> str:
    """Writes a number as YAML takes it: 1000000, not 1e+06."""
    whole = float(value).is_integer() and abs(value) < 1e9
    return f"{int(value)}" if whole else f"{value:g}"


def normalisations() -> str:
    """The kinds of `normalize`."""
    rows = []
    for kind, cls in KINDS.items():
        options = []
        for name, field in cls.model_fields.items():
            if name != "kind":
                default_text = "" if field.is_required() else f" ({spelt(field.default)})"
                options.append(f"`{name}`{default_text}")
        text = (cls.__doc__ or "").split("\n\n")[0]
        rows.append(
            [f"`{kind}`", " ".join(text.split()), ", ".join(options), "yes" if cls.priced else "no"]
        )
    return table(["kind", "meaning", "options (defaults)", "priced"], rows)


def releases_table(study: Study, head: str) -> str:
    """Describes the releases of a method of the study, and its noise at epsilon 1."""
    (dataset,) = study.datasets.values()
    counted = dataset.count_rows()
    assert counted is not None  # the digits are no download
    n = counted[0]
    method, usual = (
        decided(study.methods[name], study, n, f"{EPSILON:g}") for name in (head, USUAL)
    )
    mechanisms = method.list_mechanisms(n)
    if head == USUAL or mechanisms != usual.list_mechanisms(n):
        return priced_table(method, n, delta=study.delta, accountant=study.accountant)
    named = " and ".join(
        f"`{item.name}` (sensitivity {item.sensitivity:.4g})" for item in mechanisms
    )
    return f"{named}, the [same releases as `{USUAL}`]({USUAL}.md#privacy)."


def priced_table(method: MethodOptions, n: int, *, delta: float, accountant: str) -> str:
    """Describes what a method releases of n rows, and its noise at epsilon 1."""
    mechanisms = method.list_mechanisms(n)
    if not mechanisms:
        return "Nothing is released with noise: the head is not private."
    with tempfile.TemporaryDirectory() as cache:
        plan = calibrate(
            mechanisms,
            Target(n=n, epsilon=EPSILON, delta=delta, accountant=accountant),
            cache=Path(cache),
            selection=method.priced_selection(n),
        )
    costs = [item.count * (item.sample_rate / item.noise_multiplier) ** 2 for item in mechanisms]
    rows = [
        [
            f"`{item.name}`",
            item.released,
            f"{item.sensitivity:.4g}",
            f"{item.count}"
            + (
                "" if item.sample_rate == 1 else f" of Poisson samples, rate {item.sample_rate:.3g}"
            ),
            f"{100 * cost / math.fsum(costs):.0f}%",
            f"{item.noise_multiplier:.3g}",
        ]
        for item, cost in zip(plan.mechanisms, costs, strict=True)
    ]
    columns = ["mechanism", "summed quantity", "sensitivity", "releases", "budget share"]
    return table([*columns, f"σ at ε = {EPSILON:g}"], rows)


def accuracy_rows(names: Sequence[str], measured: Measured) -> str:
    """Accuracies with their deviations of a head with its defaults and with other options."""
    rows = [
        [f"`{name}`", *(str(measured[name, token]) for token in CARD_EPSILONS)] for name in names
    ]
    return table(accuracy_columns(CARD_EPSILONS), rows)


def accuracies(study: Study, measured: Measured) -> str:
    """The mean accuracies of all heads with their defaults, best at epsilon 1 first."""
    tokens = study.epsilons
    heads = [name for name in HEADS if name != CEILING]
    rows = [
        [f"`{name}`", *(f"{measured[name, token].mean:.1f}" for token in tokens)]
        for name in sorted(heads, key=lambda name: -measured[name, "1"].mean)
    ]
    ceiling = f"{measured[CEILING, INFINITE].mean:.1f}"
    return table(
        accuracy_columns(tokens), [*rows, [f"`{CEILING}` (ceiling)", *[ceiling] * len(tokens)]]
    )


def accuracy_columns(tokens: Sequence[str]) -> list[str]:
    return ["ε", *(token.replace(INFINITE, "∞") for token in tokens)]


# Pictures


def draw_all(study: Study, measured: Measured) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from dpprobe.exhibits import style

    with mpl.rc_context(style.SETTINGS):
        for head in (*HEADS, "all"):
            figure = Figure(figsize=(5.8, 3.4), layout="constrained")
            axes = figure.add_subplot()
            draw_frame(axes, study, measured, bold=head == CEILING)
            if head == "all":
                draw_heads(figure, axes, study, measured)
            else:
                draw_card(axes, study, measured, head)
            save(figure, PICTURES / f"{head}.png")


def save(figure: Any, path: Path) -> None:
    """A PNG of few colours: a third of the size, and looks the same."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    with artifacts.atomic_path(path) as temporary:
        image = Image.open(drawn).convert("RGB").quantize(96, dither=Image.Dither.NONE)
        image.save(temporary, format="png", optimize=True)


def draw_frame(axes: Any, study: Study, measured: Measured, *, bold: bool) -> None:
    """Axes of all pictures alike, so that cards can be laid side by side, and the ceiling."""
    from dpprobe.exhibits.style import CEILING_STYLE, COLOURS

    axes.set_xscale("log")
    tokens = finite(study)
    axes.set_xticks([float(token) for token in tokens], tokens)
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("privacy budget ε (log scale)")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y")
    ceiling = measured[CEILING, INFINITE].mean
    colour = COLOURS[0] if bold else "#000000"
    axes.axhline(ceiling, color=colour, linestyle=CEILING_STYLE, linewidth=2.4 if bold else 1.0)
    axes.text(
        float(tokens[0]), ceiling - 1.5, f"non-private ceiling, {ceiling:.1f} %", color=colour,
        va="top", fontsize=8, fontweight="bold" if bold else "normal",
    )  # fmt: skip


def line(study: Study, measured: Measured, head: str) -> tuple[list[float], list[Seeds]]:
    tokens = finite(study)
    return [float(token) for token in tokens], [measured[head, token] for token in tokens]


def finite(study: Study) -> list[str]:
    return [token for token in study.epsilons if token != INFINITE]


def draw_card(axes: Any, study: Study, measured: Measured, head: str) -> None:
    """One head against all others in grey."""
    from dpprobe.exhibits.style import COLOURS

    for other in private_heads():
        if other != head:
            x, seeds = line(study, measured, other)
            axes.plot(x, [seed.mean for seed in seeds], color="#B4B4B4", linewidth=1.0)
    if head == CEILING:
        axes.set_title("nonprivate, and the private heads in grey", pad=10)
        return
    x, seeds = line(study, measured, head)
    means = [seed.mean for seed in seeds]
    reach = [INTERVAL_5 * seed.deviation for seed in seeds]
    low = [max(0.0, mean - half) for mean, half in zip(means, reach, strict=True)]
    high = [min(100.0, mean + half) for mean, half in zip(means, reach, strict=True)]
    axes.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(
        x, means, color=COLOURS[0], linewidth=2.4, marker="o", markersize=6,
        markeredgecolor="white", markeredgewidth=0.8,
    )  # fmt: skip
    axes.set_title(f"{head}, and the other heads in grey", pad=10)


def draw_heads(figure: Any, axes: Any, study: Study, measured: Measured) -> None:
    """Every private head, best at epsilon 1 first."""
    from dpprobe.exhibits.style import COLOURS, LINE_STYLES

    names = sorted(private_heads(), key=lambda name: -measured[name, "1"].mean)
    styles = [*LINE_STYLES, ((0, (2, 1)), "<"), ((0, (5, 1, 1, 1)), ">")]
    for index, name in enumerate(names):
        x, seeds = line(study, measured, name)
        dashes, marker = styles[index]
        axes.plot(
            x, [seed.mean for seed in seeds], color=COLOURS[index], linestyle=dashes, marker=marker,
            markeredgecolor="white", markeredgewidth=0.5, label=name,
        )  # fmt: skip
    figure.legend(loc="outside right upper", handlelength=3.2)
    axes.set_title("every head with its defaults", pad=10)


def private_heads() -> Iterator[str]:
    return (name for name in HEADS if name not in (AUTO, CEILING))


if __name__ == "__main__":
    main()
