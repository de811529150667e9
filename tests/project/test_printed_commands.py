"""Commands printed in README and docs use options, make targets and files that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpprobe import __main__ as command_line
from tests.conftest import REPOSITORY

PAGES = [
    REPOSITORY / name
    for name in ("README.md", "CONTRIBUTING.md", "config/README.md", "bench/README.md")
]
PAGES += sorted((REPOSITORY / "docs").rglob("*.md"))
COMMAND = re.compile(
    r"(?m)^(?: {4}| {6})((?:\.venv/bin/)?(?:dpprobe|make|python|snakemake) (?:.*\\\n)*.*)$"
)
PROGRAMS = ("dpprobe", "make", "python", "snakemake")


def printed_commands() -> list[tuple[str, list[str]]]:
    """Returns the page and the words of each command, without comments."""
    found = []
    for page in PAGES:
        for match in COMMAND.finditer(page.read_text(encoding="utf-8")):
            joined = match[1].replace("\\\n", " ")
            for part in re.split(r"&&|\||>", joined):
                words = shlex.split(part, comments=True)
                if words and Path(words[0]).name in PROGRAMS:
                    found.append((page.name, [Path(words[0]).name, *words[1:]]))
    return found


COMMANDS = printed_commands()


def commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Returns the printed commands of a program, without its name."""
    return [(page, words[1:]) for page, words in COMMANDS if words[0] == program]


def test_there_are_commands_of_every_program() -> None:
    counts = {program: len(commands_of(program)) for program in PROGRAMS}
    assert all(count >= 10 for count in counts.values()), counts


@pytest.mark.parametrize(
    "words",
    [words for _, words in commands_of("dpprobe")]
    + [words[2:] for _, words in commands_of("python") if words[:2] == ["-m", "dpprobe"]],
    ids=" ".join,
)
def test_dpprobe_takes_the_options(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parses the words as the program does, but runs nothing."""
    usage = [word for word in words if not word.startswith("[") and not word.endswith("]")]
    monkeypatch.setattr("sys.argv", ["dpprobe", *(word.removesuffix("...") for word in usage)])
    parsed: list[argparse.Namespace] = []
    real = argparse.ArgumentParser.parse_known_args

    class Parsed(Exception):
        pass

    def parse(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> Any:
        found, rest = real(parser, *args, **options)
        if parser.prog == "dpprobe":
            assert not rest or found.command == "run", f"unknown: {rest}"
            parsed.append(found)
            raise Parsed
        return found, rest

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
    with pytest.raises(Parsed):
        command_line.main()
    assert parsed[0].command == words[0]


def test_make_has_the_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {word for _, words in commands_of("make") for word in words if "=" not in word}
    assert len(named) > 5
    assert named <= targets


def test_named_files_of_the_clone_exist() -> None:
    missing = [
        (page, word)
        for page, words in COMMANDS
        for word in words
        if re.match(r"(config|bench|tests|profiles|envs|integrations)/[\w./-]+$", word)
        and "THE_ROOM" not in word
        and not (REPOSITORY / word).exists()
    ]
    assert missing == []
