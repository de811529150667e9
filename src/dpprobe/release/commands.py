"""The commands for bundles and ledgers: their arguments, what they print, their exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

# The exit status of `predict` where it could not read some of the images.
SOME_UNREADABLE = 3

Parsers = Any  # what argparse.ArgumentParser.add_subparsers returns


def add_commands(commands: Parsers) -> None:
    """Adds predict, verify, export, push, ledger and release-notes to a parser's commands."""
    predict = _add_command(
        commands,
        "predict",
        _run_predict,
        "classify images by a bundle",
        f"Exit status: 0, {SOME_UNREADABLE} where some images cannot be read (they are listed, "
        "without a prediction), 1 for any other error.",
    )
    _add_bundle(predict)
    predict.add_argument(
        "images", nargs="+", type=Path, help="image files, folders, parquet or CSV files"
    )
    predict.add_argument(
        "--output", type=Path, help=".csv or .parquet; CSV on standard output where absent"
    )
    _add_checkpoint(predict)
    predict.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    predict.add_argument("--image-column", help="of a parquet or CSV file")
    predict.add_argument("--id-column", help="of a parquet or CSV file")
    verify = _add_command(
        commands,
        "verify",
        _run_verify,
        "check a bundle: hashes, format, prices, sensitivities",
        "Needs no private data and no network. Exit status: 0 where every check passes, else 1.",
    )
    _add_bundle(verify)
    verify.add_argument("--public-key", type=Path, help="Ed25519, PEM: of who signed the bundle")
    export = _add_command(commands, "export", _run_export, "write backbone and head as one file")
    _add_bundle(export)
    export.add_argument(
        "--onnx", type=Path, required=True, metavar="FILE", help="the file to write"
    )
    _add_checkpoint(export)
    push = _add_command(commands, "push", _run_push, "upload a bundle to the Hugging Face Hub")
    _add_bundle(push)
    push.add_argument("repository", help="owner/name; made where it is not there")
    push.add_argument("--private", action="store_true", help="make the repository private")
    ledger = _add_command(
        commands, "ledger", _run_ledger, "show the releases of a dataset and their sum"
    )
    ledger.add_argument("folder", type=Path, help="of the dataset's split tables: data/NAME")
    ledger.add_argument(
        "--delta", type=float, help="of the sum; the releases' largest where absent"
    )
    ledger.add_argument("--abandon", type=int, metavar="ENTRY", help="an open entry to write off")
    ledger.add_argument("--reason", help="for --abandon: why nothing of it can have left")
    notes = _add_command(commands, "release-notes", _run_notes, "print an announcement of a bundle")
    _add_bundle(notes)
    notes.add_argument("--previous", type=Path, metavar="BUNDLE", help="what it is compared with")


def _add_command(
    commands: Parsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, epilog=epilog)
    parser.set_defaults(run=run)
    return parser


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="the folder of a release")


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, help="the backbone's file of weights, where it has one"
    )
    parser.add_argument(
        "--allow-hub",
        action="store_true",
        help="fetch weights from the Hub's repository that the bundle names (hf-hub: models)",
    )


def _run_predict(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.predict import predict

    summary = predict(
        arguments.bundle,
        arguments.images,
        output=arguments.output,
        checkpoint=arguments.checkpoint,
        device=arguments.device,
        allow_hub=arguments.allow_hub,
        image_column=arguments.image_column,
        id_column=arguments.id_column,
    )
    for name, reason in summary.unreadable:
        print(f"dpprobe: {name}: {reason}", file=sys.stderr)
    if not summary.unreadable:
        return 0
    print(
        f"dpprobe: {len(summary.unreadable)} of {summary.rows} images cannot be read",
        file=sys.stderr,
    )
    return SOME_UNREADABLE


def _run_verify(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.verification.verify import verify_bundle

    report = verify_bundle(arguments.bundle, public_key=arguments.public_key)
    words = {True: "ok", False: "FAILED", None: "-"}
    for check in report.checks:
        print(f"{words[check.passed]:7} {check.name}: {check.detail}")
    print("verified" if report.passed else "NOT verified")
    return 0 if report.passed else 1


def _run_export(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.export import export_onnx

    done = export_onnx(
        arguments.bundle,
        arguments.onnx,
        checkpoint=arguments.checkpoint,
        allow_hub=arguments.allow_hub,
    )
    print(
        f"{done.path}: opset {done.opset}; at most {done.largest_difference:.1e} from predict in "
        f"float32, {done.precision_difference:.1e} from predict in the release's precision"
    )
    print(f"input: {done.input}")
    return 0


def _run_push(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.push import push_bundle

    print(push_bundle(arguments.bundle, arguments.repository, private=arguments.private))
    return 0


def _run_ledger(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.ledger import LEDGER_FILE, Ledger, describe_ledger

    ledger = Ledger(arguments.folder / LEDGER_FILE)
    if not any((arguments.folder / name).is_file() for name in (LEDGER_FILE, "dataset.json")):
        files = [
            *arguments.folder.glob(f"*/{LEDGER_FILE}"),
            *arguments.folder.glob("*/dataset.json"),
        ]
        inner = sorted({str(path.parent) for path in files})
        remedy = (
            f"is it {' or '.join(inner)}?"
            if inner
            else ("name the folder of a dataset, which is <data_dir>/<dataset>")
        )
        raise ConfigError(
            f"{arguments.folder}: neither a ledger nor a dataset's split tables are there; {remedy}"
        )
    if (arguments.abandon is None) != (arguments.reason is None):
        raise ConfigError("--abandon and --reason belong together; write both")
    if arguments.abandon is not None:
        ledger.abandon_entry(arguments.abandon, arguments.reason)
    print(describe_ledger(ledger, delta=arguments.delta))
    return 0


def _run_notes(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.release.notes import release_notes

    print(release_notes(arguments.bundle, previous=arguments.previous))
    return 0
