# SPDX-License-Identifier: Apache-2.0
"""How Nova's API validates a flavor's extra specs."""

from typing import ClassVar

from tests.functional.cloud import CloudTestCase


class ValidatorsTest(CloudTestCase):
    HOSTS: ClassVar = {}  # Nova's API alone

    def test_the_grammar_is_accepted_and_all_else_rejected_with_what_is_allowed(self):
        """Keys with and without an index; 400 has the grammar's message.

        ``tests/unit/flavor/test_extra_specs.py`` has all that it allows and refuses.
        """
        flavor = self.flavor()
        for key, value, message in (
            ("amp:pref_core", "0.5", None),
            ("amp:pref_core.127", "1.5", None),
            ("amp:ips", "2.5G", None),
            ("amp:ips.1", "800M", None),
            ("amp:limit", "soft", None),
            ("amp:burst_s", "0", None),
            ("amp:core_type", "core-2.4GHz", None),
            ("amp:efficiency", "high", None),
            ("amp:efficiency", "1.8", None),
            ("amp:weight", "0.01", None),
            ("other:key", "anything", None),
            ("amp:pref_core", "0", "amp:pref_core='0' is not allowed: give a decimal above 0"),
            ("amp:ips.0", "2.5X", "an optional k, M, G or T, such as 2.5G"),
            ("amp:pref_cores", "1", "did you mean amp:pref_core?"),
            ("amp:pref_core.x", "1", "did you mean amp:pref_core.N"),
            ("amp:pref_coreX0", "1", "is not an extra spec of amp-nova"),
            ("amp:limit.0", "hard", "did you mean amp:limit?"),
            ("amp:nonsense", "1", "allowed: amp:pref_core, amp:ips, amp:limit"),
        ):
            answer = self.api.api_post(
                f"/flavors/{flavor}/os-extra_specs",
                {"extra_specs": {key: value}},
                check_response_status=[400 if message else 200],
            )
            if message:
                assert message in answer.body["badRequest"]["message"], (key, value)
