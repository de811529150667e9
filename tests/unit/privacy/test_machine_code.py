"""Compiled functions have the same bits in every process, whichever process compiled them."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import pytest
from numba.core.registry import cpu_target

from dpprobe.privacy import machine_code
from dpprobe.privacy.machine_code import MachineCode
from tests.support import kernel_bits
from tests.support.kernel_bits import DRAWING_KERNELS, EXACT_KERNELS, FLOAT_KERNELS

SOURCE = """
from dpprobe.privacy.machine_code import MachineCode

CODE = MachineCode(__file__)

@CODE.jit()
def twice(a):
    return 2 * a

@CODE.jit("f8(f8)")
def four_times(a):
    return twice(twice(a))

{middle}

@CODE.jit("f8(f8, f8)")
def add(a, b):
    return twice(a) + b

CODE.keep()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the only folder for machine code, which does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(MachineCode, "list_folders", lambda _: [folder])
    return folder


@pytest.fixture
def module(tmp_path: Path) -> Callable[..., Any]:
    def imported(middle: str = "") -> Any:
        path = tmp_path / "doubling.py"
        path.write_text(SOURCE.format(middle=middle))
        spec = importlib.util.spec_from_file_location("doubling", path)
        assert spec
        assert spec.loader
        result = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(result)
        return result

    return imported


def compilations(module: Any) -> list[int]:
    """Returns how often each function was compiled."""
    functions = (module.twice, module.four_times, module.add)
    return [sum(function.stats.cache_misses.values()) for function in functions]


def test_a_module_is_one_file_that_the_next_process_loads(
    cache: Path, module: Callable[..., Any]
) -> None:
    compiled = module()
    assert compilations(compiled) == [1, 1, 1]
    assert [path.name for path in cache.iterdir()] == [compiled.CODE.name]
    loaded = module()
    assert loaded.add(1.0, 2.0) == 4.0
    assert loaded.four_times(1.5) == 6.0
    assert compilations(loaded) == [0, 0, 0]
    # Code for types that the module does not declare is compiled for this process only.
    assert loaded.twice(3) == 6
    assert compilations(module()) == [0, 0, 0]


def test_an_interrupted_compilation_stores_no_machine_code(
    cache: Path, module: Callable[..., Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        module("raise KeyboardInterrupt")
    none = MachineCode(kernel_bits.__file__)  # without functions, nothing is stored
    none.keep()
    assert not cache.exists()
    assert none.name in MachineCode.ready
    assert compilations(module()) == [1, 1, 1]


@pytest.mark.parametrize("harm", ["a flipped byte", "cut short", "empty"])
def test_a_damaged_file_is_remade_completely(
    cache: Path, module: Callable[..., Any], harm: str
) -> None:
    module()
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    flipped = whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]
    harmed = {"a flipped byte": flipped, "cut short": whole[:-1], "empty": b""}
    path.write_bytes(harmed[harm])
    assert compilations(module()) == [1, 1, 1]
    assert compilations(module()) == [0, 0, 0]


def test_only_the_first_writable_folder_caches_the_module(
    cache: Path,
    module: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache.write_text("a file where the folder should be")
    folders = [cache, tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(MachineCode, "list_folders", lambda _: folders)
    assert compilations(module()) == [1, 1, 1]
    assert [folder.is_dir() for folder in folders] == [False, True, False]
    assert compilations(module()) == [0, 0, 0]
    folders[1:] = []  # no folder: functions are compiled in memory
    with caplog.at_level(logging.INFO, logger="dpprobe"):
        assert module().add(1.0, 2.0) == 4.0
    assert "set NUMBA_CACHE_DIR" in caplog.text


def test_folders_are_numbas_in_its_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text("")
    code = MachineCode(str(tmp_path / "doubling.py"))
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", "")
    in_tree, in_home = code.list_folders()
    assert in_tree == tmp_path / "__pycache__"
    assert in_home.name == "numba"
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path / "named"))
    assert code.list_folders() == [tmp_path / "named", in_tree, in_home]


def test_whatever_changes_the_code_changes_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor's features count too, because different processors may share a folder."""
    source, called = tmp_path / "one.py", tmp_path / "two.py"
    cpu: Any = llvmlite.binding.get_host_cpu_features()
    target: Any = cpu_target.target_context.codegen()
    other = SimpleNamespace(flatten=lambda: f"{cpu.flatten()},+new")
    patches: list[tuple[Any, str, Any]] = [
        *((numba.config, name, 7) for name in ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE")),
        *((numba.config, name, 7) for name in ("ENABLE_AVX", "CPU_NAME", "CPU_FEATURES")),
        *((numba.config, name, 7) for name in ("BOUNDSCHECK", "DEBUGINFO_DEFAULT")),
        (numba, "__version__", "0.1"),
        (llvmlite, "__version__", "0.1"),
        (platform, "python_version", lambda: "2.7"),
        (llvmlite.binding, "get_host_cpu_features", lambda: other),
        (target, "magic_tuple", lambda: ("another",)),
    ]
    names = []
    for texts in ("ab", "ac", "bc", "bb"):
        for path, text in zip((source, called), texts, strict=True):
            path.write_text(text)
        names.append(MachineCode(str(source), str(called)).name)
    names.append(MachineCode(str(source)).name)
    for patched in patches:
        with monkeypatch.context() as patch:
            patch.setattr(*patched, raising=False)
            names.append(MachineCode(str(source), str(called)).name)
    assert len(set(names)) == len(names)
    assert MachineCode(str(source), str(called)).name == names[3]


def test_infinity_and_nan_keep_their_meaning() -> None:
    def least(a: float, b: float) -> float:
        return b if abs(a) <= 1e300 else 0.0

    jit = MachineCode(__file__).jit
    compiled: Any = jit(fastmath=frozenset({"contract", "reassoc", "nsz"}))(least)
    assert compiled(1.0, 2.0) == 2.0
    assert compiled(math.nan, 2.0) == 0.0
    assert compiled(math.inf, 2.0) == 0.0


def test_a_function_is_as_written_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert MachineCode(__file__).jit("f8(f8)")(hash_results) is hash_results


@pytest.mark.parametrize("text", ["flags: a\nmodel name\t: One 9\nmodel name: Two", "", None])
def test_the_processor_is_named(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: Path) -> str:
        if text is None:
            raise OSError("no such file")
        return text

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(platform, "processor", lambda: "")
    name = "One 9" if text else platform.machine()
    cpu: Any = llvmlite.binding.get_host_cpu_name()
    assert machine_code.processor_name.__wrapped__() == f"{name} ({cpu})"


def test_every_module_of_compiled_functions_is_listed_and_compiled_beforehand(
    repository: Path,
) -> None:
    source = repository / "src"
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.py")
        if "MACHINE_CODE = MachineCode(__file__" in path.read_text(encoding="utf-8")
    }
    assert modules == {*FLOAT_KERNELS, *DRAWING_KERNELS, *EXACT_KERNELS}
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    assert {name for name in modules if name in makefile} == modules


def start_kernels(*arguments: str | Path) -> subprocess.Popen[str]:
    """Starts a process that loads kernels from a folder or compiles them, and runs them."""
    command = [sys.executable, str(kernel_bits.__file__), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def hash_results(process: subprocess.Popen[str]) -> dict[str, str]:
    output, _ = process.communicate(timeout=900)  # a busy machine is slow
    assert process.returncode == 0
    return dict(line.split() for line in output.splitlines())


class Race(NamedTuple):
    """Hashes of two processes that compiled at the same time, and the folder they wrote."""

    few: dict[str, str]
    whole: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Race:
    """Starts two processes with an empty folder; only one compiles each kernel, only once."""
    folder, racing = tmp_path_factory.mktemp("cold"), []
    for arguments in (["few"], []):
        racing.append(start_kernels(folder, *arguments))
        time.sleep(0.4)
    few, whole = map(hash_results, racing)
    return Race(few, whole, folder)


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Returns the hashes of a process that used the environment's code."""
    return hash_results(start_kernels())


@pytest.fixture(scope="module")
def loaded(race: Race) -> dict[str, str]:
    """Returns the hashes of a process that used the race's folder without adding to it."""
    kept = {*race.folder.iterdir()}
    found = hash_results(start_kernels(race.folder))
    assert {*race.folder.iterdir()} == kept
    return found


def test_each_module_is_one_file_after_a_race(race: Race) -> None:
    names = {name.rpartition(".")[2] for name in (*FLOAT_KERNELS, *DRAWING_KERNELS)}
    kept = sorted(path.name.rpartition("-")[0] for path in race.folder.iterdir())
    assert kept == sorted(names)


def test_processes_that_compile_at_once_compute_the_same_bits(
    race: Race, alone: dict[str, str]
) -> None:
    assert race.few == {"few": race.whole["few"]} == {"few": alone["few"]}


@pytest.mark.parametrize("computed", ["few", "steps", "draws"])
def test_results_are_the_same_bits_compiled_and_loaded(
    race: Race, loaded: dict[str, str], alone: dict[str, str], computed: str
) -> None:
    assert race.whole[computed] == loaded[computed] == alone[computed]
