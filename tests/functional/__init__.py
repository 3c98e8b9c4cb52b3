# SPDX-License-Identifier: Apache-2.0
"""Nova's API, conductor, scheduler, Placement and fake computes in one process, with the plugins.

Nova chooses between native threads and eventlet when its first module is imported: here.
"""

import nova.monkey_patch
import nova.tests.functional

# Nova 32 does so only in a later module, when eventlet cannot replace all that waits any more.
if hasattr(nova.monkey_patch, "patch"):
    nova.monkey_patch.patch()
