"""`study label`: what posts are labelled as, by which engine, who is asked what next, and how good it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from paramedic.collect.posts import parts
from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.knowledge.wordings import NONE, of_people
from paramedic.study import bayes, webform
from paramedic.study.active import entropy, most_informative
from paramedic.study.asking import Session, in_terminal
from paramedic.study.clusters import clusters
from paramedic.study.engines import labelled
from paramedic.study.fetch import fetch
from paramedic.study.label import Recipe, label_some
from paramedic.study.labelling import agreements, choose, classify, recipe_of
from paramedic.study.quality import Interval, Quality, choice, macro_f1, score
from paramedic.study.store import Given, Post, Predicted, Store, opened
from paramedic.study.words import Words, of_the_ward, trained
from paramedic.ward import environments

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def post(id: str, title: str, body: str = "", **more: str) -> Post:
    return Post(id, more.pop("origin", "github:some/tracker"), "tracker", title, body, **more)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "study.duckdb", create=True) as made:
        yield made


@pytest.fixture
def sample(store: Store) -> Store:
    """The sample that is shipped, classified."""
    fetch(store, "sample", None, lambda name, came: None)  # type: ignore[arg-type]
    classify(store, Recipe())
    return store


# -- what a post says ----------------------------------------------------------------------------------------------


def test_markdown_quotes_are_told_from_the_writers_words() -> None:
    body = "It stops.\n<!-- the form's own text: is it a hang? -->\n- [x] I read the docs\n```\nRuntimeError: x\n```\n    indented log\nSee [this](http://x/y)."
    found = parts("A title", body)
    assert "form" not in found.spoken
    assert "read the docs" not in found.spoken
    assert "RuntimeError" not in found.spoken
    assert found.spoken.startswith("A title\nIt stops.")
    assert "See this." in found.spoken
    assert "RuntimeError: x" in found.quoted
    assert "indented log" in found.quoted


def test_a_log_pasted_without_marks_is_taken_as_one() -> None:
    found = parts("RuntimeError: NCCL error", "[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'x'")
    assert found.quoted.startswith("RuntimeError: NCCL error\n[rank0]")
    assert parts("It hangs", "We wait and wait and nothing happens at all.").quoted == ""


def test_html_is_read_as_text_and_its_code_is_quoted() -> None:
    found = parts("t", "<p>It &lt;fails&gt;</p><script>alert(1)</script><pre><code>KeyError: 'x'</code></pre><p>help")
    assert "It <fails>" in found.spoken
    assert "KeyError" not in found.spoken
    assert "KeyError: 'x'" in found.quoted


@pytest.mark.parametrize("body", ["x" * 500_000, "```\n" + "a\n" * 200_000, "<p>" * 50_000, "\0\ud800", ""])
def test_huge_and_broken_posts_are_labelled_like_any_other(body: str) -> None:
    (found,) = label_some([post("a", "CUDA out of memory", body)], Recipe())
    assert found.post == "a"


# -- labels --------------------------------------------------------------------------------------------------------


def test_a_quoted_log_speaks_louder_than_the_words() -> None:
    log = "```\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n```"
    (found,) = label_some([post("a", "Strange behaviour when training", log)], Recipe())
    assert (found.symptom, found.stage, found.evidence) == ("device-out-of-memory", "memory", "log")
    assert found.probability > 0.8
    assert found.fix in load_taxonomy().fix_patterns
    assert 0 < found.cause_probability <= 1
    assert 0.9 < found.distributed <= 1, "all 21 of study 1's were distributed-specific"


def test_words_alone_are_enough_and_talk_is_none_of_these() -> None:
    found = label_some(
        [
            post("a", "pip install horovod fails with a compiler error"),
            post("b", "How do I choose between data and model parallelism? Is there a tutorial?"),
        ],
        Recipe(),
    )
    assert (found[0].symptom, found[0].evidence) == ("build-or-install-failure", "words")
    assert (found[1].symptom, found[1].stage, found[1].fix) == (NONE, "", "")
    assert json.loads(found[0].others)


def test_the_fast_classifier_computes_what_the_plain_one_does() -> None:
    model = bayes.train(bayes.learnt())
    fast = Words.of(model)
    for symptom, text in list(of_people())[::25]:
        slow = model.shares(text)
        assert fast.shares(text) == pytest.approx(slow), symptom


def test_it_learns_from_the_ward_but_never_from_cases_held_back() -> None:
    from paramedic.ward.case import load_all

    titles = {title for _, title in of_the_ward()}
    assert titles
    assert not titles & {case.title for case in load_all() if case.held_back}


def test_it_learns_from_labels() -> None:
    said = tuple(("straggler-or-imbalance", f"the quokka bounces {n}") for n in range(8))
    before = trained("shipped", said).shares("a quokka bounces")
    after = trained("words", said).shares("a quokka bounces")
    assert after["straggler-or-imbalance"] > 0.8 > before["straggler-or-imbalance"]
    with pytest.raises(ParamedicError, match="no such classifier"):
        trained("oracle", said)


# -- engines -------------------------------------------------------------------------------------------------------


def chunks(sample: Store) -> Iterator[list[Post]]:
    return sample.posts(7)


def test_two_processes_give_what_one_gives(sample: Store) -> None:
    alone = [one for some in labelled(chunks(sample), Recipe()) for one in some]
    both = [one for some in labelled(chunks(sample), Recipe(), workers=2) for one in some]
    assert len(alone) == 36
    assert both == alone


_ON_RAY = """
import json, sys
from dataclasses import asdict
from paramedic.study.engines import labelled
from paramedic.study.label import Recipe
from paramedic.study.store import Post
posts = [Post(**one) for one in json.load(sys.stdin)]
parts = [posts[n : n + 7] for n in range(0, len(posts), 7)]
found = [asdict(one) for some in labelled(parts, Recipe(), "ray", 2) for one in some]
print("LABELS " + json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_gives_what_one_process_gives(sample: Store) -> None:
    """In the ward's Ray environment, with this interpreter's packages behind it."""
    alone = [one for some in labelled(chunks(sample), Recipe()) for one in some]
    posts = [asdict(one) for some in sample.posts() for one in some]
    here = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    done = subprocess.run(
        [str(environments.build("ray") / "bin/python"), "-c", _ON_RAY],
        input=json.dumps(posts),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(here), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("LABELS ")]
    assert found, done.stderr[-2000:]
    assert json.loads(found[0][7:]) == [asdict(one) for one in alone]


def test_without_ray_one_line_says_what_to_install(sample: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ParamedicError, match=r"pip install 'paramedic\[ray\]'"):
        list(labelled(chunks(sample), Recipe(), "ray", 2))


def test_only_new_and_changed_posts_are_classified(sample: Store) -> None:
    assert classify(sample, Recipe()).new == 0
    changed = post("https://example.org/made-up/torch-jobs/issues/1", "CUDA out of memory")
    sample.put_posts([changed])
    assert classify(sample, Recipe()).new == 1
    assert classify(sample, Recipe(), again=True).new == 36


# -- active learning and raters ------------------------------------------------------------------------------------


def test_the_least_sure_come_first_and_twins_do_not_come_twice(store: Store) -> None:
    store.put_posts(
        [post("a", "the job hangs in allreduce"), post("b", "the job hangs in allreduce"), post("c", "loss is nan")]
    )
    doubtful = json.dumps({"low-throughput": 0.3})
    store.put_predictions(
        [
            Predicted("a", "collective-hang", "communication", 0.3, "words", others=doubtful),
            Predicted("b", "collective-hang", "communication", 0.3, "words", others=doubtful),
            Predicted(
                "c", "numerical-instability", "computation", 0.9, "words", others=json.dumps({"low-throughput": 0.1})
            ),
        ]
    )
    assert [one.id for one, _ in most_informative(store, 2)] == ["a", "c"]
    assert [one.id for one, _ in most_informative(store, 3)] == ["a", "c", "b"]
    sure, unsure = (Predicted("x", "s", "t", p, "words") for p in (0.99, 0.5))
    assert entropy(unsure) > entropy(sure)


def test_a_second_rater_is_asked_about_posts_of_the_first(sample: Store) -> None:
    one = most_informative(sample, 1, "ann")[0][0]
    sample.put_labels([Given(one.id, "ann", "collective-hang")])
    assert one.id not in [two.id for two, _ in most_informative(sample, 40, "ann")]
    sample.query("DELETE FROM labels WHERE rater <> 'ann'")
    assert [two.id for two, _ in most_informative(sample, 40, "ben", second=True)] == [one.id]


def test_the_terminal_takes_numbers_names_none_skip_and_quit(sample: Store) -> None:
    session = Session(sample, "ann", second=False)
    answers = iter(["x", "1", "2", "n", "s", "collective-hang", "", "q"])
    shown: list[str] = []
    in_terminal(session, lambda prompt: next(answers), shown.append)
    given = sample.labels("ann")
    assert session.answered == len(given) == 3
    assert sorted(one.symptom for one in given)[0] == ""
    assert "collective-hang" in [one.symptom for one in given]
    assert any("neither a number" in text for text in shown)
    assert any(one.fix for one in given)


def test_control_characters_of_a_post_do_not_reach_the_terminal(store: Store) -> None:
    store.put_posts([post("a", "hangs \x1b[2J\x07 in allreduce")])
    classify(store, Recipe())
    shown: list[str] = []
    in_terminal(Session(store, "ann", second=False), lambda prompt: "q", shown.append)
    assert shown
    assert "\x1b" not in shown[0]


def test_the_form_in_the_browser_keeps_labels_and_lets_nobody_else_in(sample: Store) -> None:
    sample.query("DELETE FROM labels")
    told: list[str] = []
    ready = threading.Event()

    def say(address: str) -> None:
        told.append(address)
        ready.set()

    session = Session(sample, "ann", second=False)
    thread = threading.Thread(target=webform.serve, args=(session, say), daemon=True)
    thread.start()
    assert ready.wait(20)
    address = told[0]

    def ask(data: dict[str, str] | None = None, url: str = address, **head: str) -> str:
        body = urllib.parse.urlencode(data).encode() if data else None
        with urllib.request.urlopen(urllib.request.Request(url, body, head), timeout=20) as got:
            return str(got.read().decode())

    page = ask()
    assert "What failed?" in page
    first = session.question()
    assert first is not None
    assert "Choose what failed" in ask({"do": "keep", "post": first.post.id})
    ask({"do": "keep", "post": first.post.id, "symptom": "none"})
    assert "has been answered" in ask({"do": "keep", "post": first.post.id, "symptom": "none"})
    second = session.question()
    assert second is not None
    more = {"other": "collective-hang", "fix": "resource-and-memory-tuning", "distributed": "yes"}
    assert "no such fix" in ask({"do": "keep", "post": second.post.id, "other": "collective-hang", "fix": "magic"})
    ask({"do": "keep", "post": second.post.id, **more})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(url=address.rsplit("/", 2)[0] + "/")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(Host="evil.example")
    assert "Your labels are kept" in ask({"do": "quit"})
    thread.join(20)
    found = {one.post: one for one in sample.labels("ann")}
    assert found[first.post.id].symptom == ""
    assert found[second.post.id] == Given(
        second.post.id, "ann", "collective-hang", "", "resource-and-memory-tuning", True
    )


def test_raters_are_compared_over_the_posts_both_have_labelled(store: Store) -> None:
    store.put_labels(
        [
            Given(str(n), "ann", "collective-hang" if n < 4 else "low-throughput", fix="resource-and-memory-tuning")
            for n in range(8)
        ]
    )
    store.put_labels([Given(str(n), "ben", "collective-hang" if n < 5 else "low-throughput") for n in range(9)])
    ((first, second, found),) = agreements(store)
    by_name = {one.what: one for one in found}
    assert (first, second) == ("ann", "ben")
    assert (by_name["symptom"].pairs, by_name["symptom"].agreed) == (8, 7)
    assert by_name["symptom"].kappa == pytest.approx(0.75)
    assert by_name["fix"].pairs == 0


def test_posts_on_which_raters_differ_are_not_learnt(store: Store) -> None:
    store.put_posts([post("a", "hangs"), post("b", "slow"), post("c", "how?")])
    store.put_labels(
        [
            Given("a", "ann", "collective-hang"),
            Given("a", "ben", "low-throughput"),
            Given("b", "ann", "low-throughput"),
            Given("c", "ann", ""),
        ]
    )
    assert [(one.id, symptom) for one, symptom in store.labelled_texts()] == [("b", "low-throughput"), ("c", "")]
    assert recipe_of(store, "words").said == (("low-throughput", "slow"), (NONE, "how?"))


# -- new kinds -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_posts_alike_that_fit_nothing_are_proposed_as_a_group() -> None:
    alike = [(f"flux capacitor {n}", f"the flux capacitor overheats near mark {n % 3} again") for n in range(8)]
    others = [
        (word, f"{word} question about {word}ing things") for word in ("tea", "moss", "kite", "lamp", "rope", "fern")
    ]
    found = clusters(alike + others, least=4)
    assert found
    assert found[0].size >= 6
    assert "flux" in " ".join(found[0].words)
    assert clusters(alike[:3]) == []


# -- quality -------------------------------------------------------------------------------------------------------


def test_macro_f1_counts_rare_labels_as_much_as_common_ones() -> None:
    pairs = [("a", "a")] * 8 + [("b", "a")] * 2
    assert macro_f1(pairs) == pytest.approx((16 / 18) / 2)
    assert macro_f1([("a", "a"), ("b", "b")]) == 1


def quality(split: str, name: str, value: float) -> Quality:
    one = Interval(value, value, value)
    return Quality(split, name, 9, one, one, one, one, None)


@pytest.mark.parametrize(
    ("values", "used"),
    [
        ({"shipped": 0.6, "words": 0.5, "tfidf": 0.4, "majority": 0.1}, "shipped"),
        ({"shipped": 0.6, "words": 0.7, "tfidf": 0.4, "majority": 0.1}, "words"),
        ({"shipped": 0.3, "words": 0.3, "tfidf": 0.4, "majority": 0.1}, "tfidf"),
        ({"shipped": 0.1, "words": 0.1, "tfidf": 0.1, "majority": 0.1}, "majority"),
    ],
)
def test_the_simplest_classifier_that_none_beats_is_used(values: dict[str, float], used: str, store: Store) -> None:
    found = [quality(split, name, value) for split in ("by repository", "by hash") for name, value in values.items()]
    assert choice(found) == used
    assert choose(store, choice(found)) == choose(store) == used


def test_too_few_labels_cannot_be_scored(store: Store) -> None:
    with pytest.raises(ParamedicError, match="too few"):
        score(store.labelled_texts())


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_classifies_proposes_and_compares(tmp_path: Path, capsys: Captured) -> None:
    db = str(tmp_path / "s.duckdb")
    assert main(["study", "fetch", "sample", "--db", db]) == 0
    assert main(["study", "label", "--db", db, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out.split("files\n", 1)[-1])
    assert document["new"] == 36
    assert document["symptoms"]["collective-hang"] >= 3
    assert main(["study", "label", "--db", db, "--next", "2", "--rater", "ann", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["next"]) == 2
    assert main(["study", "label", "--db", db, "--agreement"]) == 2
    assert "--second" in capsys.readouterr().err
    assert main(["study", "label", "--db", db, "--clusters"]) == 0
    assert "fit no symptom" in capsys.readouterr().out
