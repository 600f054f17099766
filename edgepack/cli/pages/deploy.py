"""The page of `deploy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import format_count, megabytes, milliseconds
from edgepack.cli.pages.run import answered_photo, describe_answer
from edgepack.cli.pages.times import run_times
from edgepack.deploy.app_answers import emulated_mark

if TYPE_CHECKING:
    from edgepack.bundle.bundle import Bundle
    from edgepack.deploy.answers import Release, Status
    from edgepack.deploy.deploy import Report
    from edgepack.device.facts import DeviceFacts


# What differs between releases of one model only if somebody wanted that.
_TELLING = ("version", "model", "model's SHA-256", "board", "signer")


def deploy_page(report: Report, bundle: Bundle, there: Status | None = None) -> Html:
    """What the device sees, first of all; what changed since the release before, which `there`
    tells; times, memory, the device, and the files.
    """
    from edgepack.deploy.answers import Answer
    from edgepack.deploy.app_answers import AppAnswer

    manifest, smoke = bundle.manifest, report.smoke
    answer = AppAnswer.read(Answer(smoke.photo or smoke.golden, "smoke test"))
    answer = answer.on_emulator() if report.emulated else answer
    photo = bundle.golden_image
    files = page.table(
        (
            (name, entry.size, entry.sha256, "yes" if name in report.sent_files else "")
            for name, entry in manifest.files.items()
        ),
        ("file", "bytes", "SHA-256", "sent"),
    )
    said = describe_answer(answer)
    count = format_count(len(manifest.files), "file")
    return page.page(
        f"{manifest.name} on {report.device}",
        page.verdict(f"{report.outcome}, smoke test passed{said and f': {said}'}", ok=True),
        answered_photo(answer, bundle.file(photo)) if photo else Html(),
        Html(report._repr_html_()),
        page.section("Since the release before", _changes(report, there)),
        page.section("Smoke test", run_times(answer)),
        page.section("Device", _device(report.facts)),
        page.section(
            "Files", page.fold_parts(f"{count}, {megabytes(manifest.total_bytes)}", files)
        ),
        page.section("Time of each phase, s", page.facts(report.seconds)),
        kind="deploy",
    )


def _changes(report: Report, there: Status | None) -> Html:
    """The release now beside the one that a rollback would go to."""
    now = there.current if there else None
    before = there.previous if there else None
    if now is None or now.release != report.release or before is None:
        return page.paragraph(f"Release {report.previous}" if report.previous else "There is none.")
    mark = emulated_mark(report.emulated)
    rows: list[tuple[str, object, object]] = [
        ("release", before.release, now.release),
        ("version", before.version or None, now.version or None),
        ("model", before.model, now.model),
        ("model's SHA-256", before.model_sha256[:12], now.model_sha256[:12]),
        ("board", before.board, now.board),
        ("since", before.since, now.since),
        ("by", before.by, now.by),
        ("signer", before.signer or None, now.signer or None),
        *zip(
            ("one run", "peak memory", "max |error|"),
            _tested(before, mark),
            _tested(now, mark),
            strict=True,
        ),
    ]
    shown = [
        (name, old, new, "" if old == new else _change(name, before, now))
        for name, old, new in rows
        if old is not None or new is not None
    ]
    groups = {"the model": ("model/",), "the app": ("bin/",)}
    sent = {
        name: [file for file in report.sent_files if file.startswith(begins)]
        for name, begins in groups.items()
    }
    news = ", ".join(name for name, files in sent.items() if files)
    return Html(
        page.table(shown, ("", "before", "now", ""))
        + page.paragraph(f"Sent, as it was not there: files of {news}." if news else "")
    )


def _change(name: str, before: Release, now: Release) -> str:
    """In words: how much, of a time; else that it changed."""
    times = [one.health.latency_ms if one.health else None for one in (before, now)]
    if name == "one run" and times[0] and times[1]:
        return f"{times[1] / times[0] - 1:+.1%}"
    return "changed" if name in _TELLING else ""


def _tested(release: Release, mark: str) -> tuple[str | None, str | None, str | None]:
    """Latency, memory and error in a release's last test, as far as they are known."""
    health = release.health
    if health is None:
        return None, None, None
    latency, memory, error = health.latency_ms, health.max_rss_mb, health.max_abs_error
    return (
        None if latency is None else milliseconds(latency) + mark,
        None if memory is None else f"{memory:.1f} MB{mark}",
        None if error is None else f"{error:.2g}",
    )


def _device(facts: DeviceFacts) -> Html:
    return page.facts(
        {
            "model": facts.model,
            "system": f"{facts.os}, {facts.system} {facts.kernel}",
            "machine": f"{facts.machine}, {facts.cores} cores",
            "C library": f"glibc {facts.glibc}" if facts.glibc else facts.libc,
            "CPU features": " ".join(sorted(facts.features)),
            "memory": f"{megabytes(facts.memory_available_bytes)} free of "
            f"{megabytes(facts.memory_bytes)}",
            "disk": f"{megabytes(facts.free_disk_bytes)} free",
            "logged in as": f"{facts.user}@{facts.hostname}",
        }
    )
