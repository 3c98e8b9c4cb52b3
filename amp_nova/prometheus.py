# SPDX-License-Identifier: Apache-2.0
"""Queries Prometheus: whole answers, within a time and a size, and from nowhere else."""

import base64
import json
import re
import time
from http.client import HTTPException, InvalidURL, responses
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener


class QueryFailed(Exception):
    """Why there is no result. ``status``: that of the answer, 0 if there was none."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects, which could take a password elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the answer as it is."""


_OPENER = build_opener(_NoRedirects)


class Prometheus:
    """A server at an address such as ``https://USER:PASSWORD@HOST:PORT``; thread-safe."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        user, _, host = parts.netloc.rpartition("@")
        self.url = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        """The address, without the password."""
        pair = base64.b64encode(unquote(user).encode()).decode()
        self._authorization = {"Authorization": f"Basic {pair}"} if user else {}

    def query(self, path: str, within_s: float, bytes_max: int, **parameters: object) -> Any:
        """The series that answer a query (``query`` or ``query_range``); raises ``QueryFailed``."""
        form = urlencode({**parameters, "timeout": f"{within_s:g}s"}, errors="replace")
        url, data = f"{self.url}/api/v1/{path}", None
        if path == "query_range":  # may be too long for an address
            data = form.encode()
        else:
            url = f"{url}?{form}"
        request = Request(url, data, self._authorization)
        body, end_s = bytearray(), time.monotonic() + within_s
        try:
            try:
                answer: Any = _OPENER.open(request, timeout=within_s)
            except HTTPError as exc:
                answer = exc
            with answer:
                while part := answer.read1(1 << 20):  # what has arrived, however little
                    body += part
                    if len(body) > bytes_max or time.monotonic() > end_s:
                        raise QueryFailed(f"more than {bytes_max} bytes or {within_s:g} s")
        except (InvalidURL, ValueError) as exc:  # their words may quote a part of the password
            raise QueryFailed("the address is not valid") from exc
        except (OSError, HTTPException) as exc:
            raise QueryFailed(str(getattr(exc, "reason", exc))) from exc
        return result(answer.status, bytes(body))


def result(status: int, body: bytes) -> Any:
    """The series in an answer; raises ``QueryFailed``, with what Prometheus says of an error."""
    if status != 200:
        error = re.search(rb'"error":"([^"]+)', body)
        why = error[1].decode(errors="replace") if error else responses.get(status, "")
        raise QueryFailed(why, status)
    try:
        return json.loads(body)["data"]["result"]
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise QueryFailed("it is not Prometheus", status) from exc
