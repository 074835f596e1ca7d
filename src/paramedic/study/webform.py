"""The labelling form in a browser of this machine. Nobody else can reach it: loopback only, behind a random address."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.asking import Session, shown

_MOST = 64 << 10


def serve(session: Session, say: Callable[[str], None], port: int = 0) -> None:
    """Until the rater is done, or Ctrl-C."""
    with _Server(session, port) as server:
        say(f"http://127.0.0.1:{server.server_port}/{server.secret}/")
        server.timeout = 0.5
        while not server.done:
            server.handle_request()


class _Server(HTTPServer):
    """One request at a time: the database is not shared between threads."""

    def __init__(self, session: Session, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.session, self.secret, self.done = session, secrets.token_urlsafe(16), False


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        if self._allowed():
            self._page()

    def do_POST(self) -> None:
        if not self._allowed():
            return
        size = self.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > _MOST:
            self.send_error(413)
            return
        form = {
            name: values[-1] for name, values in parse_qs(self.rfile.read(int(size)).decode("utf-8", "replace")).items()
        }
        try:
            message = self._answer(form)
        except ParamedicError as error:
            message = str(error)
        self._page(message)

    def _answer(self, form: dict[str, str]) -> str:
        session = self.server.session
        if form.get("do") == "quit":
            self.server.done = True
            return "Your labels are kept. You can close this page."
        asked = session.question()
        if asked is None or form.get("post") != asked.post.id:
            return "That post has been answered; here is the next one."
        if form.get("do") == "skip":
            session.skip()
            return ""
        symptom = form.get("other") or form.get("symptom")
        if not symptom:
            return "Choose what failed, or none of these."
        distributed = {"yes": True, "no": False}.get(form.get("distributed", ""))
        symptom = "" if symptom == "none" else symptom
        session.answer(symptom, form.get("fix", ""), form.get("cause", ""), distributed)
        return ""

    def _allowed(self) -> bool:
        """Another site in the same browser knows neither the address nor this name of the host."""
        host = self.headers.get("Host", "")
        right = host in (f"127.0.0.1:{self.server.server_port}", f"localhost:{self.server.server_port}")
        if not right or self.path != f"/{self.server.secret}/":
            self.send_error(404)
            return False
        return True

    def _page(self, message: str = "") -> None:
        session, taxonomy = self.server.session, load_taxonomy()
        asked = None if self.server.done else session.question()
        body = _template().render(
            asked=asked,
            text=shown(asked.post) if asked else "",
            answered=session.answered,
            rater=session.rater,
            second=session.second,
            message=message,
            action=self.path,
            symptoms=taxonomy.symptoms,
            fixes=taxonomy.fix_patterns,
            causes=taxonomy.causes,
        )
        data = body.encode("utf-8", "replace")
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal belongs to the rater."""


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("paramedic.study", "assets"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("form.html.j2")
