# SPDX-License-Identifier: Apache-2.0
"""The services that the commands read, through one connection of openstacksdk."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from keystoneauth1.exceptions import ClientException, EndpointNotFound
from osc_lib.exceptions import CommandError

from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.extra_specs import Booking, examine
from amp_nova.prometheus import QueryFailed, result

LOG = logging.getLogger(__name__)
TIMEOUT_S = 30
"""Time-out of a request to Prometheus."""
NOVA_VERSION = "2.86"
"""The first microversion that validates extra specs; servers show theirs since 2.47."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A flavor, or what a server keeps of it. ``disk_gb`` includes ephemeral disks."""

    id: str
    name: str
    vcpus: int
    ram_mib: int
    disk_gb: int
    specs: Mapping[str, str]

    @property
    def booking(self) -> Booking | None:
        """What it books; ``None`` if its extra specs are not valid."""
        return examine(self.specs, self.vcpus)[0]


@dataclass(frozen=True, slots=True)
class Server:
    """A server; ``node`` is its hypervisor_hostname, empty while it is on no host."""

    id: str
    name: str
    status: str
    node: str
    flavor: Flavor


class Forbidden(CommandError):
    """A service refuses to show something to this user."""


class InstantQueries:
    """Answers instant queries. A failure is logged once, and all later answers are empty."""

    def __init__(self, session: Any, url: str, *, authenticated: bool) -> None:
        self._session = session
        self._url = url
        self._authenticated = authenticated
        self._failed = False

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The labels and the value of every series of an instant vector."""
        if self._failed:
            return []
        try:
            answer = self._session.get(
                f"{self._url}/api/v1/query",
                params={"query": expression},
                authenticated=self._authenticated,
                timeout=TIMEOUT_S,
                raise_exc=False,
                redirect=False,  # the token is for this address
            )
            vector = result(answer.status_code, answer.content)
            return [(series["metric"], float(series["value"][1])) for series in vector]
        except (ClientException, QueryFailed, ValueError, LookupError, TypeError) as exc:
            self._failed = True
            LOG.warning("no measured values: Prometheus at %s failed: %s", self._url, exc)
            return []


Resource = TypeVar("Resource", Flavor, Server)


class Cloud:
    """Nova, Placement and Prometheus of one cloud, with the caller's rights.

    Requests raise ``CommandError`` with the service's own words if it refuses them.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def flavors(self) -> list[Flavor]:
        """All flavors that the caller may see, by name."""
        flavors = self._pages("/flavors/detail", {"is_public": "None"}, "flavors")
        return sorted((_flavor(f) for f in flavors), key=lambda f: f.name)

    def flavor(self, name: str) -> Flavor:
        """The flavor of this name or id."""
        return _find(name, self.flavors(), "flavor", "openstack amp flavor list")

    def servers(self, *, all_projects: bool = False, project: str | None = None) -> list[Server]:
        """The servers of the caller's project, of all projects, or of one by its id, by name."""
        filters = {"all_tenants": "1"} if all_projects or project else {}
        if project is not None:
            filters["project_id"] = project
        node = "OS-EXT-SRV-ATTR:hypervisor_hostname"
        servers = (
            Server(s["id"], s["name"], s["status"], s.get(node) or "", _flavor(s["flavor"]))
            for s in self._pages("/servers/detail", filters, "servers")
        )
        return sorted(servers, key=lambda s: (s.name, s.id))

    def project(self, name: str, domain: str | None = None) -> str:
        """The id of the project of this name or id, in a domain of this name or id."""
        identity, within = self._connection.identity, {}
        if domain is not None:
            if (scope := identity.find_domain(domain)) is None:
                raise ConfigInvalid(f"there is no domain {domain!r}: see 'openstack domain list'")
            within["domain_id"] = scope.id
        if (project := identity.find_project(name, **within)) is None:
            raise ConfigInvalid(f"there is no project {name!r}: see 'openstack project list'")
        return str(project.id)

    def server(self, name: str, *, all_projects: bool = False) -> Server:
        """The server of this name or id."""
        servers = self.servers(all_projects=all_projects)
        return _find(name, servers, "server", "openstack amp server list --all-projects")

    def set_specs(self, flavor: Flavor, specs: Mapping[str, str]) -> None:
        """Add or change extra specs in one request, so that all of them or none are written."""
        if specs:
            body = {"extra_specs": dict(specs)}
            self._nova("post", f"/flavors/{flavor.id}/os-extra_specs", json=body)

    def unset_spec(self, flavor: Flavor, key: str) -> None:
        self._nova("delete", f"/flavors/{flavor.id}/os-extra_specs/{key}")

    def placement(self, path: str) -> Any:
        """The decoded answer to a GET request."""
        answer = self._connection.placement.get(path, microversion="1.36")
        return _decoded(answer, "Placement")

    def prometheus(self, url: str | None) -> InstantQueries | None:
        """Prometheus at ``url``, or else the one in the service catalogue; ``None`` if none is.

        The caller's token is sent only to the one in the catalogue.
        """
        address = self._address("--prometheus", url, "prometheus")
        session = self._connection.session
        return InstantQueries(session, address, authenticated=url is None) if address else None

    def capacity(self, server: str, url: str | None) -> dict[str, Any]:
        """What amp-nova-vendordata returns to the owner of a server; if nothing, logs the reason.

        It is the one at ``url``, or else in the catalogue, if any. It gets the caller's token.
        """
        address, figures = self._address("--url", url, "amp-capacity"), {}
        if address is None:
            return {}
        try:
            path = f"{address}/v1/servers/{server}"
            answer = self._connection.session.get(
                path, timeout=TIMEOUT_S, raise_exc=False, redirect=False
            )
            figures = _decoded(answer, "amp-nova-vendordata")
            problem: object = "nothing was measured recently"
        except (ClientException, CommandError, ValueError) as exc:
            problem = exc
        if not figures:
            LOG.warning("amp-nova-vendordata has no figures for this server: %s", problem)
        return figures

    def _address(self, option: str, url: str | None, service_type: str) -> str | None:
        """The address that the option gives, or else the one in the catalogue, if any."""
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConfigInvalid(f"{option} {url!r} is not an address: write http://HOST:PORT")
            return url.rstrip("/")
        config = self._connection.config
        try:
            endpoint: str | None = self._connection.session.get_endpoint(
                service_type=service_type,
                interface=config.get_interface(service_type),
                region_name=config.get_region_name(service_type),
            )
        except EndpointNotFound:
            return None
        return endpoint.rstrip("/") if endpoint else None

    def _nova(self, method: str, path: str, **more: Any) -> Any:
        answer = getattr(self._connection.compute, method)(path, microversion=NOVA_VERSION, **more)
        return _decoded(answer, "Nova")

    def _pages(self, path: str, query: Mapping[str, str], key: str) -> list[dict[str, Any]]:
        """All items of a list that Nova returns in pages."""
        items: list[dict[str, Any]] = []
        marker: dict[str, str] = {}
        while page := self._nova("get", f"{path}?{urlencode({**query, **marker})}")[key]:
            items += page
            marker = {"marker": page[-1]["id"]}
        return items


def _find(name: str, candidates: Sequence[Resource], kind: str, remedy: str) -> Resource:
    """The one candidate of this id or name; ``ConfigInvalid`` if there is not exactly one."""
    matches = [c for c in candidates if c.id == name] or [c for c in candidates if c.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigInvalid(f"{len(matches)} {kind}s are named {name!r}: give the id of one")
    raise ConfigInvalid(f"there is no {kind} {name!r}: see '{remedy}'")


def _decoded(answer: Any, service: str) -> Any:
    if answer.status_code < 300:
        return answer.json() if answer.content else {}
    try:
        # {"badRequest": {"message": ...}} or {"errors": [{"detail": ...}]}
        words = next(iter(answer.json().values()))
        words = words[0]["detail"] if isinstance(words, list) else words["message"]
    except (ValueError, LookupError, AttributeError, TypeError, StopIteration):
        words = answer.text[:200]
    kind = Forbidden if answer.status_code == 403 else CommandError
    raise kind(f"{service} refused the request ({answer.status_code}): {words}")


def _flavor(data: Mapping[str, Any]) -> Flavor:
    """A flavor as Nova lists it, or as part of a server, where it has no id."""
    ephemeral = data.get("OS-FLV-EXT-DATA:ephemeral", data.get("ephemeral", 0))
    return Flavor(
        data.get("id", ""),
        data.get("name") or data["original_name"],
        int(data["vcpus"]),
        int(data["ram"]),
        int(data["disk"]) + int(ephemeral),
        data.get("extra_specs", {}),
    )


def by_label(prometheus: InstantQueries | None, label: str, expression: str) -> dict[str, float]:
    """Values by the value of one label."""
    series = prometheus.query(expression) if prometheus else []
    return {labels[label]: value for labels, value in series if label in labels}


def by_host(
    prometheus: InstantQueries | None, nodes: Iterable[str], expression: str, label: str = ""
) -> dict[tuple[str, str], float]:
    """Values by host and by the value of ``label``."""
    values: dict[tuple[str, str], float] = {}
    nodes_by_name = {name: node for node in nodes for name in (node.split(".")[0], node)}
    for labels, value in prometheus.query(expression) if prometheus else []:
        # The label that the scrape job sets, else the address that is scraped.
        name = labels.get("host") or labels.get("instance", "").rpartition(":")[0]
        if node := nodes_by_name.get(name) or nodes_by_name.get(name.split(".")[0]):
            values[node, labels.get(label, "")] = value
    return values
