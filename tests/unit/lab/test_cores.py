"""The simulated host's own scheduler."""

import pytest

from amp_nova_lab.cores import share, throttled


@pytest.mark.parametrize(
    ("limits", "weights", "ratios"),
    [
        ([1.0], [100], [0.0]),
        ([0.25], [100], [0.75]),
        ([0.25, 1.0], [100, 100], [0.5, 0.0]),  # half speed until the quota is used
        ([0.8, 0.8], [100, 100], [0.0, 0.0]),  # neither reaches its limit
        ([0.75, 1.0], [300, 100], [0.0, 0.0]),  # it has used up its quota as the period ends
        ([0.6, 1.0], [300, 100], [0.2, 0.0]),  # at three quarters of the speed: after 0.8
        ([0.5, 0.2], [300, 100], [1 / 3, 0.3]),  # after 2/3; then 1/30 more alone
    ],
)
def test_time_is_throttled_only_after_the_quota_is_used(limits, weights, ratios):
    """Waiting for other vCPUs is not throttling; a greater weight uses the quota sooner."""
    assert throttled(limits, weights, share(limits, weights)) == pytest.approx(ratios)
