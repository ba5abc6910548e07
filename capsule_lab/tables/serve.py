"""A page that updates while runs train, served to browsers on this machine only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from capsule_lab.errors import ConfigError, one_line

log = logging.getLogger(__name__)

_SECONDS = 3  # ours: interval at which the page asks for the state
_SCRIPT = """<script>
setInterval(async () => {
  const state = await fetch("/state").then(answer => answer.text()).catch(() => "%(state)s");
  if (state !== "%(state)s") location.reload();
}, %(interval)d);
</script>
</body>"""


def serve(page: Callable[[], str], state: Callable[[], str], port: int | None) -> None:
    """Serve a page on the loopback interface until Ctrl-C. The browser loads it again when its state changes.

    Args:
        page: returns the HTML, up to date.
        state: returns a hash that changes with the page; it is called every three seconds.
        port: ``None`` for any free one.

    Raises:
        ConfigError: if the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            own = self.headers.get("Host", "").rpartition(":")[0] in ("127.0.0.1", "localhost")  # no page of elsewhere
            if not own or self.path not in ("/", "/state"):
                self.send_error(404 if own else 403)
                return
            text = state()  # before the page, so that a change while it is made loads it again
            if self.path == "/":
                script = _SCRIPT % {"state": text, "interval": 1000 * _SECONDS}
                text = page().replace("</body>", script)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # the parent's name
            log.debug(format, *args)

    try:
        server = HTTPServer(("127.0.0.1", port or 0), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port is {port}, which cannot be opened ({one_line(error)}); expected port=null") from error
    log.info("http://127.0.0.1:%d shows the report and updates by itself; Ctrl-C ends it", server.server_port)
    with server:
        server.serve_forever()
