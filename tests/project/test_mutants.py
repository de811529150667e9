"""The faults of `tests/mutants.yaml` fit the code; `bench/mutants.py` runs the tests on them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import yaml


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, repository: Path) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "bench")
    import mutants

    return mutants


def test_each_fault_replaces_a_unique_text(bench: ModuleType, repository: Path) -> None:
    mutants = bench.read_mutants()
    assert len(mutants) >= 40
    modules = bench.read_modules(repository)
    for mutant in mutants:
        assert bench.find_tests(mutant, repository)
        for edit in mutant.edits:
            path = bench.find_place(mutant, edit, modules)
            text = modules[path].replace(edit.old, edit.new)
            compile(text, str(path), "exec")


@pytest.mark.parametrize("text", ["no such text", "from __future__ import annotations"])
def test_the_text_that_a_mutant_replaces_must_occur_exactly_once(
    bench: ModuleType, repository: Path, text: str
) -> None:
    edit = bench.Edit(text, "pass")
    mutant = bench.Mutant("a fault", (edit,), ("test_mutants.py",))
    with pytest.raises(bench.MutantError, match="does not occur exactly once"):
        bench.find_place(mutant, edit, bench.read_modules(repository))


def test_a_test_that_is_not_there_is_an_error(bench: ModuleType, repository: Path) -> None:
    here = "project/test_mutants.py"
    for test, said in (
        (f"{here}::test_each_fault_is_listed_once", None),
        (f"{here}::test_a_fault", "no test project/test_mutants.py::test_a_fault$"),
        ("project/test_mutant.py", "no test project/test_mutant.py$"),
    ):
        mutant = bench.Mutant("a fault", (), (test,))
        if said is None:
            assert bench.find_tests(mutant, repository) == [f"tests/{test}"]
            continue
        with pytest.raises(bench.MutantError, match=said):
            bench.find_tests(mutant, repository)


def test_each_fault_is_listed_once(bench: ModuleType, tmp_path: Path) -> None:
    fault = {"fault": "f", "old": "a", "new": "b", "tests": ["test_mutants.py"]}
    path = tmp_path / "mutants.yaml"
    path.write_text(yaml.safe_dump([fault, fault]))
    with pytest.raises(bench.MutantError, match="f: this fault is listed twice"):
        bench.read_mutants(path)


def test_a_fault_is_put_in_and_taken_out_again(bench: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "src/dpprobe/some.py"
    module.parent.mkdir(parents=True)
    module.write_text("a = 1\n")
    mutant = bench.Mutant("a fault", (bench.Edit("a = 1", "a = 2"),), ())
    with bench.mutated(mutant, tmp_path):
        assert module.read_text() == "a = 2\n"
    assert module.read_text() == "a = 1\n"
