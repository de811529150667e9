"""Opacus's accounting gives the same numbers without the rest of Opacus and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.rdp import compute_rdp

from dpprobe.privacy import opacus_accounting
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.opacus_accounting import import_accounting
from tests.support.mechanisms import gaussians

NOISES = st.floats(0.6, 30.0)
RATES = st.floats(1e-4, 0.4)
COUNTS = st.integers(1, 300)
HISTORIES = st.lists(st.tuples(NOISES, RATES | st.just(1.0), COUNTS), min_size=1, max_size=3)


def answer(accountant: Any, history: list[tuple[float, float, int]], delta: float) -> Any:
    """Returns the epsilon of a history, or the type and text of an error."""
    accountant.history = history
    try:
        return accountant.get_epsilon(delta, eps_error=0.1)
    except (ValueError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=10)
@given(history=HISTORIES, delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_answers_are_opacus_s_to_the_last_bit(
    history: list[tuple[float, float, int]], delta: float
) -> None:
    ours = answer(import_accounting("prv").PRVAccountant(), history, delta)
    assert ours == answer(PRVAccountant(), history, delta)


@given(noise=NOISES, rate=RATES, steps=COUNTS)
@settings(max_examples=40)
def test_divergences_are_opacus_s_to_the_last_bit(noise: float, rate: float, steps: int) -> None:
    given: dict[str, Any] = {"q": rate, "noise_multiplier": noise, "steps": steps}
    orders = [1.5, 2, 8, 64]
    ours = import_accounting("analysis.rdp").compute_rdp(orders=orders, **given)
    assert ours.tolist() == compute_rdp(orders=orders, **given).tolist()


def test_computing_epsilon_imports_neither_torch_nor_opacus(repository: Path) -> None:
    program = """
import sys
from dpprobe.privacy.accountants import compute_epsilon
from tests.support.mechanisms import gaussians
parts = [gaussians(2.0, 0.1, 20)]
for accountant in ("pld", "rdp", "rdp_2017", "prv"):
    print(compute_epsilon(parts, 1e-5, accountant) > 0)
print({"torch", "opacus", "pandas", "numba"} & set(sys.modules))
"""
    words = [sys.executable, "-c", program]
    assert subprocess.check_output(words, cwd=repository, text=True).split() == ["True"] * 4 + [
        "set()"
    ]


def test_another_layout_of_opacus_s_files_changes_no_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [gaussians(1.0, 0.02, 200)]
    before = compute_epsilon(parts, 1e-5, "prv")
    for name in [name for name in sys.modules if name.startswith("dpprobe_opacus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(opacus_accounting, "find_spec", lambda _name: None)
    assert import_accounting("prv").PRVAccountant is PRVAccountant
    assert compute_epsilon(parts, 1e-5, "prv") == before
