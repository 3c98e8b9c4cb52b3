"""How Nova's API validates a flavor's extra specs."""

from typing import ClassVar

from tests.functional.cloud import CloudTestCase


class ValidatorsTest(CloudTestCase):
    HOSTS: ClassVar = {}  # Nova's API alone

    def setUp(self):
        super().setUp()
        self.flavor_id = self.flavor()

    def set(self, key, value):
        """Set one extra spec; the message of a rejection, ``None`` if it was accepted."""
        answer = self.api.api_post(
            f"/flavors/{self.flavor_id}/os-extra_specs",
            {"extra_specs": {key: value}},
            check_response_status=[200, 400],
        )
        return answer.body["badRequest"]["message"] if answer.status == 400 else None

    def test_the_whole_grammar_is_accepted(self):
        """Every key of the table, with and without a vCPU index where it may have one."""
        for key, value in (
            ("amp:pref_core", "0.5"),
            ("amp:pref_core.0", "1"),
            ("amp:pref_core.127", "1.5"),
            ("amp:ips", "2.5G"),
            ("amp:ips.1", "800M"),
            ("amp:limit", "soft"),
            ("amp:burst_s", "0"),
            ("amp:core_type", "core-2.4GHz"),
            ("amp:efficiency", "high"),
            ("amp:efficiency", "1.8"),
            ("amp:weight", "0.01"),
            ("other:key", "anything"),
        ):
            assert self.set(key, value) is None, key

    def test_everything_else_is_rejected_with_what_is_allowed(self):
        """Nova answers 400 with the message of the grammar, also for keys with an index."""
        for key, value, message in (
            ("amp:pref_core", "0", "amp:pref_core='0' is not allowed: give a decimal above 0"),
            ("amp:ips.0", "2.5X", "an optional k, M, G or T, such as 2.5G"),
            ("amp:pref_cores", "1", "did you mean amp:pref_core?"),
            ("amp:pref_core.x", "1", "did you mean amp:pref_core.N"),
            ("amp:pref_coreX0", "1", "is not an extra spec of amp-nova"),
            ("amp:limit.0", "hard", "did you mean amp:limit?"),
            ("amp:nonsense", "1", "allowed: amp:pref_core, amp:ips, amp:limit"),
        ):
            rejected = self.set(key, value)
            assert rejected is not None, (key, value)
            assert message in rejected, rejected
