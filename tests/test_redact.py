"""Secrets never leave; ordinary training lines stay as they are; strangers learn no names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramedic import diagnose
from paramedic import redact as module
from paramedic.redact import Anonymizer, Names, hosts_in, may_hide_something, may_hide_something_each, redact

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq\nQm9vbQ==\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("token hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "hf_AbCd"),
        ("push with ghp_0123456789abcdefghijABCDEFGHIJ012345", "ghp_0"),
        ("github_pat_11ABCDEFG0123456789_abcdefghijklmnop", "11ABC"),
        ("OPENAI sk-proj-abcdefghijklmnopqrstuvwx0123", "abcdefghij"),
        ("key sk-" + "ant-api03-" + "AAAA1" * 9 + " x", "AAAA"),
        ("aws AKIAIOSFODNN7EXAMPLE x", "AKIAIOSF"),
        ("google AIzaSyA1234567890abcdefghijklmnopqrstuv", "AIzaSy"),
        ("oauth ya29.a0AfH6SMBxabcdefghijklmnop", "a0AfH6"),
        ("slack xoxb-123456789012-abcdefghij", "123456789012"),
        ("https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX", "B00000000"),
        (f"jwt {JWT}", "eyJhbG"),
        ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghij"),
        ("pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw glpat-abcdefghij0123456789", "AgEIc"),
        ("glpat-abcdefghij0123456789", "abcdefghij"),
        (PEM, "MIIEp"),
        (f"before\n{PEM}\nafter", "Qm9v"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq", "MIIEp"),
        ("MIIEpAIBAAKCAQEAxAb3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3", "MIIEp"),
        ("Authorization: Bearer abcdef0123456789", "abcdef0123"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', "dXNlcjpw"),
        ("authorization=abcdef0123", "abcdef"),
        ("curl -H bearer abcdef0123456789", "abcdef0123"),
        ("password=hunter2x", "hunter2x"),
        ("DB_PASSWORD: 'hunter2x'", "hunter2x"),
        ('"passwd": "hunter2x"', "hunter2x"),
        ("client_secret = s3cr3tvalue", "s3cr3tvalue"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("wandb: API key: 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrX"),
        ("AWS_ACCESS_KEY_ID=ABCDEFGHIJ", "ABCDEFGHIJ"),
        ("AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50==;", "Eby8v"),
        ("HF_TOKEN=abcdef0123456789", "abcdef0123"),
        ("auth_token: 'a1b2c3d4e5'", "a1b2c3d4e5"),
        ("AWS_SESSION_TOKEN=IQoJb3JpZ2luX2VjEHoaCXVzLWVhc3QtMSJH", "IQoJb3"),
        ("postgres://user:pa55word@db/x", "pa55word"),
        ("redis://:pa55word@cache:6379", "pa55word"),
        ("https://bucket/x?X-Amz-Signature=abcdef0123456789&y=1", "abcdef0123"),
        ("https://acc.blob/x?sv=1&sig=abc%2Bdef0123456", "abc%2B"),
        (r'body: "{\"api_key\": \"s3cr3tvalue\"}"', "s3cr3tvalue"),
        (r'body: "{\"password\": \"hunter2x\", \"a\": 1}"', "hunter2x"),
        (r'"{\\\"auth_token\\\": \\\"abcdef0123456\\\"}"', "abcdef0123"),
        ("train.py --password hunter2x --lr 1", "hunter2x"),
        ("train.py --db-password 'hunter2x'", "hunter2x"),
        ("['train.py', '--password', 'hunter2x']", "hunter2x"),
        ("train.py --api-key abcdefghij", "abcdefghij"),
        ("train.py --token abcdefghij --lr 1", "abcdefghij"),
        ("train.py --hf-token abcdefghij", "abcdefghij"),
        ("GET /x?password%3Dhunter2x", "hunter2x"),
        ("git clone https://abcdefghijABCDEFGHIJ@github.com/a/b", "abcdefghij"),
        ("git clone https://x0123456789@github.com/a/b", "x0123456789"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("wandb login --relogin 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("Cookie: session=abcd; other=efgh", "efgh"),
        ("'Set-Cookie': 'session=abcd'", "abcd"),
        ("DB_PWD=hunter2x", "hunter2x"),
        ("Server=x;Pwd=hunter2x;", "hunter2x"),
        ("MYSQL_PASS=hunter2x", "hunter2x"),
        ("db_pass: hunter2x", "hunter2x"),
        ("passphrase=hunter2x", "hunter2x"),
        ("password=b'hunter2x'", "hunter2x"),
        ('password: "./hunter2x"', "hunter2x"),
        ("postgres://u:p4ss@w0rd@host/x", "w0rd"),
        ('os.environ["DB_PASSWORD"] = "hunter2x"', "hunter2x"),
        ("config['api_key'] = 'abcdefghij'", "abcdefghij"),
        ("worker_ghp_abcdefghij0123456789", "ghp_abcdefghij"),
        ("step_hf_abcdefghij0123456789_1", "hf_abcdefghij"),
        ("x_AKIAABCDEFGHIJKLMNOP_y", "AKIAABCDEFGH"),
        ("job_https://u:hunter2x@host/x", "hunter2x"),
        ("x_Authorization: Bearer abcdef0123456789", "abcdef0123"),
    ],
)
def test_every_kind_of_secret_is_taken_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert "[redacted]" in redact(text)


@pytest.mark.parametrize(
    "line",
    [
        "tokens: 12345", "num_tokens=2048", "tokenizer loaded", "eos_token=</s>", "token_type_ids: tensor([0, 0])",
        "secret_santa", "max_new_tokens: 512", "bos_token_id=1", "pad_token: <|endoftext|>", "mask_token=[MASK]",
        "consumed_tokens: 3.1e+11 tokens/s: 12.5k/s", "tokens = 1234567.5M", "token: 1.2e+09", "token=hello",
        "use_auth_token=True", "token=None, revision=main", "password authentication failed for user x",
        "KeyError: 'token'", "TypeError: f() got an unexpected keyword argument 'api_key'", "loss 0.3 secret: None",
        "credentials: ~/.aws/credentials", "git commit 0123456789abcdef0123456789abcdef01234567",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "tcp://10.0.0.1:29500",
        "[rank0]: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "/opt/sk-learn-contrib-something-long/x",
        "https://pytorch.org/docs/stable/elastic/errors.html", "step 100 | lr: 3.0e-4 | key: value", "asian_fonts ghost",
        "NCCL INFO comm 0x55d0 rank 0 nranks 8 cudaDev 0 busId 1b000 commId 0x9a4c2b1f", "token=[redacted]",
        "generated token: Paris", "tokens_per_second=1.2e5", "x" * 70, "0" * 64,
        "usage: train.py [--token TOKEN] [--password PASSWORD] [--hf-token HF_TOKEN]", "PWD=/data/run7 OLDPWD=/data/run6",
        "error: --password is required and --token must be given", "forward_pass: 12.5ms backward_pass=0.123ms",
        "--eos-token </s> --max-new-tokens 512 --tokenizer-path meta/llama", "ssh://git@github.com/a/b", "--token $HF_TOKEN",
        "[rank0]: /opt/Projects/LLaMA2/checkpoints/epoch00000000012/shard00000000000000000001", "cookie jar is empty: cookies=5",
        "wandb login required", "--secret --password --api-key",
        "[rank0]: sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "=" * 70, "next_token: 1234567890",
    ],
)  # fmt: skip
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert redact(line) == line


def test_what_stands_around_a_secret_stays() -> None:
    assert redact("a token=abc123def456, b") == "a token=[redacted], b"
    assert redact("db://u:pw@h/p and password: 'pa55word'!") == "db://u:[redacted]@h/p and password: '[redacted]'!"


BODY = "MIIEpAIBAAKCAQEAxAb3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3Ab3"
BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("front", ["", "[rank0]: ", "3: ", "[default0]:", "2026-11-15 02:25:07 INFO | ", "  "])
def test_a_part_of_a_private_key_is_known_behind_any_prefix(front: str) -> None:
    def lines(*texts: str) -> str:
        return "\n".join(front + text for text in texts)

    for text in (
        lines(BODY),
        lines(BODY, BODY),
        lines(BODY, "Ab3Ab3Qm9="),
        lines(BODY, "Qm9v"),
        lines(BODY, "Qm9v", END),
    ):
        assert "Ab3" not in redact(text) and "Qm9" not in redact(text)
        assert redact(text).startswith(front + "[redacted]")
    assert "Qm9v" not in redact(lines("Qm9v", END))
    assert "Ab3" not in redact(lines(BEGIN, BODY, BODY, "Ab3=", END))
    assert redact(lines(BODY, "step 100", "Qm9v")) == lines("[redacted]", "step 100", "Qm9v"), "what follows it stays"


words = st.sampled_from(
    [
        "", " ", "\n", "password", "token", "secret", "api_key", "=", ":", "'", '"', "Bearer ", "authorization", "hf_", "sk-", "eyJ",
        ".", "://", "@", "?", "&", "sig=", "key=", "[redacted]", "None", "abc123def456", "AKIA", "PRIVATE KEY", "-----", "BEGIN ",
        "END ", "x", "10.0.0.1", "/home/alice", "a@b.co", "fe80::1", "node-1", "12:30:01",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(words | st.text(max_size=30), max_size=30).map("".join))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
    assert once.count("\n") <= text.count("\n")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.lists(words | st.text(max_size=30), max_size=10).map("".join), max_size=4))
def test_where_nothing_may_hide_there_is_nothing_to_redact(texts: list[str]) -> None:
    assert may_hide_something("\n".join(texts)) or [redact(text) for text in texts] == texts


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.lists(words | st.text(max_size=30), max_size=10).map("".join), max_size=4))
def test_many_texts_are_asked_about_at_once_and_each_gets_its_own_answer(texts: list[str]) -> None:
    assert list(may_hide_something_each(texts)) == [may_hide_something(text) for text in texts]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.lists(words | st.sampled_from(["key_id", "key-", "\u3000", "\t", "%3A", "\\", "ghp_", "gh"]), max_size=10).map(
        "".join
    )
)
def test_longer_words_miss_nothing_that_the_hints_find(text: str) -> None:
    low = text.casefold()
    hinted = {word for word, hint in module._HINTS.items() if hint.search(low)}
    assert hinted <= module._present(low)


PATTERNS = [value for value in vars(module).values() if isinstance(value, re.Pattern)]
PATTERNS += [pattern for _, pattern in module._SECRETS]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.pattern[:40])
def test_no_pattern_repeats_without_bound(pattern: re.Pattern[str]) -> None:
    """So that no string makes one of them scan far more than once for each character."""
    if pattern is not module._LIKE_A_HOST:  # only ever sees names
        assert not re.search(r"(?<!\\)[*+](?![^\[]*\])", pattern.pattern.replace("\\*+", "")), pattern.pattern


@pytest.mark.parametrize(
    "piece",
    ["password=", "token:", "a.", "eyJ", "://a:", "-----BEGIN PRIVATE KEY-----", "authorization: ", "Bearer ", "sk-", "1:", "@a.",
     "/home/", "x.", "?sig=", "api key ", "9.", "::", "A", "a-", "host=", "[rank0]: "],
)  # fmt: skip
def test_long_hostile_strings_are_survived(piece: str) -> None:
    text = (piece * 200_000)[:200_000]
    Anonymizer(("node-1",))(text)
    hosts_in([text])


def test_names_and_places_become_stand_ins_that_stay_the_same() -> None:
    anonymous = Anonymizer(("gpu-node-07", "gpu-node-07.example.org", "hercules"))
    text = "/home/alice/x.py on gpu-node-07 (10.1.2.3) to hercules [10.1.2.3]:29500, bob@corp.example.org, /Users/alice"
    assert anonymous(text) == (
        "/home/user-2/x.py on host-1 (198.18.0.1) to host-2 [198.18.0.1]:29500, user-1@example.com, /Users/user-2"
    )
    assert anonymous("gpu-node-07.example.org, gpu-node-071 and /home/alice") == "host-3, gpu-node-071 and /home/user-2"
    assert anonymous("fe80::1ff:fe23:4567:890a and 2620:0:2d0:200::7") == "2001:db8::1 and 2001:db8::2"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-15 02:25:07,733 INFO x", "E603 17:48:01.005271823 x.cpp:632]", "127.0.0.1 ::1 0.0.0.0 localhost",
        "torch==2.13.0.1", "v1.2.3.4", "a:b:c at c10::Error std::bad_alloc", "999.999.999.999", "12:30:01",
        "00:1b:44:11:3a:b7 is no IPv6", "[rank0]: ValueError: x",
    ],
)  # fmt: skip
def test_times_versions_and_loopback_are_no_addresses(line: str) -> None:
    assert Anonymizer(())(line) == line


NAMES = [
    "10.0.0.1",
    "/home/alice",
    "/Users/bob/x",
    "a.b@c.co",
    "fe80::1",
    "node-1",
    "12:30:01",
    "user=carol",
    "::1",
    "USER: dan",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(NAMES) | st.text(alphabet="a1.:/@-= ", max_size=20), max_size=20).map(" ".join))
def test_anonymizing_twice_changes_nothing_more(text: str) -> None:
    anonymous = Anonymizer(("node-1",))
    once = anonymous(text)
    assert anonymous(once) == once


def test_host_names_are_found_where_only_hosts_stand() -> None:
    lines = [
        "worker-a7:4711:4712 [0] NCCL INFO x",
        "  host      : node-03.cluster",
        "srun: error: gpu12: task 3: Exited with exit code 1",
        "slurmstepd: error: *** STEP 123.0 ON dgx-5 CANCELLED AT x",
        "MASTER_ADDR=head-node-1",
        "connecting to ip-10-1-2-3.ec2.internal:29500",
        "host: 3",
        "node: failed",
        "host = None",
        "host: 10.0.0.1",
    ]
    assert hosts_in(lines) == {
        "worker-a7",
        "node-03.cluster",
        "gpu12",
        "dgx-5",
        "head-node-1",
        "ip-10-1-2-3.ec2.internal",
    }


def test_a_name_once_learned_goes_everywhere() -> None:
    anonymous = Anonymizer()
    anonymous.learn(
        ["cd /home/alice/x", "USER=bobby", "mail carol@corp.io", "GET http://store7:80/x and db://u:p@dbserver/y"]
    )
    text = "alice, bobby's and carol (alice.log) at store7.lan, dbserver"
    shown = anonymous(text)
    assert not re.search("alice|bobby|carol|store7|dbserver", shown)
    assert shown == "user-1, user-2's and user-3 (user-1.log) at host-1.lan, host-2"
    assert anonymous("/home/alice alicet malice") == "/home/user-1 alicet malice"
    assert anonymous(shown) == shown


def test_common_words_and_public_places_are_no_names() -> None:
    anonymous = Anonymizer()
    line = "train data root user localhost ubuntu https://github.com/a https://huggingface.co/b http://localhost:80/ file:///x"
    anonymous.learn(
        [line, "/home/train /home/data /home/root /Users/user /home/ubuntu", "https://docs.pytorch.org/x 10.0.0.1"]
    )
    assert anonymous(line) == line
    assert anonymous("docs.pytorch.org") == "docs.pytorch.org"


def test_thousands_of_names_that_look_the_same_are_told_apart() -> None:
    names = Names()
    shown = [names(f"token=ghp_{number:036d}.log") for number in range(20_000)]
    assert len(set(shown)) == len(shown)
    assert shown[:2] == ["token=[redacted].log", "token=[redacted].log~2"]


def test_empty_lines_behind_a_key_do_not_take_it_apart(tmp_path: Path) -> None:
    """They look like the newlines of processes that wrote at once, and `--` like the beginning of each of their lines."""
    key = "sk-proj-7vAccTJxkJURcDoPWVnvLqz69fidxUkDvaAXKddAY"
    (tmp_path / "job.log").write_text(f"--load_best_model_at_end requires OPENAI_API_KEY: {key}\n" + "\n" * 16, "utf-8")
    report = diagnose(tmp_path / "job.log")
    assert not any(key[-16:] in event.text for event in report.run.events)
