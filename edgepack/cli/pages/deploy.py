"""The page of `deploy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import megabytes
from edgepack.cli.pages.times import run_times

if TYPE_CHECKING:
    from edgepack.bundle.bundle import Bundle
    from edgepack.deploy.deploy import Report
    from edgepack.device.facts import DeviceFacts


def deploy_page(report: Report, bundle: Bundle) -> Html:
    """What was deployed: the photo with its classes, times, memory, files, the device."""
    from edgepack.deploy.answers import Answer
    from edgepack.deploy.app_answers import AppAnswer

    manifest, smoke = bundle.manifest, report.smoke
    answer = AppAnswer.read(Answer(smoke.photo or smoke.golden, "smoke test"))
    answer = answer.on_emulator() if report.emulated else answer
    photo = bundle.golden_image
    shown = page.picture(bundle.file(photo).read_bytes(), alt="the photo") if photo else Html()
    return page.page(
        f"{manifest.name} on {report.device}",
        shown,
        Html(report._repr_html_()),
        page.section("Smoke test", run_times(answer)),
        page.section("Device", _device(report.facts)),
        page.section(
            "Files",
            page.table(
                (
                    (name, entry.size, entry.sha256, "yes" if name in report.sent_files else "")
                    for name, entry in manifest.files.items()
                ),
                ("file", "bytes", "SHA-256", "sent"),
            ),
        ),
        page.section("Time of each phase, s", page.facts(report.seconds)),
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
