"""Writes the releases of docs/methods, and the kinds of `normalize`, from the code."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpprobe.files import atomic_writes
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.normalisation import KINDS
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, NETWORKS, method_options
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "config" / "method_cards.yaml"
CARDS = ROOT / "docs" / "methods"
CONFIGURATION = ROOT / "docs" / "configuration.md"
# The head whose card describes releases that several heads share; their cards link there.
USUAL = "momentum"
DIMENSION, CLASSES = 64, 10  # features and classes of the digits
# The epsilon for which tables of releases state the noise.
EPSILON = 1.0
# The method for which tables state a network's noise, on the training images of CIFAR-10.
NETWORK: dict[str, Any] = {
    "head": "fine_tune",
    "tune": {"blocks": 2},
    "steps": 100,
    "probe": {"method": {"head": "feature_covariance"}},
}
NETWORK_ROWS = 50_000


def main() -> None:
    """Rewrites the tables of each card and of docs/configuration.md."""
    for path in (*sorted(CARDS.glob("*.md")), CONFIGURATION):
        text = path.read_text(encoding="utf-8")
        atomic_writes.write_text(path, filled(text, blocks(path, read_study())))


def read_study() -> Study:
    return load_study(yaml.safe_load(STUDY.read_text(encoding="utf-8")))


def decided(method: MethodOptions, study: Study, n: int, token: str) -> MethodOptions:
    """Returns a method as it trains on n rows of the digits, with `auto` resolved."""
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


def filled(text: str, sections: Mapping[str, str]) -> str:
    """Returns a page whose text between markers is replaced; KeyError for an unknown marker."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{sections[match[2]]}\n\n<!-- end -->"

    return re.sub(r"(<!-- (\w+): .*? -->).*?<!-- end -->", fill, text, flags=re.DOTALL)


def blocks(path: Path, study: Study) -> dict[str, str]:
    """Returns the generated parts of a page, by the name of each part's marker."""
    if path == CONFIGURATION:
        return {"normalisations": normalisations()}
    if path.stem in NETWORKS:  # networks cannot train on the digits, so the study has none
        return {
            "releases": priced_table(
                method_options(NETWORK), NETWORK_ROWS, delta=1e-5, accountant="pld"
            )
        }
    if path.stem not in HEADS:
        return {}
    return {"releases": releases_table(study, path.stem)}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    """Formats a number as YAML reads numbers: 1000000, not 1e+06."""
    whole = float(value).is_integer() and abs(value) < 1e9
    return f"{int(value)}" if whole else f"{value:g}"


def normalisations() -> str:
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
    assert counted is not None  # the digits need no download, so their rows are known
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
    """Describes the quantities that a method releases from n rows, and the noise at epsilon 1."""
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


if __name__ == "__main__":
    main()
