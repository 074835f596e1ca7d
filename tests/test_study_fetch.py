"""`study fetch`: real clients against a server that behaves like the services; nothing is lost, all can go on."""

from __future__ import annotations

import bz2
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.study import github, stackexchange
from paramedic.study.fetch import Services as Clients
from paramedic.study.fetch import fetch
from paramedic.study.store import Store, opened
from paramedic.study.web import Interrupted, Web
from services import Services, issue, question, running
from test_study import package_zip

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def services() -> Iterator[Services]:
    with running() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "study.duckdb", create=True) as made:
        yield made


class Waits:
    """Instead of sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.said: list[str] = []

    def web(self, **more: float) -> Web:
        return Web(say=self.said.append, sleep=self.slept.append, clock=lambda: 1_000.0, **more)


def clients(
    server: Services, waits: Waits | None = None, token: str = "", graphql: bool = False, **more: float
) -> Clients:
    web = (waits or Waits()).web(**more)
    return Clients(github.GitHub(web, server.url, token), stackexchange.StackExchange(web, server.url), graphql)


def get(store: Store, source: str, made: Clients) -> int:
    return fetch(store, source, made, lambda name, came: None).came


def ids(store: Store) -> list[str]:
    return [post.id.rsplit("/", 1)[-1] for some in store.posts() for post in some]


# -- GitHub --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphql", [False, True], ids=["rest", "graphql"])
def test_all_pages_come_and_the_next_run_asks_only_for_what_changed(
    services: Services, store: Store, graphql: bool
) -> None:
    services.issues = [issue(n) for n in range(1, 9)]
    made = clients(services, token="secret", graphql=graphql)
    assert get(store, "github:some/tracker", made) == 8
    assert sorted(map(int, ids(store))) == list(range(1, 9))
    services.issues.append(issue(9, updated_at="2024-04-01T00:00:00Z"))
    services.asked.clear()
    assert get(store, "github:some/tracker", made) == 2, "the newest one that was known comes once more"
    assert len(ids(store)) == 9
    assert len([path for path, _ in services.asked if "releases" not in path]) == 1


def test_rest_leaves_pull_requests_out_and_reads_dates_labels_and_duplicates(services: Services, store: Store) -> None:
    services.issues = [
        issue(1, labels=[{"name": "Duplicate"}]),
        issue(2, pull_request={"url": "x"}),
        issue(3, body="x" * 200_000, state="open", closed_at=None),
        issue(4, state_reason="duplicate"),
    ]
    services.releases = [{"tag_name": "v1.2", "published_at": "2023-12-01T00:00:00Z"}]
    get(store, "github:some/tracker", clients(services))
    posts = {post.id[-1]: post for some in store.posts() for post in some}
    assert sorted(posts) == ["1", "3", "4"]
    assert posts["1"].state == posts["4"].state == "duplicate"
    assert (posts["3"].cut, len(posts["3"].body), posts["3"].resolved) == (True, github.MAX_TEXT, None)
    assert posts["1"].created == "2024-01-01T00:00:00"
    assert store.query("SELECT repository, tag FROM releases") == [("some/tracker", "v1.2")]


def test_unchanged_is_answered_304_and_costs_no_page(services: Services, store: Store) -> None:
    services.issues = [issue(n) for n in range(1, 3)]
    made = clients(services)
    get(store, "github:some/tracker", made)
    get(store, "github:some/tracker", made)
    services.asked.clear()
    assert get(store, "github:some/tracker", made) == 0
    asked = [head for path, head in services.asked if "/issues" in path]
    assert len(asked) == 1
    assert asked[0]["if-none-match"]


@pytest.mark.parametrize("fault", ["502", "503", "cut", "limit", "secondary"])
def test_a_fault_that_passes_is_waited_out_and_nothing_is_lost(services: Services, store: Store, fault: str) -> None:
    services.issues = [issue(n) for n in range(1, 9)]
    services.faults, services.reset = ["fine", fault], 1_030
    waits = Waits()
    assert get(store, "github:some/tracker", clients(services, waits)) == 8
    assert len(ids(store)) == 8
    if fault == "limit":
        assert waits.slept[0] == pytest.approx(31)
    if fault == "secondary":
        assert waits.slept[0] == 7


def test_interrupted_by_a_long_limit_it_goes_on_where_it_stopped(services: Services, store: Store) -> None:
    services.issues = [issue(n) for n in range(1, 9)]
    services.faults, services.reset = ["fine", "fine", "limit"], 1_000 + 3_600
    with pytest.raises(Interrupted, match="another 60 min"):
        get(store, "github:some/tracker", clients(services))
    assert len(ids(store)) == 6
    services.asked.clear()
    get(store, "github:some/tracker", clients(services))
    assert len(ids(store)) == 8
    assert "since=2024-03-06" in services.asked[0][0]


def test_graphql_waits_for_its_own_kind_of_limit_and_needs_a_token(services: Services, store: Store) -> None:
    services.issues = [issue(n) for n in range(1, 5)]
    services.faults, services.reset = ["graphql limit"], 1_010
    waits = Waits()
    assert get(store, "github:some/tracker", clients(services, waits, token="t", graphql=True)) == 4
    assert waits.slept == [11]
    with pytest.raises(ParamedicError, match="GITHUB_TOKEN"):
        get(store, "github:some/tracker", clients(services, graphql=True))


@pytest.mark.parametrize(
    ("fault", "said"),
    [("401", "answered 401: said no"), ("451", "no such repository"), ("no json", "no JSON"), ("422", "said no")],
)
def test_refusals_are_one_sentence(services: Services, store: Store, fault: str, said: str) -> None:
    services.faults = [fault]
    with pytest.raises(ParamedicError, match=said):
        get(store, "github:some/tracker", clients(services))


def test_a_server_that_keeps_failing_ends_with_what_came(services: Services, store: Store) -> None:
    services.issues = [issue(n) for n in range(1, 9)]
    services.faults = ["fine", *["500"] * 5]
    with pytest.raises(Interrupted, match="kept: run it again"):
        get(store, "github:some/tracker", clients(services))
    assert len(ids(store)) == 3


def test_offline_is_said_plainly() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    web = Web(sleep=lambda seconds: None)
    with pytest.raises(Interrupted, match="offline, or a proxy"):
        web.get(address + "/x")


def test_what_is_no_issue_is_named_as_skipped(services: Services, store: Store) -> None:
    services.issues = [issue(1), issue(2, html_url=None)]
    get(store, "github:some/tracker", clients(services))
    assert [why for (why,) in store.query("SELECT why FROM skipped")] == ["no issue: it has no address or no title"]


def test_a_name_that_is_no_repository_is_refused(store: Store, services: Services) -> None:
    with pytest.raises(ParamedicError, match="OWNER/NAME"):
        get(store, "github:../../etc", clients(services))


# -- study 1's package and the posts behind it ---------------------------------------------------------------------


def test_the_package_is_followed_to_its_archive_and_the_token_stays_behind(services: Services, store: Store) -> None:
    services.archive = package_zip()
    with running() as elsewhere:
        elsewhere.archive = services.archive
        services.redirect_to = elsewhere.url
        made = clients(services, token="secret")
        done = fetch(store, "study1", made, lambda name, came: None)
        assert done.what.startswith("files: 4 faults, 2 how-to")
        assert services.asked[0][1]["authorization"] == "Bearer secret"
        assert "authorization" not in elsewhere.asked[0][1]
    assert get(store, "study1", made) == 0, "unchanged: answered 304"


def test_linked_brings_each_labelled_post_and_marks_those_that_are_gone(services: Services, store: Store) -> None:
    services.archive = package_zip()
    services.issues = [issue(1), issue(2)]
    services.gone = {3}
    services.questions = [question(11)]
    made = clients(services)
    with pytest.raises(ParamedicError, match="fetch study1 first"):
        get(store, "linked", made)
    get(store, "study1", made)
    done = fetch(store, "linked", made, lambda name, came: None)
    assert (done.came, done.gone) == (3, 2)
    services.asked.clear()
    assert fetch(store, "linked", made, lambda name, came: None).came == 0
    assert not services.asked, "neither those that came nor those that are gone are asked for again"


def test_a_broken_archive_keeps_the_labels_that_were_there(services: Services, store: Store) -> None:
    services.archive = package_zip()
    get(store, "study1", clients(services))
    services.archive = services.archive[:400]
    store.query("DELETE FROM progress")
    with pytest.raises(ParamedicError, match="broken archive"):
        get(store, "study1", clients(services))
    assert store.query("SELECT count(*) FROM labels")[0][0] == 5


# -- Stack Overflow ------------------------------------------------------------------------------------------------


def test_questions_come_by_tag_with_the_date_of_the_accepted_answer(services: Services, store: Store) -> None:
    services.questions = [question(n, accepted_answer_id=100 + n if n % 2 else 0) for n in range(1, 8)]
    waits = Waits()
    assert get(store, "stackoverflow:multi-gpu", clients(services, waits)) == 7
    assert 2.0 in waits.slept, "it asked for a rest"
    post = store.post("https://stackoverflow.com/questions/1")
    assert post.title == 'NCCL "unhandled system error"'
    assert (post.framework, post.resolved) == ("pytorch", "2020-09-14T12:26:40")
    services.questions.append(question(8))
    assert get(store, "stackoverflow:multi-gpu", clients(services)) == 2


def test_a_used_up_quota_is_an_interruption(services: Services, store: Store) -> None:
    services.questions = [question(n) for n in range(1, 8)]
    exchange = clients(services).exchange
    ask = stackexchange.StackExchange.ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stackexchange, "_checked", lambda answer: answer.json() | {"quota_remaining": 0})
        with pytest.raises(Interrupted, match="quota"):
            ask(exchange, "questions", {"page": "1"})


ROWS = """<?xml version="1.0" encoding="utf-8"?><posts>
<row Id="1" PostTypeId="1" Title="Keras on multiple GPUs is slow" Tags="&lt;keras&gt;&lt;python&gt;" Body="&lt;p&gt;slow&lt;/p&gt;" CreationDate="2019-01-01T00:00:00.000" AnswerCount="2" AcceptedAnswerId="5" />
<row Id="2" PostTypeId="1" Title="Sort a list" Tags="|python|" Body="" />
<row Id="3" PostTypeId="1" Title="anything" Tags="|horovod|" Body="" />
<row Id="4" PostTypeId="2" Body="an answer about distributed" />
</posts>"""


@pytest.mark.parametrize("packed", [False, True])
def test_the_data_dump_is_read_in_a_stream_and_filtered_as_study_1_did(
    store: Store, tmp_path: Path, packed: bool, services: Services
) -> None:
    file = tmp_path / ("Posts.xml.bz2" if packed else "Posts.xml")
    file.write_bytes(bz2.compress(ROWS.encode()) if packed else ROWS.encode())
    assert get(store, str(file), clients(services)) == 2
    assert sorted(ids(store)) == ["1", "3"]
    assert get(store, str(file), clients(services)) == 0, "the same file is not read into it again"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><posts/>', "document type"),
        (ROWS[:-20], "not whole"),
        ("7z\xbc\xaf\x27\x1c rest", "unpack it first"),
    ],
)
def test_a_hostile_or_cut_dump_is_refused_and_what_came_is_kept(
    store: Store, tmp_path: Path, content: str, said: str, services: Services
) -> None:
    file = tmp_path / "Posts.xml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ParamedicError, match=said):
        get(store, str(file), clients(services))
    assert len(ids(store)) == (2 if said == "not whole" else 0)


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_says_what_came_of_each_source(services: Services, tmp_path: Path, capsys: Captured) -> None:
    services.issues = [issue(1)]
    db = str(tmp_path / "s.duckdb")
    assert (
        main(
            [
                "study",
                "fetch",
                "sample",
                "github:some/tracker",
                "--github-api",
                services.url,
                "--db",
                db,
                "--format",
                "json",
            ]
        )
        == 0
    )
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert document["holds"]["posts"] == 37
    assert "github:some/tracker: 1 posts" in out.err


def test_one_interrupted_source_does_not_stop_the_others_and_is_an_error(
    services: Services, tmp_path: Path, capsys: Captured
) -> None:
    services.faults = ["no json"]
    db = str(tmp_path / "s.duckdb")
    assert main(["study", "fetch", "github:some/tracker", "sample", "--github-api", services.url, "--db", db]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert "no JSON" in out.err
    with opened(Path(db)) as store:
        assert len(ids(store)) == 36


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"id": 1}\n[]\nnot json\n', "holds no post"),
        ('{"id": "a", "title": "t", "symptom": "gremlins"}\n', "holds no post"),
        ("", "holds no post"),
    ],
)
def test_posts_from_a_file_without_any_is_refused(tmp_path: Path, capsys: Captured, lines: str, said: str) -> None:
    file = tmp_path / "posts.jsonl"
    file.write_text(lines)
    assert main(["study", "fetch", str(file), "--db", str(tmp_path / "s.duckdb")]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "s.duckdb"
    file.write_text("not a database, certainly not one of DuckDB's\n" * 500)
    assert main(["study", "label", "--db", str(file)]) == 2
    assert "s.duckdb" in capsys.readouterr().err
    assert main(["study", "label", "--db", str(tmp_path / "none.duckdb")]) == 2
    assert "study fetch" in capsys.readouterr().err
