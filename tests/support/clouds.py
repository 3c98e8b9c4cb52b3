# SPDX-License-Identifier: Apache-2.0
"""A fake of a cloud's services, as openstacksdk reaches them: they answer from dictionaries.

For unit tests of ``openstack amp``; tests/e2e runs the same commands against real services.
"""

import io
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

from keystoneauth1.exceptions import ConnectFailure, EndpointNotFound

from amp_nova.flavor.placement_resources import PLACEMENT_CLASS
from amp_nova.osc.cloud import Cloud

PAGE = 2
"""Items in a page of Nova's, few, so that tests see more than one page."""


def answer(body, status=200):
    """A response of ``requests``."""
    text = "" if body is None else json.dumps(body)
    return SimpleNamespace(
        status_code=status, content=text.encode(), text=text, json=lambda: json.loads(text)
    )


@dataclass
class FakeCloud:
    """What the services know; ``session``, ``compute`` and so on are what the SDK offers."""

    flavors: dict = field(default_factory=dict)
    projects: dict = field(default_factory=dict)
    """Names of projects, by domain and id."""
    servers: list = field(default_factory=list)
    providers: list = field(default_factory=list)
    allocations: dict = field(default_factory=dict)
    series: dict = field(default_factory=dict)
    """What Prometheus answers, by query."""
    catalogue: str | None = None
    """Address of Prometheus in the service catalogue."""
    service: str | None = None
    """Address of amp-nova-vendordata in the service catalogue."""
    told: dict = field(default_factory=dict)
    """What amp-nova-vendordata answers, by the id of a server; others it does not know."""
    admin: bool = True
    """Whether Placement answers this user."""
    down: bool = False
    refused: str = ""
    """With what words Nova refuses writes."""
    asked: list = field(default_factory=list)
    """Address and authentication of every request to Prometheus."""

    def __post_init__(self):
        self.compute = SimpleNamespace(get=self._nova, post=self._set, delete=self._unset)
        self.placement = SimpleNamespace(get=self._placement)
        self.identity = SimpleNamespace(find_domain=self._domain, find_project=self._project)
        self.session = SimpleNamespace(get=self._measured, get_endpoint=self._endpoint)
        name = lambda service: "x"  # noqa: E731
        self.config = SimpleNamespace(get_interface=name, get_region_name=name)

    def flavor(self, name, specs=None, vcpus=1, ram=16):
        """Add a flavor."""
        self.flavors[name] = {
            "id": f"{name}-id",
            "name": name,
            "vcpus": vcpus,
            "ram": ram,
            "disk": 0,
            "OS-FLV-EXT-DATA:ephemeral": 0,
            "extra_specs": dict(specs or {}),
        }

    def server(self, name, flavor, host, project="own"):
        """Add a server of a flavor, to a project of this id."""
        kept = {k: v for k, v in self.flavors[flavor].items() if k not in ("id", "name")}
        self.servers.append(
            {
                "id": f"{name}-id",
                "name": name,
                "status": "ACTIVE",
                "tenant_id": project,
                "OS-EXT-SRV-ATTR:hypervisor_hostname": host,
                "flavor": {"original_name": flavor, "ephemeral": 0, **kept},
            }
        )

    def host(self, node, core_types, *, claimed=0, vcpus=8, traits=(), reserved=0):
        """Add a host; ``core_types``: total in thousandths of a reference core by core type."""
        root = {"VCPU": (vcpus, 0, 0), "MEMORY_MB": (4096, 0, 0)}
        self._provider(node, None, root, traits)
        for core_type, total in core_types.items():
            inventory = {PLACEMENT_CLASS: (total, reserved, claimed)}
            self._provider(f"{node}_amp_{core_type}", node, inventory, traits)

    def _provider(self, name, parent, inventory, traits):
        self.providers.append(
            {
                "uuid": f"{name}-uuid",
                "name": name,
                "parent_provider_uuid": f"{parent}-uuid" if parent else None,
                "inventory": inventory,
                "traits": list(traits),
            }
        )

    def _nova(self, path, microversion):
        assert microversion == "2.86"
        parts = urlsplit(path)
        key = parts.path.split("/")[1]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        every = list(self.flavors.values()) if key == "flavors" else self._servers(query)
        marker = query.get("marker")
        ids = [item["id"] for item in every]
        first = ids.index(marker) + 1 if marker else 0
        return answer({key: every[first : first + PAGE]})

    def _servers(self, query):
        wanted = {query.get("project_id")} if "all_tenants" in query else {"own"}
        return [s for s in self.servers if wanted <= {None, s["tenant_id"]}]

    def _domain(self, name):
        return SimpleNamespace(id=name) if name in self.projects else None

    def _project(self, name, domain_id=None):
        domains = self.projects if domain_id is None else [domain_id]
        ids = [i for d in domains for i, n in self.projects[d].items() if name in (i, n)]
        return SimpleNamespace(id=ids[0]) if ids else None

    def _by_id(self, path):
        return next(f for f in self.flavors.values() if f["id"] == path.split("/")[2])

    def _set(self, path, microversion, json):
        if self.refused:
            return answer({"badRequest": {"message": self.refused}}, 400)
        self._by_id(path)["extra_specs"].update(json["extra_specs"])
        return answer(json)

    def _unset(self, path, microversion):
        del self._by_id(path)["extra_specs"][path.split("/")[-1]]
        return answer(None, 202)

    def _placement(self, path, microversion):
        if not self.admin:
            return answer({"errors": [{"detail": "Forbidden"}]}, 403)
        words = path.split("/")[1:]
        if words[0] == "allocations":
            return answer({"allocations": self.allocations.get(words[1], {})})
        if len(words) == 1:
            return answer({"resource_providers": self.providers})
        provider = next(p for p in self.providers if p["uuid"] == words[1])
        inventory = provider["inventory"].items()
        return answer(
            {
                "name": provider["name"],
                "traits": provider["traits"],
                "usages": {name: used for name, (_, _, used) in inventory},
                "inventories": {
                    name: {"total": total, "reserved": reserved, "allocation_ratio": 1.0}
                    for name, (total, reserved, _) in inventory
                },
            }
        )

    def _endpoint(self, service_type, **_wanted):
        """As keystoneauth, which raises for what the catalogue does not have."""
        found = {"prometheus": self.catalogue, "amp-capacity": self.service}[service_type]
        if found is None:
            raise EndpointNotFound(f"public endpoint for {service_type} service not found")
        return found

    def _measured(self, url, params=None, *, redirect, authenticated=True, **_more):
        assert redirect is False, "the token is for this address only"
        self.asked.append((url, authenticated))
        if self.down:
            raise ConnectFailure("connection refused")
        if params is None:  # amp-nova-vendordata
            server = url.rpartition("/v1/servers/")[2]
            return answer(self.told[server]) if server in self.told else answer({}, 404)
        found = self.series.get(params["query"], [])
        result = [{"metric": labels, "value": [0, str(value)]} for labels, value in found]
        return answer({"status": "success", "data": {"result": result}})

    def run(self, command, *words):
        """Run a command; its exit status and what it printed."""
        app = SimpleNamespace(stdout=io.StringIO(), client_manager=SimpleNamespace(amp=Cloud(self)))
        made = command(app, None)
        status = made.run(made.get_parser("openstack amp").parse_args(words))
        return status, app.stdout.getvalue()

    def rows(self, command, *words):
        """The same, as decoded JSON, of a command that succeeds."""
        status, text = self.run(command, *words, "--format", "json")
        assert status == 0
        return json.loads(text)
