"""Commands end with their exit code and one-line message, and the catalog lists its entries."""

from __future__ import annotations

import argparse
import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpprobe import __main__ as main_module
from dpprobe.errors import ConfigError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Returns a runner of `dpprobe WORDS` with fake `plan` and `run`; it returns the exit code."""
    monkeypatch.setattr(main_module, "code_version", lambda: "1.2")
    monkeypatch.setattr(logging.getLogger("dpprobe"), "level", 0)

    def call(*words: str, ends: int | BaseException = 0) -> Any:
        def end(arguments: argparse.Namespace) -> int:
            print("ran", arguments.words)
            if isinstance(ends, BaseException):
                raise ends
            return ends

        def add(name: str, commands: Any) -> None:
            commands.add_parser(name).set_defaults(run=end)

        for name in ("plan", "run"):
            monkeypatch.setattr(main_module, f"add_{name}", partial(add, name))
        monkeypatch.setattr("sys.argv", ["dpprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main_module.main()
        return caught.value.code

    return call


def test_a_command_ends_with_its_code(
    command: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("plan") == 0
    assert command("plan", ends=3) == 3
    assert command("run", "--odd", "x") == 0
    assert capfd.readouterr().out == "ran []\nran []\nran ['--odd', 'x']\n", "words for Snakemake"
    assert command("--version") == 0
    assert capfd.readouterr().out == "1.2\n"


def test_an_unknown_word_is_refused_by_all_commands_but_run(
    command: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("plan", "--odd") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].endswith("error: unrecognized arguments: --odd")


def test_an_error_for_people_is_a_line(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("plan", ends=ConfigError("epsilon: wrong")) == "dpprobe: epsilon: wrong"
    long = OSError(errno.ENAMETOOLONG, "File name too long", "y" * 90)
    told = str(command("plan", ends=long))
    assert told.startswith("dpprobe: yyyy")
    assert told.endswith("...: this path is too long; correct it")
    lasting = {
        errno.ENOTDIR: "Not a directory",
        errno.ENOENT: "No such file or directory",
        errno.EISDIR: "Is a directory",
        errno.EEXIST: "File exists",
    }
    for number, text in lasting.items():
        told = str(command("plan", ends=OSError(number, text, "/dev/null/\x1b")))
        assert told == f"dpprobe: /dev/null/\\x1b: {text}; correct this path"
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for folder in ("/", ".", "loop"):
        assert f"{folder}: no bundle in this folder" in str(command("rollback", folder))
    with pytest.raises((RuntimeError, OSError)) as looped:  # OSError from Python 3.13 on
        Path("loop/x").resolve(strict=True)
    told = "leads to itself; correct"
    if isinstance(looped.value, OSError):
        told = "delete the link, which leads to itself, and run again"
    assert told in str(command("plan", ends=looped.value))
    with pytest.raises(OSError, match="Errno 5. x"):
        command("plan", ends=OSError(5, "x"))


def test_an_interrupted_command_says_so_and_a_closed_pipe_prints_no_error(
    command: Callable[..., Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command("plan", ends=KeyboardInterrupt()) == 130
    assert capfd.readouterr().err.splitlines() == ["dpprobe: stopped"]
    closed: list[Any] = []
    monkeypatch.setattr(os, "dup2", lambda *given: closed.append(given))
    assert command("plan", ends=BrokenPipeError()) == 0
    assert len(closed) == 1, "Python would write to the pipe once more at its end"
    assert capfd.readouterr().err == ""


def test_the_catalog_lists_entries_and_shows_one(command: Callable[..., Any]) -> None:
    lines = main_module.list_catalog().splitlines()
    assert lines[0].split() == ["dataset", "train", "test", "classes", "access"]
    (row,) = [line.split() for line in lines if line.startswith("cifar10 ")]
    assert row == ["cifar10", "50000", "10000", "10", "open", "CIFAR-10"]
    (model,) = [line.split() for line in lines if line.startswith("resnet50 ")]
    assert model == ["resnet50", "2048", "24M", "average", "BSD-3-Clause", "ResNet-50"]
    (gated,) = [line for line in lines if line.startswith("uni ")]
    assert "CC-BY-NC-ND-4.0, gated" in gated
    assert "model: resnet50.tv_in1k" in main_module.describe_entry("resnet50")
    shown = main_module.describe_entry("cifar10")
    assert "title: CIFAR-10" in shown
    assert "access: open" in shown
    told = str(command("catalog", "digits"))
    assert told.startswith("dpprobe: catalog: no dataset 'digits'; choose one of: chest_xray, ")
    assert "cifar10" in told
