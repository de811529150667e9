"""The functions of the public API, and the cost of importing the package."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

import dpprobe
from dpprobe.errors import ConfigError, PrivacyError, StoreError
from dpprobe.estimator import public_functions
from dpprobe.privacy.accountants import gaussian_epsilon
from tests.support.classifiers import ROWS, make_private, make_rows
from tests.support.script_modules import load_script
from tests.support.training_jobs import write_results


@given(
    epsilon=st.floats(0.05, 20), delta=st.sampled_from([1e-3, 1e-5, 1e-7]), steps=st.integers(1, 99)
)
@settings(max_examples=30)
def test_calibrated_noise_meets_its_epsilon(epsilon: float, delta: float, steps: int) -> None:
    noise = dpprobe.calibrate(epsilon=epsilon, delta=delta, steps=steps)
    exact = gaussian_epsilon(math.sqrt(steps) / noise, delta)
    assert 0.9999 * epsilon <= exact <= epsilon
    given: Any
    for given in (delta, np.float32(delta)):  # NumPy's float32 1e-05 is read as 1e-05
        assert dpprobe.epsilon_of(noise_multiplier=noise, delta=given, steps=steps) == exact


def test_sampled_releases_are_priced_as_dp_accounting_prices_them() -> None:
    noise = dpprobe.calibrate(epsilon=2.0, delta=1e-5, steps=50, sample_rate=0.1)
    ours = dpprobe.epsilon_of(noise_multiplier=noise, delta=1e-5, steps=50, sample_rate=0.1)
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(noise))
    theirs = PLDAccountant().compose(event, 50).get_epsilon(1e-5)
    assert ours <= 2.0
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("unit", ["row", "group"])
def test_an_audit_holds_and_catches_broken_mechanisms(unit: str) -> None:
    groups = [f"{row // 2}" for row in range(ROWS)] if unit == "group" else None
    fitted = make_private(unit=unit).fit(*make_rows(), groups=groups)
    result = dpprobe.audit(fitted, runs=40)
    assert result["white_box"]["holds"]
    assert result["white_box"]["epsilon_lower"] <= 1.0
    assert result["controls"]
    assert dpprobe.audit(fitted, runs=40, controls=False)["controls"] == []
    asked: list[dict[str, Any]] = [{}, {}, {"seed": 1}, {"confidence": 0.6}]
    white = [dpprobe.audit(fitted, runs=40, controls=False, **each)["white_box"] for each in asked]
    for each in white:
        del each["seconds"]
    assert white[0] == white[1] != white[2]
    assert [each["confidence"] for each in white] == [0.95, 0.95, 0.95, 0.6]
    assert white[3]["epsilon_lower"] > white[0]["epsilon_lower"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes results of a study with one dataset and one method, with three seeds."""
    folder = tmp_path_factory.mktemp("results")
    write_results(folder, "2", seeds=3)
    return folder


def test_stored_features_train_a_head(results: Path) -> None:
    store = dpprobe.read_features(results, "toy", "none")
    fitted = make_private().fit(store, store.labels)
    test = dpprobe.read_features(results, "toy", "none", split="test")
    assert fitted.score(test, test.labels) > 0.3
    np.testing.assert_array_equal(store.read(), make_rows(0).X)
    with pytest.raises(StoreError):
        dpprobe.read_features(results, "toy", "clip")


def test_cells_are_a_table(results: Path) -> None:
    cells = dpprobe.read_cells(results)
    assert isinstance(cells, pd.DataFrame)
    named = cells[["dataset", "backbone", "method", "epsilon"]].to_numpy().tolist()
    assert named == [["toy", "none", "momentum", 2.0]] * 3
    assert sorted(cells["seed_index"]) == [0, 1, 2]
    assert cells["accuracy"].between(0, 1).all()
    shutil.copy(results / "summary/toy.parquet", results / "summary/zoo.parquet")
    assert len(dpprobe.read_cells(results)) == 2 * len(cells)


def test_a_bundle_is_verified_with_all_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_functions, "verify_bundle", lambda *given, **named: (given, named))
    given: Any = dpprobe.verify("b", public_key="k", checkpoint="c", predecessors=("x", "y"))
    named = {"public_key": Path("k"), "checkpoint": "c"}
    assert given == ((Path("b"),), named | {"predecessors": [Path("x"), Path("y")]})


def test_importing_dpprobe_imports_no_heavy_package() -> None:
    """Plans, shell completion, budgets and refusals must not wait for torch."""
    program = """
        import sys
        before = {*sys.modules}
        import dpprobe
        assert set(dir(dpprobe)) >= {*dpprobe.__all__, "__version__"}
        assert all(name in dpprobe.__all__ or name.startswith("__") for name in dir(dpprobe))
        print(*sorted({*sys.modules} - before))
        dpprobe.Budget(max_epsilon=1, delta=1e-6)
        try:
            dpprobe.PrivateClassifier().fit([[0.0]], [0])
        except dpprobe.errors.PrivacyError as error:
            assert "budget" in str(error)
            print(*{"torch", "numba", "dpprobe.heads.fit"} & {*sys.modules})
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported, slow = done.stdout.splitlines()
    heavy = {"torch", "numpy", "sklearn", "scipy", "pandas", "pydantic", "pyarrow"}
    assert not heavy & set(imported.split())
    assert {name for name in imported.split() if name.startswith("dpprobe")} == {"dpprobe"}
    assert slow == ""


@pytest.mark.parametrize("name", dpprobe.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(dpprobe, name)
    assert name in dir(dpprobe)
    assert value.__module__.startswith("dpprobe.")
    assert inspect.getdoc(value)
    assert getattr(importlib.import_module("dpprobe"), name) is value


@pytest.mark.parametrize(
    ("changes", "error", "fault"),
    [
        ({"steps": 0}, PrivacyError, "count 0 must be a whole number"),
        ({"steps": 2.0}, ConfigError, r"steps 2\.0: pass one whole number"),
        ({"steps": True}, ConfigError, "steps True: pass one whole number"),
        ({"sample_rate": 0.0}, PrivacyError, r"sample_rate 0\.0 must be a number above 0"),
        ({"sample_rate": 1.1}, PrivacyError, r"sample_rate 1\.1 must be"),
        ({"delta": "x"}, ConfigError, "delta 'x': pass one number"),
        ({"delta": 0.0}, PrivacyError, r"delta 0\.0: "),
        ({"delta": 9.9e-11, "sample_rate": 0.5}, PrivacyError, "delta 9.9e-11: .* 1e-10 to 1"),
    ],
    ids=str,
)
def test_noise_and_price_name_values_out_of_range(
    changes: dict[str, Any], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        dpprobe.calibrate(**{"epsilon": 2.0, "delta": 1e-5} | changes)
    with pytest.raises(error, match=fault):
        dpprobe.epsilon_of(**{"noise_multiplier": 3.0, "delta": 1e-5} | changes)


def plan(**changes: Any) -> dict[str, Any]:
    """Returns the planner's answer for a setting."""
    usual: dict[str, Any] = {"n": 5000, "classes": 10, "epsilon": 1.0}
    return dpprobe.plan_accuracy(**usual | changes)


def keep(**changes: Any) -> float:
    kept = plan(**changes)["choices"][0]["kept"]
    assert kept["low"] <= kept["expected"] <= kept["high"]
    return float(kept["expected"])


def test_more_people_epsilon_and_delta_keep_more_and_more_classes_less() -> None:
    said = plan(dimension=512)["setting"]
    assert said == {"n": 5000, "classes": 10, "epsilon": 1.0, "delta": 1e-5, "dimension": 512}
    usual = keep()
    assert keep(n=500) < usual < keep(n=50_000)
    assert keep(epsilon=0.1) < usual < keep(epsilon=8.0)
    assert keep(classes=40) < usual < keep(classes=2)
    assert usual < keep(delta=1e-3)
    assert keep(dimension=2000) < keep(dimension=64)


def test_an_accuracy_is_chance_and_the_kept_share_of_the_lead_over_it() -> None:
    choice = plan(ceiling=0.9, classes=5)["choices"][0]
    (accuracy,) = choice["accuracy"]
    assert accuracy["ceiling"] == 0.9
    for end in ("low", "expected", "high"):
        assert accuracy[end] == pytest.approx(1 / 5 + choice["kept"][end] * (0.9 - 1 / 5))


# docs/python.md: code runs as printed, and its values and errors are those that are printed.


# Relative tolerance for results with secret noise, which differ from run to run.
NOISE = 0.06


def check_statement(statement: ast.stmt, source: str, names: dict[str, Any]) -> str | None:
    """Runs a statement; returns the promise in its comment if the result differs."""
    last = source.splitlines()[(statement.end_lineno or 0) - 1]
    _, marked, comment = last.partition("  # ")
    text = ast.unparse(statement)
    if marked and re.match(r"\w+(Error|Warning): ", comment):
        kind, _, said = comment.partition(": ")
        return check_failure(text, names, kind, said)
    if not marked or not isinstance(statement, ast.Expr):
        exec(text, names)
        return None
    value = eval(text, names)
    if comment == "a text":
        right = isinstance(value, str) and len(value) > 20
    elif comment.startswith("about "):
        right = value == pytest.approx(float(comment.removeprefix("about ")), rel=NOISE)
    else:
        right = repr(value) == comment
    return None if right else f"{text}: {value!r}, and the page says {comment}"


def check_failure(text: str, names: dict[str, Any], kind: str, said: str) -> str | None:
    message, raised = "", "nothing"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(text, names)
        except Exception as error:
            message, raised = str(error), type(error).__name__
    if kind.endswith("Warning"):
        ours = [each for each in caught if each.category.__name__ == kind]
        message, raised = (str(ours[0].message), kind) if ours else ("", raised)
    parts = [part.strip() for part in said.split("...")]
    right = raised == kind and all(part in message for part in parts)
    return None if right else f"{text}: {raised}: {message}; the page says {kind}: {said}"


def test_the_page_runs_as_printed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 10
    names: dict[str, Any] = {}
    statements = [(each, block) for block in blocks for each in ast.parse(block).body]
    faults = [check_statement(*each, names) for each in statements]
    assert [fault for fault in faults if fault is not None] == []


def test_the_reference_page_equals_the_docstrings(repository: Path) -> None:
    page = load_script(repository / "tools/pages/reference_page.py").reference_page()
    assert (repository / "docs/python-reference.md").read_text() == page, "run `make schema`"


def test_every_documented_argument_is_in_the_signature(repository: Path) -> None:
    """Arguments come from docstrings, and signatures from the code: both must have each name."""
    page = (repository / "docs/python-reference.md").read_text()
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        signature = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
        listed = re.search(r"\*\*Arguments\*\*\n\n(.*?)(\n\n|$)", section, flags=re.DOTALL)
        for name in re.findall(r"^- `(\w+)`", listed[1] if listed else "", flags=re.MULTILINE):
            assert signature is not None
            assert re.search(rf"\b{name}\b", signature[1]), (section.splitlines()[0], name)
