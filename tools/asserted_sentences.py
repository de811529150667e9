"""Counts the sentences that tests assert: texts of five or more words, which make rewording costly.

    python tools/asserted_sentences.py [--list] [TESTS ...]

A text counts if a test module contains and asserts the text: in an `assert`, as `match=` of
`pytest.raises` or `pytest.warns`, or as an argument of a helper that asserts its parameter. Names
are resolved to constants, local variables and columns of `parametrize`. Arguments of other calls
are inputs, and do not count. The last line is the total.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FEWEST_WORDS = 5
# Names of calls inside an assert whose arguments count as asserted too.
TRANSPARENT = {"all", "any", "dict", "frozenset", "list", "set", "sorted", "str", "tuple"}
TRANSPARENT |= {"count", "endswith", "findall", "fullmatch", "issubset", "match", "search"}
TRANSPARENT |= {"approx", "escape", "issuperset", "join", "startswith"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the sentences that tests assert.")
    parser.add_argument("tests", nargs="*", type=Path, default=[TESTS], help="modules or folders")
    parser.add_argument("--list", action="store_true", help="print every sentence with its place")
    arguments = parser.parse_args()
    paths = sorted({path for place in arguments.tests for path in _test_modules(place)})
    shown = {path: path.relative_to(ROOT) if path.is_relative_to(ROOT) else path for path in paths}
    support = [tree for path in (TESTS / "support").glob("*.py") for tree in [_parse(path)]]
    helpers = {name: found for tree in support for name, found in _find_helpers(tree).items()}
    counts = {path: count_sentences(_parse(path), helpers) for path in paths}
    for path, found in counts.items():
        if found and not arguments.list:
            print(f"{len(found):5} {shown[path]}")
        for line, text in sorted(found.items()) if arguments.list else ():
            print(f"{shown[path]}:{line[0]}: {' '.join(text.split())}")
    total, modules = sum(map(len, counts.values())), sum(map(bool, counts.values()))
    print(f"{total} sentences asserted in {modules} of {len(paths)} test modules")


def count_sentences(
    tree: ast.Module, helpers: dict[str, dict[str, int]]
) -> dict[tuple[int, int], str]:
    """Returns the asserted sentences of a module by line and column.

    `helpers` has the asserted parameters of the functions in tests/support, with their positions.
    """
    helpers = helpers | _find_helpers(tree)
    expressions = list(_asserted(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        parameters = helpers.get(_name_of(call.func), {})
        expressions += [call.args[i] for i in parameters.values() if i < len(call.args)]
        if "*" in parameters:
            expressions += call.args[parameters["*"] :]
        expressions += [each.value for each in call.keywords if each.arg in parameters]
    expressions += _follow_names(tree, tree.body, _names_in(expressions))
    tables = {
        name: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for name in _names_in(node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for function in _functions(tree):
        names = _names_in(_asserted(function)) | _passed_on(function, helpers)
        expressions += _follow_names(function, function.body, names)
        expressions += _columns(function, names, tables)
    literals = (literal for each in expressions for literal in _literals(each))
    return {
        (node.lineno, node.col_offset): text
        for node, text in literals
        if len(re.findall(r"[^\W\d_]\S*", text)) >= FEWEST_WORDS
    }


def _test_modules(place: Path) -> Iterable[Path]:
    return [place] if place.is_file() else place.rglob("test_*.py")


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _asserted(tree: ast.AST) -> Iterator[ast.expr]:
    """Lists the expressions of asserts, and the values of `match=` in calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call):
            yield from (each.value for each in node.keywords if each.arg == "match")


def _parts(expression: ast.AST) -> Iterator[ast.AST]:
    """Walks an asserted expression, without arguments of calls that are not in TRANSPARENT."""
    yield expression
    inner: Iterable[ast.AST] = ast.iter_child_nodes(expression)
    if isinstance(expression, ast.Call) and _name_of(expression.func) not in TRANSPARENT:
        inner = [expression.func]
    if not isinstance(expression, ast.JoinedStr):
        for each in inner:
            yield from _parts(each)


def _literals(expression: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Lists the texts of an expression; a value in an f-string counts as one word."""
    for node in _parts(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, node.value
        elif isinstance(node, ast.JoinedStr):
            pieces = (each.value if isinstance(each, ast.Constant) else "x" for each in node.values)
            yield node, "".join(map(str, pieces))


def _names_in(expressions: Iterable[ast.AST]) -> set[str]:
    nodes = (node for each in expressions for node in _parts(each))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _parameters(function: Function) -> dict[str, int]:
    """Maps each parameter of a function to its position; 99 for keyword-only parameters."""
    named = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    positions = {name: place for place, name in enumerate(named)}
    positions |= {each.arg: 99 for each in function.args.kwonlyargs}
    return positions


def _find_helpers(tree: ast.Module) -> dict[str, dict[str, int]]:
    """Maps each function that asserts parameters to their names and positions; `*` for *args."""
    found = {}
    for function in _functions(tree):
        positions, names = _parameters(function), _names_in(_asserted(function))
        loops = (node for node in ast.walk(function) if isinstance(node, ast.For))
        for loop in loops:  # for word in words: assert word in text
            names |= _names_in([loop.iter]) if _names_in([loop.target]) & names else set()
        asserted = {name: positions[name] for name in names & positions.keys()}
        rest = function.args.vararg
        if rest is not None and rest.arg in names:
            asserted["*"] = len(function.args.posonlyargs) + len(function.args.args)
        if asserted and not function.name.startswith("test_"):
            found[function.name] = asserted
    return found


def _passed_on(function: Function, helpers: dict[str, dict[str, int]]) -> set[str]:
    """Returns the names that a function passes to asserted parameters of helpers."""
    passed: list[ast.expr] = []
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        parameters = helpers.get(_name_of(call.func), {})
        passed += [call.args[i] for i in parameters.values() if i < len(call.args)]
        passed += call.args[parameters["*"] :] if "*" in parameters else []
        passed += [each.value for each in call.keywords if each.arg in parameters]
    return _names_in(passed)


def _follow_names(scope: ast.AST, body: list[ast.stmt], names: set[str]) -> Iterator[ast.expr]:
    """Lists the values that a scope assigns to asserted names."""
    nodes = body if isinstance(scope, ast.Module) else ast.walk(scope)
    for node in nodes:
        if isinstance(node, ast.Assign) and _names_in(node.targets) & names:
            yield node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and _names_in([node.target]) & names:
            yield from filter(None, [node.value])


def _columns(
    function: Function, names: set[str], tables: dict[str, ast.expr]
) -> Iterator[ast.expr]:
    """Lists the cells of `parametrize` columns that a test asserts; `tables` has constants."""
    for call in function.decorator_list:
        if not isinstance(call, ast.Call) or _name_of(call.func) != "parametrize":
            continue
        try:
            named = ast.literal_eval(call.args[0])
        except ValueError:
            continue
        columns = re.split(r"\s*,\s*", named) if isinstance(named, str) else list(named)
        table = call.args[1]
        table = tables.get(table.id, table) if isinstance(table, ast.Name) else table
        rows = table.elts if isinstance(table, ast.List | ast.Tuple) else []
        for row in rows:
            cells = [row]
            if isinstance(row, ast.Call) and _name_of(row.func) == "param":
                cells = row.args
            elif isinstance(row, ast.Tuple) and len(columns) > 1:
                cells = row.elts
            pairs = zip(columns, cells, strict=False)
            yield from (cell for column, cell in pairs if column in names)


if __name__ == "__main__":
    main()
