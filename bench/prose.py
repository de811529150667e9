"""Lints prose in pages, code, rules and profiles with proselint and the rules of bench/prose.yaml.

Reads docstrings, comments, descriptions of options and commands, and messages of raised errors.
tests/stored/prose.json has the number of allowed findings by file and rule. `--renew` lowers these
numbers to the current findings, and raises no number.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import yaml
from proselint.checks import __register__ as own_checks
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult, types
from proselint.registry.checks.engine import Fancy, RegexOptions
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parents[1]
RULES = yaml.safe_load((ROOT / "bench/prose.yaml").read_text(encoding="utf-8"))
ALLOWED = ROOT / "tests/stored/prose.json"
GENERATED = {ROOT / "docs/options.md"}  # a page of sentences from the code, which are linted there
FILES = (
    "*.md",
    "docs/**/*.md",
    "src/**/*.py",
    "scripts/**/*.py",
    "bench/**/*.py",
    "Snakefile",
    "workflow/**/*.smk",
    "profiles/**/*.py",
    "profiles/**/*.yaml",
)
# Ends of sentences: blank lines, cells, entries of lists, headings, full stops.
END = re.compile(r"\n\s*\n|\||\n\s*(?:[-*#]+|\d+\.|[\w, `*\[\]]+:)\s|(?<=[.!?])\s+(?=[A-Z`\"(*\[])")
QUOTES = CheckFlags(allow_quotes=True)


def read_page(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and text of a page, without code and addresses, or of unreleased changes."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = "\n## [".join(text.split("\n## [")[:2])
    for code in (r"(?s)```.*?```", r"(?m)^(?: {4}|\t).*$", r"(?s)<!--.*?-->"):
        text = re.sub(code, lambda match: "\n" * match[0].count("\n"), text)
    yield 1, re.sub(r"\]\([^)]*\)", "]", text)


def read_code(path: Path) -> Iterator[tuple[int, str]]:
    """Yields docstrings, descriptions, messages of raised errors, and blocks of comments."""
    source = path.read_text(encoding="utf-8")
    for match in re.finditer(r'"""(.+?)"""', source if path.suffix != ".py" else "", re.DOTALL):
        yield source.count("\n", 0, match.start()) + 1, match[1]
    for node in ast.walk(ast.parse(source if path.suffix == ".py" else "")):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):  # a docstring
                yield node.lineno, re.sub(r"(?m)^ {12}.*$", "", text)
            case (
                ast.keyword(arg="description" | "help" | "epilog", value=value)
                | ast.Raise(exc=ast.Call(args=[value, *_]))
            ):
                yield value.lineno, literal(value)
    for match in re.finditer(r"(?m)(?:^ *# .*\n)+|  # (?!noqa|type:|fmt:).*", source):
        line = source.count("\n", 0, match.start()) + 1
        yield line, re.sub(r"(?m)^ *# ", "", match[0])


def literal(node: ast.expr) -> str:
    """Returns the text of a string, with X for each computed part."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def sentence_check(rule: str, message: str, is_fault: Callable[[str], object]) -> Check:
    """Makes a check of proselint from a function that finds faulty sentences."""

    def find_sentences(text: str, check: Check) -> Iterator[CheckResult]:
        start = 0
        for end, following in [*(m.span() for m in END.finditer(text)), (len(text), 0)]:
            sentence = text[start:end].strip(" \n-#|")
            if is_fault(sentence):
                yield CheckResult(check.path, message, (text.index(sentence, start), end), None)
            start = following

    return Check(find_sentences, path=f"dpprobe.{rule}", flags=QUOTES)


def make_checks() -> list[Check]:
    """Makes checks of proselint from bench/prose.yaml."""
    starts, limit = re.compile(RULES["starts"]), RULES["longest_sentence"]
    common = {"engine": Fancy(RegexOptions(case_insensitive=False)), "flags": QUOTES}
    per = types.ExistenceSimple(rf"\b({RULES['counted']}) an? ({RULES['unit']})\b(?!'s| is)")
    terms = types.PreferredForms({f"({old})": new for old, new in RULES["terms"].items()})
    return [
        Check(per, path="dpprobe.per", message='"{}": write "per"', **common),
        Check(terms, path="dpprobe.terms", message='"{1}": write {0}', **common),
        sentence_check("starts", "begin with the subject", starts.match),
        sentence_check("long", f"more than {limit} words", lambda s: len(s.split()) > limit),
    ]


def find_faults(path: Path, config: Config) -> Iterator[tuple[str, str]]:
    """Yields the rule and the description of each fault of a file."""
    pieces = sorted(read_page(path) if path.suffix == ".md" else read_code(path))
    starts = [*accumulate((len(text) + 2 for _, text in pieces), initial=1)]
    whole = "\n\n".join(text for _, text in pieces) + "\n"  # LintFile reads the path if empty
    whole = re.sub(r"`[^`]+`", lambda match: re.sub(r"[^\n]", "X", match[0]), whole)
    for (rule, message, span, _), _ in LintFile(path.name, whole).lint(config):
        index = bisect_right(starts, span[0]) - 1
        line = pieces[index][0] + pieces[index][1].count("\n", 0, span[0] - starts[index])
        yield rule, f"{path.relative_to(ROOT)}:{line}: {message}"


def main() -> None:
    """Prints the findings of each file and rule that has more findings than are allowed."""
    checks = [c for c in own_checks if not c.path.startswith(tuple(RULES["misread"]))]
    checks += make_checks()
    CheckRegistry().register_many(tuple(checks))
    config = Config(max_errors=10**6, checks=dict.fromkeys([c.path for c in checks], True))
    allowed: dict[str, int] = json.loads(ALLOWED.read_text(encoding="utf-8"))
    faults: dict[str, list[str]] = {}
    for path in sorted({path for pattern in FILES for path in ROOT.glob(pattern)} - GENERATED):
        for rule, fault in find_faults(path, config):
            faults.setdefault(f"{path.relative_to(ROOT)} {rule}", []).append(fault)
    over = {key: found for key, found in faults.items() if len(found) > allowed.get(key, 0)}
    for key, found in over.items():
        print(*found, f"{key}: {len(found)} findings, allowed are {allowed.get(key, 0)}", sep="\n")
    if sys.argv[1:] == ["--renew"]:
        lower = {key: min(len(faults[key]), allowed[key]) for key in sorted({*faults} & {*allowed})}
        ALLOWED.write_text(json.dumps(lower, indent=0) + "\n", encoding="utf-8")
    sys.exit(bool(over))


if __name__ == "__main__":
    main()
