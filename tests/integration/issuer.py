"""A real OAuth 2 issuer in a process of its own: discovery and JWKS over HTTP or HTTPS, keys that can be rotated.

It is told how to behave by lines on its standard input (`broken`, `slow`, `trickles`, `large`,
`fine`), and answers each with how often it was asked for keys. Tokens are minted by the test, with the issuer's private
keys.

    python issuer.py JWKS_FILE [CERT KEY]
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
EVERYTHING = "rabbit.read:*/*/* rabbit.write:*/*/* rabbit.configure:*/* rabbit.tag:administrator"


def serve(file: Path, certificate: list[str]) -> None:
    mode = "fine"
    asked = 0

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal asked
            if self.path == "/jwks":
                asked += 1
                if mode == "broken":
                    self.send_error(500)
                    return
                text = file.read_bytes() if mode != "large" else b" " * (1 << 20) + file.read_bytes()
            elif self.path == "/.well-known/openid-configuration":
                text = json.dumps({"issuer": here, "jwks_uri": f"{here}/jwks"}).encode()
            else:
                self.send_error(404)
                return
            if mode == "trickles" and self.path == "/jwks":  # a head that does not end
                self.slowly(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 600)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if mode == "slow" and self.path == "/jwks":  # a byte now and then: no single read takes long
                self.slowly(text)
            else:
                self.wfile.write(text)

        def slowly(self, text: bytes) -> None:
            with suppress(OSError):  # nobody has to wait for that
                for byte in text:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.2)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    here = f"{scheme}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(here, flush=True)
    for line in sys.stdin:
        if line.strip() != "asked":
            mode = line.strip()
        print(asked, flush=True)


class Issuer:
    """The process, and its keys."""

    def __init__(self, folder: Path, *certificate: Path) -> None:
        self._file = folder / "jwks.json"
        self.keys: dict[str, PrivateKey] = {}
        self.add("first", rsa.generate_private_key(65537, 2048))
        self.add("curve", ec.generate_private_key(ec.SECP256R1()))
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._file), *map(str, certificate)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url

    def add(self, kid: str, key: PrivateKey) -> None:
        self.keys[kid] = key
        self._publish()

    def remove(self, kid: str) -> PrivateKey:
        key = self.keys.pop(kid)
        self._publish()
        return key

    def _publish(self) -> None:
        entries = []
        for kid, key in self.keys.items():
            reader = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            entries.append(json.loads(reader.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"})  # type: ignore[arg-type]
        self._file.write_text(json.dumps({"keys": entries}))

    def told(self, word: str) -> int:
        """How often it was asked for keys, so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def claims(self, scope: object = EVERYTHING, seconds: float = 600, **more: object) -> dict[str, Any]:
        now = time.time()
        found = {"iss": self.url, "aud": ["rabbit"], "sub": "app", "scope": scope, "iat": now, "exp": now + seconds}
        return {**found, **more}

    def token(
        self,
        scope: object = EVERYTHING,
        seconds: float = 600,
        kid: str = "first",
        key: PrivateKey | None = None,
        **more: object,
    ) -> str:
        signer = key or self.keys[kid]
        algorithm = "RS256" if isinstance(signer, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(self.claims(scope, seconds, **more), signer, algorithm, headers={"kid": kid})

    def public_pem(self, kid: str) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.keys[kid].public_key().public_bytes(serialization.Encoding.PEM, form)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Issuer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.returncode is None:
            self.stop()


def encoded(value: object) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
