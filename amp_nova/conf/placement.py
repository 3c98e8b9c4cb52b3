"""``[placement]``: resource providers per core type."""

from oslo_config import cfg

GROUP = "placement"

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Keep a resource provider per core type in Placement, so that flavors that request
``CUSTOM_AMP_MREFCORE`` are claimed without races. It needs the credentials of nova.conf's
``[placement]`` in this section: ``auth_type``, ``auth_url``, ``username``, ``password``,
``project_name``, ``user_domain_name``, ``project_domain_name``, ``region_name``.
""",
    ),
]
