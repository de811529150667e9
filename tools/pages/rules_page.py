"""Writes to docs/workflow.md the rules that loops make, by the file that declares them.

A rule made by a loop has no `rule` line, so a search for `rule fairness` finds only this table.
"""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.files.atomic_writes import write_text
from dpprobe.reporting.registry import STUDY_EXHIBITS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "workflow.md"
BEGIN, END = "<!-- rules: tools/pages/rules_page.py -->\n", "<!-- end of rules -->\n"
TARGETS = "workflow/rules/targets.smk"
EXHIBITS = "src/dpprobe/reporting/registry.py"
NAMED = {"release_": "name"}  # wildcards of targets that do not name a dataset


def rewrite_page(page: str) -> str:
    """Returns the page with the table of current rules between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    table = "| declared in | rules of jobs | targets |\n|---|---|---|\n"
    for file, (jobs, targets) in list_rules().items():
        cells = (", ".join(f"`rule {name}`" for name in names) for names in (jobs, targets))
        table += f"| `{file}` | {' | '.join(cells)} |\n"
    return before + begin + table + end + after


def list_rules() -> dict[str, tuple[list[str], list[str]]]:
    """Maps each file to the names of the jobs' rules and of the targets that it declares."""
    rules: dict[str, tuple[list[str], list[str]]] = {}
    for analysis in load_analyses():
        jobs, targets = [exhibit.name for exhibit in analysis.exhibits], []
        if analysis.measurement is not None:
            jobs = [analysis.measurement.rule, *jobs]
            targets = [analysis.target or analysis.name, f"{analysis.name}_<dataset>"]
        rules[f"src/{ANALYSES[analysis.name].package.replace('.', '/')}"] = jobs, targets
    rules[EXHIBITS] = [exhibit.name for exhibit in STUDY_EXHIBITS], []
    stems = re.findall(r'f"(\w+_)\{\w+\}"[,\n]', (ROOT / TARGETS).read_text(encoding="utf-8"))
    names = [f"{stem}<{NAMED.get(stem, 'dataset')}>" for stem in dict.fromkeys(stems)]
    rules[TARGETS] = [], names
    return rules


if __name__ == "__main__":
    write_text(PAGE, rewrite_page(PAGE.read_text(encoding="utf-8")))
