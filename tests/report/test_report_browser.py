"""In a real browser: nothing that a log says runs, and nothing is asked of any network."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import reports

from paramedic.report import ShownReport, render

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


class Beacon:
    """A local server that remembers who called."""

    def __init__(self) -> None:
        hits = self.hits = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hits.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def beacon() -> Iterator[Beacon]:
    made = Beacon()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def browse(page: str, folder: Path) -> str:
    """The page's DOM after its scripts, if any, have run."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.fail("this test needs a browser: apt-get install chromium")
    file = folder / "page.html"
    file.write_text(page, "utf-8")
    switches = (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync", "dump-dom"),
        *("disable-background-networking", "disable-component-update", "virtual-time-budget=3000"),
    )
    flags = [f"--{switch}" for switch in switches]
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    command = [browser, *flags, rules, f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "</html>" in done.stdout, done.stderr
    return done.stdout


def title(dom: str) -> str:
    found = re.search(r"<title>(.*?)</title>", dom, re.S)
    return html.unescape(found.group(1)) if found else ""


def test_hostile_report_runs_nothing_and_calls_nobody(tmp_path: Path, beacon: Beacon) -> None:
    dom = browse(render(reports.hostile(beacon.url), "html"), tmp_path)
    assert title(dom).startswith("Collective hang, rank 3")
    assert 'class="js"' in dom
    assert '<button type="button" class="copy">' in dom
    assert beacon.hits == []


def test_control_unescaped_and_without_policy_it_does_run(tmp_path: Path, beacon: Beacon) -> None:
    page = POLICY.sub("", html.unescape(render(reports.hostile(beacon.url), "html"))).replace("<!--", "")
    dom = browse(page, tmp_path)
    assert title(dom) == "owned"
    assert {"/script", "/img"} <= set(beacon.hits)


def test_policy_alone_stops_scripts_and_loads(tmp_path: Path, beacon: Beacon) -> None:
    attack = (
        f"<script>document.title='owned'</script>"
        f"<img src='{beacon.url}/img' onerror=\"document.title='owned'\">"
        f"<link rel=stylesheet href='{beacon.url}/css'><iframe src='{beacon.url}/frame'></iframe>"
    )
    page = render(reports.typical(), "html").replace("<body>", f"<body>{attack}")
    dom = browse(page, tmp_path)
    assert title(dom).startswith("Collective hang, rank 3")
    assert beacon.hits == []


def test_notebook_frame_runs_nothing_and_calls_nobody(tmp_path: Path, beacon: Beacon) -> None:
    fragment = ShownReport.of(reports.hostile(beacon.url))._repr_html_()
    dom = browse(f"<!doctype html><title>notebook</title>{fragment}", tmp_path)
    assert title(dom) == "notebook"
    assert beacon.hits == []
