"""pack what a diagnosis needs into one redacted archive, for sharing

The bundle is a recorded Run: the lines that matter, not the whole logs. Secrets are always taken out; --anonymous also
replaces users, hosts and addresses. `paramedic diagnose BUNDLE` gives the same verdict anywhere.

--with-logs adds redacted copies of the logs under sources/logs/, of each the last 5 MB and of all together 50 MB at
most, so that they can be collected again with better rules: `paramedic diagnose BUNDLE_FOLDER/sources/logs`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from paramedic.commands import flags
from paramedic.errors import ParamedicError

_OTHER_KINDS = (".gz", ".tgz", ".zip", ".tar", ".bz2", ".xz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="+", help="as for `paramedic diagnose`")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: NAME.paramedic.tar.zst; a name without .zst gives a folder"
    )
    parser.add_argument(
        "--anonymous", action="store_true", help="also replace users, hosts, addresses and e-mail addresses"
    )
    parser.add_argument("--with-logs", action="store_true", help="also pack redacted copies of the logs themselves")
    flags.add_rules_folder(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic import run_folder
    from paramedic.collect.copies import copies
    from paramedic.knowledge import load
    from paramedic.pipeline import compile_prefilter, read
    from paramedic.redact import Anonymizer, redact

    target = Path(args.output or run_folder.archive_name(args.path))
    if target.suffix.lower() in _OTHER_KINDS:
        raise ParamedicError(f"{target}: a bundle is NAME.tar.zst or a folder, no {target.suffix} archive")
    knowledge = load(flags.options(flags.settings(args)).rules)
    recorded = len(args.path) == 1 and run_folder.is_run(args.path[0])
    if recorded and args.with_logs:
        raise ParamedicError(f"{args.path[0]}: is a recorded Run; --with-logs needs the logs themselves")
    with flags.interruptible(args.path) as skipped, flags.progress_bar() as progress:
        run = read(args.path, compile_prefilter(knowledge), progress)
    run = replace(run, skipped=(*run.skipped, *skipped))
    if not run.sources:
        flags.say(f"paramedic: {' '.join(args.path)}: nothing in it could be read as a log")
        return 3
    clean = Anonymizer(run_folder.hosts(run)) if args.anonymous else redact
    copied = copies(args.path, run, clean) if args.with_logs else ()
    put = run_folder.pack if target.suffix.lower() == ".zst" else run_folder.write
    put(run if recorded else run_folder.with_hashes(run), target, clean, copied)
    flags.say(f"paramedic: wrote {target}: {len(run.events)} events of {len(run.sources)} sources")
    return 0
