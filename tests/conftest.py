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

# Test processes already use all CPUs; threads that wait for each other would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As in an activated environment, so printed commands name programs without paths.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

# Modules and tests live until the end: checking them takes a quarter of test collection's time.
gc.disable()

# The time per example depends on the machine's other load.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts real runs first: a long file that starts last would leave the other CPUs idle.

    Also marks tests of real data, before tests are selected by marks.
    """
    for item in items:
        if "test_data" in getattr(item, "fixturenames", ()):
            item.add_marker("real")
    items.sort(key=lambda item: item.path.is_relative_to(REPOSITORY / "tests/unit"))


def pytest_collection_finish() -> None:
    """Enables garbage collection again, for objects that tests create."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Lets Python's shutdown free all objects; otherwise Triton prints pages about those left."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fails a test that hangs, for example at a pipe without a writer."""
    seconds = 0.9 * float(item.config.getini("faulthandler_timeout"))

    def fail(*_: object) -> None:
        pytest.fail(f"{item.nodeid} hangs: not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    # repeated, because a signal just before a blocking call does not interrupt the call
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def process_stays_as_it_was() -> Iterator[None]:
    """Fails a test that changes the working directory or environment, which affect later tests."""

    def describe() -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name.startswith("DPPROBE_")}
        return {**kept, "PATH": os.environ["PATH"], "working directory": str(Path.cwd())}

    before = describe()
    yield
    assert describe() == before
    if known_rows := sys.modules.get("dpprobe.estimator.known_rows"):
        known_rows._OPENED_STORES.clear()  # otherwise later private fits recognise their rows


@pytest.fixture(scope="session")
def repository() -> Path:
    """Returns the root of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Returns the folder of real data and weights, DPPROBE_TEST_DATA (see `make test-real`)."""
    from copies import VARIABLE, find_data  # in bench/, which only pytest has on its path

    path = find_data()
    if path is None:
        pytest.skip(f"{VARIABLE} is not set, which names a folder of real data")
    assert (path / "cifar10" / "train.parquet").is_file(), f"{VARIABLE}: {path} has no CIFAR-10"
    return path


@pytest.fixture
def copies(test_data: Path, tmp_path: Path) -> Path:
    """Returns a file with the folder's copies, to merge over a study of config/."""
    from copies import list_copies

    path = tmp_path / "copies.yaml"
    path.write_text(yaml.safe_dump({"copies": list_copies(test_data)}))
    return path
