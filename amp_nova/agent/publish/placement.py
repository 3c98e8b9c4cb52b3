# SPDX-License-Identifier: Apache-2.0
"""Keeps this host's providers in Placement up to date.

The agent owns these child providers of nova-compute's provider; nova-compute ignores providers that
it did not create. Every synchronisation compares what Placement has with what the host offers
(level-triggered). A write that conflicts with another client's (409) is retried from the current
state.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from amp_nova.agent.threads import WAIT_MAX_S, HelperThread
from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.flavor.placement_resources import PLACEMENT_CLASS, Provider, provider_name

LOG = logging.getLogger(__name__)
GROUP = "placement"
VERSION = {"OpenStack-API-Version": "placement 1.36"}
ATTEMPTS_MAX = 4
TIMEOUT_S = 30.0
"""Time-out of each request to Keystone and Placement, unless ``[placement] timeout`` is set."""
RESYNC_S = 300.0
"""Time between synchronisations while nothing changes on the host."""
_OWN_TRAITS = "CUSTOM_AMP_"


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """keystoneauth's options in ``[placement]``, for oslo-config-generator."""
    options = [
        *loading.get_auth_common_conf_options(),
        *loading.get_auth_plugin_conf_options("v3password"),
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(include_deprecated=False),
    ]
    return [(GROUP, list({option.dest: option for option in options}.values()))]


def connect(conf: cfg.ConfigOpts) -> Any:
    """The configured Placement client; it connects when it is first used.

    Raises ``ConfigInvalid`` if ``[placement]`` is incomplete or not valid.
    """
    loading.register_auth_conf_options(conf, GROUP)
    loading.register_session_conf_options(conf, GROUP)
    loading.register_adapter_conf_options(conf, GROUP)
    conf.set_default("timeout", TIMEOUT_S, GROUP)
    try:
        if not conf.placement.auth_type:
            raise ConfigInvalid(
                "[placement] auth_type is missing: copy the section [placement] from nova.conf"
            )
        auth = loading.load_auth_from_conf_options(conf, GROUP)
        session = loading.load_session_from_conf_options(conf, GROUP, auth=auth)
        return loading.load_adapter_from_conf_options(
            conf,
            GROUP,
            session=session,
            service_type="placement",
            raise_exc=False,
        )
    except (keystone_exceptions.ClientException, cfg.Error, TypeError, ValueError) as exc:
        raise ConfigInvalid(
            f"[placement] is not valid: {exc}; copy the section from nova.conf"
        ) from exc


class Inventory(HelperThread):
    """Synchronises Placement with the providers that were last offered, in its own thread."""

    def __init__(self, client: Any, node: str) -> None:
        super().__init__("placement", self._synchronise)
        self._client = client
        self._node = node
        self._offered: tuple[Provider, ...] | None = None
        self._declared: set[str] = set()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Stop synchronising; Placement keeps what it has."""
        super().stop()
        self._wake.set()

    def offer(self, providers: tuple[Provider, ...]) -> None:
        """Take what the host offers now; does not block."""
        if providers != self._offered:
            self._offered = providers
            self._wake.set()

    def _synchronise(self) -> None:
        due_s = 0.0
        while self.beat():
            changed = self._wake.wait(WAIT_MAX_S)
            self._wake.clear()
            if self._offered is None or not (changed or time.monotonic() >= due_s):
                continue
            # Every attempt uses what Placement has and what the host offers at that time.
            failing = "cannot update this host's capacity in Placement"
            if self.persist(lambda: self.sync(self._offered or ()), failing):
                self.success()
                due_s = time.monotonic() + RESYNC_S

    def sync(self, offered: tuple[Provider, ...]) -> None:
        """Make Placement's providers of this host equal to those offered.

        Raises ``AmpError`` if Placement refuses a request, or does not know the host yet.
        """
        roots = self._request("get", f"/resource_providers?name={self._node}")["resource_providers"]
        if not roots:
            raise AmpError(
                f"there is no provider '{self._node}' yet, which nova-compute creates; if it has "
                "another name, set [nova] hypervisor_hostname"
            )
        root = str(roots[0]["uuid"])
        self._declare(f"/resource_classes/{PLACEMENT_CLASS}")
        for trait in sorted({t for p in offered for t in p.traits}):
            self._declare(f"/traits/{trait}")
        in_tree = self._request("get", f"/resource_providers?in_tree={root}")["resource_providers"]
        prefix = provider_name(self._node, "")  # of the agent's own
        current = {p["name"]: p["uuid"] for p in in_tree if p["name"].startswith(prefix)}
        for provider in offered:
            uuid = current.pop(provider.name, None)
            if uuid is None:
                uuid = provider.uuid
                body = {"uuid": uuid, "name": provider.name, "parent_provider_uuid": root}
                self._request("post", "/resource_providers", body)
            self._retry(partial(self._put_inventory, uuid, provider))
            self._retry(partial(self._put_traits, uuid, provider.traits))
        for name, uuid in current.items():
            self._retry(partial(self._retire, uuid, name))

    def _declare(self, url: str) -> None:
        if url not in self._declared:
            self._request("put", url)
            self._declared.add(url)

    def _put_inventory(self, uuid: str, provider: Provider) -> bool:
        url = f"/resource_providers/{uuid}/inventories"
        current = self._request("get", url)
        inventory = {
            "total": provider.total,
            "reserved": provider.reserved,
            "min_unit": 1,
            "max_unit": provider.total,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
        return self._put(url, current, "inventories", {PLACEMENT_CLASS: inventory})

    def _put_traits(self, uuid: str, traits: Iterable[str]) -> bool:
        url = f"/resource_providers/{uuid}/traits"
        current = self._request("get", url)
        current["traits"].sort()
        foreign = {t for t in current["traits"] if not t.startswith(_OWN_TRAITS)}
        return self._put(url, current, "traits", sorted(foreign | set(traits)))

    def _put(self, url: str, current: dict[str, Any], key: str, value: Any) -> bool:
        """Write a value if it differs; ``False`` if another client has written in the meantime."""
        if current[key] == value:
            return True
        generation = current["resource_provider_generation"]
        body = {"resource_provider_generation": generation, key: value}
        return self._request("put", url, body, conflict=True) is not None

    def _retire(self, uuid: str, name: str) -> bool:
        """Delete the provider of a core type that is gone; if it has claims, reserve all of it.

        ``False`` if another client has written in the meantime.
        """
        if self._request("delete", f"/resource_providers/{uuid}", conflict=True) is not None:
            return True
        url = f"/resource_providers/{uuid}/inventories"
        current = self._request("get", url)
        inventory = current["inventories"].get(PLACEMENT_CLASS)
        if inventory is None or inventory["reserved"] == inventory["total"]:
            return True
        LOG.info("%s is closed to new claims: its core type is gone, but claims remain", name)
        closed = {**inventory, "reserved": inventory["total"]}
        return self._put(url, current, "inventories", {PLACEMENT_CLASS: closed})

    def _retry(self, attempt: Callable[[], bool]) -> None:
        if not any(attempt() for _ in range(ATTEMPTS_MAX)):
            raise AmpError("another client keeps changing the same provider")

    def _request(
        self, method: str, url: str, body: object = None, *, conflict: bool = False
    ) -> Any:
        """The decoded answer; with ``conflict``, ``None`` for a conflict (409)."""
        self.beat()
        json = {} if body is None else {"json": body}
        answer = getattr(self._client, method)(url, headers=VERSION, **json)
        if answer.status_code == 409 and conflict:
            return None
        if answer.status_code >= 400:
            raise AmpError(
                f"{method.upper()} {url} was answered {answer.status_code}: {answer.text[:200]}"
            )
        return answer.json() if answer.text else {}
