"""A Google Cloud Storage of a test's own, in memory: of its XML API what obstore and Lance ask for, of its JSON API
what pyarrow does, which reads sources and keeps the checkpoints of Ray.

Departures: any bearer token will do, and an object may be written more often than once a second.
"""

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from object_store import Misbehaves, ObjectStore, served
from werkzeug import Request, Response
from werkzeug.serving import WSGIRequestHandler, run_simple

MAX_KEYS = 10
"""Of a page of a listing. Google's are of 1000: here a short listing too goes on over pages."""
STATUS_OF = {
    "BadRequest": 400,
    "InvalidPart": 400,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "MethodNotAllowed": 405,
    "PreconditionFailed": 412,
    "InvalidRange": 416,
}

JSON_PATH = re.compile(r"(/upload)?/storage/v1/b/(?P<bucket>[^/]+)(/o(/(?P<key>.+))?)?/?")


class Refusal(Exception):
    """What the store answers with a code of ``STATUS_OF``."""


@dataclass(frozen=True, kw_only=True)
class Object:
    content: bytes
    e_tag: str
    generation: int
    """Drawn anew by every write, and greater than those before."""
    custom: dict[str, str] = field(default_factory=dict)
    """What a client noted with it, as pyarrow does with its marks of folders."""
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def time(self) -> str:
        return f"{self.modified:%Y-%m-%dT%H:%M:%S.%fZ}"

    def metadata(self, bucket: str, key: str) -> dict[str, Any]:
        """Of the JSON API."""
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": key,
            "size": str(len(self.content)),
            "etag": self.e_tag,
            "generation": str(self.generation),
            "metageneration": "1",
            "metadata": self.custom,
            "timeCreated": self.time,
            "updated": self.time,
        }

    def headers(self) -> dict[str, str]:
        return {
            "ETag": self.e_tag,
            "x-goog-generation": str(self.generation),
            "Last-Modified": format_datetime(self.modified, usegmt=True),
        }


class Google:
    """Buckets of objects, as a WSGI application. One request at a time looks and writes."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Object]] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._last = 1_700_000_000_000_000
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        content = request.get_data()
        bucket, _, key = request.path.lstrip("/").partition("/")
        try:
            with self._lock:
                if found := JSON_PATH.fullmatch(environ["PATH_INFO"]):
                    response = self._json(request, found["bucket"], found["key"], content)
                else:
                    response = self._object(request, bucket, key, content) if key else self._bucket(request, bucket)
        except Refusal as refusal:
            code = str(refusal)
            response = Response(_xml("Error", f"<Code>{code}</Code>"), STATUS_OF[code], content_type="application/xml")
        return response(environ, start_response)

    def _bucket(self, request: Request, bucket: str) -> Response:
        if request.method == "PUT":
            self._buckets.setdefault(bucket, {})
            return Response()
        if request.method != "GET" or request.args.get("list-type") != "2":
            raise Refusal("MethodNotAllowed")
        after = request.args.get("continuation-token") or request.args.get("start-after", "")
        listed, token = self._page(request, bucket, after, "max-keys")
        inner = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if found is None
            else f"<Contents><Key>{escape(name)}</Key><Size>{len(found.content)}</Size>"
            f"<Generation>{found.generation}</Generation><ETag>{escape(found.e_tag)}</ETag>"
            f"<LastModified>{found.time}</LastModified></Contents>"
            for name, found in listed.items()
        )
        if token:
            inner += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
        return Response(_xml("ListBucketResult", inner), content_type="application/xml")

    def _page(self, request: Request, bucket: str, after: str, limit: str) -> tuple[dict[str, Object | None], str]:
        """Objects, and folders without one, of a page of a listing, and what the next page begins after."""
        objects, listed = self._objects(bucket), dict[str, Object | None]()
        prefix, delimiter = request.args.get("prefix", ""), request.args.get("delimiter", "")
        for key in sorted(objects):
            if not key.startswith(prefix):
                continue
            head, found, rest = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if not rest and request.args.get("includeTrailingDelimiter") == "true":
                found = ""  # the mark of a folder, as an object
                head = key[len(prefix) :]
            name = prefix + head + found if found else key
            if name <= after or name in listed:
                continue
            if len(listed) == min(int(request.args.get(limit, MAX_KEYS)), MAX_KEYS):
                return listed, next(reversed(listed))
            listed[name] = None if found else objects[key]
        return listed, ""

    def _object(self, request: Request, bucket: str, key: str, content: bytes) -> Response:
        objects, upload = self._objects(bucket), request.args.get("uploadId")
        match request.method:
            case "GET" | "HEAD":
                return _read(request, objects.get(key))
            case "POST" if "uploads" in request.args:
                upload = f"upload-{self._next()}"
                self._uploads[upload] = {}
                answer = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                return Response(_xml("InitiateMultipartUploadResult", answer), content_type="application/xml")
            case "PUT" if upload is not None:
                self._parts(upload)[int(request.args["partNumber"])] = content
                return Response(headers={"ETag": _e_tag(content)})
            case "POST" if upload is not None:
                _check(request, objects.get(key))
                whole = _joined(content, self._parts(upload))
                del self._uploads[upload]
                put = self._put(objects, key, whole, f'"-{self._last}"')  # no digest, as of what is made of parts
                answer = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>{escape(put.e_tag)}</ETag>"
                return Response(
                    _xml("CompleteMultipartUploadResult", answer), headers=put.headers(), content_type="application/xml"
                )
            case "DELETE" if upload is not None:
                self._parts(upload)
                del self._uploads[upload]
                return Response(status=204)
            case "PUT":
                _check(request, objects.get(key))
                source = request.headers.get("x-goog-copy-source")
                if source is not None:
                    from_bucket, _, from_key = source.lstrip("/").replace("%2F", "/").partition("/")
                    content = _found(self._objects(from_bucket).get(from_key)).content
                put = self._put(objects, key, content, _e_tag(content))
                body = _xml("CopyObjectResult", f"<ETag>{escape(put.e_tag)}</ETag>") if source is not None else ""
                return Response(body, headers=put.headers())
            case "DELETE":
                _check(request, objects.get(key))
                _found(objects.pop(key, None))  # S3 would say nothing of one that is gone
                return Response(status=204)
        raise Refusal("MethodNotAllowed")

    def _json(self, request: Request, bucket: str, key: str | None, content: bytes) -> Response:
        objects = self._objects(bucket)
        if request.path.startswith("/upload/"):
            return self._upload(request, bucket, objects, content)
        if key is None and not request.path.rstrip("/").endswith("/o"):
            return _answer({"kind": "storage#bucket", "name": bucket, "id": bucket})
        if key is None:
            listed, token = self._page(request, bucket, request.args.get("pageToken", ""), "maxResults")
            items = [found.metadata(bucket, name) for name, found in listed.items() if found is not None]
            folders = [name for name, found in listed.items() if found is None]
            return _answer({"items": items, "prefixes": folders} | ({"nextPageToken": token} if token else {}))
        if request.method == "DELETE":
            _found(objects.pop(key, None))
            return Response(status=204)
        if request.args.get("alt") == "media":
            return _read(request, objects.get(key))
        return _answer(_found(objects.get(key)).metadata(bucket, key))

    def _upload(self, request: Request, bucket: str, objects: dict[str, Object], content: bytes) -> Response:
        """An upload in one piece, or in pieces that are sent one after the other."""
        upload, about = request.args.get("upload_id"), dict[str, Any]()
        if request.args.get("uploadType") == "multipart":
            boundary = request.mimetype_params["boundary"].encode()
            _, first, second, _ = content.split(b"--" + boundary)
            text, content = (part.partition(b"\r\n\r\n")[2] for part in (first, second))
            about = json.loads(text)
            key = request.args.get("name") or about["name"]
            content = content.removesuffix(b"\r\n")
        elif upload is None:
            upload = f"upload-{self._next()}"
            self._uploads[upload] = {}
            return Response(
                headers={"Location": f"{request.base_url}?upload_id={upload}&name={quote(request.args['name'])}"}
            )
        else:
            key, parts = request.args["name"], self._parts(upload)
            begins, size = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", request.headers["Content-Range"]).groups()
            if content:
                parts[int(begins)] = content
            whole = b"".join(parts[begin] for begin in sorted(parts))
            if size == "*" or len(whole) < int(size):
                return Response(status=308, headers={"Range": f"bytes=0-{len(whole) - 1}"} if whole else {})
            content = whole
            del self._uploads[upload]
        return _answer(self._put(objects, key, content, _e_tag(content), about.get("metadata")).metadata(bucket, key))

    def _put(
        self, objects: dict[str, Object], key: str, content: bytes, e_tag: str, custom: dict[str, str] | None = None
    ) -> Object:
        objects[key] = Object(content=content, e_tag=e_tag, generation=self._next(), custom=custom or {})
        return objects[key]

    def _objects(self, bucket: str) -> dict[str, Object]:
        if bucket not in self._buckets:
            raise Refusal("NoSuchBucket")
        return self._buckets[bucket]

    def _parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise Refusal("NoSuchUpload")
        return self._uploads[upload]

    def _next(self) -> int:
        self._last += 1
        return self._last


def _read(request: Request, found: Object | None) -> Response:
    found = _found(found)
    if request.args.get("generation", str(found.generation)) != str(found.generation):
        raise Refusal("NoSuchKey")
    if request.headers.get("If-Match", found.e_tag) not in (found.e_tag, "*"):
        raise Refusal("PreconditionFailed")
    size, headers, status = len(found.content), found.headers(), 200
    first, last = 0, size - 1
    if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", "")):
        if asked[1]:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        else:
            first = max(size - int(asked[2]), 0)
        if first >= size:
            raise Refusal("InvalidRange")
        headers["Content-Range"], status = f"bytes {first}-{last}/{size}", 206
    return Response(found.content[first : last + 1], status, headers, content_type="application/octet-stream")


def _check(request: Request, found: Object | None) -> None:
    """Refuse what is to be done on condition of another generation; 0 is that of no object."""
    condition = request.headers.get("x-goog-if-generation-match")
    if condition is not None and condition != str(found.generation if found else 0):
        raise Refusal("PreconditionFailed")


def _found(found: Object | None) -> Object:
    if found is None:
        raise Refusal("NoSuchKey")
    return found


def _joined(listed: bytes, parts: dict[int, bytes]) -> bytes:
    """The parts that a request names, in its order."""
    whole = b""
    for part in ElementTree.fromstring(listed).iter("Part"):
        content = parts.get(int(part.findtext("PartNumber", "0")))
        if content is None or part.findtext("ETag") != _e_tag(content):
            raise Refusal("InvalidPart")
        whole += content
    return whole


def _e_tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _answer(value: dict[str, Any]) -> Response:
    return Response(json.dumps(value), content_type="application/json")


def _xml(name: str, inner: str) -> str:
    return f"<{name}>{inner}</{name}>"


@contextmanager
def google_store() -> Iterator[ObjectStore]:
    """A server with an empty bucket; within, the environment of this process leads there."""
    with served([sys.executable, __file__], "gs", google_environment) as store, TemporaryDirectory() as folder:
        # Not by the proxy: pyarrow waits for Google with the interpreter locked, and the proxy is a thread of it.
        store.environment |= pyarrow_environment(store.proxy.target, Path(folder) / "key.json")
        os.environ |= store.environment
        yield store


def google_environment(port: int) -> dict[str, str]:
    """Of clients of the server at this port, by what a service account's key may say of the store."""
    key = {
        "gcs_base_url": f"http://127.0.0.1:{port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "GOOGLE_ALLOW_HTTP": "true"}


def pyarrow_environment(port: int, file: Path) -> dict[str, str]:
    """Of pyarrow, which knows no other settings: a key by which it signs its own tokens, put into this file."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = {
        "type": "service_account",
        "client_email": "test@project.iam.gserviceaccount.com",
        "private_key": private.private_bytes(*formats).decode(),
        "private_key_id": "1",
        "token_uri": "http://127.0.0.1:9/none",
    }
    file.write_text(json.dumps(key))
    return {
        "GOOGLE_APPLICATION_CREDENTIALS": str(file),
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://127.0.0.1:{port}",
    }


if __name__ == "__main__":
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    run_simple("127.0.0.1", int(sys.argv[1]), Misbehaves(Google()), threaded=True)
