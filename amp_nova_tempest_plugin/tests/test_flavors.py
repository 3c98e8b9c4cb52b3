# SPDX-License-Identifier: Apache-2.0
"""Nova's API refuses extra specs that no agent understands."""

from tempest.api.compute import base
from tempest.lib import decorators, exceptions


class FlavorsTest(base.BaseV2ComputeAdminTest):
    """The validators of amp-nova are loaded by nova-api."""

    min_microversion = "2.86"

    @decorators.idempotent_id("f0577c78-fe2c-469a-8c53-d7552798694d")
    def test_a_wrong_extra_spec_is_refused(self) -> None:
        """A bad value or an unknown key: the answer names it, and the flavor stays as it was."""
        client = self.admin_flavors_client
        flavor = self.create_flavor(ram=64, vcpus=1, disk=0, is_public=False)["id"]
        wrong = {"amp:pref_core": "lots", "amp:pref_cores": "1", "amp:limit": "firm"}

        for key, value in wrong.items():
            refused = self.assertRaises(
                exceptions.BadRequest, client.set_flavor_extra_spec, flavor, **{key: value}
            )
            self.assertIn(key, str(refused))

        self.assertEqual({}, client.list_flavor_extra_specs(flavor)["extra_specs"])
