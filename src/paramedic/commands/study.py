"""the empirical studies behind the base rates, as software: recompute them, extend them, look at them

`fetch` brings study 1's replication package, GitHub issues and Stack Overflow questions into one DuckDB file, `tables`
recomputes study 1 from its labels, `label` classifies posts and lets people label them, `report` draws what breaks
most and what cures it, `priors` rebuilds the base rates that `diagnose` starts from.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from rich.table import Table

    from paramedic.study.labelling import Done
    from paramedic.study.labels import Study1
    from paramedic.study.store import Store

DB = "study.duckdb"
_LABELS = "study 1's files: its package as a folder or .zip, its workbook, or faults.csv (default: those fetched)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    fetching = actions.add_parser("fetch", help="bring labels and posts into one file; goes on where it stopped")
    fetching.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="study1 (its public labels), linked (the posts behind them), github:OWNER/NAME, stackoverflow:TAG, sample "
        "(made up, shipped), or a file: study 1's package, a data dump's Posts.xml, posts as .jsonl",
    )
    fetching.add_argument("--api", choices=("rest", "graphql"), default="rest", help="of GitHub (default: rest)")
    fetching.add_argument("--github-api", metavar="URL", help="of another GitHub server (default: api.github.com)")
    fetching.add_argument("--stackexchange-api", metavar="URL", help="(default: api.stackexchange.com/2.3)")
    fetching.add_argument(
        "--max-wait", type=float, default=900, metavar="SECONDS", help="longest wait for a rate limit (default: 900)"
    )

    tabling = actions.add_parser("tables", help="study 1's tables from its labels, each figure beside the paper's")
    tabling.add_argument("--labels", metavar="PATH", help=_LABELS)
    tabling.add_argument("--check", action="store_true", help="exit code 1 unless they equal the counts shipped")
    _add_labelling(
        actions.add_parser("label", help="classify posts; propose which to label; label them; compare raters")
    )

    reporting = actions.add_parser("report", help="what breaks most and what cures it, as one HTML page with plots")
    reporting.add_argument("--labels", metavar="PATH", help=_LABELS)
    reporting.add_argument("--framework", metavar="NAME", help="only this framework's failures and cures")
    reporting.add_argument("--data", metavar="DIR", help="the faults and all tables as CSV and Parquet there, too")

    deriving = actions.add_parser("priors", help="rebuild the base rates from the labels, and show what changed")
    deriving.add_argument("--labels", metavar="PATH", help=_LABELS)
    deriving.add_argument("--raters", metavar="NAME,…", help="add these raters' labels to study 1's")
    deriving.add_argument("--check", action="store_true", help="exit code 1 unless they equal the base rates shipped")

    for action in (fetching, tabling, deriving):
        action.add_argument("--format", choices=("text", "json"), default="text")
    for action in (fetching, tabling, reporting, deriving):
        action.add_argument("--db", metavar="FILE", default=DB, help=f"where posts and labels are (default: {DB})")
    for action in (tabling, deriving, reporting):
        default = "study.html" if action is reporting else "standard output"
        action.add_argument("--output", metavar="FILE", help=f"(default: {default})")


def _add_labelling(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--score", action="store_true", help="how good the classifiers are, on posts not learnt from")
    what.add_argument("--next", type=_positive, metavar="N", help="the N posts whose labels would teach the most")
    what.add_argument("--ask", choices=("terminal", "web"), help="label posts yourself, the most informative first")
    what.add_argument("--agreement", action="store_true", help="Cohen's kappa of every two raters")
    what.add_argument(
        "--clusters", action="store_true", help="posts that fit no symptom, grouped: new kinds of failure?"
    )
    parser.add_argument("--rater", metavar="NAME", help="whose labels --ask takes (default: your user name)")
    parser.add_argument("--second", action="store_true", help="ask for posts that another rater has labelled, unseen")
    parser.add_argument(
        "--model", choices=("auto", "shipped", "words", "tfidf"), default="auto", help="(default: what scored best)"
    )
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where to classify (default: local)"
    )
    parser.add_argument("--workers", type=_positive, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--again", action="store_true", help="classify all posts, not only new ones")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--db", metavar="FILE", default=DB, help=f"where posts and labels are (default: {DB})")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "fetch": _fetch, "tables": _tables, "label": _label, "report": _report, "priors": _priors,
    }  # fmt: skip
    return actions[args.action](args)


# -- fetch ---------------------------------------------------------------------------------------------------------


def _fetch(args: argparse.Namespace) -> int:
    from paramedic.study import github, stackexchange
    from paramedic.study.fetch import Fetched, Services, fetch
    from paramedic.study.store import opened, summary
    from paramedic.study.web import Interrupted, Web

    web = Web(args.max_wait, say=lambda text: flags.say(f"paramedic: {text}"))
    services = Services(
        github.GitHub(web, args.github_api or github.API, os.environ.get("GITHUB_TOKEN", "")),
        stackexchange.StackExchange(
            web, args.stackexchange_api or stackexchange.API, os.environ.get("STACKEXCHANGE_KEY", "")
        ),
        args.api == "graphql",
    )
    done: list[Fetched] = []
    broken: list[str] = []
    with opened(Path(args.db), create=True) as store, _counted("fetching") as progress:
        for source in args.sources:
            try:
                done.append(fetch(store, source, services, lambda name, came: progress(f"{name}: {came:,}")))
            except Interrupted as error:  # the other sources may do better
                broken.append(str(error))
        whole = summary(store)
    for one in done:
        lost = f", {one.gone} gone" if one.gone else ""
        flags.say(f"paramedic: {one.source}: {one.came:,} {one.what}{lost}")
    if broken:
        raise ParamedicError("; ".join(broken))
    if args.format == "json":
        from dataclasses import asdict

        _print_json({"sources": [asdict(one) for one in done], "db": args.db, "holds": dict(whole)})
    else:
        print(f"{args.db} holds " + ", ".join(f"{n:,} {what}" for what, n in whole.items()))
    return 0


@contextmanager
def _counted(what: str) -> Iterator[Callable[[str], None]]:
    """On stderr, only on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(what) as status:
        yield lambda text: status.update(f"{what} {escape(text)}")


def _print_json(document: dict[str, Any]) -> None:
    from paramedic.report.json import dumps

    print(dumps({"schema_version": 1} | document))


# -- tables and priors ---------------------------------------------------------------------------------------------


def _study(args: argparse.Namespace) -> Study1 | None:
    """Where the labels are: named, fetched, or not at all."""
    from paramedic.study.fetch import stored_study
    from paramedic.study.labels import read_labels
    from paramedic.study.store import opened

    if args.labels:
        return read_labels(Path(args.labels))
    if not Path(args.db).exists():
        return None
    with opened(Path(args.db)) as store:
        return stored_study(store)


def _labelled(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Our labelling of issues of the systems that study 2 looked at."""
    from paramedic.study.store import opened

    if not Path(args.db).exists():
        return []
    with opened(Path(args.db)) as store:
        rows = store.query(
            "SELECT p.symptom, p.fix, p.distributed FROM predictions p JOIN posts o ON p.post = o.id "
            "WHERE p.symptom <> 'none' AND o.framework IN ('deepspeed', 'megatron', 'colossalai') "
            "AND o.state NOT IN ('gone', 'duplicate') ORDER BY p.post"
        )
    return [{"symptom": symptom, "fix": fix, "distributed": share} for symptom, fix, share in rows]


def _tables(args: argparse.Namespace) -> int:
    from paramedic.study import tables
    from paramedic.study.shown import tables as shown

    study = _study(args)
    counts = tables.derive(study) if study else tables.shipped()
    if study is None:
        flags.say("paramedic: no labels here: these are the counts shipped with the package (see `study fetch study1`)")
    same = json.loads(tables.dumps(counts)) == tables.shipped()
    beside = tables.beside_paper(counts)
    second = tables.beside_second(_labelled(args), counts)
    if args.format == "json":
        from paramedic.report.json import dumps

        document = {"schema_version": 1, "equal_to_shipped": same, "beside": beside, "study2": second, "counts": counts}
        text = dumps(document) + "\n"
    else:
        end = f"Faults as one table: SHA-256 {counts['faults_sha256']}; "
        end += "all counts equal those shipped with the package." if same else "COUNTS DIFFER from those shipped."
        text = _printed(shown(counts, beside, second), end)
    _put(args.output, text)
    return int(args.check and not same)


def _printed(tables: Iterable[Table], end: str = "") -> str:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=170)
    for table in tables:
        console.print(table)
        console.print()
    if end:
        console.print(end, highlight=False, markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def _put(output: str | None, text: str) -> None:
    if output in (None, "-"):
        sys.stdout.write(text)
    else:
        flags.write_file(str(output), text)
        flags.say(f"paramedic: wrote {output}")


def _priors(args: argparse.Namespace) -> int:
    from importlib import resources

    from paramedic.study import priors
    from paramedic.study.shown import changed

    study = _study(args)
    if study is None:
        raise ParamedicError("no labels here: `paramedic study fetch study1`, or name them with --labels")
    derived = priors.derive(study, _counted_fixes(args) if args.raters else None)
    text = priors.dumps(derived)
    before = resources.files("paramedic.knowledge").joinpath("priors.json").read_text("utf-8")
    found = priors.changes(json.loads(before), derived)
    if args.output:
        _put(args.output, text)
    if args.format == "json" and not args.output:
        sys.stdout.write(text)
    elif text == before:
        print(f"the base rates shipped with the package, byte for byte (labels: SHA-256 {derived['source_sha256']})")
    else:
        sys.stdout.write(_printed([changed(found)]))
    return int(args.check and text != before)


def _counted_fixes(args: argparse.Namespace) -> dict[str, Any]:
    from collections import Counter, defaultdict

    from paramedic.study.store import opened

    found: dict[str, Counter[str]] = defaultdict(Counter)
    with opened(Path(args.db)) as store:
        for rater in args.raters.split(","):
            given = store.labels(rater.strip())
            if not given:
                raise ParamedicError(f"{rater.strip()}: no rater of this name has labelled anything in {args.db}")
            for one in given:
                if one.symptom and one.fix:
                    found[one.symptom][one.fix] += 1
    return found


# -- label and report ----------------------------------------------------------------------------------------------


def _label(args: argparse.Namespace) -> int:
    from paramedic.study.labelling import classify, recipe_of
    from paramedic.study.store import opened

    with opened(Path(args.db)) as store:
        if args.agreement:
            return _agreement(store, args)
        if args.score:
            return _score(store, args)
        recipe = recipe_of(store, args.model)
        with _counted("classifying posts") as progress:
            done = classify(
                store,
                recipe,
                lambda n: progress(f"{n:,}"),
                engine=args.engine,
                workers=args.workers,
                again=args.again,
            )
        if not done.symptoms:
            raise ParamedicError(f"{args.db}: holds no post with text; `paramedic study fetch` brings some")
        flags.say(f"paramedic: {done.new:,} posts newly classified by {done.model}")
        if args.ask:
            return _ask(store, args)
        if args.next or args.clusters:
            return _next(store, args) if args.next else _clusters(store, args)
        return _classified(done, args)


def _classified(done: Done, args: argparse.Namespace) -> int:
    from paramedic.knowledge.taxonomy import load_taxonomy
    from paramedic.study.shown import share, table

    if args.format == "json":
        _print_json({"model": done.model, "new": done.new, "symptoms": done.symptoms})
        return 0
    all, symptoms = sum(done.symptoms.values()), load_taxonomy().symptoms
    rows = [
        [symptom, symptoms[symptom].id.stage if symptom in symptoms else "none of these", n, share(n, all)]
        for symptom, n in done.symptoms.items()
    ]
    flags.print_table(table(f"{all:,} posts", ["symptom", "stage ", "posts", "share"], rows), 120)
    return 0


def _score(store: Store, args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from paramedic.study.labelling import choose
    from paramedic.study.quality import choice, score
    from paramedic.study.shown import qualities

    with _counted("scoring the classifiers"):
        found = score(store.labelled_texts())
    best = choose(store, choice(found))
    if args.format == "json":
        _print_json({"used": best, "qualities": [asdict(one) for one in found]})
    else:
        flags.print_table(qualities(found), 150)
        print(f"used from now on: {best}")
    return 0


def _agreement(store: Store, args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from paramedic.study.labelling import agreements
    from paramedic.study.shown import agreements as shown

    found = agreements(store)
    if not found:
        raise ParamedicError(f"{args.db}: no two raters have labelled the same post (see --second)")
    if args.format == "json":
        _print_json({"raters": [{"first": a, "second": b, "kappa": [asdict(x) for x in c]} for a, b, c in found]})
    else:
        flags.print_table(shown(found), 120)
    return 0


def _ask(store: Store, args: argparse.Namespace) -> int:
    import getpass

    from paramedic.study.asking import Session, in_terminal

    session = Session(store, args.rater or getpass.getuser(), args.second)
    try:
        if args.ask == "web":
            from paramedic.study.webform import serve

            serve(session, lambda address: flags.say(f"paramedic: label posts at {address} (Ctrl-C ends it)"))
        else:
            in_terminal(session, input, print)
    except (KeyboardInterrupt, EOFError):
        pass
    flags.say(
        f"paramedic: {session.answered} posts labelled by {session.rater}; `study label --score` says whether learning "
        "from labels helps here"
    )
    return 0


def _next(store: Store, args: argparse.Namespace) -> int:
    from paramedic.study.active import entropy, most_informative
    from paramedic.study.shown import table

    found = most_informative(store, args.next, args.rater or "", args.second)
    if not found:
        flags.say("paramedic: nothing is left to label: every post has a label (see --rater and --second)")
    if args.format == "json":
        rows = [
            {"post": post.id, "title": post.title, "symptom": one.symptom, "bits": round(entropy(one), 3)}
            for post, one in found
        ]
        _print_json({"next": rows})
    else:
        rows_ = [
            [post.id, post.title, one.symptom, f"{one.probability:.2f}", f"{entropy(one):.1f}"] for post, one in found
        ]
        columns = ["post", "title ", "likeliest ", "probability", "bits"]
        flags.print_table(table("label these next", columns, rows_), 170)
    return 0


def _clusters(store: Store, args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from paramedic.study.clusters import clusters, outside
    from paramedic.study.shown import table

    texts = outside(store)
    found = clusters(texts)
    if args.format == "json":
        _print_json({"outside": len(texts), "clusters": [asdict(one) for one in found]})
    else:
        rows = [[", ".join(one.words), one.size, "; ".join(one.titles)] for one in found]
        title = f"{len(texts):,} posts fit no symptom; {len(found)} groups of them are alike"
        flags.print_table(table(title, ["words", "posts", "for example "], rows), 170)
    return 0


def _report(args: argparse.Namespace) -> int:
    from paramedic.study import tables
    from paramedic.study.faults import collect
    from paramedic.study.page import export, render
    from paramedic.study.store import opened

    study = _study(args)
    counts = tables.derive(study) if study else tables.shipped()
    with _either(args.db, opened) as store:
        faults = collect(study, store if Path(args.db).exists() else None)
        text = render(faults, tables.beside_paper(counts), args.framework or "")
        if args.data:
            for file in export(faults, store, Path(args.data)):
                flags.say(f"paramedic: wrote {file}")
    output = args.output or "study.html"
    flags.write_file(output, text)
    flags.say(f"paramedic: wrote {output}")
    return 0


@contextmanager
def _either(path: str, opened: Callable[..., Any]) -> Iterator[Store]:
    """The file, or where there is none, for labels named on the command line, an empty store that is not kept."""
    where = Path(path) if Path(path).exists() else Path(":memory:")
    with opened(where, create=True) as store:
        yield store
