"""Takes secrets out of text before it is written anywhere, and, for strangers' eyes, names and places too."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cache

from paramedic.prefilter import Prefilter

_MARK = "[redacted]"
Redactor = Callable[[str], str]

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]{0,20}PRIVATE KEY-----")
_MAX_KEY = 16_000
_MOST_ROUNDS = 8
_FRONT = r"(?<![A-Za-z0-9])"
"""Other than a boundary of words it is also behind `_`: names of files and streams are put together with it."""
_END = r"(?![A-Za-z0-9_-])"
_VALUE = r"(?:[^\s'\",;&)\\]|\\(?!['\"]))"
# Between a name and its value: `=`, `": "`, `"] = "`, the same escaped inside another text, `%3D` in an address, `=b'`.
_IS = r"(?:\\{0,3}['\"]\]?)?\s{0,3}(?:[=:]|%3[ADad])\s{0,3}(?:[BbRrUu]{0,2}\\{0,3}['\"])?"
_PLAIN = (
    r"(?!(?:is|was|are|and|or|not|no|must|may|can|to|for|from|with|has|if|needs?|requires?|required|expects?|given"
    r"|value)\b)"
)
_PLACE = r"(?!(?:[A-Z]{1,12}_)?(?:PASSWORD|PASSWD|PASSPHRASE|TOKEN|KEY|SECRET)\b)"
_NOTHING = r"(?!(?:None|null|True|False|true|false|\*+)\b|\[redacted\])"

# Each pattern keeps what comes before the secret (group 1) so that the line stays readable. The words before it say,
# in lower case, whether a line can have it at all. Every repetition is bounded: hostile lines cost linear time.
_SECRETS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        (("hf_", "api_org_"), rf"(){_FRONT}(?:hf|api_org)_[A-Za-z0-9]{{20,200}}"),
        (
            ("gh", "github_pat_"),
            rf"(){_FRONT}gh[pousr]_[A-Za-z0-9]{{20,255}}|{_FRONT}github_pat_[A-Za-z0-9_]{{20,255}}",
        ),
        (("sk-",), rf"(){_FRONT}sk-(?=[A-Za-z_-]{{0,60}}[0-9])[A-Za-z0-9_-]{{20,255}}{_END}"),
        (("akia", "asia"), rf"(){_FRONT}(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
        (("aiza", "ya29."), rf"(){_FRONT}AIza[A-Za-z0-9_-]{{30,100}}|{_FRONT}ya29\.[A-Za-z0-9_-]{{20,400}}"),
        (("xox",), rf"(){_FRONT}xox[abeprs]-[A-Za-z0-9-]{{10,255}}"),
        (("hooks.slack.com",), r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]{10,200}"),
        (("eyj",), rf"(){_FRONT}eyJ[A-Za-z0-9_-]{{10,4000}}\.[A-Za-z0-9_-]{{10,8000}}\.[A-Za-z0-9_-]{{5,2000}}"),
        (
            ("npm_", "pypi-", "glpat-"),
            rf"(){_FRONT}npm_[A-Za-z0-9]{{30,100}}|{_FRONT}(?:pypi|glpat)-[A-Za-z0-9_-]{{15,400}}",
        ),
        (
            ("authorization",),
            rf"(?i)({_FRONT}authorization{_IS}(?:(?:bearer|basic|token|digest)\s{{1,3}})?)[^\s'\",]{{6,8000}}",
        ),
        (("bearer",), rf"(?i)({_FRONT}bearer\s{{1,3}})[A-Za-z0-9._~+/=-]{{12,8000}}"),
        (
            ("passw", "passphrase"),
            rf"(?i)((?:passwd|password|passwort|passphrase)s?{_IS})"
            rf"{_NOTHING}(?![<\[])(?={_VALUE}{{0,200}}[A-Za-z0-9]){_VALUE}{{4,400}}",
        ),
        (
            ("secret", "credential"),
            rf"(?i)((?:secret|secret_?key|credential)s?{_IS})"
            rf"{_NOTHING}(?![~./<\[])(?={_VALUE}{{0,200}}[A-Za-z0-9]){_VALUE}{{4,400}}",
        ),
        (  # `PWD` alone is a folder, and `forward_pass` a part of a step
            ("_pass", "_pw", "pwd="),
            r"((?:[A-Z0-9]_(?:PASS|PWD|PW)|(?<![A-Za-z])[Pp]wd(?==)|(?:db|sql|pg|postgres|redis|smtp|ftp|mongo|admin|root"
            rf"|user|ldap|ssh|login)_(?:pass|pwd|pw)){_IS}){_NOTHING}(?![~./<\[])(?={_VALUE}{{0,200}}[A-Za-z]){_VALUE}{{4,400}}",
        ),
        (
            ("--",),
            r"(?i)(--(?:[a-z0-9]{1,20}[_-]){0,4}(?:passwd|password|passphrase|secret|(?:api|access|secret|private)[_-]?key)"
            rf"['\"]?,?\s{{1,3}}['\"]?){_NOTHING}{_PLAIN}(?-i:{_PLACE})(?![-<\[$])(?={_VALUE}{{0,200}}[A-Za-z0-9]){_VALUE}{{4,400}}",
        ),
        (
            ("--",),
            r"(?i)(--(?:(?:hf|hub|auth|access|api|wandb|github|gitlab|bot|user|session|bearer|vault)[_-]){0,3}token"
            rf"['\"]?,?\s{{1,3}}['\"]?){_NOTHING}{_PLAIN}(?-i:{_PLACE})(?![-<\[$./~]){_VALUE}{{6,400}}",
        ),
        (
            ("wandb",),
            rf"({_FRONT}wandb['\",\s]{{1,4}}login['\",\s]{{1,4}}(?:--?[a-z-]{{1,20}}(?:=\S{{1,100}})?['\",\s]{{1,4}}){{0,3}})[A-Za-z0-9_-]{{20,120}}",
        ),
        (
            ("cookie",),
            rf"(?i)({_FRONT}cookie{_IS}){_NOTHING}(?=[^\s=;'\"]{{1,100}}=)[^\n'\"]{{4,4000}}",
        ),
        (
            ("key",),
            r"(?i)((?:api|access|private|account|secret|encryption|signing)[_ -]?(?:access[_ -]?)?key(?:[_ -]?id)?"
            rf"{_IS}){_NOTHING}(?![~./<\[])(?={_VALUE}{{0,200}}[A-Za-z]){_VALUE}{{6,400}}",
        ),
        (  # `token` is also what a model reads: only a value that looks made by a machine is a secret
            ("token",),
            rf"(?i)(token{_IS}){_NOTHING}"
            r"(?=[A-Za-z0-9_./+=~-]{0,60}[0-9])(?=[0-9_./+=~-]{0,60}[A-Za-z])(?![0-9.]{1,12}(?:e[+-]?[0-9]{1,3}|[KMBTkmbt])\b)"
            rf"[A-Za-z0-9_./+=~-]{{8,4000}}{_END}",
        ),
        (("@",), r"([A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s/:@]{0,64}:)[^\s/]{1,256}(?=@)"),
        (("@",), r"(https?://)(?=[^\s/:@]{20}|[^\s/:@]{0,60}[0-9])[^\s/:@]{8,256}(?=@)"),
        (
            ("sig", "token=", "key="),
            r"(?i)([?&](?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature"
            r"|x-goog-credential|access_token|token|key)=)[^&\s\"']{8,4000}",
        ),
    )
)
_NONE: frozenset[str] = frozenset()
# Words that logs are full of are looked at more closely, still in lower case: `tokens/s` and `weight` hide nothing.
_HINTS = {
    word: re.compile(pattern)
    for word, pattern in (
        ("token", rf"token{_IS}"),
        ("key", rf"key(?:[_ -]?id)?{_IS}"),
        ("gh", r"gh[pousr]_"),
        ("--", r"--(?:[a-z0-9]{1,20}[_-]){0,4}(?:pass|secret|token|api|access|private)"),
    )
}
# So that most such words are never found, they are looked for with the character behind them that those patterns want.
_WHITE = "".join(filter(str.isspace, map(chr, range(0x3001))))
_BEFORE_VALUE = "\\'\"=:%" + _WHITE
_LONGER = {
    "token": tuple(f"token{after}" for after in _BEFORE_VALUE),
    "key": tuple(f"key{after}" for after in "_-i" + _BEFORE_VALUE),
    "gh": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
}
# The middle of a private key whose first line is elsewhere: base64 as wide as PEM writes it, perhaps behind a prefix.
_KEY_BODY = re.compile(
    r"(?<![A-Za-z0-9+/=_.-])(?=[A-Za-z0-9+/]{0,75}[a-z])(?=[A-Za-z0-9+/]{0,75}[A-Z])(?=[A-Za-z0-9+/]{0,75}[0-9+/])"
    r"(?!(?:/[A-Za-z0-9+]{1,40}){4})[A-Za-z0-9+/]{64,76}={0,2}(?=\s{0,4}\Z)"
)
_KEY_REST = re.compile(r"(?<![^\s\]:|>])[A-Za-z0-9+/]{1,76}={0,2}(?=\s{0,4}\Z)")
_DIGITS = re.compile(r"[0-9]{1,20}")
_WIDEST = 90


def redact(text: str) -> str:
    """Replaces tokens, keys and passwords by `[redacted]`; everything else stays as it is. What comes out is clean:
    what a recording holds is redacted once more where it is read, and stays the same."""
    clean = _redact_once(text)
    for _ in range(_MOST_ROUNDS if clean != text else 0):
        text, clean = clean, _redact_once(clean)
        if clean == text:
            break
    return clean


def clipped(text: str, most: int) -> str:
    """Redacted and cut. A cut may leave what looks like a secret, so what is left is redacted, too."""
    clean = redact(text)
    while len(clean) > most:
        clean = redact(_cut(clean, most))
    return clean


def clipped_lines(lines: Sequence[str], most: int) -> list[str]:
    """The same for lines that follow each other: secrets may span them."""
    clean = redact("\n".join(lines)).split("\n") if lines else []
    while any(len(line) > most for line in clean):
        clean = redact("\n".join([_cut(line, most) for line in clean])).split("\n")
    return clean


def _cut(text: str, most: int) -> str:
    """Not within a mark: a part of one would be taken for a secret."""
    mark = text.find(_MARK, max(most - len(_MARK) + 1, 0), most + len(_MARK) - 1)
    return text[: most if mark < 0 else mark]


def _redact_once(text: str) -> str:
    if not may_hide_something(text):
        return text
    key = "PRIVATE KEY" in text
    if key:
        text = "".join(_without_private_keys(text))
    if "\n" not in text:
        return _redact_line(text)
    lines = text.split("\n")
    return "\n".join(_without_key_ends([_redact_line(line) for line in lines], lines, key))


def may_hide_something(text: str) -> bool:
    """What is true of one of several texts is true of all of them together."""
    return bool(_present(text.casefold())) or "PRIVATE KEY" in text or _may_end_a_key(text)


def may_hide_something_each(texts: Sequence[str]) -> Iterator[bool]:
    """The same of each of many short texts, for far less than asking one by one."""
    low = [text.casefold() for text in texts]
    for text, folded, found in zip(texts, low, _matcher(once=False).literals_in_each(low), strict=True):
        yield (bool(found) and bool(_told(found, folded))) or "PRIVATE KEY" in text or _may_end_a_key(text)


def _without_key_ends(clean: list[str], lines: list[str], key: bool) -> list[str]:
    """The last line of a key is short: it stands behind a wide one, or before the line that says that a key ends."""
    for at in range(1, len(lines)):
        if clean[at - 1].endswith(_MARK) and (body := _key_body(lines[at - 1])) is not None:
            clean[at] = _without_rest(clean[at], lines[at - 1][: body.start()])
        if key and (end := _KEY_ENDS.search(lines[at])) is not None:
            clean[at - 1] = _without_rest(clean[at - 1], lines[at][: end.start()])
    return clean


def _without_rest(line: str, front: str) -> str:
    """Only where the same prefix stands before it: then the same process wrote it, and nothing else."""
    rest = _KEY_REST.search(line, max(len(line) - _WIDEST, 0))
    if rest is None or _DIGITS.sub("0", line[: rest.start()]).strip() != _DIGITS.sub("0", front).strip():
        return line
    return line[: rest.start()] + _MARK


def _key_body(line: str) -> re.Match[str] | None:
    return _KEY_BODY.search(line, len(line) - _WIDEST if len(line) > _WIDEST else 0) if len(line) >= 64 else None


def _without_private_keys(text: str) -> Iterator[str]:
    """Each key goes from its first line to its last; where that is missing, all that could still be key goes."""
    at = 0
    ends = [found.end() for found in _KEY_ENDS.finditer(text)]
    ends.reverse()
    for begin in _KEY_BEGINS.finditer(text):
        if begin.start() < at:
            continue
        while ends and ends[-1] < begin.end():
            ends.pop()
        yield text[at : begin.start()] + _MARK
        at = begin.end() + _MAX_KEY if not ends or ends[-1] > begin.end() + _MAX_KEY else ends[-1]
    yield text[at:]


def _present(low: str) -> Set[str]:
    """The words before secrets that stand in a text of lower case, and do stand as they do before one."""
    found = _matcher(once=True).literals_in(low)
    return _told(found, low) if found else _NONE


def _told(found: Iterable[str], low: str) -> Set[str]:
    words = {word for literal in found for word in _words_of()[literal]}
    return {word for word in words if word not in _HINTS or _HINTS[word].search(low)}


@cache
def _words_of() -> dict[str, set[str]]:
    """Which words before secrets each literal stands for that is looked for."""
    words_of: dict[str, set[str]] = {}
    for word in {word for words, _ in _SECRETS for word in words}:
        for literal in _LONGER.get(word, (word,)):
            words_of.setdefault(literal, set()).add(word)
    return words_of


@cache
def _matcher(once: bool) -> Prefilter:
    return Prefilter(_words_of(), once)


def _may_end_a_key(text: str) -> bool:
    """Whether some line ends in a run without spaces that is as wide as PEM writes it."""
    for line in text.split("\n"):  # noqa: SIM110 -- `any` would take half as long again, on every line
        if len(line) >= 64 and " " not in line.rstrip()[-64:]:
            return True
    return False


def _redact_line(line: str) -> str:
    present = _present(line.casefold())
    if present:
        for words, pattern in _SECRETS:
            if not present.isdisjoint(words):
                line = pattern.sub(_keep_front, line)
    body = _key_body(line)
    return line if body is None else line[: body.start()] + _MARK


def _keep_front(found: re.Match[str]) -> str:
    return (found[1] or "") + _MARK


class Names:
    """A file's name for people. A secret in it is taken out, and two names that then look the same are told apart."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def __call__(self, raw: str) -> str:
        clean = name = redact(raw)
        if clean == raw:
            return raw
        while name in self._taken:
            self._taken[clean] += 1
            name = f"{clean}~{self._taken[clean]}"
        self._taken[name] = 1
        return name


class Anonymizer:
    """Also replaces users, hosts and addresses, each always by the same stand-in of the same shape, so that a bundle
    stays readable and every rule still recognises its lines."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        known = sorted((re.escape(h) for h in set(hosts) if len(h) > 1), key=lambda name: (-len(name), name))
        self._learned: dict[str, str] = {}
        self._hosts = re.compile(rf"(?<![\w.-])(?:{'|'.join(known)})(?![\w-])") if known else None

    def __call__(self, text: str) -> str:
        text = redact(text)
        if "@" in text:
            text = _MAIL.sub(lambda m: f"{self._name('user', m[1])}@example.com", text)
        if "/" in text or "\\" in text:
            text = _HOME.sub(lambda m: m[1] + self._name("user", m[2]), text)
        text = _USER.sub(lambda m: m[1] + self._name("user", m[2]), text)
        text = _IPV4.sub(self._ipv4, text)
        if "::" in text or text.count(":") >= 7:
            text = _IPV6.sub(self._ipv6, text)
        text = self._hosts.sub(lambda m: self._name("host", m[0]), text) if self._hosts else text
        if self._learned:
            text = _TOKEN.sub(self._token, text)
        return redact(text)  # a stand-in may be longer than the name, and then look like a secret

    def learn(self, texts: Iterable[str]) -> None:
        """Names that stand once where only a user's or a host's name stands; from then on they go wherever they are."""
        for text in texts:
            for kind, pattern in _NAMED:
                for found in pattern.finditer(text):
                    self._learn(kind, found[found.lastindex or 0])
            for name in hosts_in((text,)):
                self._learn("host", name)

    def _learn(self, kind: str, name: str) -> None:
        name = name.strip(".-")
        known = len(self._learned) >= _MOST_NAMES or name in self._learned or _STAND_IN.fullmatch(name)
        if known or len(name) < 3 or not _NAME_LIKE.match(name) or name.lower() in _COMMON or _address(name):
            return
        if kind == "host" and _PUBLIC.search(name.lower()):
            return
        self._learned[name] = kind

    def _token(self, found: re.Match[str]) -> str:
        token = found[0]
        bare = token.rstrip(".-")
        if (kind := self._learned.get(bare)) is not None:
            return self._name(kind, bare) + token[len(bare) :]
        if "." not in token:
            return token
        parts = token.split(".")
        return ".".join(self._name(self._learned[part], part) if part in self._learned else part for part in parts)

    def _name(self, kind: str, value: str) -> str:
        return value if value.startswith(f"{kind}-") else self._stand_in(kind, value, lambda n: f"{kind}-{n}")

    def _ipv4(self, found: re.Match[str]) -> str:
        address = _address(found[0])
        if address is None or address.is_loopback or address.is_unspecified or int(address) in _BENCHMARK_NET:
            return found[0]
        first = _BENCHMARK_NET.start
        return self._stand_in("ipv4", found[0], lambda n: str(ipaddress.IPv4Address(first + n % len(_BENCHMARK_NET))))

    def _ipv6(self, found: re.Match[str]) -> str:
        address = _address(found[0])
        if address is None or address.is_loopback or address.is_unspecified or found[0].startswith("2001:db8:"):
            return found[0]
        return self._stand_in("ipv6", found[0], lambda n: f"2001:db8::{n:x}")

    def _stand_in(self, kind: str, value: str, make: Callable[[int], str]) -> str:
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = make(self._counts[kind])
        return self._names[kind, value]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:  # 17:48:01 is a time
        return None


def hosts_in(texts: Iterable[str]) -> set[str]:
    """Names that stand where a host's name stands and look like one: a common word is left alone."""
    found = {next(filter(None, m.groups())) for text in texts for m in _HOST.finditer(text)}
    return {name for name in found if _LIKE_A_HOST.match(name)}


_BENCHMARK_NET = range(int(ipaddress.IPv4Address("198.18.0.0")), int(ipaddress.IPv4Address("198.20.0.0")))
_HOME = re.compile(r"([/\\](?:home|Users|users|export/home)[/\\])([^/\\\s:'\"]{1,64})")
_USER = re.compile(r"(\b(?:USER|LOGNAME|user|username)['\"]?[=:] ?['\"]?)([a-z_][a-z0-9_.-]{1,31})\b")
_MAIL = re.compile(r"\b([A-Za-z0-9._%+-]{1,64})@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}\b")
_IPV4 = re.compile(r"(?<![\w.-])(?<!==)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.[0-9])")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-fA-F]{0,4}:)[0-9a-fA-F:]{2,39}(?![\w:.])")
_NAME = r"([A-Za-z0-9][A-Za-z0-9.-]{1,253}[A-Za-z0-9])"
_HOST = re.compile(
    rf"^\W{{0,3}}{_NAME}:[0-9]{{1,9}}:[0-9]{{1,9}} \[[0-9]{{1,3}}\]"  # NCCL: host:pid:tid [device]
    rf"|\b(?:host|hostname|node|MASTER_ADDR)['\"]?\s{{0,6}}[=:] ?['\"]?{_NAME}"
    rf"|\bsrun: error: {_NAME}: task|\bSTEP \S{{1,40}} ON {_NAME} CANCELLED"
    r"|\b(ip(?:-[0-9]{1,3}){4}(?:\.[a-z0-9.-]{1,80})?)\b",
    re.M,
)
_MOST_NAMES = 5_000
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NAME_LIKE = re.compile(r"[A-Za-z0-9_.-]{0,127}[A-Za-z]")
_STAND_IN = re.compile(r"(?:user|host)-[0-9]{1,9}")
_URL = re.compile(r"://(?:[^\s/@]{1,300}@)?([A-Za-z0-9][A-Za-z0-9.-]{1,253})(?=[:/?#\s'\",)\]]|\Z)")
_PUBLIC = re.compile(
    r"(?:^|\.)(?:localhost|localdomain|example\.(?:com|org|net)|github\.com|github\.io|githubusercontent\.com|gitlab\.com"
    r"|huggingface\.co|hf\.co|pytorch\.org|python\.org|pypi\.org|pythonhosted\.org|readthedocs\.io|nvidia\.com|wandb\.ai"
    r"|amazonaws\.com|google\.com|googleapis\.com|microsoft\.com|openai\.com|docker\.io|docker\.com|anaconda\.org|conda\.io"
    r"|deepspeed\.ai|ray\.io|tensorflow\.org|stackoverflow\.com|kubernetes\.io|apache\.org|modelscope\.cn|arxiv\.org|aka\.ms)$"
)
# Words that a log is full of: as a user's or a host's name they go only where they stand as one.
_COMMON_WORDS = """
root user users ubuntu admin administrator git noreply nobody guest daemon local localhost default public home
shared share work workspace data dataset datasets model models train trainer training test tests eval python
python3 torch pytorch cuda nccl gloo mpi rank ranks node nodes host hosts worker workers main error errors
warning info debug fatal job jobs task tasks slurm srun ray docker runner build none null true false unknown log
logs line lines last progress exit traceback out err stdout stderr file files name names path tmp temp usr opt
var lib bin src app apps code project projects run runs step steps epoch loss batch memory device devices gpu
gpus cpu env conda miniconda miniconda3 anaconda3 checkpoint checkpoints ckpt output outputs results cache http
https tcp file-init env-init master server client head cluster process processes group backend timeout version
deepspeed megatron lightning accelerate transformers horovod jax tensorflow store socket network system service
private scratch storage bucket exception failed failure signal
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_LIKE_A_HOST = re.compile(r"(?=.*[A-Za-z]).*[0-9.-]")
_NAMED = (("user", _HOME), ("user", _USER), ("user", _MAIL), ("host", _URL))
