"""A page that updates while runs train, served to browsers on this machine only."""

from __future__ import annotations

import html
import logging
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from capsule_lab.errors import CapsuleLabError, ConfigError, one_line, printable

log = logging.getLogger(__name__)

_OWN = re.compile(
    r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?"
)  # with any port, as ssh -L forwards others
_SECONDS = 3  # ours: interval at which the page asks for the state
_SCRIPT = """<script>
async function ask() {
  const state = await fetch("/state").then(answer => answer.text()).catch(() => "%(state)s");
  if (state !== "%(state)s") location.reload(); else setTimeout(ask, %(interval)d);
}
setTimeout(ask, %(interval)d);
</script>
</body>"""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of one request in one line; a browser that closes its connection is none."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error(
                "a request was not answered: %s: %s", type(error).__name__, printable(str(error))
            )


def serve(page: Callable[[], str], state: Callable[[], str], port: int | None) -> None:
    """Serve a page on the loopback interface until Ctrl-C. The browser loads it again when its state changes.

    Args:
        page: returns the HTML, up to date. An error of ours is shown in place of the page.
        state: returns a hash that changes with the page; it is called every three seconds.
        port: ``None`` for any free one.

    Raises:
        ConfigError: if the port is taken.
    """
    one_at_a_time = threading.Lock()

    def shown() -> str:
        seen = state()  # before the page, so that a change while it is made loads it again
        try:
            text = page()
        except CapsuleLabError as error:
            text = f"<!doctype html><body><p>{html.escape(one_line(error))}</p></body>"
        return text.replace("</body>", _SCRIPT % {"state": seen, "interval": 1000 * _SECONDS})

    class Handler(BaseHTTPRequestHandler):
        timeout = (
            10  # ours: seconds for a request; browsers also open connections that they do not use
        )

        def do_GET(self) -> None:
            hosts = self.headers.get_all("Host") or []
            is_own = len(hosts) == 1 and _OWN.fullmatch(
                hosts[0]
            )  # refuses requests that pages of other sites send
            if not is_own or self.path not in ("/", "/state"):
                self.send_error(404 if is_own else 403)
                return
            with one_at_a_time:
                text = state() if self.path == "/state" else shown()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode(errors="replace"))

        def log_message(self, format: str, *args: object) -> None:  # the parent's name
            log.debug(format, *args)

    try:
        server = _Server(("127.0.0.1", port or 0), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"port is {port}, which cannot be opened ({one_line(error)}); expected port=null"
        ) from error
    log.info(
        "http://127.0.0.1:%d shows the report and updates by itself; Ctrl-C ends it",
        server.server_port,
    )
    with server:
        server.serve_forever()
