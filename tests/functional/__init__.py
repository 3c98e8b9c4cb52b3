"""Nova's API, conductor, scheduler, Placement and fake computes in one process, with our plugins.

Nova chooses native threads or eventlet as its first module is imported, so that comes first.
"""

import nova.tests.functional  # noqa: F401
