"""Writes the table of ways to a private head, with each way's checks, to docs/attack-model.md.

The table follows from the code: a way makes a check if its function, or a callee, calls the check.
Calls of functions are resolved by imports, calls of methods by an argument's class, or by name if
only one class has the name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dpprobe"
PAGE = ROOT / "docs" / "attack-model.md"
BEGIN, END = "<!-- ways: tools/pages/entries.py -->\n", "<!-- end of ways -->\n"
# Functions that compute a head from rows; each caller of these functions belongs to one of WAYS.
FITS = {"fit_heads", "train_network"}
WAYS = {
    "a cell of heads (`snakemake`)": "training/head_job.py:train_job",
    "a cell of networks (`snakemake`)": "training/network_job.py:tune_network",
    "the search of a network's options": "training/search_job.py:search_job",
    "an audit's shadow heads": "analyses/audit/measure.py:audit_cells",
    "simulated sites": "analyses/sites/measure.py:simulate_sites",
    "`dpprobe release`, `dpprobe site sums` and `combine`": "release/make.py:ReleaseTask.run",
    "`PrivateClassifier.fit`": "estimator/private_classifier.py:PrivateClassifier.fit",
    "`dpprobe.audit` (made-up rows)": "estimator/public_functions.py:audit",
}
CHECKS = {
    "public files and their rows": {"check_rows"},
    "files are those that were checked": {"require_files"},
    "facts of the dataset refused": {"list_promise_faults"},
    "plan fits the method and n": {"check_plan"},
    "ε computed again": {"check_price"},
    "δ below 1/n": {"release_delta_fault", "_describe_facts"},
    "ledger": {"book_fit", "book_release"},
}


@cache
def read_calls() -> dict[str, set[str]]:
    """Maps each function, `room/file.py:Class.name`, to functions that it calls or passes on."""
    files = {path.relative_to(SOURCE).as_posix(): _File(path) for path in SOURCE.rglob("*.py")}
    methods = defaultdict(set)
    for function in {name for file in files.values() for name in file.functions}:
        methods[function.split(".")[-1]].add(function)
    return {
        name: set(file.resolve_names(name, node, files, methods))
        for file in files.values()
        for name, node in file.functions.items()
    }


class _File:
    """The functions of a file, and the file and name of each import."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions: dict[str, ast.AST] = {}
        self.bases: dict[str, list[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[f"{self.name}:{node.name}"] = node
            elif isinstance(node, ast.ClassDef):
                self.bases[node.name] = [
                    base.id for base in node.bases if isinstance(base, ast.Name)
                ]
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        self.functions[f"{self.name}:{node.name}.{part.name}"] = part
        self.imports = {
            alias.asname or alias.name: ((node.module or "").split(".")[1:], alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpprobe.")
            for alias in node.names
        }

    @property
    def imported(self) -> set[str]:
        return {"/".join(room) + ".py" for room, _ in self.imports.values()}

    def resolve_names(
        self, name: str, node: ast.AST, files: Mapping[str, _File], methods: Mapping[str, set[str]]
    ) -> Iterator[str]:
        own_class = name.split(":")[1].rpartition(".")[0]
        first = {self.name, *self.imported}
        near = first.union(*(files[name].imported for name in first if name in files))
        typed = {
            each.arg: each.annotation.id
            for each in ast.walk(node)
            if isinstance(each, ast.arg) and isinstance(each.annotation, ast.Name)
        }
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield from self._find(part.id, files)
            if not isinstance(part, ast.Attribute):
                continue
            holder = part.value.id if isinstance(part.value, ast.Name) else ""
            if holder in self.imports:
                room, module = self.imports[holder]
                if file := files.get("/".join([*room, f"{module}.py"])):
                    yield from file._find(part.attr, files)
            if holder in typed:
                yield from self._find(f"{typed[holder]}.{part.attr}", files)
            yield from {f"{self.name}:{own_class}.{part.attr}"} & self.functions.keys()
            for base in self.bases.get(own_class, ()):  # an inherited method
                yield from self._find(f"{base}.{part.attr}", files)
            if len(found := methods[part.attr]) == 1:
                yield from (each for each in found if each.split(":")[0] in near)

    def _find(self, name: str, files: Mapping[str, _File]) -> Iterator[str]:
        """Yields the function with a name, or the methods that run if a class is made or called."""
        head, dot, method = name.partition(".")
        if head in self.imports:
            room, head = self.imports[head]
            file = files.get("/".join(room) + ".py")
            yield from file._find(f"{head}{dot}{method}", files) if file else ()
        made = (name, *(f"{name}.{method}" for method in ("__init__", "__post_init__", "__call__")))
        yield from {f"{self.name}:{each}" for each in made} & self.functions.keys()


def reach(start: str, calls: dict[str, set[str]]) -> set[str]:
    """Returns a function and all functions that it calls, directly or indirectly."""
    seen, todo = {start}, [start]
    while todo:
        new = calls[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def find_unlisted(calls: dict[str, set[str]]) -> list[str]:
    """Returns the functions that compute a head and belong to no way."""
    listed = set().union(*(reach(start, calls) for start in WAYS.values()))
    fits = {function for function in calls if function.split(":")[1] in FITS}
    return sorted(
        function for function in calls if calls[function] & fits and function not in listed
    )


def make_table() -> str:
    calls = read_calls()
    lines = [f"| way | {' | '.join(CHECKS)} |", "|---" * (1 + len(CHECKS)) + "|"]
    for way, start in WAYS.items():
        names = {function.split(":")[1].split(".")[-1] for function in reach(start, calls)}
        cells = ["yes" if names & wanted else "—" for wanted in CHECKS.values()]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def rewrite_page(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{make_table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rewrite_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
