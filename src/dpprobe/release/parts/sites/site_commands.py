"""The commands for a release by several sites: `dpprobe site keys | sums | combine`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dpprobe.errors import ConfigError, WaitingError
from dpprobe.release.parts.sites import SitesOptions
from dpprobe.study.run_command import add_study_files

if TYPE_CHECKING:
    from dpprobe.study.study import Study

# Opens a release of a study, given by its name: a `ReleaseTask`.
Open = Callable[["Study", str], Any]

STILL_WAITING = 3  # exit status: other sites have not answered yet


def add_command(commands: Any, open_release: Open) -> None:
    summary = "train one head with other sites: no image and no exact sum leaves a site"
    site: argparse.ArgumentParser = commands.add_parser("site", help=summary)
    actions = site.add_subparsers(dest="action", required=True)
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument("release", help="name of a release of the study that has `sites`")
    add_study_files(asked)
    summary = "create this site's key if it is missing, and write a signed offer to the other sites"
    keys = actions.add_parser("keys", parents=[asked], help=summary)
    keys.set_defaults(run=partial(_run_keys, open_release))
    waits = f"Exit status: 0, {STILL_WAITING} while files of other sites are missing, else 1."
    summary = "record the release in this site's ledger, and send masked sums round by round"
    sums = actions.add_parser("sums", parents=[asked], help=summary, epilog=waits)
    sums.set_defaults(run=partial(_run_sums, open_release))
    summary = "write the bundle from the sums of all sites; fails while sums are missing"
    combine = actions.add_parser("combine", parents=[asked], help=summary, epilog=waits)
    combine.set_defaults(run=partial(_run_sums, open_release))
    for parser in (sums, combine):
        parser.add_argument(
            "--wait",
            type=float,
            default=0,
            metavar="MINUTES",
            help="minutes to wait for the other sites' files; default: do not wait",
        )


def _run_keys(open_release: Open, arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.options import resolve_path
    from dpprobe.release.parts.sites.several_sites import make_site_key
    from dpprobe.site_exchange.agreement import name_public_key

    task = _open_task(open_release, arguments)
    sites = task.options.block(SitesOptions)
    assert sites is not None
    public = name_public_key(make_site_key(resolve_path(sites.key)))
    if sites.members[sites.name] != public:
        print(f"{sites.name}: {public}")
        print(
            "compare this key by telephone, write the line above under "
            f"releases.{arguments.release}.sites.members at all sites, then run this command again"
        )
        return 0
    offer, path = task.make_offer()
    print(f"{path}: {offer.n:,} training units, {offer.test_n:,} test units")
    return 0


def _run_sums(open_release: Open, arguments: argparse.Namespace) -> int:
    task = _open_task(open_release, arguments)
    try:
        task.run(wait_minutes=arguments.wait)
    except WaitingError as waiting:
        print(f"dpprobe: waiting: {waiting}")
        return STILL_WAITING
    print(f"{task.output}: complete; check it: dpprobe verify {task.output}")
    return 0


def _open_task(open_release: Open, arguments: argparse.Namespace) -> Any:
    """Opens the release of a study file; ConfigError for an unknown release, or without sites."""
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.study.check_command import read_study

    study, name = read_study(arguments.configfile), arguments.release
    if name not in study.releases or study.releases[name].block(SitesOptions) is None:
        known = [each for each, options in study.releases.items() if options.block(SitesOptions)]
        raise ConfigError(
            f"release {name}: has no `sites`; releases with `sites`: {', '.join(known) or 'none'}"
        )
    return open_release(study, name)
