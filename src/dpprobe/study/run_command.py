"""The command that runs a study: starts Snakemake with a clone's rules or with installed rules.

Results are written to the working directory, as with Snakemake itself.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NoReturn

from dpprobe.devices import USER_PATH
from dpprobe.errors import ConfigError
from dpprobe.extras import require_extra
from dpprobe.files.plain_files import read_bounded
from dpprobe.project_files import is_clone, project_root
from dpprobe.shown_text import one_line

# Environment variable: tells a script in Snakemake's conda environment which dpprobe to install.
ROOT = "DPPROBE_ROOT"
STUDY = "config.yaml"  # the default study
# Options that limit the number of parallel jobs, or name a profile with such a limit.
_SIZES = re.compile(r"-n?[cje]|--(cores|jobs|profile|executor)(=|$)")
_FILES = ("--configfile", "--configfiles")
ALL_CORES = ("--cores", "all")
NO_PROFILE = "none"  # Snakemake's name for no profile
_DIRECTORY = re.compile(r"(?:--directory(?:=|$)|-d=?)(.*)", re.DOTALL)
_PROFILE = re.compile(r"--profile(?:=|$)(.*)", re.DOTALL)


def add_command(commands: Any) -> None:
    summary = "run a study in this folder; takes all options and targets of Snakemake"
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help=summary,
        description=summary,
        allow_abbrev=False,
        usage="dpprobe run [TARGET ...] [--configfile FILE] [options of snakemake]",
        epilog="Without --configfile, runs config.yaml in this folder, or the default study (the "
        "digits of scikit-learn). Without --cores, --jobs or a profile, uses all cores. Files of "
        "config/ and profiles of profiles/ can be given by name: --profile slurm. Uses the rules "
        "of the clone in which you are, or the installed ones. All options: snakemake --help.",
    )
    parser.set_defaults(run=lambda arguments: start_snakemake(arguments.words))


def add_study_files(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--configfile` to a command other than `dpprobe run`."""
    parser.add_argument(
        "--configfile",
        nargs="+",
        type=Path,
        default=[Path(STUDY)],
        help="study files; if several files set a value, the last one wins; default config.yaml",
    )


def start_snakemake(words: Sequence[str]) -> NoReturn:
    """Replaces this process by Snakemake, with the words after `dpprobe run`; never returns.

    Raises ConfigError if the workflow or a study file is missing or wrong.
    """
    require_extra("workflow", "dpprobe run")
    here = Path.cwd()
    root = workflow_root(here)
    if not (root / "Snakefile").is_file():
        raise ConfigError(
            f"{root}: has no Snakefile; install dpprobe's wheel, or its clone with "
            "pip install --editable"
        )
    typed = snakemake_words(words, root, here)
    check_files(typed, here)
    is_default = not _names_study(words) and typed[-1] == str(root / STUDY)
    if is_default and (studies := _list_studies(_directory(words, here))):
        line = command_line("dpprobe", "run", *words, "--configfile", studies[0])
        told = f"dpprobe: runs the default study; to run {studies[0]}: {line}"
        print(one_line(told), file=sys.stderr)
    command = [sys.executable, "-m", "snakemake", *typed]
    sys.stdout.flush()
    os.execve(sys.executable, command, make_environment(root, os.environ))


def workflow_root(here: Path) -> Path:
    """Returns the clone that contains a folder, or the folder of the installed workflow."""
    return next((folder for folder in (here, *here.parents) if is_clone(folder)), project_root())


def snakemake_words(words: Sequence[str], root: Path, here: Path) -> list[str]:
    """Returns Snakemake's arguments for the words that a person typed."""
    named = list(_with_known_files(words, root, here))
    before = ["--snakefile", str(root / "Snakefile")]
    sized = any(_SIZES.match(word) for word in words) or os.environ.get("SNAKEMAKE_PROFILE")
    if not sized:
        before += ALL_CORES
    if not _names_study(words) and not (_directory(words, here) / STUDY).exists():
        # --configfile is last, because it takes all following words
        return [*before, *named, "--configfile", str(root / STUDY)]
    return [*before, *named]


def _names_study(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in _FILES for word in words)


def _directory(words: Sequence[str], here: Path) -> Path:
    return here.joinpath(*_single_values(words, _DIRECTORY)[-1:])


def _single_values(words: Sequence[str], option: re.Pattern[str]) -> list[str]:
    """Returns an option's values, written as `--name=value` or as the next word."""
    pairs = zip_longest(words, words[1:], fillvalue="")
    return [match[1] or following for word, following in pairs if (match := option.fullmatch(word))]


def check_files(words: Sequence[str], here: Path) -> None:
    """Raises ConfigError, with file and line, if a study's file is missing or not YAML."""
    from dpprobe.study.yaml_file import check_yaml, written_path  # late, for a fast `--help`

    files = [*_option_values(words, *_FILES)]
    if not files and (default := _directory(words, here) / STUDY).is_file():
        files.append(str(default))
    for file in files:
        if not (here / file).exists():
            raise ConfigError(_explain_missing(file, here))
        if (here / file).is_dir():
            raise ConfigError(f"--configfile {file}: a folder; name the file of a study")
        check_yaml(written_path((here / file).absolute()))


def _list_studies(folder: Path) -> list[str]:
    """Lists a folder's YAML files with a block of datasets, newest first."""
    changed = dict[str, float]()
    for path in folder.glob("*.y*ml"):
        with suppress(OSError):
            if re.search(b"^datasets:", read_bounded(path), re.MULTILINE):
                changed[path.name] = path.stat().st_mtime
    return sorted(changed, key=lambda name: (-changed[name], name))


def _explain_missing(file: str, here: Path) -> str:
    """Explains that a study's file is missing, with the most similar name in the folder."""
    if (here / file).is_symlink():
        return f"--configfile {file}: a link that leads to no file; correct the link"
    return (
        f"--configfile {file}: no such file; correct it{similar_study(file, here)} (targets stand "
        "before --configfile, which takes all words that follow)"
    )


def similar_study(file: str, here: Path = Path()) -> str:
    """Returns the name of the study file that was probably meant; empty if there is none."""
    places = (here, here / "config")
    known = [
        path.relative_to(here).as_posix()
        for at in places
        for path in at.glob("*.y*ml")
        if path.is_file()
    ]
    close = difflib.get_close_matches(file, known, n=1) or _list_studies(here)
    return f", as in {close[0]}" if close else ""


def _option_values(words: Sequence[str], *options: str) -> Iterator[str]:
    """Yields the values of options like --configfile, which take all words up to another option."""
    taking = False
    for word in words:
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            taking = option in options and not equals
            if option in options and value:
                yield value
        elif taking:
            yield word


def _with_known_files(words: Sequence[str], root: Path, here: Path) -> Iterator[str]:
    """Yields the words; a study or profile that exists only in `root` is replaced by its path."""
    option = ""
    for word in words:
        if word.startswith("-"):
            option, _, value = word.partition("=")
            yield f"{option}={_known_file(option, value, root, here)}" if value else word
        else:
            yield _known_file(option, word, root, here)
            if option not in _FILES:
                option = ""


def _known_file(option: str, word: str, root: Path, here: Path) -> str:
    places = {"--profile": root / "profiles"} | dict.fromkeys(_FILES, root)
    folder = places.get(option)
    if folder is None or not word or (here / word).exists() or not (folder / word).exists():
        return word
    return str(folder / word)


def make_environment(root: Path, variables: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """Returns environment variables for Snakemake and its jobs to import `root`'s package."""
    result = {**variables, ROOT: str(root)}
    if root != project_root():
        places = [str(root / "src"), variables.get("PYTHONPATH", "")]
        result["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return result


def profile_words(words: Sequence[str]) -> list[str]:
    """Returns Snakemake's options that name profiles, which decide where jobs run.

    Without a profile, returns the option for all cores; no words if the environment names one.
    """
    named = _single_values(words, _PROFILE)
    if named == [NO_PROFILE]:
        return [*ALL_CORES]
    if named:
        return [word for name in named for word in ("--profile", name)]
    return [] if os.environ.get("SNAKEMAKE_PROFILE") else [*ALL_CORES]


def run_words(
    *targets: str, call: Sequence[str] = (), where: Sequence[str] = ALL_CORES
) -> list[str]:
    """Returns the words that run a study from the working directory.

    In a clone's root, and with a Snakefile that uses the rules as a module, the command is
    `snakemake`; elsewhere it is `dpprobe run`, which finds the rules.

    Args:
      targets: files or named targets; none for all.
      call: the options of Snakemake that select the study.
      where: the options that define where jobs run, or how many run in parallel.
    """
    here = Path.cwd()
    root = workflow_root(here)
    rules = {root / "Snakefile", root / "workflow/Snakefile"}
    named = (file for option, file in pairwise(call) if option == "--snakefile")
    if is_clone(here) or any(Path(file).resolve() not in rules for file in named):
        return ["snakemake", *targets, *where, *call]
    # options that `dpprobe run` adds by itself
    known = {"--snakefile": root / "Snakefile"}
    if not (here / STUDY).exists():
        known["--configfile"] = root / STUDY
    options = list(call)
    for option, file in known.items():
        if option in options:
            place = options.index(option)
            if Path(options[place + 1]).resolve() == file:
                del options[place : place + 2]
    return ["dpprobe", "run", *targets, *where, *options]


def run_command(*call: str, targets: Sequence[str] = ()) -> str:
    """Returns a command line to copy that runs a study; arguments as for `run_words`."""
    return command_line(*run_words(*targets, call=call))


def command_line(program: str, *words: str) -> str:
    """Returns a command line to copy that starts a program of this environment.

    If the environment is inactive, the line has the program's full path, because the bare name
    would start no program or another program.
    """
    beside = Path(sys.executable).with_name(program)
    named = shutil.which(program, path=os.environ.get(USER_PATH))
    if beside.is_file() and not (named and Path(named).samefile(beside)):
        here = Path.cwd()
        program = str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
    return shlex.join([program, *words])
