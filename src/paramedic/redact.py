"""Takes secrets out of text before it is written anywhere, and, for strangers' eyes, names and places too."""

from __future__ import annotations

import re
from collections.abc import Callable

_MARK = "[redacted]"

# Each pattern keeps what comes before the secret (group 1) so that the line stays readable.
_SECRETS = tuple(
    re.compile(pattern)
    for pattern in (
        r"()\b(?:hf|api_org)_[A-Za-z0-9]{20,}",
        r"()\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"()\bsk-[A-Za-z0-9_-]{20,}",
        r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"()\bAIza[A-Za-z0-9_-]{30,}",
        r"()\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}",
        r"()\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{30,}|\bglpat-[A-Za-z0-9_-]{15,}",
        r"()-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[^\0]{0,8000}?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)",
        r"(?i)(\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:bearer|basic|token)?\s{0,3})[^\s'\",]{6,}",
        r"(?i)(\bbearer\s{1,3})[A-Za-z0-9._~+/=-]{12,}",
        r"(?i)(\b[a-z0-9_.-]{0,40}(?:passwd|password|secret|token|api_?key|access_?key|private_?key|credential)s?"
        r"(?:_?id)?['\"]?\s{0,3}[=:]\s{0,3}['\"]?)(?!None\b|null\b|True\b|False\b|true\b|false\b|\[redacted\])"
        r"(?=[^\s'\",;&)]{0,200}[A-Za-z])[^\s'\",;&)]{6,200}",
        r"(\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@]{1,64}:)[^\s/@]{1,128}(?=@)",
        r"([?&](?:sig|signature|X-Amz-Signature|X-Amz-Credential|X-Goog-Signature|token|key)=)[^&\s\"']{8,}",
    )
)
_GATE = re.compile(
    r"(?i)hf_|api_org_|gh[pousr]_|github_pat|sk-|AKIA|ASIA|AIza|xox|eyJ|npm_|pypi-|glpat|PRIVATE KEY|authorization"
    r"|bearer|passw|secret|token|api_?key|access_?key|private_?key|credential|://[^\s/]{1,64}:[^\s]{1,128}@|[?&](?:sig|key|x-)"
)


def redact(text: str) -> str:
    """Replaces tokens, keys and passwords by `[redacted]`; everything else stays as it is."""
    if not _GATE.search(text):
        return text
    for pattern in _SECRETS:
        text = pattern.sub(lambda m: (m.group(1) or "") + _MARK, text)
    return text


class Anonymizer:
    """Also replaces users, hosts and addresses, each always by the same stand-in, so that a bundle stays readable."""

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        self._names: dict[tuple[str, str], str] = {}
        known = sorted((re.escape(h) for h in hosts if len(h) > 1), key=len, reverse=True)
        self._hosts = re.compile(rf"(?<![\w.-])(?:{'|'.join(known)})(?![\w-])") if known else None

    def __call__(self, text: str) -> str:
        text = redact(text)
        if self._hosts:
            text = self._hosts.sub(lambda m: self._name("host", m.group()), text)
        text = _HOME.sub(lambda m: m.group(1) + self._name("user", m.group(2)), text)
        text = _MAIL.sub(lambda m: self._name("mail", m.group()), text)
        text = _IPV4.sub(self._address, text)
        return _IPV6.sub(self._address, text)

    def _name(self, kind: str, value: str) -> str:
        number = sum(k == kind for k, _ in self._names) + 1
        return self._names.setdefault((kind, value), f"{kind}-{number}")

    def _address(self, found: re.Match[str]) -> str:
        address = found.group()
        return address if address in ("127.0.0.1", "0.0.0.0", "::1") else self._name("address", address)


Redactor = Callable[[str], str]

_HOME = re.compile(r"(/(?:home|Users|users|export/home)/)([^/\s:'\"]{1,64})")
_MAIL = re.compile(r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,6}\b")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(r"(?<![\w:])(?=[0-9a-fA-F:.]{3,45}(?![\w:]))(?:[0-9a-fA-F]{1,4}:){2,7}(?::|[0-9a-fA-F]{1,4}){1,7}")
