"""The commands for bundles and ledgers: arguments, output, exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpprobe.errors import ConfigError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import write_json
from dpprobe.files.output_paths import check_output_path
from dpprobe.release.bundle import RELEASES_FOLDER
from dpprobe.shown_text import join_lines, one_line
from dpprobe.study.reserved_names import LEDGER_FILE

if TYPE_CHECKING:
    from dpprobe.release.ledger.ledger import Ledger
    from dpprobe.release.make import ReleaseTask
    from dpprobe.release.release_folders import Lacking
    from dpprobe.study.study import Study

SOME_UNREADABLE = 3  # exit status of `predict`
SHOWN_UNREADABLE = 20

Parsers = Any  # argparse has no public type for subparsers


def add_commands(commands: Parsers) -> None:
    bundle = argparse.ArgumentParser(add_help=False)
    bundle.add_argument("bundle", type=Path, help="folder of a release")
    backbone = argparse.ArgumentParser(add_help=False)
    backbone.add_argument(
        "--checkpoint",
        action="append",
        type=Path,
        help="weights of the backbone, a file or folder, if it needs them; repeatable, for the "
        "members of a joined backbone",
    )
    backbone.add_argument(
        "--allow-hub",
        action="store_true",
        help="download weights from the Hub repository that the bundle names (hf-hub: models)",
    )
    backbone.add_argument(
        "--allow-module",
        action="store_true",
        help="import and call your own function that the bundle names (family imported)",
    )
    _add_predict(commands, [bundle, backbone])
    _add_verify(commands, [bundle])
    summary = "write backbone and head into one ONNX file"
    export = commands.add_parser("export", parents=[bundle, backbone], help=summary)
    export.set_defaults(run=_run_export)
    export.add_argument(
        "--onnx", type=Path, required=True, metavar="FILE", help="the ONNX file to write"
    )
    _add_explain(commands, [bundle])
    _add_passport(commands, [bundle])
    _add_release_notes(commands, [bundle])
    _add_ledger(commands)


def _add_predict(commands: Parsers, parents: list[argparse.ArgumentParser]) -> None:
    predict = commands.add_parser(
        "predict",
        parents=parents,
        help="classify images with a bundle",
        epilog=f"Exit status: 0, {SOME_UNREADABLE} if some images cannot be read (they are listed, "
        "without a prediction), 1 for any other error.",
    )
    predict.set_defaults(run=_run_predict)
    predict.add_argument(
        "images",
        nargs="+",
        type=Path,
        help="image files, folders of images, parquet files or CSV files; for a head of vectors, "
        "files of vectors or folders of items",
    )
    predict.add_argument(
        "--output",
        type=Path,
        help="file for the predictions, .csv or .parquet; default: CSV on standard output",
    )
    predict.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    predict.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="CLASS=VALUE",
        help="predict CLASS if its probability is at least VALUE; repeatable",
    )
    predict.add_argument(
        "--operating-point",
        action="store_true",
        help="use the threshold that a release with an operating point recommends",
    )
    predict.add_argument(
        "--prevalence",
        action="append",
        default=[],
        metavar="CLASS=VALUE",
        help="give probabilities for a place where CLASS has this frequency, for a release with "
        "class priors; repeatable; or `estimate`, from the images themselves",
    )
    predict.add_argument(
        "--coverage",
        type=float,
        metavar="SHARE",
        help="share of images whose column `set` contains the true class, for a calibrated "
        "release; default: 0.9",
    )
    predict.add_argument(
        "--abstain-below",
        type=float,
        metavar="VALUE",
        help="abstain if the largest probability is below VALUE; default: abstain unless `set` "
        "holds exactly one class",
    )
    predict.add_argument(
        "--monitor",
        action="store_true",
        help="compare the images with the test images of a release with `monitor`, and warn of "
        "differences",
    )
    predict.add_argument(
        "--monitor-report", type=Path, metavar="FILE.json", help="JSON file for --monitor's results"
    )
    predict.add_argument(
        "--monitor-groups",
        type=Path,
        metavar="FILE.csv",
        help="columns id and group: --monitor counts images of one group (a patient) as one image",
    )
    predict.add_argument("--image-column", help="column with the images, in a parquet or CSV file")
    predict.add_argument("--id-column", help="column with the ids, in a parquet or CSV file")
    predict.add_argument(
        "--root", type=Path, help="folder that paths in a parquet or CSV file are relative to"
    )


def _add_verify(commands: Parsers, parents: list[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser(
        "verify",
        parents=parents,
        help="check a bundle: hashes, format, prices, sensitivities",
        epilog="verify needs no private data and no network. Exit status: 0 if every check "
        "passes, else 1.",
    )
    verify.set_defaults(run=_run_verify)
    verify.add_argument(
        "--checkpoint",
        action="append",
        type=Path,
        help="the backbone's weights, to check the backbone on a test image too; repeatable, for "
        "the members of a joined backbone",
    )
    verify.add_argument("--public-key", type=Path, help="the signer's Ed25519 public key in PEM")
    verify.add_argument(
        "--predecessor",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="the bundle that the given bundle replaces, or a folder of bundles, to check the "
        "whole chain of predecessors; repeatable",
    )
    verify.add_argument("--all", action="store_true", help="list all checks, also passed checks")


def _add_explain(commands: Parsers, parents: list[argparse.ArgumentParser]) -> None:
    summary = "write a bundle's model card and page again from its verified facts"
    explain = commands.add_parser(
        "explain",
        parents=parents,
        help=summary,
        epilog="A bundle keeps its documents as its version of dpprobe wrote them. explain writes "
        "them in this version's words. Exit status: 1 if the bundle's facts do not verify.",
    )
    explain.set_defaults(run=_run_explain)
    explain.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write: .html for the page, .md for the model card; default: the model "
        "card on standard output",
    )


def _add_passport(commands: Parsers, parents: list[argparse.ArgumentParser]) -> None:
    summary = "write documents about a bundle for reviewers into a new folder"
    passport = commands.add_parser("passport", parents=parents, help=summary)
    passport.set_defaults(run=_run_passport)
    purpose = passport.add_mutually_exclusive_group(required=True)
    purpose.add_argument(
        "--published",
        type=date.fromisoformat,
        metavar="YYYY-MM-DD",
        help="the day on which the release is published, which a bundle does not state",
    )
    purpose.add_argument(
        "--write-answers",
        type=Path,
        metavar="FILE",
        help="write a YAML form of the questions that only a person can answer, and nothing else",
    )
    passport.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="the form of --write-answers with a person's answers, to fill the documents with",
    )
    passport.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="the folder to write; default: BUNDLE.passport next to the bundle",
    )
    passport.add_argument("--public-key", type=Path, help="the signer's Ed25519 public key in PEM")


def _add_release_notes(commands: Parsers, parents: list[argparse.ArgumentParser]) -> None:
    summary = "compare a release with its predecessor: Markdown on standard output"
    notes = commands.add_parser("release-notes", parents=parents, help=summary)
    notes.set_defaults(run=_run_release_notes)
    notes.add_argument("predecessor", type=Path, help="folder of the replaced release")
    notes.add_argument(
        "--ledger",
        type=Path,
        metavar="FOLDER",
        help="the private folder of the dataset's ledger, data/NAME, to add today's total epsilon "
        "to the notes",
    )
    notes.add_argument(
        "--max-epsilon",
        type=float,
        help="the limit of the total epsilon: privacy.max_epsilon of the study",
    )


def _add_ledger(commands: Parsers) -> None:
    summary = "show the releases of a dataset and their total privacy cost"
    ledger = commands.add_parser("ledger", help=summary)
    ledger.set_defaults(run=_run_ledger)
    ledger.add_argument("folder", type=Path, help="folder of the dataset's split tables: data/NAME")
    ledger.add_argument(
        "--delta", type=float, help="delta of the total; default: the largest delta of the releases"
    )
    ledger.add_argument(
        "--abandon",
        type=int,
        metavar="ENTRY",
        help="stop counting an open entry, given by its number",
    )
    ledger.add_argument(
        "--reason", help="for --abandon: why no part of the release can have been published"
    )


def _run_predict(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.bundle import check_outside
    from dpprobe.release.image_monitor import open_watch
    from dpprobe.release.predict import predict

    report = arguments.monitor_report
    if (report or arguments.monitor_groups) and not arguments.monitor:
        raise ConfigError("--monitor-report, --monitor-groups: need --monitor; add it")
    if report:
        check_output_path(report, "--monitor-report")
        check_outside(report)
    words = vars(arguments)
    named = (
        "output",
        "checkpoint",
        "device",
        "allow_hub",
        "allow_module",
        "image_column",
        "id_column",
        "root",
        "operating_point",
        "coverage",
        "abstain_below",
    )
    summary = predict(
        arguments.bundle,
        arguments.images,
        thresholds=_read_values("--threshold", arguments.threshold, "lesion=0.3"),
        prevalence=_read_prevalence(arguments.prevalence),
        watch=partial(open_watch, arguments.monitor_groups) if arguments.monitor else None,
        **{name: words[name] for name in named},
    )
    if summary.prevalence:
        shares = ", ".join(f"{name} {share:.3g}" for name, share in summary.prevalence.items())
        print(f"dpprobe: {one_line(f'estimated prevalence: {shares}')}", file=sys.stderr)
    for line in summary.report.list_lines() if summary.report else ():
        print(f"dpprobe: {one_line(line)}", file=sys.stderr)
    if summary.report and report:
        write_json(report, {"bundle": arguments.bundle.name, **summary.report.to_dict()})
    for name, reason in summary.unreadable[:SHOWN_UNREADABLE]:
        print(f"dpprobe: {one_line(f'{name}: {reason}')}", file=sys.stderr)
    if not summary.unreadable:
        return 0
    unread = len(summary.unreadable)
    rest = f" (only {SHOWN_UNREADABLE} are shown; the predictions list all unreadable images)"
    print(
        f"dpprobe: {unread} of {summary.rows} images cannot be read"
        f"{rest if unread > SHOWN_UNREADABLE else ''}",
        file=sys.stderr,
    )
    return SOME_UNREADABLE


def _read_prevalence(words: Sequence[str]) -> dict[str, float] | Literal["estimate"] | None:
    if "estimate" not in words:
        return _read_values("--prevalence", words, "lesion=0.02") or None
    if len(words) > 1:
        raise ConfigError(
            "--prevalence estimate: estimates all classes; pass no other --prevalence"
        )
    return "estimate"


def _read_values(option: str, words: Sequence[str], example: str) -> dict[str, float]:
    """Reads CLASS=VALUE for each class; a class may contain an equals sign."""
    values: dict[str, float] = {}
    for word in words:
        name, _, value = word.rpartition("=")
        if name in values:
            raise ConfigError(f"{option} {word}: {name} already has a value; pass only one")
        try:
            values[name] = float(value if name else "")
        except ValueError:
            raise ConfigError(f"{option} {word}: pass CLASS=VALUE, such as {example}") from None
    return values


def _run_verify(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.verification.verify import verify_bundle

    report = verify_bundle(
        arguments.bundle,
        public_key=arguments.public_key,
        checkpoint=arguments.checkpoint,
        predecessors=arguments.predecessor,
    )
    print(join_lines(report.list_checks() if arguments.all else report.summarize()))
    return 0 if report.passed else 1


def _run_explain(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.bundle import check_outside
    from dpprobe.release.documents.rewritten_documents import explain_bundle
    from dpprobe.release.verification.verify import read_verified

    output = arguments.output
    if output is not None and output.suffix not in (".html", ".md"):
        raise ConfigError(f"--output {output}: use a name that ends in .html or .md")
    if output is not None:
        check_output_path(output, "--output")
        check_outside(output)
    written = explain_bundle(
        read_verified(arguments.bundle), page=output is not None and output.suffix == ".html"
    )
    if output is None:
        print(written, end="")
    else:
        write_text(output, written)
    return 0


def _run_export(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.export import export_onnx

    done = export_onnx(
        arguments.bundle,
        arguments.onnx,
        checkpoint=arguments.checkpoint,
        allow_hub=arguments.allow_hub,
        allow_module=arguments.allow_module,
    )
    print(
        f"{done.path}: opset {done.opset}; largest difference from `dpprobe predict`: "
        f"{done.largest_difference:.1e} in float32, {done.precision_difference:.1e} in the "
        "release's precision"
    )
    print(f"input: {done.input}")
    return 0


def _run_passport(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.passport import write_passport
    from dpprobe.release.passport_answers import write_answers
    from dpprobe.release.verification.verify import read_verified

    if path := arguments.write_answers:
        check_output_path(path, "--write-answers")
        if arguments.answers or arguments.output:
            raise ConfigError(
                "--write-answers: writes only the form; remove --answers and --output, or pass "
                "--published instead of --write-answers"
            )
        read = read_verified(arguments.bundle, public_key=arguments.public_key)
        print(f"{path}: {write_answers(read, path)} questions")
        return 0
    folder = write_passport(
        arguments.bundle,
        arguments.output,
        published=arguments.published,
        public_key=arguments.public_key,
        answers=arguments.answers,
    )
    for path in sorted(folder.iterdir()):
        print(path)
    return 0


def _run_release_notes(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.bundle import read_bundle
    from dpprobe.release.release_notes import write_notes

    new, old = read_bundle(arguments.bundle), read_bundle(arguments.predecessor)
    ledger = None if arguments.ledger is None else _open_ledger(arguments.ledger)
    print(write_notes(new, old, ledger=ledger, max_epsilon=arguments.max_epsilon), end="")
    return 0


def _run_ledger(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.ledger.ledger import describe_ledger
    from dpprobe.release.ledger.ledger_file import check_delta

    ledger = _open_ledger(arguments.folder)
    if (arguments.abandon is None) != (arguments.reason is None):
        raise ConfigError("--abandon and --reason belong together; pass both")
    if arguments.delta is not None:
        check_delta(arguments.delta)  # before --abandon changes the ledger
    if arguments.abandon is not None:
        ledger.abandon_entry(arguments.abandon, arguments.reason)
    print(describe_ledger(ledger, delta=arguments.delta))
    lacking = _list_lacking(arguments.folder)
    for each in lacking:
        print(f"\nThe ledger is too short. {each.folder}: {each.fault}; {each.remedy}")
    return int(bool(lacking))


def _list_lacking(folder: Path) -> list[Lacking]:
    """Searches results of a dataset's studies for releases that the dataset's ledger does not list.

    Searched are results that the ledger's folder notes, results of recent runs in the working
    folder, and results next to the data_dir.
    """
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.release_folders import list_lacking, list_noted
    from dpprobe.study.snapshot import recent_runs

    data = folder.resolve().parent
    results = [run.results.resolve() for run in recent_runs() if run.data.resolve() == data]
    results += [path for place in ("results", "results/*") for path in data.parent.glob(place)]
    name = folder.resolve().name
    releases = {path / RELEASES_FOLDER for path in results}
    releases |= {noted for dataset, noted in list_noted(data) if dataset == name}
    found = (list_lacking(each, data, name) for each in sorted(releases))
    return [*chain.from_iterable(found)]


def _open_ledger(folder: Path) -> Ledger:
    """Opens the ledger of a dataset; raises ConfigError if the folder belongs to no dataset."""
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.ledger.ledger import Ledger

    names = (LEDGER_FILE, "dataset.json")
    if not any((folder / name).is_file() for name in names):
        inner = sorted({str(path.parent) for name in names for path in folder.glob(f"*/{name}")})
        remedy = "name the folder of a dataset, which is <data_dir>/<dataset>"
        if inner:
            remedy = f"did you mean {' or '.join(inner)}?"
        raise ConfigError(f"{folder}: this folder has neither a ledger nor split tables; {remedy}")
    return Ledger(folder / LEDGER_FILE)


def open_release(study: Study, name: str) -> ReleaseTask:
    """Opens a release of a study with the files of the study's results folder."""
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.make import ReleaseTask
    from dpprobe.results.study_files import StudyFiles

    release, files = study.releases[name], StudyFiles(study, results=study.results_dir)
    train, test = (
        Path(files.locate_manifest(release.dataset, release.backbone, split))
        for split in ("train", "test")
    )
    return ReleaseTask(
        study=study,
        name=name,
        train=train,
        test=test,
        output=Path(study.results_dir) / "releases" / name,
        cache=Path(study.results_dir) / "calibration",
    )
