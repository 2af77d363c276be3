"""How commands ask a node: its HTTP API, with nothing but the standard library.

Where: `--url`, else COTERIE_URL, else guest at this host. An https URL is trusted by the authorities of the system, or
by the one that `--ca`, else COTERIE_CA, names. What a node refuses because of what was asked is a UserError
(exit 2), with the node's own words; a node that cannot be reached or cannot do it is a CoterieError (exit 1).
"""

from __future__ import annotations

import argparse
import base64
import getpass
import http.client
import json
import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from coterie.cli.output import print_json, table, tell
from coterie.errors import CoterieError, UserError
from coterie.trace import Json
from coterie.visible import json_text, visible

DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
URL: Final = "COTERIE_URL"
PASSWORD: Final = "COTERIE_PASSWORD"
CA: Final = "COTERIE_CA"
LOGIN_FAILED: Final = "Login failed"
"""All that a node says of it."""
OTHERS_FAULT: Final = frozenset({408, 409, 413, 429})
"""Refusals that are about the state of things, not about what was asked."""
COMMON_EPILOG: Final = """
where the node is:
  --url http://user@host:15672, else the variable COTERIE_URL, else guest on this host. The password comes from
  COTERIE_PASSWORD, or is asked for; COTERIE_URL may have it too, as user:password@. In --url everybody on this machine
  could read it. With https:// the certificate must be from an authority of the system, or from the one in the file that
  --ca or COTERIE_CA names.

exit codes: 0 fine; 1 the answer is bad, or no node answers; 2 wrong usage, or the node says that the request is wrong
"""
Shape = dict[str, Json]
Run = Callable[["Remote", argparse.Namespace], int]


class Remote:
    """One node, asked over HTTP."""

    def __init__(self, url: str, timeout: float, environment: Mapping[str, str] = os.environ, ca: str = "") -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise UserError(f"--url {_shown(url)}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"--url {_shown(url)}: it should read http://user@host:15672")
        self._tls = _tls(ca or environment.get(CA, "")) if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = port or 15672
        self._base = parts.path.rstrip("/")
        self._timeout = timeout
        self.where = f"{parts.scheme}://{self._host}:{self._port}"
        user, password = parts.username, parts.password
        if user is None:
            user, password = "guest", quote(environment.get(PASSWORD, "guest"), safe="")
        elif password is None:
            password = environment.get(PASSWORD)
            if password is None:
                if not sys.stdin.isatty():
                    raise UserError(f"no password for '{unquote(user)}': put it into {PASSWORD}")
                password = quote(getpass.getpass(f"password of {unquote(user)}: "))
            else:
                password = quote(password, safe="")
        self.user, self.password = unquote(user), unquote(password)
        credentials = f"{self.user}:{self.password}".encode()
        self._authorization = f"Basic {base64.b64encode(credentials).decode()}"

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        """The status, and what the node answered."""
        connection: http.client.HTTPConnection
        where, timeout = (self._host, self._port), self._timeout
        if self._tls is None:
            connection = http.client.HTTPConnection(*where, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(*where, timeout=timeout, context=self._tls)
        sent = {"Authorization": self._authorization, "Content-Type": "application/json", **(headers or {})}
        try:
            connection.request(method, self._base + path, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            text = response.read()
        except ssl.SSLCertVerificationError as error:
            raise CoterieError(
                f"{self.where} is not trusted: {error.verify_message}: name the authority that signed its certificate "
                f"by --ca or {CA}, and the node as its certificate does"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            secure = ", is it https://?" if self._tls is None and not isinstance(error, ConnectionRefusedError) else ""
            raise CoterieError(
                f"no node answers at {self.where}: {why.lower()}: is it up, is its console{secure or '?'}"
            ) from None
        finally:
            connection.close()
        try:
            return response.status, json.loads(text) if text else None
        except ValueError:
            raise CoterieError(f"{self.where} answers {response.status}, and not as a Coterie node would") from None

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Json:
        """What the node answered. Raises UserError or CoterieError if it refused."""
        status, answer = self.request(method, path, body, headers)
        if status < 400:
            return answer
        reason = answer.get("reason") if isinstance(answer, dict) else None
        text = str(reason or f"the node answers {status}")
        if status == 401 and text == LOGIN_FAILED:
            example = self.where.replace("://", "://USER@")
            text += (
                f" as '{self.user}' at {self.where}: say who asks by --url {example}, or by {URL}; the password is "
                f"asked for, or is in {PASSWORD}"
            )
        if status < 500 and status not in OTHERS_FAULT:
            raise UserError(text)
        raise CoterieError(text)

    def get(self, *parts: str, **query: str) -> Json:
        return self.ask("GET", path_of(*parts) + (f"?{urlencode(query)}" if query else ""))

    def rows(self, *parts: str, **query: str) -> list[Shape]:
        """A list of objects."""
        answer = self.get(*parts, **query)
        if not isinstance(answer, list):
            raise CoterieError(f"{self.where} answers, but not as a Coterie node would")
        return [row for row in answer if isinstance(row, dict)]


def path_of(*parts: str) -> str:
    """Under /api; each part quoted."""
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


def _tls(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--ca {ca}: no certificate can be read from it: {error.strerror or error}") from None


def has_password(url: str) -> bool:
    """Whether it carries one. What is no URL is told by whoever uses it."""
    login, at, _ = url.partition("://")[2 if "://" in url else 0].partition("/")[0].rpartition("@")
    return bool(at) and ":" in login


def _shown(url: str) -> str:
    return url.rpartition("@")[2]


# Commands.


class Commands:
    """A command with actions: `coterie users`, `coterie users add`... The options about the node go anywhere."""

    def __init__(
        self,
        subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
        name: str,
        help: str,
        description: str,
        examples: str,
        run: Run,
        alone: str = "list them",
    ) -> None:
        """`alone`: what it does without an action."""
        self._alone = alone
        self.parser = subparsers.add_parser(
            name,
            help=help,
            description=description,
            epilog=f"examples:\n{examples}{COMMON_EPILOG}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_common(self.parser)
        self.parser.set_defaults(run=_runner(run))
        self._actions: argparse._SubParsersAction[argparse.ArgumentParser] | None = None

    def action(self, name: str, help: str, run: Run) -> argparse.ArgumentParser:
        parser = self._parser(name, help)
        add_common(parser)
        parser.set_defaults(run=_runner(run))
        return parser

    def local_action(self, name: str, help: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        """One that asks no node."""
        parser = self._parser(name, help)
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object")
        parser.set_defaults(run=run)
        return parser

    def _parser(self, name: str, help: str) -> argparse.ArgumentParser:
        if self._actions is None:
            self._actions = self.parser.add_subparsers(metavar="ACTION", help=f"without one: {self._alone}")
        return self._actions.add_parser(name, help=help, description=help)


def add_common(parser: argparse.ArgumentParser) -> None:
    # No defaults here: those of an action would hide what was given before it.
    group = parser.add_argument_group("node")
    nothing = argparse.SUPPRESS
    group.add_argument("--url", default=nothing, help=f"where its console is (default: {URL}, else guest on this host)")
    group.add_argument("--ca", metavar="FILE", default=nothing, help=f"authority of an https URL (default: {CA})")
    group.add_argument("--vhost", default=nothing, help="the vhost (default: / to change things, all to list them)")
    group.add_argument("--timeout", type=float, default=nothing, help="seconds to wait for an answer (default: 60)")
    group.add_argument("--json", action="store_true", default=nothing, help="the answer as one JSON object")


def _runner(run: Run) -> Callable[[argparse.Namespace], int]:
    def start(options: argparse.Namespace) -> int:
        return run(remote_of(options, DEFAULT_URL), options)

    return start


def remote_of(options: argparse.Namespace, default: str, environment: Mapping[str, str] = os.environ) -> Remote:
    """The node that the options, or the environment, name."""
    url = getattr(options, "url", None) or environment.get(URL) or default
    return Remote(url, getattr(options, "timeout", 60.0), environment, getattr(options, "ca", ""))


def vhost_of(options: argparse.Namespace) -> str:
    found = getattr(options, "vhost", "/")
    assert isinstance(found, str)
    return found


def scope(options: argparse.Namespace) -> list[str]:
    """The vhost as the end of a list's path; nothing: all of them."""
    return [options.vhost] if "vhost" in options else []


def as_json(options: argparse.Namespace) -> bool:
    return getattr(options, "json", False) is True


# What commands print.


def show(options: argparse.Namespace, name: str, rows: Sequence[Shape], columns: Mapping[str, str]) -> int:
    """A table with these columns (header to key, with dots into it), or the whole objects as JSON."""
    if as_json(options):
        print_json({name: list(rows)})
    elif not rows:
        print(f"no {name}")
    else:
        print(table(list(columns), [[cell(row, key) for key in columns.values()] for row in rows]))
    return 0


def cell(row: Shape, key: str) -> object:
    value: Json = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return visible(",".join(map(str, value)))
    if isinstance(value, dict | list):
        return json_text(value) if value else ""
    return visible(value) if isinstance(value, str) else value


def said(options: argparse.Namespace, text: str, **facts: Json) -> int:
    """It is done."""
    if as_json(options):
        print_json({"done": text, **facts})
    else:
        tell(text)
    return 0


def pairs(given: Sequence[str], what: str) -> Shape:
    """`name=value` from the command line; a value is JSON if it can be read so, else a text."""
    found: Shape = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{what} {text}: it should read name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
