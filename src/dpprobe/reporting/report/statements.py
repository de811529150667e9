"""Privacy statements in the report, where equal statements of several backbones appear once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpprobe.exhibits.html_page import relative_path
from dpprobe.heads.registry import method_options
from dpprobe.json_values import canonical_json
from dpprobe.privacy.limits import INFINITE, rounded_up
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.risk import RiskEpsilon, budget_order, budget_words, find_risk
from dpprobe.privacy.statement_words import StatementWords, explain_statement
from dpprobe.results.cell_record import read_statement

STATEMENTS_SHOWN = 400


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A privacy statement, and the cells to which it applies."""

    dataset: str
    epsilon: str
    anchor: str
    content: Mapping[str, Any]
    words: StatementWords
    cells: Sequence[tuple[str, Path]]  # backbone, privacy.json
    extra_not_covered: Sequence[str] = ()

    @property
    def budget(self) -> str:
        """The epsilon in words, with the permitted risk that determined it."""
        if find_risk(self.epsilon) is None:
            return self.epsilon
        return budget_words(RiskEpsilon(rounded_up(self.content["epsilon_realised"]), self.epsilon))


def read_statements(paths: Iterable[Path], *, order: Sequence[str]) -> list[Statement]:
    """Reads the statements of cells; merges statements that differ only in backbone and seeds.

    Paths end in <dataset>/<backbone>/<method>/eps-<epsilon>/privacy.json.
    """
    groups: dict[str, tuple[dict[str, Any], StatementWords, list[tuple[str, Path]]]] = {}
    for path in paths:
        dataset, backbone, _, epsilon = path.parts[-5:-1]
        record = read_statement(path)
        content = {k: v for k, v in record.items() if k not in ("seeds", "public_data")}
        content["dataset"], content["epsilon"] = dataset, epsilon.removeprefix("eps-")
        words = explain_statement(record)
        key = canonical_json([content, words.assumption])
        groups.setdefault(key, (content, words, []))[2].append((backbone, path))
    ordered = sorted(
        groups.values(),
        key=lambda item: (
            order.index(item[0]["dataset"]),
            item[0].get("method", ""),
            budget_order(item[0]["epsilon"]),
        ),
    )
    common = common_limits([words.not_covered for _, words, _ in ordered])
    return [
        Statement(
            dataset=content["dataset"],
            epsilon=content["epsilon"],
            anchor=f"statement-{index}",
            content={**content, "mechanisms": _describe_mechanisms(content)},
            words=words,
            cells=sorted(cells),
            extra_not_covered=[text for text in words.not_covered if text not in common],
        )
        for index, (content, words, cells) in enumerate(ordered)
    ]


def list_candidates(
    statements: Sequence[Statement], folder: Path
) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Lists name and link of each private statement by (dataset, epsilon).

    A link leads to the statement in the report, or to its file if the report omits the statement.
    """
    listed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for index, item in enumerate(statements):
        if item.content.get("private") and item.epsilon != INFINITE:
            for backbone, path in item.cells:
                shown = index < STATEMENTS_SHOWN
                link = f"#{item.anchor}" if shown else relative_path(path, folder)
                name = f"{item.content.get('method')} on {backbone}"
                listed.setdefault((item.dataset, item.epsilon), []).append((name, link))
    return listed


def _describe_mechanisms(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a statement's mechanisms, each with its release and the rows it is computed from."""
    options = method_options(content["options"])
    described = {item.name: item.released for item in options.list_mechanisms(content["n"])}
    return [
        {**item, "released": described.get(item["name"], ""), "rows": _name_rows(content, item)}
        for item in content["mechanisms"]
    ]


def _name_rows(content: Mapping[str, Any], mechanism: Mapping[str, Any]) -> str:
    units = f"{content['unit']}s" if content["unit"] in Plan.GROUPS else "rows"
    return f"all {units}" if mechanism["sample_rate"] == 1 else f"Poisson sample of {units}"


def common_limits(lists: Sequence[Sequence[str]]) -> list[str]:
    """Lists the limits that all statements share, in the order of the first list."""
    shared = set.intersection(*map(set, lists)) if lists else set()
    return [text for text in lists[0] if text in shared] if lists else []


def public_data(statements: Sequence[Statement]) -> list[dict[str, str]]:
    """Lists, for each backbone, the assumption on pretraining and the near-duplicate check."""
    assumed: dict[tuple[str, str], dict[str, str]] = {}
    for item in statements:
        for backbone, path in item.cells:
            if (item.dataset, backbone) not in assumed:
                words = explain_statement(read_statement(path))
                assumed[item.dataset, backbone] = {
                    "dataset": item.dataset,
                    "backbone": backbone,
                    "assumption": words.assumption,
                    "check": words.near_duplicates,
                }
    return [assumed[key] for key in sorted(assumed)]
