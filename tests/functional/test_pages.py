"""Pages in a real browser, Debian's Chromium: light and dark, and as narrow as a phone."""

from __future__ import annotations

import html
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base import charts, page
from edgepack.base.errors import RemoteError
from edgepack.cli import main
from edgepack.cli.pages.bench import bench_page
from edgepack.cli.pages.compare import compare_page
from edgepack.cli.pages.deploy import deploy_page
from edgepack.cli.pages.evaluate import boxes_page, evaluate_page, rows_page
from edgepack.cli.pages.run import run_page
from edgepack.cli.pages.tune import tune_page
from edgepack.cli.pages.whole import read_page, whole_page
from edgepack.deploy.answers import Answer, Status
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.conditions import Conditions
from edgepack.deploy.deploy import deploy_bundle
from edgepack.deploy.remote_tool import status
from edgepack.device import LocalDevice
from edgepack.fleet import Journal, Settings, Share, make_plan, roll_out
from edgepack.fleet.report import FleetReport
from edgepack.flow.average_precision import Guess, Thing, average_precision
from edgepack.flow.compare import Compared, LayerError
from edgepack.flow.evaluate import Evaluation, Judged, Photo
from edgepack.flow.evaluate_boxes import BoxEvaluation
from edgepack.flow.evaluate_rows import Answering, JudgedRow, RowEvaluation
from tests import onnx_models, yolo_exports
from tests.browser import Browse, browse, check_page
from tests.fake_app import fake_bundle
from tests.means import means_app
from tests.scripted_fleet import FakeWork, Log, devices
from tests.scripted_tool import APP, NEW, STATUS
from tests.unit.test_quantization import project
from tests.unit.test_tuning_session import PlayedDevice, session
from tests.yolo_exports import EXPORTS

__all__ = ["browse", "project"]

pytestmark = pytest.mark.slow

# Screenshots of all pages, at both widths, light and dark, stay there.
SHOTS = Path(__file__).parents[2] / "build" / "pages"

LONG = "features.18.0/" * 12
DIGEST = "0123456789abcdef" * 4
PHOTO = cv2.imencode(".png", np.zeros((40, 60, 3), np.uint8))[1].tobytes()
MADE = page.page(
    "mobilenetv2 on pi",
    page.facts({"SHA-256": DIGEST, "folder": LONG}),
    page.section("Layers", page.shares([(LONG, 1.0, "12.345 ms"), ("b", 0.5, "6.100 ms")])),
    page.section("Latency", charts.histogram([*range(1, 50)], unit="ms", title="latency")),
    page.section(
        "Files",
        page.table([(LONG, 12345678, "depthwise", DIGEST)], ("file", "bytes", "rule", "SHA-256")),
    ),
    page.section("Photo", page.picture(PHOTO, alt="a photo")),
    page.section(
        "Boxes",
        charts.marked_picture(PHOTO, 60, 40, [((5, 5, 50, 30), LONG)], [(9, 9)], alt="boxes"),
    ),
)
MAGENTA = (255, 0, 255)
# Measures a page that runs no script itself.
MEASURE = """<!DOCTYPE html><body><iframe width="{width}" height="900" srcdoc="{page}"></iframe>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const widths = (what) => [...inside.querySelectorAll(what)].map(
    (one) => one.getBoundingClientRect().width);
  document.body.textContent = JSON.stringify({{
    wide: inside.documentElement.scrollWidth,
    cut: [...inside.querySelectorAll(".bar span")].filter(
      (one) => one.scrollWidth > one.clientWidth).length,
    broken: [...inside.querySelectorAll("td")].filter((one) => {{
      const text = inside.createRange();
      text.selectNodeContents(one);
      return text.getClientRects().length > 1;
    }}).map((one) => one.textContent),
    bars: widths(".bar i"), columns: widths("svg:not(.marks) rect").length,
    pictures: [...inside.images].map((image) => image.naturalWidth)}});
}}
</script>"""


def measured(browse: Browse, file: Path, width: int, shown: str) -> dict[str, Any]:
    file.write_text(MEASURE.format(width=width, page=html.escape(shown)))
    said = html.unescape(browse(file, "--dump-dom", "--virtual-time-budget=5000"))
    found: dict[str, Any] = json.loads(re.findall(r"\{.*\}", said)[-1])
    return found


@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_is_no_wider_than_the_window(browse: Browse, tmp_path: Path, width: int) -> None:
    found = measured(browse, tmp_path / "measure.html", width, MADE)
    assert found["wide"] <= width
    # A layer's name differs from the next one's at its end.
    assert found["cut"] == 0
    # Names and hashes may be, words are not.
    assert set(found["broken"]) <= {LONG, DIGEST}
    assert found["bars"][0] == pytest.approx(2 * found["bars"][1], rel=0.02)
    assert found["columns"] == 20
    assert found["pictures"] == [60]


def test_a_notebook_has_bars_as_well(browse: Browse, tmp_path: Path) -> None:
    """Its own page has none of our styles."""
    shown = page.embed_parts(page.shares([("dog", 1.0, "0.9"), ("cat", 0.5, "0.45")]))
    found = measured(browse, tmp_path / "measure.html", 600, shown)
    assert found["bars"][0] > 100
    assert found["bars"][0] == pytest.approx(2 * found["bars"][1], rel=0.02)


@pytest.mark.parametrize(("scheme", "bright"), [(0, False), (1, True)], ids=["dark", "light"])
def test_a_page_is_dark_where_the_system_is(
    browse: Browse, tmp_path: Path, scheme: int, *, bright: bool
) -> None:
    file, shot = tmp_path / "page.html", tmp_path / "shot.png"
    file.write_text(MADE)
    # blink::mojom::PreferredColorScheme: kDark is 0, kLight 1.
    settings = f"--blink-settings=preferredColorScheme={scheme}"
    browse(file, f"--screenshot={shot}", "--window-size=800,900", settings)
    image = cv2.imread(str(shot))
    assert image is not None
    assert (np.median(image) > 128) == bright


@pytest.fixture
def detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a project of a detector as ultralytics exports it, and a photo."""
    monkeypatch.chdir(tmp_path)
    yolo_exports.write(EXPORTS[0], tmp_path / "yolo.onnx")
    photo = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "photo.png"), cv2.GaussianBlur(photo, (0, 0), 9))
    assert main(["init", "yolo.onnx"]) == 0
    return tmp_path


def test_check(browse: Browse, detector: Path) -> None:
    assert main(["check", "--image", "photo.png", "--html", "check.html"]) == 0
    check_page(browse, (detector / "check.html").read_text(), SHOTS, "check")


def test_compile(browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx_models.quantized(tmp_path / "net.onnx")
    words = ["compile", "net.onnx", "--board", "rasp4b-64", "-o", "out", "--html", "page.html"]
    assert main(words) == 0
    check_page(browse, Path("page.html").read_text(), SHOTS, "compile")


def test_bench(browse: Browse, tmp_path: Path) -> None:
    times = [12.0 + (number % 7) / 10 + number / 40 for number in range(50)]
    bench = {
        "runs": 50, "warmup": 3, "mean_ms": 13.0, "std_ms": 0.4, "min_ms": min(times),
        "max_ms": max(times), "p50_ms": 12.9, "p90_ms": 13.5, "p99_ms": 13.7, "times_ms": times,
    }  # fmt: skip
    parts = {"load_ms": 20.0, "decode_ms": 4.0, "preprocess_ms": 2.5, "run_ms": 12.9}
    answer = AppAnswer.read(Answer({**APP, **parts, "bench": bench}, "app"))
    conditions = Conditions(mhz=600.0, max_mhz=1200.0, governors=("ondemand",), celsius=71.5)
    release = Status.read(Answer(STATUS, "tool")).current
    made = bench_page(answer, "m on pi", release=release, conditions=(Conditions(), conditions))
    for words in ("600 of 1200 MHz", "71.5", "ondemand", NEW, "+", "UTC"):
        assert words in made
    check_page(browse, made, SHOTS, "bench")


def test_tune(browse: Browse, tmp_path: Path) -> None:
    records = tmp_path / "tuning.jsonl"
    made = tune_page(session(records, PlayedDevice()), records, "net", estimated=False)
    check_page(browse, made, SHOTS, "tune")


def test_quantize(browse: Browse, project: Path) -> None:
    assert main(["quantize", "--html", "q.html", "--cache-dir", "kept"]) == 0
    check_page(browse, (project / "q.html").read_text(), SHOTS, "quantize")


def test_evaluate(browse: Browse) -> None:
    """Of 30 classes, one of a long name; a device that takes one in ten for its neighbour."""
    labels = tuple(LONG if number == 3 else f"class {number}" for number in range(30))
    judged = tuple(
        Judged(
            photo=Photo(path=Path("none.jpg"), name=f"{number}.jpg", expected=number % 30),
            reference=(number % 30, 0),
            device=((number + (number % 10 == 0)) % 30, 0),
        )
        for number in range(300)
    )
    found = Evaluation(judged=judged, labels=labels, device="pi")
    check_page(browse, evaluate_page(found), SHOTS, "evaluate")


def test_evaluate_rows(browse: Browse) -> None:
    kinds = Answering(name="y", at=0, is_value=False, classes=3, labels=("ash", LONG, "elm"))
    judged = tuple(
        JudgedRow(line=n, expected=n % 3, reference=n % 2, device=n % 3) for n in range(2, 40)
    )
    found = RowEvaluation(judged=judged, answering=kinds, target="tree", device="pi")
    rows = [(one.line, LONG, "elm", "ash") for one in judged]
    made = rows_page(found, {"output": "y", "reference": "a", "device": "b"}, rows, list("abcd"))
    check_page(browse, made, SHOTS, "evaluate-rows")


def test_evaluate_boxes(browse: Browse) -> None:
    """Twelve classes, by a detector that misses every third thing and sees some that are none."""
    things, guesses = [], []
    for photo in range(60):
        box = (10.0 * (photo % 7), 10.0, 40.0, 30.0)
        own = [Thing(index=photo % 12, box=box, area=1200.0)]
        seen = [Guess(index=photo % 12, score=0.9 - photo / 100, box=box)] * (photo % 3 > 0)
        wrong = [Guess(index=(photo + 5) % 12, score=0.5, box=(1.0, 1.0, 9.0, 9.0))]
        things.append(own)
        guesses.append([*seen, *wrong])
    reference = average_precision(things, guesses, range(12))
    device = average_precision(things, [one[:1] for one in guesses], range(12))
    labels = tuple(LONG if number == 3 else f"class {number}" for number in range(12))
    found = BoxEvaluation(
        photos=60, reference=reference, on_device=device, labels=labels, device="pi"
    )
    check_page(browse, boxes_page(found), SHOTS, "evaluate-boxes")


def fleet_page(folder: Path, count: int, error: str) -> str:
    """Of a rollout in which each seventh device of the later waves fails, and which stops there."""
    found = devices(count, boards=("rasp3b", "rk3399"))
    broken = {device.name for device in found[20::7]}
    work = FakeWork(broken=broken, error=RemoteError(error, hint=error))
    settings = Settings(max_failures=Share(value=5), parallel=4)
    plan = make_plan(found, settings)
    with Journal(folder / "m.jsonl") as journal:
        result = roll_out(plan, settings, work, Log(), journal=journal)
        FleetReport(
            fleet="shops", model="m", action="deploy", plan=plan, journal=journal,
            wanted=work.wanted, result=result,
        ).write_html(folder / "report.html")  # fmt: skip
    return (folder / "report.html").read_text()


def test_fleet(browse: Browse, tmp_path: Path) -> None:
    made = fleet_page(tmp_path, 200, f"no space left on {LONG}")
    check_page(browse, made, SHOTS, "fleet")


USE = """<!DOCTYPE html><body><iframe width="900" height="900" srcdoc="{page}"></iframe><pre></pre>
<script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const form = inside.querySelector(".filters"), body = inside.querySelector("tbody");
  const rows = () => [...body.rows].filter((row) => row.getClientRects().length).map(
    (row) => [...row.cells].map((cell) => cell.textContent));
  const set = (tag, value) => {{
    const field = form.querySelector(tag);
    field.value = value;
    field.dispatchEvent(new Event(tag === "input" ? "input" : "change"));
    return [rows(), form.querySelector("output").textContent];
  }};
  const heads = [...inside.querySelectorAll("th")];
  const click = (name) => {{
    heads.find((one) => one.textContent === name).click();
    return rows();
  }};
  const names = heads.map((one) => one.textContent);
  const found = {{names, all: rows(), searched: set("input", "d00003"),
    two: set("input", "RASP lan"), cleared: set("input", ""),
    failed: set("select", "failed"), every: set("select", ""),
    board: click("board"), back: click("board"), seconds: click("seconds"),
    device: click("device")}};
  document.querySelector("pre").textContent = "USED" + JSON.stringify(found);
}};
</script>"""


def test_a_table_is_filtered_and_sorted(browse: Browse, tmp_path: Path) -> None:
    made = fleet_page(tmp_path, 60, "it broke")
    file = tmp_path / "use.html"
    file.write_text(USE.format(page=html.escape(made)))
    said = browse(file, "--dump-dom", "--virtual-time-budget=5000")
    (text,) = re.findall(r"USED(\{.*\})</pre>", said, re.DOTALL)
    found = json.loads(html.unescape(text))
    at = {name: index for index, name in enumerate(found["names"])}

    def column(rows: list[list[str]], name: str) -> list[str]:
        return [row[at[name]] for row in rows]

    assert len(found["all"]) == 60
    assert (column(found["searched"][0], "device"), found["searched"][1]) == (["d00003"], "1 of 60")
    assert set(column(found["two"][0], "board")) == {"rasp3b"}
    assert len(found["two"][0]) == 30
    assert len(found["cleared"][0]) == len(found["every"][0]) == 60
    failed = [row for row in found["all"] if row[at["outcome"]] == "failed"]
    assert found["failed"][0] == failed
    assert len(failed) > 2
    boards = column(found["board"], "board")
    assert boards == sorted(boards)
    assert column(found["back"], "board") == boards[::-1]
    times = [float(time) for time in column(found["seconds"], "seconds") if time]
    assert times == sorted(times)
    assert all(column(found["seconds"], "seconds")[: len(times)])  # those that have none are last
    assert column(found["device"], "device") == [f"d{n:05}" for n in range(1, 61)]


def test_deploy(browse: Browse, tmp_path: Path) -> None:
    """One release after another, on this machine."""
    bundles = [fake_bundle(tmp_path / name, weights=name.encode() * 999) for name in "ab"]
    device = LocalDevice(tmp_path)
    for bundle in bundles:
        report = deploy_bundle(bundle, device, "edgepack/tiny")
    made = deploy_page(report, bundles[1], status(device, "edgepack/tiny"))
    assert bundles[0].manifest.release in made
    check_page(browse, made, SHOTS, "deploy")


def test_check_of_rows(browse: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    b = onnx_models.Builder()
    b.op("Identity", "x", outputs=["y"])
    model = b.model({"x": [1, 9]}, {"y": [1, 9]})
    Path("rows.onnx").write_bytes(model.SerializeToString())
    Path("rows.csv").write_text(
        "\n".join([",".join("abcdefghi") + ",kind", *["0.123456," * 9 + "1"] * 30])
    )
    words = ["--rows", "rows.csv", "--target", "kind"]
    assert main(["check", "rows.onnx", *words, "--html", "rows.html"]) == 0
    check_page(browse, Path("rows.html").read_text(), SHOTS, "check-rows")


def test_run(browse: Browse, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    boxes = [{"index": 1, "label": LONG, "score": 0.5, "box": [2.0, 3.0, 50.0, 30.0]}]
    said = {**APP, "decode_ms": 2.0, "boxes": boxes}
    made = run_page(AppAnswer.read(Answer(said, "app")), "m on pi", tmp_path / "photo.png")
    check_page(browse, made, SHOTS, "run")


def test_compare(browse: Browse) -> None:
    layers = tuple(
        LayerError(
            call=number, layer=LONG if number == 2 else f"layer {number}", operator="Conv",
            rule="conv", value=f"v{number}", shape=(1, 64, 112, 112), max_abs_error=0.01 * number,
            max_abs_reference=2.0, ok=number < 5,
        )
        for number in range(1, 9)
    )  # fmt: skip
    found = Compared(
        board="rasp3b", cpu="cortex-a53", same_plan=True, calls=9, tolerance=0.01, layers=layers
    )
    check_page(browse, compare_page(found, "m on pi"), SHOTS, "compare")


def test_report(browse: Browse, detector: Path) -> None:
    assert main(["check", "--image", "photo.png", "--html", "check.html"]) == 0
    assert main(["compile", "--board", "rasp3b", "-o", "out", "--html", "compile.html"]) == 0
    fleet_page(detector, 30, "it broke")
    assert main(["report", "-o", "all.html"]) == 0
    check_page(browse, (detector / "all.html").read_text(), SHOTS, "report")


# What would run where text is taken for HTML: in each it tells so on the page itself.
FELL = "document.documentElement.dataset.fell = 1"
HOSTILE = (
    f"<script>{FELL}</script>",
    f'"><img src=x onerror="{FELL}">',
    f"'><svg onload='{FELL}'>",
    f"</title></style></td></svg><script>{FELL}</script>",
    f"<iframe srcdoc='<script>parent.{FELL}</script>'></iframe>",
    f"--><script>{FELL}</script><!--",
    f"javascript:{FELL}",
)


def test_hostile_names_are_text(browse: Browse, tmp_path: Path) -> None:
    """Models, files, devices and what they say: all of it comes from others."""
    name = " ".join(HOSTILE)
    made = page.page(
        name,
        page.facts({name: name}),
        page.section(name, page.shares([(one, 1.0, one) for one in HOSTILE])),
        page.section(name, charts.histogram([1.0, 2.0], unit=name, title=name)),
        page.table([HOSTILE], HOSTILE),
        page.picture(PHOTO, alt=name),
        charts.marked_picture(PHOTO, 60, 40, [((5, 5, 50, 30), name)], [], alt=name),
        page.embed_parts(page.shares([(name, 1.0, name)])),
        page.verdict(name, ok=False),
        page.fold_parts(name, page.figures([(page.picture(PHOTO, alt=name), name)])),
        page.filters(name, HOSTILE),
        charts.dots([1.0, 2.0], unit=name, title=name, lines={name: 1.5}),
        charts.curves({name: [(0, 0), (1, 1)], "b": []}, title=name, x=(0, 1), y=(0, 1)),
        charts.draw_stacked_bar([(name, 1.0, name), ("b", 1.0, name)], title=name),
        charts.rectangles([(0, 0, 1, 1, 0, name)], x=1, y=1, title=name),
        charts.flow([(name, 1.0, 0, name), ("b", 2.0, 1, name)], [(0, 1)], title=name),
        charts.matrix([[1, 2], [0, 3]], [name, "b"], corner=name),
        kind="check",
    )
    work = FakeWork(broken={"d00001", "d00004"}, error=RemoteError(name, hint=name))
    found = devices(6)  # safe names all of them: others are refused before (safe_names.py)
    everything = Share(value=100, percent=True)
    settings = Settings(canary=Share(value=0), max_failures=everything, waves=(everything,))
    plan = make_plan(found, settings)
    with Journal(tmp_path / "m.jsonl") as journal:
        result = roll_out(plan, settings, work, Log(), journal=journal)
        report = FleetReport(
            fleet=name, model=name, action="deploy", plan=plan, journal=journal, wanted=work.wanted,
            result=result,
        )  # fmt: skip
        report.write_html(tmp_path / "report.html")
    (tmp_path / "page.html").write_text(made)

    def fell(file: Path) -> bool:
        said = browse(file, "--dump-dom", "--virtual-time-budget=3000")
        return re.search(r"<html[^>]*data-fell", said) is not None

    for one in HOSTILE[:-1]:  # each of them works where it is not text
        (tmp_path / "raw.html").write_text(f"<html><body>{one}</body></html>")
        assert fell(tmp_path / "raw.html") or "srcdoc" in one or "-->" in one or "</title>" in one
    assert not fell(tmp_path / "page.html")
    assert not fell(tmp_path / "report.html")
    # And so is the page of both.
    pages = [read_page(tmp_path / file) for file in ("page.html", "report.html")]
    (tmp_path / "whole.html").write_text("".join(whole_page(pages, name, {name: name})))
    assert not fell(tmp_path / "whole.html")
    assert "d00004" in (tmp_path / "report.html").read_text()


# ------------------------------------------------ edgepack-run --preview


@pytest.fixture(scope="module")
def preview(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a program that shows an endless stream of magenta squares."""
    app = means_app(tmp_path_factory.mktemp("means"))
    square = np.zeros((64, 64, 3), np.uint8)
    square[:] = MAGENTA
    frame = cv2.imencode(".jpg", square)[1].tobytes()
    words = [str(app), "--frames", "mjpeg", "--newest", "--threads", "1", "--preview", "0"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)
    assert process.stdin is not None
    assert process.stderr is not None
    source, done = process.stdin, threading.Event()

    def send() -> None:
        with suppress(BrokenPipeError):
            while not done.wait(0.05):
                source.write(frame)
                source.flush()

    sender = threading.Thread(target=send)
    try:
        line = process.stderr.readline().decode()
        found = re.fullmatch(r"preview on (\S+)\n", line)
        assert found, line
        sender.start()
        yield found[1]
    finally:
        done.set()
        if sender.is_alive():
            sender.join()
        process.kill()
        process.communicate()


def test_the_preview_shows_the_newest_line(browse: Browse, preview: str) -> None:
    said = browse(preview, "--dump-dom", "--virtual-time-budget=5000")
    (line,) = re.findall(r'<pre id="line">(.*?)</pre>', html.unescape(said), re.DOTALL)
    found = json.loads(line)
    assert found["frame"] > 0
    (tensor,) = found["tensors"]
    assert tensor["name"] == "means"
    # A list is one line, its numbers are short: all channels of magenta.
    assert re.search(r'"values": \[[^\n]*\]', line)
    assert max(tensor["values"]) == pytest.approx(255, abs=3)
    assert min(tensor["values"]) == pytest.approx(0, abs=3)


@pytest.mark.parametrize(("width", "height"), [(500, 900), (800, 600), (1280, 800)])
@pytest.mark.parametrize(("scheme", "bright"), [(0, False), (1, True)], ids=["dark", "light"])
def test_the_preview_fits_the_window(
    browse: Browse,
    preview: str,
    tmp_path: Path,
    width: int,
    height: int,
    scheme: int,
    *,
    bright: bool,
) -> None:
    shot = tmp_path / "shot.png"
    browse(
        preview,
        f"--screenshot={shot}",
        f"--window-size={width},{height}",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=5000",
    )
    image = cv2.imread(str(shot))
    assert image is not None
    assert (image[2, 2].mean() > 128) == bright
    # The whole picture, as a square, as large as the window lets it be.
    rows, columns = np.nonzero(np.abs(image.astype(int) - MAGENTA).max(2) < 12)
    high, wide = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert high == pytest.approx(wide, abs=3)
    assert wide > 0.5 * min(width, height)
    assert rows.max() < height - 5
    assert columns.max() < width - 5
