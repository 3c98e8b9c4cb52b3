"""Configuration files value by value: what is wrong with one, in words for operators."""

import math
from collections.abc import Mapping, Sequence

from oslo_config import cfg, types


def parsed(
    groups: Mapping[str, Sequence[cfg.Opt]], argv: Sequence[str], named: list[str] | None
) -> cfg.ConfigOpts:
    """The configuration; ``named=None`` looks in the usual places. As oslo.config raises."""
    conf = cfg.ConfigOpts()
    for group, opts in groups.items():
        conf.register_opts(opts, group)
    # Files that were named are all that counts: no amp-nova.conf.d beside them.
    folders: list[str] | None = None if named is None else []
    conf(
        list(argv),
        project="amp-nova",
        default_config_files=named,
        default_config_dirs=folders,
    )
    return conf


def wrong(conf: cfg.ConfigOpts, group: str, opt: cfg.Opt) -> str | None:
    """What to write instead of a value; oslo.config would refuse it where it is first used."""
    try:
        value = conf[group][opt.name]
    except (cfg.Error, ValueError) as exc:
        # What is no value at all, but a reference to another option, has no type yet.
        reason = str(exc).rpartition("is not valid: ")[2]
        return reason if isinstance(exc, cfg.TemplateSubstitutionError) else _allowed(opt, reason)
    if value is None and opt.default is not None:
        return _allowed(opt, "it is empty")
    if isinstance(value, float) and not math.isfinite(value):
        return _allowed(opt, "it is no number")
    return None


def _allowed(opt: cfg.Opt, reason: str) -> str:
    """What an option takes, in words; the parser's own where there are none."""
    kind = opt.type
    if isinstance(kind, types.Boolean):
        return "give true or false"
    if isinstance(kind, types.Number):
        what = "a whole number" if isinstance(kind, types.Integer) else "a number"
        if kind.max is not None:
            return f"give {what} from {kind.min:g} to {kind.max:.9g}"
        return f"give {what} of at least {kind.min:g}"
    if isinstance(kind, types.HostAddress):
        return "give an IP address or a host name"
    if choices := getattr(kind, "choices", None):
        return f"give one of {', '.join(choices)}"
    return "give an absolute path" if getattr(kind, "regex", None) else reason


def written(group: str, name: str, argv: Sequence[str], named: list[str] | None) -> str:
    """`` = VALUE`` as it stands in the file; nothing where that cannot be told."""
    try:
        texts = parsed({group: [cfg.MultiStrOpt(name, default=[])]}, argv, named)[group][name]
    except (cfg.Error, ValueError):
        return ""
    return f" = {texts[-1]}" if texts else ""
