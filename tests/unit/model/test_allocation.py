"""From what holds to what shall hold."""

from amp_nova.control.changes import change, diff
from amp_nova.model.allocation import Grant, Step
from tests.hosts import limit, reading

KEY = ("vm", 0)


def grant(pcpus=(0, 1), key=KEY, **rest):
    return Grant(key, frozenset(pcpus), **rest)


class TestChange:
    def test_nothing_to_do(self):
        """What holds is not written again: the write would refill the bandwidth."""
        now = reading(pcpus=[0, 1], bandwidth=limit(0.5))

        assert change(now, grant(bandwidth=limit(0.5), limits=True)) is None

    def test_a_limit_that_is_not_ours(self):
        """A grant that does not limit leaves whatever limit there is."""
        now = reading(pcpus=[0, 1], bandwidth=limit(0.5))

        assert change(now, grant()) is None
        assert change(now, grant([2])).steps == (Step(pcpus=frozenset({2})),)

    def test_the_limit_is_lowered_before_a_move(self):
        """From a slow to a fast core: in between it has too little, never too much."""
        now = reading(pcpus=[0, 1], bandwidth=limit(0.8))

        steps = change(now, grant([2], bandwidth=limit(0.4), limits=True)).steps

        assert steps == (Step(bandwidth=limit(0.4)), Step(pcpus=frozenset({2})))

    def test_the_limit_is_raised_after_a_move(self):
        """From a fast to a slow core."""
        now = reading(pcpus=[2], bandwidth=limit(0.4))

        steps = change(now, grant([0], bandwidth=limit(0.8), limits=True)).steps

        assert steps == (Step(pcpus=frozenset({0})), Step(bandwidth=limit(0.8)))

    def test_no_limit_is_the_highest(self):
        """To limit one that had no limit comes first; to free one comes last."""
        free, limited = reading(pcpus=[0]), reading(pcpus=[0], bandwidth=limit(0.5))

        first = change(free, grant([2], bandwidth=limit(0.5), limits=True)).steps
        last = change(limited, grant([2], limits=True)).steps

        assert first[0] == Step(bandwidth=limit(0.5))
        assert last[-1] == Step(bandwidth=None)

    def test_another_period_is_another_limit(self):
        """The same share in longer runs is a change, of one write."""
        now = reading(pcpus=[0, 1], bandwidth=limit(0.5, 20_000))

        steps = change(now, grant(bandwidth=limit(0.5, 100_000), limits=True)).steps

        assert steps == (Step(bandwidth=limit(0.5, 100_000)),)

    def test_a_loose_grant_is_content_with_less(self):
        """A vCPU that a policy keeps on one of its pCPUs is left there; elsewhere it is not."""
        assert change(reading(pcpus=[1]), grant(loose=True)) is None
        assert change(reading(pcpus=[0, 1]), grant(loose=True)) is None
        assert change(reading(pcpus=[1, 2]), grant(loose=True)) is not None
        assert change(reading(pcpus=[1]), grant()) is not None


def test_diff_leaves_out_what_is_gone():
    """A vCPU that went away since needs no change."""
    now = {("vm", 1): reading(1, pcpus=[2])}

    changes = diff(now, [grant(), grant(key=("vm", 1))])

    assert [c.key for c in changes] == [("vm", 1)]
