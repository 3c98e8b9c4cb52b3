# SPDX-License-Identifier: Apache-2.0
"""The WSGI application behind Keystone's filter: who may ask about which server.

Nova vouches for a server and its project, so its request needs the service role. An owner needs a
token of the server's project, and Nova decides with that token whether the server is shown.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from keystoneauth1.exceptions import ClientException
from keystoneauth1.session import Session

LOG = logging.getLogger(__name__)
BODY_BYTES_MAX = 1 << 20
"""Nova sends the user data (64 KiB) and the metadata of a server, too."""
NOVA_S = 5.0
"""How long Nova may take to show a server to its owner."""
GUEST_S = 1.0
"""How long it may take while a guest waits for its metadata."""
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PROJECT = "[0-9A-Za-z_-]{1,64}"
_SERVER = re.compile(f"/v1/servers/({_UUID})")


class _Request(msgspec.Struct, rename={"server": "instance-id", "project": "project-id"}):
    """The part of Nova's request that matters here."""

    server: Annotated[str, msgspec.Meta(pattern=rf"^{_UUID}\Z")]
    project: Annotated[str, msgspec.Meta(pattern=rf"^{_PROJECT}\Z")]


class _Refused(Exception):
    """A request that is answered with this status and nothing else."""


class Application:
    """Answers ``POST /v1/vendordata`` of Nova and ``GET /v1/servers/{id}`` of an owner."""

    def __init__(self, conf: Any, figures: Callable[..., dict[str, Any]]) -> None:
        """``figures``: those of a server of a project, on the host that Nova names, if it does."""
        self._conf, self._figures, self._session = conf, figures, Session()

    def __call__(
        self, request: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        """Answer with a JSON object, which is empty if there are no figures."""
        status, answer = HTTPStatus.OK, {}
        try:
            answer = self._answer(request)
        except _Refused as exc:
            status = exc.args[0]
        body = msgspec.json.encode(answer)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start(f"{status.value} {status.phrase}", [*headers, ("Cache-Control", "no-store")])
        return [body]

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("HTTP_X_IDENTITY_STATUS") != "Confirmed":  # also without the filter
            raise _Refused(HTTPStatus.UNAUTHORIZED)
        method, path = request["REQUEST_METHOD"], request.get("PATH_INFO", "")
        if (method, path) == ("POST", "/v1/vendordata"):
            return self._vendordata(request)
        if method == "GET" and (match := _SERVER.fullmatch(path)):
            return self._figures(match[1], *self._owned(request, match[1]))
        raise _Refused(HTTPStatus.NOT_FOUND)

    def _vendordata(self, request: Mapping[str, Any]) -> dict[str, Any]:
        role = self._conf.vendordata.role.lower()
        if role not in request.get("HTTP_X_ROLES", "").lower().split(","):
            raise _Refused(HTTPStatus.FORBIDDEN)
        length = request.get("CONTENT_LENGTH") or "0"
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > BODY_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            body = msgspec.json.decode(request["wsgi.input"].read(int(length)), type=_Request)
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            raise _Refused(HTTPStatus.BAD_REQUEST) from exc
        shown = {}
        with contextlib.suppress(_Refused):  # what no other host contradicts is told as well
            shown = self._shown(request, body.server, GUEST_S)
        return self._figures(body.server, body.project, str(shown.get("hostId") or ""))

    def _owned(self, request: Mapping[str, Any], server: str) -> tuple[str, str]:
        """The token's project, if the server is in it and Nova shows it, and its ``hostId``."""
        project = str(request.get("HTTP_X_PROJECT_ID", ""))
        if not re.fullmatch(_PROJECT, project):  # a token of a domain or of the system
            raise _Refused(HTTPStatus.FORBIDDEN)
        shown = self._shown(request, server, NOVA_S)
        if (shown.get("id"), shown.get("tenant_id")) != (server, project):
            raise _Refused(HTTPStatus.NOT_FOUND)
        return project, str(shown.get("hostId") or "")

    def _shown(self, request: Mapping[str, Any], server: str, within_s: float) -> dict[str, Any]:
        """The server as Nova shows it to the sender of a request; empty if it does not."""
        keystone = self._conf.keystone_authtoken
        try:
            nova = request["keystone.token_auth"].get_endpoint(
                self._session,
                service_type="compute",
                interface=keystone.interface,
                region_name=keystone.region_name,
            )
            reply = self._session.get(
                f"{nova.rstrip('/')}/servers/{server}",
                # Not the filter's own plugin, which would add this service's token.
                headers={"X-Auth-Token": request["HTTP_X_AUTH_TOKEN"]},
                authenticated=False,
                raise_exc=False,
                redirect=False,
                timeout=within_s,
                verify=not keystone.insecure and (keystone.cafile or True),
            )
            if reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ValueError(f"it answers {reply.status_code}")
            return {**reply.json()["server"]} if reply.status_code == HTTPStatus.OK else {}
        except (ClientException, AttributeError, LookupError, TypeError, ValueError) as exc:
            LOG.warning("cannot get a server from Nova: %s", exc)
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE) from exc
