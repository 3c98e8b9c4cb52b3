"""Nova's API, conductor, scheduler, Placement and fake computes in one process, with the plugins.

Nova chooses between native threads and eventlet when its first module is imported: here.
"""

import nova.tests.functional  # noqa: F401
