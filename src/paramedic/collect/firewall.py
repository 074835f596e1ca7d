"""Rules of this node's packet filter that drop or refuse, as far as they may be read (which takes root)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

_SECONDS = 1.5
_MOST = 200
_TABLE = re.compile(r"table (\w+) (\S+) \{")
_CHAIN = re.compile(r"\s*chain (\S+) \{")
_HOOK = re.compile(r"\s*type \w+ hook (\w+) priority [^;]{1,40};(?: policy (\w+);)?")
_VERDICT = re.compile(r"(?:^|\s)(drop|reject)(?:\s|$)")
_IPTABLES = re.compile(r"-A (\S+) (.*)-j (DROP|REJECT)")


def firewall() -> dict[str, Any]:
    """nft shows what iptables set, too, unless that is the legacy one."""
    text, why = _output("nft", "-a", "list", "ruleset")
    drops = list(_nft_drops(text))
    if not drops:
        legacy, _ = _output("iptables-legacy-save")
        drops = list(_iptables_drops(legacy))
        why = "" if legacy else why
    return {"readable": not why, "why": why, "drops": drops[:_MOST]}


def _output(*command: str) -> tuple[str, str]:
    """(what it prints, why it could not)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except FileNotFoundError:
        return "", f"{command[0]} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{command[0]}: {error}"
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr.strip()[:200] or "refused")


def _nft_drops(text: str) -> Iterator[dict[str, Any]]:
    table = chain = hook = ""
    for line in text.split("\n")[:20_000]:
        if found := _TABLE.match(line):
            table, chain, hook = f"{found.group(1)} {found.group(2)}", "", ""
        elif found := _CHAIN.match(line):
            chain, hook = found.group(1), ""
        elif found := _HOOK.match(line):
            hook = found.group(1)
            if found.group(2) == "drop":
                yield _drop(table, chain, hook, "drop", "policy drop")
        elif table and chain and (found := _VERDICT.search(line)):
            yield _drop(table, chain, hook, found.group(1), line.strip())


def _drop(table: str, chain: str, hook: str, verdict: str, text: str) -> dict[str, Any]:
    return {"table": table, "chain": chain, "hook": hook, "verdict": verdict, "text": text[:300]}


def _iptables_drops(text: str) -> Iterator[dict[str, Any]]:
    hooks = {"INPUT": "input", "OUTPUT": "output", "FORWARD": "forward"}
    for line in text.split("\n")[:20_000]:
        if found := _IPTABLES.match(line):
            chain = found.group(1)
            yield _drop("iptables", chain, hooks.get(chain, ""), found.group(3).lower(), line)
