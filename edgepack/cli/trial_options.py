"""What `edgepack deploy` takes to try a release before it becomes the current one."""

from __future__ import annotations

import argparse
import re

from edgepack.base.errors import UsageError
from edgepack.cli.options import TRIAL, option_group, positive
from edgepack.deploy.options import MOST_KEPT, TrialRules

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RULES = ("share", "split", "min_agreement", "max_latency", "min_pictures", "keep_disagreements")


def add_trial(parser: argparse.ArgumentParser) -> None:
    """How long the trial is, and what decides it."""
    group = option_group(parser, TRIAL)
    group.add_argument(
        "--shadow",
        type=duration,
        metavar="TIME",
        help="do not activate the release yet: run it beside the current one for this time "
        "(90s, 30m, 2h, 1d), compare their answers, then activate or drop it",
    )
    defaults = TrialRules()
    group.add_argument(
        "--share",
        type=float,
        metavar="SHARE",
        help="share of the current release's pictures that the new one gets "
        f"(default: {defaults.share})",
    )
    group.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help="A/B test: answer this share of all pictures with the new release, at most --share "
        "(default: 0, the current release answers all)",
    )
    group.add_argument(
        "--min-agreement",
        type=float,
        metavar="SHARE",
        help=f"agreement of the answers that is needed (default: {defaults.min_agreement})",
    )
    group.add_argument(
        "--max-latency",
        type=ratio,
        metavar="RATIO",
        help="the most latency, as a multiple of the current release's "
        f"(default: {defaults.max_latency}x)",
    )
    group.add_argument(
        "--min-pictures",
        type=positive,
        metavar="N",
        help=f"number of compared pictures that are needed (default: {defaults.min_pictures})",
    )
    group.add_argument(
        "--keep-disagreements",
        type=positive,
        metavar="N",
        help="keep N small pictures at most, on the device, of those about which the two releases "
        f"disagree, at most {MOST_KEPT} (default: none)",
    )


def duration(text: str) -> float:
    """The type of --shadow: seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def ratio(text: str) -> float:
    """The type of --max-latency."""
    try:
        return float(text.removesuffix("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio such as 1.2x") from None


def trial_rules(args: argparse.Namespace) -> TrialRules | None:
    """What `add_trial`'s options ask for; None without a trial. Raises UsageError."""
    given = {name: getattr(args, name) for name in _RULES if getattr(args, name) is not None}
    if args.shadow is None:
        if given:
            raise UsageError(
                f"--{next(iter(given)).replace('_', '-')} belongs to a trial",
                hint="add --shadow 2h",
            )
        return None
    if args.service:
        raise UsageError(
            "--service goes without --shadow: the service runs the current release",
            hint="a candidate that is activated is run by the service that is there",
        )
    # What it answers, it has to get.
    if args.share is None and args.split is not None and TrialRules.share < args.split <= 1:
        given["share"] = args.split
    return TrialRules(seconds=args.shadow, **given)
