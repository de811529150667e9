"""Drafts and runs studies, predicts accuracy, shows and checks results, and uses releases."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from contextlib import redirect_stdout
from typing import NoReturn

from dpprobe.code_version import code_version
from dpprobe.doctor.doctor_command import add_command as add_doctor
from dpprobe.draft.init_command import add_command as add_init
from dpprobe.errors import LASTING, DpprobeError
from dpprobe.extras import naming_extras
from dpprobe.files.disk_errors import explain_unwritable
from dpprobe.garbage_collection import search_rarely
from dpprobe.release.commands import add_commands, open_release
from dpprobe.release.compare_command import add_command as add_compare
from dpprobe.release.parts.sites.site_commands import add_command as add_site
from dpprobe.reporting.plan_command import add_command as add_plan
from dpprobe.reporting.results_command import add_command as add_results
from dpprobe.shown_text import Terminal, one_line
from dpprobe.study import catalog
from dpprobe.study.check_command import add_command as add_check
from dpprobe.study.run_command import add_command as add_run
from dpprobe.tracking.rollback_command import add_command as add_rollback


def main() -> None:
    search_rarely()
    parser = argparse.ArgumentParser(prog="dpprobe", description=__doc__)
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True)
    known = commands.add_parser(
        "catalog", help="list the datasets and backbones that a study can name"
    )
    known.add_argument(
        "name", nargs="?", help="print the complete catalog entry of this dataset or backbone"
    )
    add_commands(commands)
    add_compare(commands)
    add_run(commands)
    add_check(commands)
    add_init(commands)
    add_plan(commands)
    add_results(commands)
    add_site(commands, open_release)
    add_rollback(commands)
    add_doctor(commands)
    try:
        with redirect_stdout(Terminal(sys.stdout, "standard output")):
            try:
                status = _run_command(parser)
            finally:
                sys.stdout.flush()  # also after `--help`, whose output Python would flush at exit
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it.
        status = 0
        _close_output()
    except DpprobeError as error:
        sys.exit(f"dpprobe: {error}")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # any command may look up a path that is too long
            path = one_line(str(error.filename)[:60])
            sys.exit(f"dpprobe: {path}...: this path is too long; correct it")
        explained: object = explain_unwritable(error)
        if explained is None and error.filename and error.errno in {errno.EEXIST, *LASTING}:
            explained = f"{error.filename}: {os.strerror(error.errno)}; correct this path"
        if explained is None:
            raise
        _close_output()
        sys.exit(f"dpprobe: {one_line(str(explained))}")
    except RuntimeError as error:
        if not str(error).startswith("Symlink loop"):  # of Path.resolve
            raise
        sys.exit(f"dpprobe: {one_line(str(error))}: a link that leads to itself; correct the path")
    except KeyboardInterrupt:
        print("dpprobe: stopped", file=sys.stderr)
        sys.exit(130)  # the status that shells report for Ctrl-C
    sys.exit(status)


def _run_command(parser: argparse.ArgumentParser) -> int:
    arguments, words = parser.parse_known_args()
    arguments.words = words
    if words and arguments.command != "run":
        parser.error(one_line(f"unrecognized arguments: {' '.join(words)}"))
    if "run" in arguments:
        _show_progress()
        with naming_extras():
            return int(arguments.run(arguments))
    print(describe_entry(arguments.name) if arguments.name else list_catalog())
    return 0


def _close_output() -> None:
    """Discards unwritable output, because Python would flush it again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Computes the version only when it is printed, because a clone calls git for it."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(code_version())
        parser.exit()


def _show_progress() -> None:
    """Sends log lines, such as progress, to standard error; standard output is for results."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dpprobe").setLevel(logging.INFO)


def list_catalog() -> str:
    lines = [f"{'dataset':16} {'train':>9} {'test':>7} {'classes':>7}  access"]
    for name in catalog.dataset_names():
        entry = catalog.dataset_entry(name)
        sizes = entry.sizes
        lines.append(
            f"{name:16} {sizes.train or '?':>9} {sizes.test or '?':>7} {sizes.classes:>7}  "
            f"{entry.access:12}  {entry.title}"
        )
    lines += [
        "",
        f"{'backbone':16} {'features':>8} {'weights':>7}  {'pooling':18}  {'licence':22}  model",
    ]
    for name, values in catalog.backbone_entries().items():
        millions = values["parameters"] / 1e6
        size = f"{millions:.{0 if millions >= 10 else 1}f}M"
        licence = values["licence"] + (", gated" if "access" in values else "")
        lines.append(
            f"{name:16} {values['dimension']:>8} {size:>7}  {values['pooling']:18}  {licence:22}  "
            f"{values['title']}"
        )
    return "\n".join(lines)


def describe_entry(name: str) -> str:
    """Returns a catalog entry as YAML; raises ConfigError for an unknown name."""
    import yaml

    entry = catalog.backbone_entries().get(name)
    if entry is None:
        entry = catalog.dataset_entry(name).model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100).rstrip()


if __name__ == "__main__":
    main()
