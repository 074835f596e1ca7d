"""Posts of trackers and forums: told from logs, taken apart, and what they sound like."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic import diagnose, run_folder
from paramedic.collect.posts import LONGEST, post_in
from paramedic.knowledge.wordings import NONE
from paramedic.model import Report

HERE = Path(__file__).parent
POSTS = [
    (one.partition("\n")[0].split(), one.partition("\n")[2].strip())
    for one in (HERE / "posts_of_strangers.txt").read_text("utf-8").split("%%% ")[1:]
]
"""By an author who knew nothing of the rules or of what is learnt: acceptable symptoms, and the text."""

pytestmark = pytest.mark.usefixtures("rules_loaded_once")

FORM = """[BUG] Loss becomes NaN with two machines

### Describe the bug
I train a small model and after some hundred steps the loss is nan. One machine is fine.

- [x] I have searched the existing issues

**Environment**
- OS: Ubuntu 22.04
- CUDA version: 11.8, nvcc cannot be found
- PyTorch version: 2.1

```
[rank0]: step 100 loss nan
```
![image](https://example.org/x.png)
"""


def told(text: str, tmp_path: Path) -> Report:
    (tmp_path / "post.md").write_text(text, "utf-8")
    return diagnose(tmp_path / "post.md")


def test_a_post_is_its_title_what_is_said_and_what_is_quoted() -> None:
    post = post_in(FORM)
    assert post is not None
    assert post.title == "Loss becomes NaN with two machines"
    assert "after some hundred steps" in post.said
    assert "step 100 loss nan" in post.quoted
    assert not {"nvcc", "searched", "Ubuntu", "example.org"} & set(
        f"{post.words} {post.quoted}".replace(",", " ").split()
    )


@pytest.mark.parametrize(
    "log",
    [
        "2026-01-01 10:00:00 INFO starting the training on 8 gpus\nstep 1 loss 0.3\nstep 2 loss 0.2\n",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\nOur suggested max is 4\n",
        "#!/bin/bash\n# run me on both nodes\nsrun python train.py\n",
        "(ml) ana@box:~/job$ ./run.sh\nHello from rank 0, I am ready\n",
        "Some weights were not used when initializing the model\nYou are using a model of another type. We recommend this.\n",
        "GPU available: True, used: True\nWe need at least 4 workers here.\n",
        "{\nmodel: x\n}\n",
        "",
    ],
)
def test_what_a_program_prints_is_no_post(log: str) -> None:
    assert post_in(log) is None


def test_no_text_takes_long_or_breaks_it() -> None:
    for part in ("[a]\n", "#", "<img ", "version ", "**A", "(x) ", "我", "I have ", "### A\n", "?", "[", "- [ ] "):
        post_in((part * LONGEST)[:LONGEST])


def test_a_request_for_a_feature_is_no_failure(tmp_path: Path) -> None:
    text = "[Feature request] resume the position of the loader\n\n### Feature request\n\nPlease let a resume skip nothing.\n"
    report = told(text, tmp_path)
    assert (report.verdict, report.findings) == (None, ())


def test_an_error_in_the_title_is_not_before_what_stands_below_it(tmp_path: Path) -> None:
    quoted = "[rank2]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
    text = f"RendezvousConnectionError at the end of the first epoch\n\nI get this on two nodes:\n\n```\n{quoted} to complete\n```\n"
    report = told(text, tmp_path)
    assert report.verdict is not None
    assert report.verdict.symptom == "collective-hang"


def test_a_post_in_chinese_is_heard(tmp_path: Path) -> None:
    report = told(
        "多机训练时 loss 不下降\n\n我用两台机器训练，loss 一直不下降，单机是正常的，请问是什么原因？\n", tmp_path
    )
    assert report.findings
    assert report.findings[0].symptom == "non-convergence"


def test_share_of_strangers_posts_that_are_recognised(tmp_path: Path) -> None:
    """docs/diagnose.md has these figures: run with -s to see them."""
    right = among = sure = 0
    accused = []
    failing = [(symptoms, text) for symptoms, text in POSTS if symptoms != [NONE]]
    for symptoms, text in POSTS:
        report = told(text, tmp_path)
        if symptoms == [NONE]:
            accused += [text.partition("\n")[0]] * (report.verdict is not None)
            continue
        first = report.findings[0].symptom if report.findings else None
        right += report.verdict is not None and report.verdict.symptom in symptoms
        sure += report.verdict is not None
        among += first in symptoms
    print(f"{len(failing)} posts: verdicts {sure}, right {right}, named first {among}; accused {len(accused)} of 8")
    assert len(failing) == 40
    assert right >= 0.7 * len(failing)
    assert right >= 0.85 * sure
    assert len(accused) <= 2


def test_a_post_with_a_traceback_that_says_nothing_is_still_heard(tmp_path: Path) -> None:
    cut = 'Traceback (most recent call last):\n  File "/home/ana/train.py", line 12, in <module>\n    main()\n  File "/opt/lib/x.p'
    text = f"Sizes of tensors do not match in the loss when I use the pipeline\n\nI get this:\n\n```\n{cut}\n```\n"
    report = told(text, tmp_path)
    assert report.verdict is not None
    assert report.verdict.symptom == "tensor-shape-or-dtype-mismatch"


def test_a_sentence_in_bold_type_is_no_heading() -> None:
    post = post_in("多卡训练报 NCCL Timeout\n\n**用单机多卡全量微调，epoch 走到 1 的时候就报错**\n")
    assert post is not None
    assert "报错" in post.said


def test_the_ranks_that_a_post_speaks_of_are_in_its_recording(tmp_path: Path) -> None:
    report = told("it hangs on rank 3 only, after the first epoch on 2 nodes", tmp_path)
    run_folder.write(report.run, tmp_path / "run")
    again = run_folder.read(str(tmp_path / "run"))
    assert again.events == report.run.events
    assert [event.fields["accused"] for event in again.of_kind("description")] == [[3]]
