"""How results of edgepack-run and of a deploy are written for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgepack.cli.console import megabytes, table

if TYPE_CHECKING:
    from edgepack.deploy.deploy import Report
    from edgepack.deploy.smoke import Smoke


def top_lines(top: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per class, best first."""
    return [
        f"  {item['score']:8.4f}  {item['index']:>4}  {item.get('label', '')}".rstrip()
        for item in top
    ]


def answer_lines(answer: Mapping[str, Any]) -> list[str]:
    """What edgepack-run said of one image or input."""
    lines = top_lines(answer.get("top", ()))
    times = [
        f"{name} {answer[key]:.1f} ms"
        for name, key in (
            ("load", "load_ms"),
            ("decode", "decode_ms"),
            ("preprocess", "preprocess_ms"),
            ("run", "run_ms"),
        )
        if key in answer
    ]
    if times:
        lines.append(f"time      {', '.join(times)} ({answer.get('threads', '?')} threads)")
    if "rss_peak_bytes" in answer:
        lines.append(
            f"memory    peak {megabytes(answer['rss_peak_bytes'])} "
            f"(weights {megabytes(answer['params_bytes'])}, "
            f"arena {megabytes(answer['arena_bytes'])})"
        )
    if "expected" in answer:
        lines.append(error_line(answer["expected"]))
    return lines


def error_line(expected: Mapping[str, Any]) -> str:
    """How far the outputs are from the reference."""
    error, reference = expected["max_abs_error"], expected["max_abs_reference"]
    ratio = error / reference if reference else error
    return (
        f"accuracy  max |error| {error:.2g}, {ratio:.1e} of the reference's largest value "
        f"(limit {expected['tolerance']:.0e})"
    )


def bench_lines(bench: Mapping[str, Any]) -> list[str]:
    """Statistics of repeated runs, in milliseconds."""
    return [
        f"runs      {bench['runs']} after {bench['warmup']} warm-up",
        f"mean      {bench['mean_ms']:.2f} ms, std {bench['std_ms']:.2f}",
        f"p50/90/99 {bench['p50_ms']:.2f} / {bench['p90_ms']:.2f} / {bench['p99_ms']:.2f} ms",
        f"min, max  {bench['min_ms']:.2f}, {bench['max_ms']:.2f} ms",
    ]


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """A table of kernel calls; layers that have no name in the model go by their kernel's."""
    rows = [
        (
            layer["layer"] or layer["kernel"],
            layer["operator"],
            f"{layer['ms']:.3f}",
            f"{layer['share']:.1%}",
            f"{layer['gflops']:.2f}" if "gflops" in layer else "-",
        )
        for layer in profile["layers"]
    ]
    return [
        table(rows, ("LAYER", "OPERATOR", "MS", "SHARE", "GFLOP/S")),
        "",
        f"medians of {profile['runs']} runs; reading the clock adds "
        f"{profile['overhead_ms']:.3f} ms to a run",
    ]


def deploy_lines(report: Report, name: str) -> list[str]:
    """What a deploy did, and what the smoke test gave."""
    sent = (
        f"{megabytes(report.sent_bytes)} in {len(report.sent_files)} files, "
        f"{megabytes(report.model_bytes_sent)} of them model; "
        f"{len(report.reused_files)} files were there"
        if report.outcome == "deployed"
        else "nothing: the release was there"
    )
    if report.copied_bytes:
        sent += f", and {megabytes(report.copied_bytes)} of others"
    if report.links > 1:
        sent += f" ({report.links} connections)"
    lines = [
        f"{name} on {report.device}: {report.outcome}, release {report.release}"
        + (f", version {report.version}" if report.version else ""),
        f"where     {report.root}/current",
        f"sent      {sent}",
    ]
    if report.signer:
        lines.append(f"signer    {report.signer}")
    if report.pinned:
        lines.append(f"trust     from now on only what {report.pinned} signed")
    if report.previous:
        lines.append(f"before    release {report.previous}")
    return [*lines, *smoke_lines(report.smoke, fresh=report.smoke_fresh)]


def status_lines(status: Mapping[str, Any], where: str) -> list[str]:
    """What runs on a device, since when, by whom, and how it does (`edgepack-device status`)."""
    current, previous = status["current"], status["previous"]
    name = current["name"] if current else "nothing"
    lines = [f"{name} in {where}:"]
    if current:
        health = current["health"]
        lines += [
            f"current   {_release(current)}, for {current['board']}",
            f"model     {current['model']}, sha256 {current['model_sha256']}",
            f"since     {current['since']} by {current['by']}",
            f"signer    {current['signer'] or 'none'}",
            "health    " + (_health(health) if health else "not tested"),
        ]
    if previous:
        lines.append(f"previous  {_release(previous)}")
    store = status["store"]
    lines.append(
        f"stored    {len(status['releases'])} releases, "
        f"{megabytes(store['bytes'])} in {store['blobs']} files"
    )
    if status["signers"]:
        lines.append(f"trusts    {', '.join(status['signers'])}")
    if status["pending"]:
        lines.append(f"pending   release {status['pending']['release']} is being tested")
    if status["lock"]:
        lines.append(f"locked    by {status['lock']['by']} since {status['lock']['since']}")
    return lines


def _release(release: Mapping[str, Any]) -> str:
    version = f", version {release['version']}" if release.get("version") else ""
    return f"release {release['release']}{version}"


def _health(health: Mapping[str, Any]) -> str:
    parts = [str(health["outcome"])]
    if (latency := health.get("latency_ms")) is not None:
        parts.append(f"{latency:.1f} ms")
    if (error := health.get("max_abs_error")) is not None:
        parts.append(f"max |error| {error:.2g}")
    if (memory := health.get("max_rss_mb")) is not None:
        parts.append(f"{memory:.1f} MB")
    return f"{', '.join(parts)}, at {health['at']}"


def smoke_lines(smoke: Smoke, *, fresh: bool) -> list[str]:
    """The smoke test: the photo's classes, the time, the error against the reference."""
    title = "smoke test passed" if fresh else "smoke test passed when it was deployed"
    lines = [f"{title}:"]
    answer = dict(smoke.photo or smoke.golden)
    answer["expected"] = {
        "max_abs_error": smoke.max_abs_error,
        "max_abs_reference": smoke.max_abs_reference,
        "tolerance": smoke.tolerance,
    }
    return lines + answer_lines(answer)
