"""An S3 server that only lists: any number of made-up keys, without storing any."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

_HEAD = '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_OBJECT = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:{second:02}.000Z</LastModified>"
    "<ETag>&quot;{number:032x}&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)
_PREFIX = "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>"


class ListingServer:
    """Lists ``dNNN/file-NNNNNNNN.jpeg`` on a free loopback port, as a context manager."""

    def __init__(self, *, directories: int, files: int) -> None:
        """Prepare that many directories, with that many files in all."""
        self.directories = directories
        self.files = files
        handler = type("Handler", (_Handler,), {"listing": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint_url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def page(self, prefix: str, token: int, max_keys: int) -> str:
        """One answer to LIST with the delimiter ``/``."""
        if prefix == "":
            entries = [_PREFIX.format(prefix=f"d{index:03}/") for index in range(self.directories)]
        else:
            entries = self._objects(prefix)
        shown, rest = entries[token : token + max_keys], entries[token + max_keys :]
        more = f"<NextContinuationToken>{token + max_keys}</NextContinuationToken>" if rest else ""
        truncated = "true" if rest else "false"
        return f"{_HEAD}<IsTruncated>{truncated}</IsTruncated>{more}{''.join(shown)}</ListBucketResult>"

    def _objects(self, prefix: str) -> list[str]:
        directory, _, _ = prefix.partition("/")
        if not directory[1:].isdigit() or int(directory[1:]) >= self.directories:
            return []
        numbers = range(int(directory[1:]), self.files, self.directories)
        keys = [(number, f"{directory}/file-{number:08}.jpeg") for number in numbers]
        return [
            _OBJECT.format(key=key, second=number % 60, number=number, size=number)
            for number, key in keys
            if key.startswith(prefix)
        ]


class _Handler(BaseHTTPRequestHandler):
    listing: ListingServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a LIST."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        token = int(query.get("continuation-token", "0"))
        body = self.listing.page(query.get("prefix", ""), token, int(query.get("max-keys", "1000"))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""
