"""What edgepack-run answers on a device, as records (see `edgepack.deploy.answers`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edgepack.base import charts, page
from edgepack.base.text import megabytes, milliseconds
from edgepack.deploy.answers import Answer
from edgepack.postprocess.box_mask import BoxMask

_TIMES = ("load", "decode", "preprocess", "run")
_NAN = float("nan")
_SHOWN_LAYERS = 40
_SIDES = 4
_MOST_SIDE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Class:
    """A class of an image with its score; `label` is empty without a list of labels."""

    index: int
    label: str
    score: float

    @staticmethod
    def read(answer: Answer) -> Class:
        score = answer.take("score", float, None)
        return Class(
            index=answer.take("index", int),
            label=answer.text_or_none("label") or "",
            score=_NAN if score is None else score,
        )


def emulated_mark(emulated: bool) -> str:
    """What stands beside a time or a peak of memory that an emulator took."""
    return " (emulated)" if emulated else ""


def class_bars(top: Sequence[Class]) -> page.Html:
    """Classes with their scores, for a page."""
    rows = [(one.label or one.index, one.score, f"{one.score:.4f}") for one in top]
    return page.shares(rows) if rows else page.Html()


@dataclass(frozen=True, kw_only=True)
class SeenBox(Class):
    """A thing in an image: left, top, right and bottom, in pixels of the photo, and the pixels that
    are it, if the model tells them. `answers` are what later models say of it, by their names."""

    box: tuple[float, ...]
    mask: BoxMask | None = field(default=None, repr=False)
    answers: Mapping[str, StageAnswer] = field(default_factory=dict)

    @staticmethod
    def read(answer: Answer) -> SeenBox:
        found = Class.read(answer)
        box = answer.take_list("box", float)
        if len(box) != _SIDES:
            raise answer.fail("box", f"{len(box)} numbers are not a box")
        answer.take("points", list, None)
        return SeenBox(
            index=found.index,
            label=found.label,
            score=found.score,
            box=box,
            mask=answer.part("mask", read_mask),
            answers=answer.part("answers", _read_stage_answers) or {},
        )


@dataclass(frozen=True, kw_only=True)
class StageAnswer:
    """What a later model says of a box: the best classes, things in it, lines of text; or, in
    `error`, why nothing."""

    top: tuple[Class, ...]
    boxes: tuple[SeenBox, ...] | None
    text: tuple[str, ...]
    error: str

    @staticmethod
    def read(answer: Answer) -> StageAnswer:
        return StageAnswer(
            top=answer.parts("top", Class.read) if answer.has("top") else (),
            boxes=answer.parts("boxes", SeenBox.read) if answer.has("boxes") else None,
            text=answer.parts("text", _read_text) if answer.has("text") else (),
            error=answer.text_or_none("error") or "",
        )


def _read_text(line: Answer) -> str:
    return line.text("text")


def _read_stage_answers(answer: Answer) -> dict[str, StageAnswer]:
    return {name: answer.need(name, StageAnswer.read) for name in answer.document}


@dataclass(frozen=True, kw_only=True)
class StageBoxes:
    """How many boxes a later model looked at, and how many it left out, as others were likelier."""

    stage: str
    boxes: int
    dropped: int

    @staticmethod
    def read(answer: Answer) -> StageBoxes:
        return StageBoxes(
            stage=answer.text("stage"),
            boxes=answer.size("boxes"),
            dropped=answer.size("dropped"),
        )


def read_mask(answer: Answer) -> BoxMask:
    """A mask in COCO's form, of a photo of the size that it says."""
    size = answer.take_list("size", int)
    if len(size) != 2 or not all(0 < side <= _MOST_SIDE for side in size):
        raise answer.fail("size", f"{list(size)} is not a height and a width")
    mask = BoxMask(size=(size[0], size[1]), counts=answer.take("counts", str))
    try:
        mask.runs()
    except ValueError as error:
        raise answer.fail("counts", str(error)) from None
    return mask


@dataclass(frozen=True, kw_only=True)
class SeenArea:
    """What of an image is of a class: so many pixels."""

    index: int
    label: str
    pixels: int

    @staticmethod
    def read(answer: Answer) -> SeenArea:
        return SeenArea(
            index=answer.take("index", int),
            label=answer.text_or_none("label") or "",
            pixels=answer.size("pixels"),
        )


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far the outputs are from the reference; an error of None is no number."""

    max_abs_error: float | None
    max_abs_reference: float
    tolerance: float

    @staticmethod
    def read(answer: Answer) -> Deviation:
        return Deviation(
            max_abs_error=answer.take("max_abs_error", float, None),
            max_abs_reference=answer.take("max_abs_reference", float),
            tolerance=answer.take("tolerance", float),
        )


@dataclass(frozen=True, kw_only=True)
class Bench(page.Tabular):
    """Statistics of repeated runs, in milliseconds, and the time of each run.

    If `emulated` is set, the times are an emulator's and say nothing about a board.
    """

    runs: int
    warmup: int
    mean_ms: float
    std_ms: float
    min_ms: float
    max_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    times_ms: tuple[float, ...] = field(default=(), repr=False)
    emulated: bool = False

    @staticmethod
    def read(answer: Answer) -> Bench:
        times = ("mean_ms", "std_ms", "min_ms", "max_ms", "p50_ms", "p90_ms", "p99_ms")
        return Bench(
            runs=answer.size("runs"),
            warmup=answer.size("warmup"),
            **{name: answer.take(name, float) for name in times},  # type: ignore[arg-type]
            times_ms=answer.take_list("times_ms", float, ()),
        )

    def rows(self) -> list[dict[str, Any]]:
        """The runs, in their order."""
        return [{"run": number, "ms": time} for number, time in enumerate(self.times_ms)]

    def _repr_html_(self) -> str:
        mark = emulated_mark(self.emulated)
        times = {
            "mean": (self.mean_ms,),
            "standard deviation": (self.std_ms,),
            "p50, p90, p99": (self.p50_ms, self.p90_ms, self.p99_ms),
            "min, max": (self.min_ms, self.max_ms),
        }
        table = page.facts(
            {"runs": f"{self.runs} after {self.warmup} to warm up"}
            | {name: ", ".join(map(milliseconds, some)) + mark for name, some in times.items()}
        )
        if not self.times_ms:
            return page.embed_parts(table)
        title = f"latency of {self.runs} runs{mark}"
        lines = {"p50": self.p50_ms, "p90": self.p90_ms, "p99": self.p99_ms}
        return page.embed_parts(
            table,
            charts.dots(self.times_ms, unit="ms", title=f"{title}, in order", lines=lines),
            charts.histogram(self.times_ms, unit="ms", title=title),
        )


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One call of a kernel: the median of its times, and its share of the run."""

    layer: str
    operator: str
    kernel: str
    ms: float
    share: float
    gflops: float | None

    @staticmethod
    def read(answer: Answer) -> LayerTime:
        return LayerTime(
            layer=answer.text("layer"),
            operator=answer.text("operator"),
            kernel=answer.text("kernel"),
            ms=answer.take("ms", float),
            share=answer.take("share", float),
            gflops=answer.take("gflops", float, None),
        )


@dataclass(frozen=True, kw_only=True)
class Profile(page.Tabular):
    """The layers in the order of execution; `overhead_ms` is the time that the measurement adds
    to a run.

    If `emulated` is set, the times are an emulator's and say nothing about a board.
    """

    runs: int
    overhead_ms: float
    layers: tuple[LayerTime, ...]
    emulated: bool = False

    @staticmethod
    def read(answer: Answer) -> Profile:
        return Profile(
            runs=answer.size("runs"),
            overhead_ms=answer.take("overhead_ms", float),
            layers=answer.parts("layers", LayerTime.read),
        )

    def rows(self) -> list[dict[str, Any]]:
        """The layers, in the order they ran."""
        return [asdict(layer) for layer in self.layers]

    def _repr_html_(self) -> str:
        slowest = sorted(self.layers, key=lambda layer: -layer.ms)
        bars = page.shares(
            (
                f"{layer.layer or layer.kernel} {layer.operator}",
                layer.share,
                f"{layer.ms:.3f} ms{emulated_mark(self.emulated)}",
            )
            for layer in slowest[:_SHOWN_LAYERS]
        )
        return page.embed_parts(bars)


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes: the most that the process had, and what of it are weights and activations (arena)."""

    rss_peak_bytes: int
    params_bytes: int
    arena_bytes: int


@dataclass(frozen=True, kw_only=True)
class RanOn:
    """Of a model with a plan for a GPU: `processor`, "gpu" or "cpu", the GPU's name if it is that
    and the bytes that the model takes of its memory, whether that is the CPU's, too, how many runs
    it failed in, and why it does not run the model, or failed last."""

    processor: str
    gpu: str
    gpu_bytes: int
    unified_memory: bool
    failures: int
    why: str

    @staticmethod
    def read(answer: Answer) -> RanOn:
        return RanOn(
            processor=answer.text("on"),
            gpu=answer.take("gpu", str, ""),
            gpu_bytes=answer.size("gpu_bytes") if answer.has("gpu_bytes") else 0,
            unified_memory=answer.take("unified_memory", bool, False),
            failures=answer.size("gpu_failures"),
            why=answer.take("why", str, ""),
        )

    def __str__(self) -> str:
        name = f"the GPU, {self.gpu}" if self.gpu else f"the {self.processor.upper()}"
        if self.gpu_bytes:
            whose = "unified" if self.unified_memory else "its"
            name += f", {megabytes(self.gpu_bytes)} of {whose} memory"
        failed = f"; {self.failures} runs failed on the GPU" if self.failures else ""
        return f"{name}{failed}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class AppAnswer:
    """The answer of edgepack-run for one input; `times_ms` has the measured time of each step.
    `whole_bench` is of a photo through all stages.

    If `emulated` is set, the times and the peak memory are those of an emulator.
    """

    top: tuple[Class, ...]
    boxes: tuple[SeenBox, ...] | None
    times_ms: Mapping[str, float]
    threads: int | None
    memory: MemoryUse | None
    expected: Deviation | None
    bench: Bench | None
    profile: Profile | None
    ran_on: RanOn | None = None
    areas: tuple[SeenArea, ...] | None = None
    text: tuple[str, ...] = ()
    stages: tuple[StageBoxes, ...] = ()
    whole_bench: Bench | None = None
    emulated: bool = False
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> AppAnswer:
        times = {name: answer.take(f"{name}_ms", float, None) for name in _TIMES}
        memory = None
        if answer.has("rss_peak_bytes") and answer.has("params_bytes"):
            memory = MemoryUse(
                rss_peak_bytes=answer.size("rss_peak_bytes"),
                params_bytes=answer.size("params_bytes"),
                arena_bytes=answer.size("arena_bytes"),
            )
        answer.take("edgepack", str)  # its version: without it, that is somebody else's answer
        return AppAnswer(
            top=answer.parts("top", Class.read) if answer.has("top") else (),
            boxes=answer.parts("boxes", SeenBox.read) if answer.has("boxes") else None,
            times_ms={name: time for name, time in times.items() if time is not None},
            threads=answer.take("threads", int, None),
            memory=memory,
            expected=answer.part("expected", Deviation.read),
            bench=answer.part("bench", Bench.read),
            whole_bench=answer.part("whole_bench", Bench.read),
            profile=answer.part("profile", Profile.read),
            ran_on=answer.part("processor", RanOn.read),
            areas=answer.parts("areas", SeenArea.read) if answer.has("areas") else None,
            text=answer.parts("text", _read_text) if answer.has("text") else (),
            stages=answer.parts("stages", StageBoxes.read) if answer.has("stages") else (),
            document=answer.document,
        )

    def on_emulator(self) -> AppAnswer:
        """Return this answer, marked as from an emulator."""
        return replace(
            self,
            emulated=True,
            bench=self.bench and replace(self.bench, emulated=True),
            whole_bench=self.whole_bench and replace(self.whole_bench, emulated=True),
            profile=self.profile and replace(self.profile, emulated=True),
        )

    def _repr_html_(self) -> str:
        mark = emulated_mark(self.emulated)
        boxes = [
            (box.label or box.index, f"{box.score:.4f}", *(f"{side:.1f}" for side in box.box))
            for box in self.boxes or ()
        ]
        times = {name: milliseconds(time) + mark for name, time in self.times_ms.items()}
        header = ("class", "score", "left", "top", "right", "bottom")
        shown = page.table(boxes, header) if boxes else page.Html()
        return page.embed_parts(class_bars(self.top), shown, page.facts(times))

    def to_dict(self) -> dict[str, Any]:
        """Return the values for --json: edgepack-run's output, and whether it was emulated."""
        return {**self.document, "emulated": self.emulated}
