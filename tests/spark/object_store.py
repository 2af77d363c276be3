"""A server with as much of S3 as Arrow and Delta use: objects in memory, by ranges, in lists, uploaded in parts."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SECRET = "geheim-1234"


class ObjectStore:
    """One bucket, `lake`, and what is in it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """By upload."""
        self.uploads = itertools.count()
        self.port = 0

    def url(self, path: str) -> str:
        place = quote(f"127.0.0.1:{self.port}", safe="")
        return f"s3://user:{SECRET}@lake/{path}?endpoint_override={place}&scheme=http&region=here"

    def environment(self) -> dict[str, str]:
        """Where URLs without all that find it: `s3://lake/...`."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "here",
            "AWS_DEFAULT_REGION": "here", "AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix) and not name.endswith("/"))


def _handler(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _asked(self) -> tuple[str, dict[str, str]]:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
            return unquote(parts.path).removeprefix("/lake").removeprefix("/"), query

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                data = b""
                while count := int(self.rfile.readline(), 16):
                    data += self.rfile.read(count)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
                return data
            found = b""
            while data:
                size, _, rest = data.partition(b"\r\n")
                count = int(size.partition(b";")[0], 16)
                if not count:
                    break
                found, data = found + rest[:count], rest[count + 2 :]
            return found

        def _say(self, status: int, data: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _xml(self, text: str, status: int = 200) -> None:
            self._say(status, f'<?xml version="1.0"?>{text}'.encode(), Content_Type="application/xml")

        def do_HEAD(self) -> None:
            key, _ = self._asked()
            if not key:
                self._say(200)
            elif key in store.objects:
                self._say(200, Content_Length=str(len(store.objects[key])), ETag='"x"')
            else:
                self._say(404)

        def do_GET(self) -> None:
            key, query = self._asked()
            if not key:
                self._list(query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", ""))
            elif key not in store.objects:
                self._xml("<Error><Code>NoSuchKey</Code></Error>", 404)
            else:
                data = store.objects[key]
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
                if wanted is None:
                    self._say(200, data, ETag='"x"')
                else:
                    first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
                    where = f"bytes {first}-{last}/{len(data)}"
                    self._say(206, data[first : last + 1], Content_Range=where, ETag='"x"')

        def _list(self, prefix: str, delimiter: str, after: str) -> None:
            names: list[str] = []
            folders: dict[str, None] = {}
            for name in sorted(store.objects):
                if name.startswith(prefix) and name > after:
                    head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                    if found:
                        folders[f"{prefix}{head}/"] = None
                    else:
                        names.append(name)
            contents = "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(store.objects[name])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
                for name in names
            )
            inside = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
            self._xml(
                f"<ListBucketResult><Name>lake</Name><KeyCount>{len(names) + len(folders)}</KeyCount>"
                f"<IsTruncated>false</IsTruncated>{contents}{inside}</ListBucketResult>"
            )

        def do_PUT(self) -> None:
            key, query = self._asked()
            data = self._body()
            if "partNumber" in query:
                store.parts[query["uploadId"]][int(query["partNumber"])] = data
            elif key in store.objects and self.headers.get("If-None-Match") == "*":
                self._xml("<Error><Code>PreconditionFailed</Code></Error>", 412)
                return
            elif key:
                store.objects[key] = data
            self._say(200, ETag='"x"')

        def do_POST(self) -> None:
            key, query = self._asked()
            data = self._body()
            if "uploads" in query:
                id = str(next(store.uploads))
                store.parts[id] = {}
                self._xml(
                    f"<InitiateMultipartUploadResult><Bucket>lake</Bucket><Key>{escape(key)}</Key>"
                    f"<UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                )
            elif "uploadId" in query:
                parts = store.parts[query["uploadId"]]
                store.objects[key] = b"".join(parts[number] for number in sorted(parts))
                self._xml("<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")
            else:
                names = [name.decode() for name in re.findall(rb"<Key>(.*?)</Key>", data)]
                for name in names:
                    store.objects.pop(unescape(name), None)
                gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                self._xml(f"<DeleteResult>{gone}</DeleteResult>")

        def do_DELETE(self) -> None:
            store.objects.pop(self._asked()[0], None)
            self._say(204)

        def log_message(self, *words: object) -> None:
            pass

    return Handler


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    store.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
