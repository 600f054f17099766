"""Outputs of models, made of what they are to say: the inverse of what a head's paper describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np

from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.centernet import CenterNet
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.keypoints import Keypoints
from edgepack.postprocess.masks import Segmentation, TextLines
from edgepack.postprocess.results import Box
from edgepack.postprocess.ssd import Ssd
from edgepack.postprocess.yolo import Yolo

HEIGHT, WIDTH = 64, 96
CLASSES = 3
# Apart from each other, each by itself in its cells; best first. Of class 2, 0, 2.
BOXES = (
    Box(index=2, label="", score=0.9, box=(10.0, 12.0, 27.0, 31.0)),
    Box(index=0, label="", score=0.75, box=(50.5, 20.0, 66.0, 52.5)),
    Box(index=2, label="", score=0.625, box=(80.0, 3.0, 91.0, 15.0)),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A spec, outputs for it, and what they hold (None: no boxes)."""

    name: str
    spec: PostprocessSpec
    tensors: Sequence[np.ndarray]
    boxes: Sequence[Box] | None


def _logit(score: float) -> float:
    return float(np.log(score / (1 - score)))


def _centre(box: Box) -> tuple[float, float, float, float]:
    left, top, right, bottom = box.box
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _rows(points: int = 0, size: int = 3) -> tuple[np.ndarray, list[Box]]:
    """(N, 4 + CLASSES + size * points): the boxes among others of no score, each twice."""
    rows = np.zeros((40, 4 + CLASSES + size * points))
    rows[:, :4] = np.random.default_rng(1).uniform(1, 60, (40, 4))
    found = []
    for number, box in enumerate(BOXES):
        for at, score in ((5 + 9 * number, box.score), (9 * number, box.score - 0.05)):
            rows[at, :4] = _centre(box)
            rows[at, 4 + box.index] = score
            marks = [(box.box[0] + i, box.box[1] + 2 * i) for i in range(points)]
            rows[at, 4 + CLASSES :] = np.array([(x, y, 0.3)[:size] for x, y in marks]).ravel()
        found.append(
            Box(index=box.index, label="", score=box.score, box=box.box, points=tuple(marks))
        )
    return rows, found


def _v8_maps(bins: int) -> list[np.ndarray]:
    maps = []
    for number, cell in enumerate((8, 16)):
        height, width = HEIGHT // cell, WIDTH // cell
        tensor = np.random.default_rng(2).normal(0, 1, (4 * bins + CLASSES, height, width))
        tensor[4 * bins :] = -9
        for box in BOXES[number::2]:
            x, y, _, _ = _centre(box)
            column, row = int(x / cell), int(y / cell)
            middle = (column + 0.5) * cell, (row + 0.5) * cell
            left, top, right, bottom = box.box
            sides = (middle[0] - left, middle[1] - top, right - middle[0], bottom - middle[1])
            for side, pixels in enumerate(sides):
                distance = pixels / cell
                if bins == 1:
                    tensor[side, row, column] = distance
                    continue
                low = int(distance)
                logits = np.full(bins, -60.0)
                logits[low] = np.log(max(low + 1 - distance, 1e-9))
                logits[low + 1] = np.log(max(distance - low, 1e-9))
                tensor[side * bins : (side + 1) * bins, row, column] = logits
            tensor[4 * bins + box.index, row, column] = _logit(box.score)
        maps.append(tensor[np.newaxis].astype(np.float32))
    return maps


ANGLES = (0.5, -0.25, 2.0)


def _turned() -> list[Box]:
    """The boxes, turned around their centres: as complex numbers, multiplied by exp(i angle)."""
    found = []
    for box, angle in zip(BOXES, ANGLES, strict=True):
        x, y, wide, high = _centre(box)
        corners = np.array(
            [-wide - 1j * high, wide - 1j * high, wide + 1j * high, -wide + 1j * high]
        )
        turned = (x + 1j * y + corners / 2 * np.exp(1j * angle)).astype(complex)
        points = tuple((float(one.real), float(one.imag)) for one in turned)
        xs, ys = zip(*points, strict=True)
        hull = (min(xs), min(ys), max(xs), max(ys))
        found.append(replace(box, box=hull, points=points))
    return found


def _rotated() -> tuple[np.ndarray, np.ndarray, list[Box]]:
    """(N, 4 + CLASSES + 1) and rows (N, 7) of the turned boxes; of the first, each is twice."""
    upright, _ = _rows()
    rows = np.hstack([upright, np.random.default_rng(5).uniform(-1, 2, (len(upright), 1))])
    ends = np.zeros((20, 7))
    for number, (box, angle) in enumerate(zip(BOXES, ANGLES, strict=True)):
        rows[[5 + 9 * number, 9 * number], -1] = angle, angle + 0.1
        ends[9 + number] = (*_centre(box), box.score, box.index, angle)
    return rows, ends, _turned()


def _over_the_edge() -> tuple[np.ndarray, list[Box]]:
    """Rows with a box that is turned by a quarter of pi around the photo's upper left corner."""
    side = 20.0
    far = side / np.sqrt(2)
    row = (0, 0, side, side, 0.75, 1, np.pi / 4)
    points = ((0.0, -far), (far, 0.0), (0.0, far), (-far, 0.0))
    return np.array([row]), [
        Box(index=1, label="", score=0.75, box=(0, 0, far, far), points=points)
    ]


ANCHORS = (10.0, 13.0, 16.0, 30.0, 30.0, 23.0, 33.0, 60.0)


def _v5_maps() -> list[np.ndarray]:
    maps = []
    for number, cell in enumerate((8, 16)):
        height, width = HEIGHT // cell, WIDTH // cell
        tensor = np.random.default_rng(3).normal(0, 1, (2, 5 + CLASSES, height, width))
        tensor[:, 4] = -20
        for box in BOXES[number::2]:
            x, y, wide, high = _centre(box)
            column, row = int(x / cell), int(y / cell)
            anchor = 1
            anchor_x, anchor_y = ANCHORS[4 * number + 2 : 4 * number + 4]
            own = tensor[anchor, :, row, column]
            own[0] = _logit((x / cell - column + 0.5) / 2)
            own[1] = _logit((y / cell - row + 0.5) / 2)
            own[2] = _logit(np.sqrt(wide / anchor_x) / 2)
            own[3] = _logit(np.sqrt(high / anchor_y) / 2)
            own[4] = 40  # a score of 1
            own[5:] = -20
            own[5 + box.index] = _logit(box.score)
        maps.append(tensor.astype(np.float32))
    return maps


def _center_maps(*, faces: bool) -> list[np.ndarray]:
    height, width, cell = HEIGHT // 4, WIDTH // 4, 4
    centres = np.full((1, 1 if faces else CLASSES, height, width), 0.01)
    sizes, offsets = np.zeros((2, 1, 2, height, width))
    points = np.zeros((1, 4, height, width))
    for box in BOXES:
        x, y, wide, high = _centre(box)
        column, row = int(x / cell), int(y / cell)
        centres[0, 0 if faces else box.index, row, column] = box.score
        # A neighbour that is less sure of another box.
        centres[0, 0 if faces else box.index, row, column - 1] = box.score - 0.1
        shift = 0.5 if faces else 0
        pairs = ((wide, high), (x / cell - column - shift, y / cell - row - shift))
        if faces:
            sizes[0, :, row, column - 1] = sizes[0, :, row, column] = np.log(
                np.array(pairs[0][::-1]) / cell
            )
            offsets[0, :, row, column - 1] = offsets[0, :, row, column] = pairs[1][::-1]
            points[0, :, row, column] = (0.25, 0.5, 0.75, 0.125)  # y, x, y, x
        else:
            sizes[0, :, row, column] = np.array(pairs[0]) / cell
            offsets[0, :, row, column] = pairs[1]
    maps = [centres, sizes, offsets, *([points] if faces else [])]
    return [one.astype(np.float32) for one in maps]


def _face(box: Box) -> Box:
    left, top, right, bottom = box.box
    wide, high = right - left, bottom - top
    return Box(
        index=0,
        label="",
        score=box.score,
        box=box.box,
        points=(
            (left + 0.5 * wide, top + 0.25 * high),
            (left + 0.125 * wide, top + 0.75 * high),
        ),
    )


def _cases() -> list[Case]:
    vector = np.random.default_rng(4).normal(0, 3, (1, 50)).astype(np.float32)
    cases = [
        Case(
            name=f"classes-{scores}",
            spec=Classes(outputs=("y0",), scores=scores, top=7, score=least),
            tensors=[vector],
            boxes=None,
        )
        for scores, least in (("softmax", None), ("sigmoid", 0.75), ("raw", None))
    ]
    cases.append(
        Case(name="tensors", spec=Tensors(outputs=("y0",), count=9), tensors=[vector], boxes=None)
    )
    size = (HEIGHT, WIDTH)
    rows, boxes = _rows()
    unit = (WIDTH, HEIGHT, WIDTH, HEIGHT)
    relative = rows.copy()
    relative[:, :4] /= unit
    first = np.insert(rows, 4, 1.0, axis=1)
    with_points, pointed = _rows(points=2)
    ends = np.zeros((20, 6))
    for at, box in enumerate(reversed(BOXES)):
        ends[3 + at] = (*box.box, box.score, box.index)
    two_each, _ = _rows(points=2, size=2)
    with_masks = np.hstack([rows, np.random.default_rng(8).normal(0, 9, (len(rows), 5))])
    ends_with_masks = np.hstack([ends, np.full((20, 5), 7.0)])
    rotated, rotated_ends, turned = _rotated()
    outside, partly_seen = _over_the_edge()
    for name, changes, tensor, found in (
        ("v8", {}, rows.T, boxes),
        ("v8-points-of-two", {"points": 2, "point_size": 2}, two_each.T, pointed),
        ("v8-masks", {"masks": 5}, with_masks.T, boxes),
        ("v8-rotated", {"rotated": True}, rotated.T, turned),
        ("end2end-masks", {"head": "end2end", "masks": 5}, ends_with_masks, list(BOXES)),
        ("end2end-rotated", {"head": "end2end", "rotated": True}, rotated_ends, turned),
        ("end2end-at-the-edge", {"head": "end2end", "rotated": True}, outside, partly_seen),
        ("v8-relative", {"units": "relative"}, relative.T, boxes),
        ("v8-points", {"points": 2}, with_points.T, pointed),
        ("v5", {"head": "v5"}, first, boxes),
        ("end2end", {"head": "end2end"}, ends, list(BOXES)),
    ):
        spec = Yolo(**{"outputs": ("y0",), "size": size, **changes})  # type: ignore[arg-type]
        cases.append(
            Case(name=name, spec=spec, tensors=[tensor[None].astype(np.float32)], boxes=found)
        )
    two = ("y0", "y1")
    # Smooth and rough maps, of another shape than the input's.
    maps = np.random.default_rng(11).normal(0, 1, (1, 5, 13, 29)).astype(np.float32)
    maps[0, :3] = cv2.GaussianBlur(maps[0, :3].transpose(1, 2, 0), (0, 0), 3).transpose(2, 0, 1)
    for head, tensor in (("v8", with_masks.T), ("end2end", ends_with_masks)):
        cases.append(
            Case(
                name=f"{head}-instances",
                spec=Yolo(outputs=two, size=size, head=head, masks=5),
                tensors=[tensor[None].astype(np.float32), maps],
                boxes=boxes if head == "v8" else list(BOXES),
            )
        )
    cases += [
        Case(
            name=f"v8-maps-{bins}",
            spec=Yolo(outputs=two, size=size, bins=bins),
            tensors=_v8_maps(bins),
            boxes=boxes,
        )
        for bins in (1, 8)
    ]
    maps = _v5_maps()
    flat = [one.reshape(1, -1, *one.shape[2:]) for one in maps]
    last = [one.transpose(0, 2, 3, 1)[None].copy() for one in maps]
    cases += [
        Case(
            name=name,
            spec=Yolo(outputs=two, size=size, head="v5", anchors=ANCHORS),
            tensors=tensors,
            boxes=boxes,
        )
        for name, tensors in (("v5-maps", flat), ("v5-maps-last", last))
    ]
    cases += [
        Case(
            name="centernet",
            spec=CenterNet(outputs=("y0", "y1", "y2"), size=size, iou=1.0),
            tensors=_center_maps(faces=False),
            boxes=BOXES,
        ),
        Case(
            name="centerface",
            spec=CenterNet(outputs=("y0", "y1", "y2", "y3"), size=size, head="centerface", iou=0.3),
            tensors=_center_maps(faces=True),
            boxes=[_face(box) for box in BOXES],
        ),
    ]
    cases += _ssd_cases()
    cases += _maps()
    return cases


def _ssd_cases() -> list[Case]:
    """Of Liu et al., SSD, section 2.2, and of what other projects changed about it."""
    size, none = (HEIGHT, WIDTH), Ssd(outputs=("y0", "y1"))
    marked = [
        replace(box, index=box.index + 1, points=((box.box[0], box.box[3]), (60.0, 30.0)))
        for box in BOXES
    ]
    pixels = replace(
        none,
        outputs=("y0", "y1", "y2"),
        size=size,
        strides=(10, 32),  # ceil(64 / 10) * ceil(96 / 10) * 2 + 2 * 3 anchors
        anchors=(8.0, 9.0, 16.0, 14.0, 30.0, 32.0),
        counts=(2, 1),
        units="pixels",
    )
    centres = [((x + 0.5) * 10, (y + 0.5) * 10) for y in range(7) for x in range(10)]
    anchors = [(*at, *own) for at in centres for own in ((8.0, 9.0), (16.0, 14.0))]
    anchors += [((x + 0.5) * 32, (y + 0.5) * 32, 30, 32) for y in range(2) for x in range(3)]
    rows, scores, points = _encoded(anchors, marked, 0.1, 0.2)
    probable = np.full((len(rows), CLASSES + 1), 0.0)
    for row, score in zip(probable, scores, strict=True):
        # The logarithms of probabilities, that of the background being what is left.
        row[:] = np.log(np.maximum([1 - score.sum(), *score[1:]], 1e-9)) + 3
    first = Case(
        name="ssd",
        spec=pixels,
        tensors=[one[None].astype(np.float32) for one in (rows, probable, points)],
        boxes=marked,
    )
    # Relative to the input, y first, in cells of maps; a sigmoid for each class but the last.
    grid = [((x + 0.5) * 12, (y + 0.5) * 16) for y in range(4) for x in range(8)]
    wide = [(*at, 0.25 * WIDTH, 0.5 * HEIGHT) for at in grid]
    unmarked = [replace(box, points=()) for box in BOXES]
    rows, scores, _ = _encoded(wide, unmarked, 0.5, 1.0)
    scores = np.insert(scores, CLASSES, 0.999, axis=1)
    logits = np.log(np.maximum(scores, 1e-6) / (1 - scores))
    second = Case(
        name="ssd-y-first",
        spec=replace(
            none,
            size=size,
            maps=(4, 8),
            anchors=(0.25, 0.5),
            counts=(1,),
            variances=(0.5, 1.0),
            order="yxhw",
            scores="sigmoid",
            background="last",
        ),
        tensors=[rows[None][..., [1, 0, 3, 2]].astype(np.float32), logits[None].astype("f4")],
        boxes=unmarked,
    )
    # As in BlazeFace: sizes are not logarithms, points are columns of the boxes, no background.
    seen = [replace(box, index=0, points=((30.0, 20.0), box.box[:2])) for box in BOXES]
    unit = [(*at, WIDTH, HEIGHT) for at in grid]
    rows, scores, points = _encoded(unit, seen, 1 / 128, 1 / 128, logarithms=False)
    third = Case(
        name="ssd-linear",
        spec=replace(
            none,
            size=size,
            maps=(4, 8),
            anchors=(1.0, 1.0),
            counts=(1,),
            variances=(1 / 128, 1 / 128),
            sizes="linear",
            scores="raw",
            background="none",
        ),
        tensors=[np.hstack([rows, points])[None].astype("f4"), scores[None, :, :1].astype("f4")],
        boxes=seen,
    )
    corners = np.zeros((9, 4))
    probable = np.zeros((9, CLASSES))
    for at, box in enumerate(reversed(BOXES)):
        left, top, right, bottom = box.box
        corners[2 * at] = (top / HEIGHT, left / WIDTH, bottom / HEIGHT, right / WIDTH)
        probable[2 * at, box.index] = box.score
    fourth = Case(
        name="ssd-corners",
        spec=replace(none, size=size, order="yxhw", scores="raw", background="none"),
        tensors=[corners[None].astype(np.float32), probable[None].astype(np.float32)],
        boxes=BOXES,
    )
    return [first, second, third, fourth]


def _encoded(
    anchors: Sequence[tuple[float, ...]],
    boxes: Sequence[Box],
    near: float,
    far: float,
    *,
    logarithms: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of boxes, scores and points: each box by the anchor whose centre is nearest, and, less
    sure, by the next.
    """
    count = max(box.index for box in boxes) + 1
    rows = np.random.default_rng(7).normal(0, 1, (len(anchors), 4))
    scores = np.zeros((len(anchors), max(count, CLASSES)))
    points = np.zeros((len(anchors), 2 * len(boxes[0].points)))
    centres = np.array([anchor[:2] for anchor in anchors])
    for box in boxes:
        x, y, wide, high = _centre(box)
        order = np.argsort(np.hypot(*(centres - (x, y)).T), kind="stable")
        for at, score in ((order[0], box.score), (order[1], box.score - 0.05)):
            centre_x, centre_y, anchor_x, anchor_y = anchors[at]
            sides = np.array([wide / anchor_x, high / anchor_y])
            rows[at, :2] = (x - centre_x) / anchor_x / near, (y - centre_y) / anchor_y / near
            rows[at, 2:] = (np.log(sides) if logarithms else sides) / far
            scores[at, box.index] = score
            points[at] = np.ravel(
                [
                    ((px - centre_x) / anchor_x / near, (py - centre_y) / anchor_y / near)
                    for px, py in box.points
                ]
            )
    return rows, scores, points


def _maps() -> list[Case]:
    """Segmentation, lines of text, and text."""
    random = np.random.default_rng(6)
    one, size = ("y0",), (HEIGHT, WIDTH)
    smooth = cv2.resize(random.normal(0, 1, (6, 9, 4)), (24, 16), interpolation=cv2.INTER_CUBIC)
    scores = smooth.transpose(2, 0, 1)[None].astype(np.float32)
    lines = np.full((1, 1, 32, 48), 0.05, np.float32)
    # A line from the cells (4, 6) to (23, 10), a small one, one that is not sure, one to the edge.
    lines[0, 0, 6:11, 4:24] = 0.875
    lines[0, 0, 2:4, 40:42] = 0.9
    lines[0, 0, 20:26, 3:14] = 0.4
    lines[0, 0, 20:26, 30:48] = 0.75
    found = []
    for (x0, y0, x1, y1), score in (((4, 6, 23, 10), 0.875), ((30, 20, 47, 25), 0.75)):
        wide, high = x1 - x0, y1 - y0
        more = 1.6 * wide * high / (2 * (wide + high))
        left, right = 2 * (x0 + 0.5 - more), min(2 * (x1 + 0.5 + more), WIDTH)
        top, bottom = 2 * (y0 + 0.5 - more), 2 * (y1 + 0.5 + more)
        found.append(
            Box(
                index=0,
                label="",
                score=score,
                box=(left, top, right, bottom),
                points=((left, top), (right, top), (right, bottom), (left, bottom)),
            )
        )
    maps = random.normal(0, 0.02, (1, 4, 16, 12)).astype(np.float32)
    for index, (y, x) in enumerate(((0, 3), (7, 11), (9, 5))):  # and one that is nowhere
        maps[0, index, y, x] = 0.5 + index / 8
        if x < 11:
            maps[0, index, y, x + 1] = 0.3  # nearer to it than the one on the left
    steps = np.full((1, 12, 5), 0.1, np.float32)
    for step, index in enumerate((0, 1, 1, 0, 1, 2, 2, 4, 0, 0, 3, 0)):  # a a b d c
        steps[0, step, index] = 0.5 + step / 32
    known = random.normal(0, 1, (4, 16))
    known /= np.linalg.norm(known, axis=1)[:, np.newaxis]
    near = (7 * known[2:3] + random.normal(0, 0.5, (1, 16))).astype(np.float32)
    gallery = {
        "people": ("a", "b"),
        "owners": (0, 1, 1, 0),
        "vectors": tuple(known.ravel().tolist()),
    }
    return [
        Case(
            name="segmentation",
            spec=Segmentation(outputs=one, size=size, background=1),
            tensors=[scores],
            boxes=None,
        ),
        Case(
            name="segmentation-one",
            spec=Segmentation(outputs=one, size=size, scores="sigmoid", score=0.6),
            tensors=[scores[:, :1]],
            boxes=None,
        ),
        Case(
            name="segmentation-last",
            spec=Segmentation(outputs=one, size=size, background=1, layout="NHWC"),
            tensors=[np.moveaxis(scores, 1, -1)],
            boxes=None,
        ),
        Case(
            name="text-lines", spec=TextLines(outputs=one, size=size), tensors=[lines], boxes=found
        ),
        Case(
            name="keypoints",
            spec=Keypoints(outputs=one, size=size, centre=0.0),
            tensors=[maps],
            boxes=None,
        ),
        Case(
            name="keypoints-sigmoid",
            spec=Keypoints(outputs=one, size=size, scores="sigmoid", score=0.52, shift=0.0),
            tensors=[maps],
            boxes=None,
        ),
        Case(
            name="keypoints-last",
            spec=Keypoints(outputs=one, size=size, centre=0.0, layout="NHWC"),
            tensors=[np.moveaxis(maps, 1, -1)],
            boxes=None,
        ),
        Case(
            name="ctc", spec=Ctc(outputs=one, characters=tuple("abcd")), tensors=[steps], boxes=None
        ),
        Case(
            name="ctc-last",
            spec=Ctc(outputs=one, characters=("é", "ß", " ", "x"), blank="last", scores="softmax"),
            tensors=[steps[..., ::-1].transpose(1, 0, 2) * 9],
            boxes=None,
        ),
        Case(
            name="embedding",
            spec=Embedding(outputs=one, score=0.9, **gallery),
            tensors=[near],
            boxes=None,
        ),
        Case(
            name="embedding-half",
            spec=Embedding(outputs=one, score=0.9, **gallery),
            tensors=[(-near).astype(np.float16)],
            boxes=None,
        ),
        Case(
            name="embedding-nobody",
            spec=Embedding(outputs=one, score=0.1),
            tensors=[near],
            boxes=None,
        ),
    ]


CASES = tuple(_cases())
