"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

# Processes of the tests fill the processors; threads that wait for each other would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As in an activated environment: printed commands then name programs without their paths.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# Modules and tests stay to the end: looking for garbage among them is a quarter of collection.
gc.disable()

# How long an example takes depends on what else the machine does.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts real runs first: a long file that begins last leaves the other processors idle.

    Marks the tests of real data, before tests are selected by marks.
    """
    for item in items:
        if "test_data" in getattr(item, "fixturenames", ()):
            item.add_marker("real")
    items.sort(key=lambda item: item.path.is_relative_to(REPOSITORY / "tests/unit"))


def pytest_collection_finish() -> None:
    """Looks for garbage again, among what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Has the end of Python find all objects, of which Triton would print pages if they stayed."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fails a test that hangs, such as at a pipe that nobody writes to."""
    seconds = 0.9 * float(item.config.getini("faulthandler_timeout"))

    def fail(*_: object) -> None:
        pytest.fail(f"{item.nodeid} hangs: not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    # again and again: a signal just before a call that waits does not interrupt the call
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def process_stays_as_it_was() -> Iterator[None]:
    """Fails a test that leaves another folder or environment, on which later tests would depend."""

    def describe() -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name.startswith("DPPROBE_")}
        return {**kept, "PATH": os.environ["PATH"], "working directory": str(Path.cwd())}

    before = describe()
    yield
    assert describe() == before
    if known_rows := sys.modules.get("dpprobe.estimator.known_rows"):
        known_rows._OPENED_STORES.clear()  # private fits of later tests would recognise their rows


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data and real weights that DPPROBE_TEST_DATA names: `make test-real`."""
    from copies import VARIABLE, find_data  # of bench/, which is known to pytest alone

    path = find_data()
    if path is None:
        pytest.skip(f"{VARIABLE} is not set, which names a folder of real data")
    assert (path / "cifar10" / "train.parquet").is_file(), f"{VARIABLE}: {path} has no CIFAR-10"
    return path


@pytest.fixture
def copies(test_data: Path, tmp_path: Path) -> Path:
    """A file of the folder's copies, to be merged over a study of config/."""
    from copies import list_copies

    path = tmp_path / "copies.yaml"
    path.write_text(yaml.safe_dump({"copies": list_copies(test_data)}))
    return path
