# SPDX-License-Identifier: Apache-2.0
"""A strategy for Watcher: live-migrate servers that do not get what they booked.

From each host it moves the server that missed the most minutes of its booking. Nova's scheduler
chooses the destination: amp-nova's filter knows which hosts have the capacity, and the scheduler
claims it in Placement.
"""

from watcher.decision_engine.strategy.strategies.base import UnclassifiedStrategy

MISSED = """
sum by (resource) (increase(amp_instance_delivered_ratio_bucket{{le="0.95"}}[{period}s]))
/ sum by (resource) (increase(amp_instance_delivered_ratio_count[{period}s])) > {allowed}
"""
"""Share of the minutes with demand that delivered less than 95 % of the booking."""


class KeepBookings(UnclassifiedStrategy):
    """Move servers off hosts that do not keep their bookings."""

    DATASOURCE_METRICS = ("host_cpu_usage",)  # every Prometheus datasource has this one

    @classmethod
    def get_name(cls):
        return "keep_bookings"

    @classmethod
    def get_display_name(cls):
        return "Keep bookings"

    @classmethod
    def get_translatable_display_name(cls):
        return "Keep bookings"

    @classmethod
    def get_schema(cls):
        return {
            "properties": {
                "period": {
                    "description": "seconds to look back",
                    "type": "number",
                    "default": 3600,
                },
                "allowed": {
                    "description": "share of the minutes with demand that may be missed",
                    "type": "number",
                    "default": 0.1,
                },
                "moves": {"description": "servers to move", "type": "number", "default": 2},
            }
        }

    def pre_execute(self):
        self._pre_execute()

    def do_execute(self, audit=None):
        model, busy = self.compute_model, set()
        for uuid, _missed in self._short():
            if len(busy) == self.input_parameters.moves:
                return
            instance = model.get_all_instances().get(uuid)  # None: outside the audit's scope
            if instance is None or instance.state != "active" or instance.watcher_exclude:
                continue
            node = model.get_node_by_instance_uuid(uuid)
            if node.uuid not in busy:  # one server per host: the next audit sees the effect
                busy.add(node.uuid)
                self.solution.add_action(
                    action_type=self.MIGRATION,
                    resource_id=uuid,
                    input_parameters={
                        "migration_type": "live",
                        "source_node": node.hostname,
                        "resource_name": instance.name,
                    },
                )

    def post_execute(self):
        self.solution.model = self.compute_model

    def _short(self):
        """UUIDs of servers that do not get what they booked, with the share missed, worst first."""
        found = self.datasource_backend.prometheus.query(
            MISSED.format(
                period=int(self.input_parameters.period), allowed=self.input_parameters.allowed
            )
        )
        short = [(metric.labels["resource"], float(metric.value)) for metric in found]
        return sorted(short, key=lambda server: -server[1])
