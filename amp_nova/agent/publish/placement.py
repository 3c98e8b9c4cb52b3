"""Keeps this host's providers in Placement: inventories that follow the host, level-triggered.

Nova's compute service leaves providers below its own alone, so these are ours. Whoever else changes
one at the same time makes Placement answer 409; then what is there is read again.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.flavor.placement_resources import PLACEMENT_CLASS, Provider, provider_name

LOG = logging.getLogger(__name__)
GROUP = "placement"
VERSION = {"OpenStack-API-Version": "placement 1.36"}
ATTEMPTS = 4
RETRY_S = 15.0
RESYNC_S = 300.0
"""Seconds between two looks at what Placement has, whether or not something changed here."""
_OURS = "CUSTOM_AMP_"


class PlacementUnavailable(AmpError):
    """Placement does not do what it is asked now; the next attempt starts from the beginning."""


def register(conf: cfg.ConfigOpts) -> None:
    """Make keystoneauth's options known: ``[placement] auth_type``, ``auth_url`` and so on."""
    loading.register_auth_conf_options(conf, GROUP)
    loading.register_session_conf_options(conf, GROUP)
    loading.register_adapter_conf_options(conf, GROUP)


def connect(conf: cfg.ConfigOpts) -> Any:
    """A client of Placement as configured; ``ConfigInvalid`` if nothing can come of it."""
    register(conf)
    try:
        if not conf.placement.auth_type:
            raise ConfigInvalid("[placement] enabled needs auth_type: write what nova.conf has")
        auth = loading.load_auth_from_conf_options(conf, GROUP)
        session = loading.load_session_from_conf_options(conf, GROUP, auth=auth)
        return loading.load_adapter_from_conf_options(
            conf,
            GROUP,
            session=session,
            service_type="placement",
            raise_exc=False,
        )
    except (keystone_exceptions.ClientException, cfg.Error, ValueError) as exc:
        raise ConfigInvalid(f"[placement] is not valid: {exc}; write what nova.conf has") from exc


class Inventory:
    """Makes Placement hold what ``offer`` was last given, in a thread of its own."""

    def __init__(self, client: Any, node: str) -> None:
        self._client = client
        self._node = node
        self._wanted: tuple[Provider, ...] | None = None
        self._declared: set[str] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._failing = False
        self.failures = 0

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="placement", daemon=True).start()

    def stop(self) -> None:
        """End; what Placement holds stays."""
        self._stopped.set()
        self._wake.set()

    def offer(self, wanted: tuple[Provider, ...]) -> None:
        """Take what the host offers now; returns at once."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(RETRY_S if self._failing else RESYNC_S)
            self._wake.clear()
            if self._stopped.is_set() or self._wanted is None:
                continue
            try:
                self.sync(self._wanted)
            except (PlacementUnavailable, keystone_exceptions.ClientException) as exc:
                self.failures += 1
                if not self._failing:
                    LOG.error("Placement does not have this host's capacity: %s", exc)
                self._failing = True
            except Exception:  # whatever it was, the next attempt starts from the beginning
                self.failures += 1
                self._failing = True
                LOG.exception("Placement does not have this host's capacity")
            else:
                if self._failing:
                    LOG.info("Placement has this host's capacity again")
                self._failing = False

    def sync(self, wanted: tuple[Provider, ...]) -> None:
        """Make Placement hold this; ``PlacementUnavailable`` if it does not now."""
        root = self._root()
        self._declare(f"/resource_classes/{PLACEMENT_CLASS}")
        for trait in sorted({t for p in wanted for t in p.traits}):
            self._declare(f"/traits/{trait}")
        there = self._children(root)
        for provider in wanted:
            uuid = there.pop(provider.name, None)
            if uuid is None:
                uuid = self._create(provider, root)
            self._retry(partial(self._put_inventory, uuid, provider))
            self._retry(partial(self._put_traits, uuid, provider.traits))
        for name, uuid in there.items():
            self._retry(partial(self._retire, uuid, name))

    def _root(self) -> str:
        found = self._ask("get", f"/resource_providers?name={self._node}")["resource_providers"]
        if not found:
            raise PlacementUnavailable(
                f"it knows no provider '{self._node}' yet: nova-compute makes it; if that has "
                "another name, set [nova] hypervisor_hostname"
            )
        return str(found[0]["uuid"])

    def _declare(self, url: str) -> None:
        if url not in self._declared:
            self._ask("put", url)
            self._declared.add(url)

    def _children(self, root: str) -> dict[str, str]:
        """Our providers there, by name."""
        found = self._ask("get", f"/resource_providers?in_tree={root}")["resource_providers"]
        prefix = provider_name(self._node, "")
        return {p["name"]: p["uuid"] for p in found if p["name"].startswith(prefix)}

    def _create(self, provider: Provider, root: str) -> str:
        said = {
            "uuid": provider.uuid,
            "name": provider.name,
            "parent_provider_uuid": root,
        }
        self._ask("post", "/resource_providers", said)
        return provider.uuid

    def _put_inventory(self, uuid: str, provider: Provider) -> bool:
        url = f"/resource_providers/{uuid}/inventories"
        there = self._ask("get", url)
        inventory = {
            "total": provider.total,
            "reserved": provider.reserved,
            "min_unit": 1,
            "max_unit": provider.total,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
        if there["inventories"] == {PLACEMENT_CLASS: inventory}:
            return True
        return self._put(url, there, "inventories", {PLACEMENT_CLASS: inventory})

    def _put_traits(self, uuid: str, traits: Iterable[str]) -> bool:
        url = f"/resource_providers/{uuid}/traits"
        there = self._ask("get", url)
        foreign = {t for t in there["traits"] if not t.startswith(_OURS)}
        if set(there["traits"]) == foreign | set(traits):
            return True
        return self._put(url, there, "traits", sorted(foreign | set(traits)))

    def _put(self, url: str, there: dict[str, Any], key: str, value: Any) -> bool:
        """Write what belongs to the generation that was read; whether nobody came between."""
        generation = there["resource_provider_generation"]
        said = {"resource_provider_generation": generation, key: value}
        return self._ask("put", url, said, conflict=True) is not None

    def _retire(self, uuid: str, name: str) -> bool:
        """Take away the provider of a core type that is no more; closed as long as it is in use."""
        answer = self._client.delete(f"/resource_providers/{uuid}", headers=VERSION)
        if answer.status_code != 409:
            return True
        url = f"/resource_providers/{uuid}/inventories"
        there = self._ask("get", url)
        closed = there["inventories"].get(PLACEMENT_CLASS)
        if closed is None or closed["reserved"] == closed["total"]:
            return True
        LOG.info("%s is closed: its core type is gone, and claims are left", name)
        closed["reserved"] = closed["total"]
        return self._put(url, there, "inventories", {PLACEMENT_CLASS: closed})

    def _retry(self, attempt: Callable[[], bool]) -> None:
        for _ in range(ATTEMPTS):
            if attempt():
                return
        raise PlacementUnavailable("somebody else keeps changing the same provider")

    def _ask(self, method: str, url: str, said: object = None, *, conflict: bool = False) -> Any:
        """What Placement answers; ``None`` for a conflict, if the caller can deal with one."""
        body = {} if said is None else {"json": said}
        answer = getattr(self._client, method)(url, headers=VERSION, **body)
        if answer.status_code == 409 and conflict:
            return None
        if answer.status_code >= 400:
            raise PlacementUnavailable(
                f"{method.upper()} {url} was answered {answer.status_code}: {answer.text[:200]}"
            )
        return answer.json() if answer.text else {}
