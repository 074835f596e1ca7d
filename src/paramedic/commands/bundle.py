"""pack what a diagnosis needs into one redacted archive, for sharing

The bundle is a recorded Run: the lines that matter, not the whole logs. Secrets are always taken out; --anonymous also
replaces users, hosts and addresses. `paramedic diagnose BUNDLE` gives the same verdict anywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paramedic.commands import flags
from paramedic.errors import ParamedicError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", nargs="+", help="as for `paramedic diagnose`")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: NAME.paramedic.tar.zst; a name without .zst gives a folder")
    parser.add_argument("--anonymous", action="store_true", help="also replace users, hosts, addresses and e-mail addresses")
    flags.add_rule_flags(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic import run_folder
    from paramedic.knowledge import load
    from paramedic.pipeline import compile_prefilter, read
    from paramedic.redact import Anonymizer, redact

    knowledge = load(flags.options(flags.settings(args)).rules)
    with flags.progress_bar() as progress:
        run = run_folder.with_hashes(read(args.path, compile_prefilter(knowledge), progress))
    if not run.sources:
        raise ParamedicError(f"{' '.join(args.path)}: nothing in it could be read as a log")
    target = Path(args.output or run_folder.archive_name(args.path))
    clean = Anonymizer(run_folder.hosts(run)) if args.anonymous else redact
    if target.suffix == ".zst":
        run_folder.pack(run, target, clean)
    else:
        run_folder.write(run, target, clean)
    print(f"paramedic: wrote {target}: {len(run.events)} events of {len(run.sources)} sources", file=sys.stderr)
    return 0
