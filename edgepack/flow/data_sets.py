"""Photos with boxes, as data sets for detectors have them: COCO's JSON, YOLO's folders.

Roboflow exports both: a folder for each split with `_annotations.coco.json`, or `data.yaml` beside
folders with `images` and `labels`. All of it is foreign: what is not of the expected kind is
refused with its file, its place and the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError, perhaps
from edgepack.base.tables import read_json, read_text
from edgepack.base.text import one_line, shorten
from edgepack.flow.average_precision import Thing
from edgepack.flow.outlines import Outline
from edgepack.postprocess.box_mask import BoxMask, write_counts
from edgepack.preprocess.photos import photos_in

ROBOFLOW = "_annotations.coco.json"
_SPLITS: Mapping[str, Sequence[str]] = {
    "val": ("val", "valid", "validation"),
    "test": ("test",),
    "train": ("train",),
}
_MOST_CLASSES = 1 << 16
_MOST_YAML_BYTES = 4 << 20
_MOST_YAML_DEPTH = 16
_MOST_ROWS = 100_000
_MOST_COORDINATE = 1e9
_MOST_SHOWN = 100
_MOST_DIGITS = 20
# What labels may lie beside the photo, of its side: rounding, and boxes that touch its edge.
_BESIDE = 0.01
_POLYGON = 6
_MOST_SIDE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class BoxedPhoto:
    """A photo with its objects, whose classes are numbers of the data set.

    Boxes are in pixels, or `relative` to the photo's size; `size` (height, width) is what the data
    set says of it, if it does.
    """

    path: Path
    name: str
    things: tuple[Thing, ...]
    relative: bool = False
    size: tuple[int, int] | None = None

    def things_in(self, height: int, width: int) -> list[Thing]:
        """The objects in pixels of the photo, which is so large. Raises `UsageError` if the data
        set has it otherwise."""
        if self.size is not None and self.size != (height, width):
            raise UsageError(
                f"{self.path}: the photo is {width} x {height}, by its annotations "
                f"{self.size[1]} x {self.size[0]}",
                hint="its EXIF data may say that it is turned: boxes are of the photo upright",
            )
        if not self.relative:
            return list(self.things)
        return [
            Thing(
                index=thing.index,
                box=(
                    thing.box[0] * width,
                    thing.box[1] * height,
                    thing.box[2] * width,
                    thing.box[3] * height,
                ),
                area=thing.area * width * height,
                outline=thing.outline.scaled(width, height) if thing.outline else None,
            )
            for thing in self.things
        ]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Photos in their order, and the names of classes by their numbers; `names` None: the labels
    are not named, and their numbers are the model's."""

    source: Path
    names: Mapping[int, str] | None
    photos: tuple[BoxedPhoto, ...]

    def classes(self, labels: Sequence[str], count: int | None) -> dict[int, int]:
        """The model's class for each of the data set's, by name; by number if the model has no
        labels, but as many classes (`count`). Raises `UsageError`."""
        used = sorted({thing.index for photo in self.photos for thing in photo.things})
        most = len(labels) if labels else count
        if self.names is None or (not labels and list(self.names) == list(range(most or 0))):
            if most is not None and used and used[-1] >= most:
                raise UsageError(
                    f"{self.source}: class {used[-1]}, but the model has {most} classes"
                )
            return {index: index for index in (self.names or used)}
        if not labels:
            if count == len(self.names):  # COCO's numbers have gaps
                return dict(zip(sorted(self.names), range(count), strict=True))
            raise UsageError(
                f"{self.source}: {len(self.names)} classes, but the project has no labels that say "
                "which of the model's they are",
                hint="name the file of labels: labels in [project]",
            )
        known: dict[str, list[int]] = {}
        for number, label in enumerate(labels):
            known.setdefault(label.casefold(), []).append(number)
        found = {}
        for index, name in self.names.items():
            numbers = known.get(name.casefold(), [])
            if len(numbers) == 1:
                found[index] = numbers[0]
            elif index in used:  # one without objects, as Roboflow's first, is no loss
                raise UsageError(
                    f"{self.source}: class {index} {name!r} is "
                    f"{'several' if numbers else 'none'} of the model's labels",
                    hint=perhaps(name, labels),
                )
        return found


def find_data_set(images: Path, split: str | None = None, *, outlines: bool = False) -> DataSet:
    """The photos with boxes that `images` names: a JSON file of COCO's kind, a data.yaml of YOLO's,
    or a folder with one of these or with `images` and `labels`.

    Of several splits it is `split`, else the first of val, test and train. With `outlines` those of
    objects are read, too. Raises `UsageError`.
    """
    if images.is_file():
        if images.suffix.lower() == ".json":
            return read_coco(images, outlines=outlines)
        if images.suffix.lower() in (".yaml", ".yml"):
            return read_yolo(images, split, outlines=outlines)
        raise UsageError(f"--images: neither .json nor .yaml: {images}", hint=_HINT)
    if not images.is_dir():
        raise UsageError(f"--images: no such folder or file: {images}", hint=_HINT)
    for name in ("data.yaml", "data.yml", "dataset.yaml"):
        if (images / name).is_file():
            return read_yolo(images / name, split, outlines=outlines)
    if (images / ROBOFLOW).is_file():
        return read_coco(images / ROBOFLOW, outlines=outlines)
    files = {
        name: file
        for names in _SPLITS.values()
        for name in names
        for file in (images / name / ROBOFLOW, *images.glob(f"annotations/instances_{name}*.json"))
        if file.is_file()
    }
    if files:
        return read_coco(_of_split(files, split, images), outlines=outlines)
    if (images / "images").is_dir() and (images / "labels").is_dir():
        return _yolo([images / "images"], None, {}, images, outlines)
    raise UsageError(f"--images: no photos with boxes in {images}", hint=_HINT)


_HINT = (
    "a JSON file of COCO's kind, a data.yaml of YOLO's, a folder with images/ and labels/, or a "
    "folder as Roboflow exports it"
)


def _of_split(files: Mapping[str, Any], split: str | None, source: Path) -> Any:
    """What there is of the split that is asked for, by any of its names."""
    order = [split] if split is not None else list(_SPLITS)
    for one in order:
        for name in _SPLITS.get(one, (one,)):
            if name in files:
                return files[name]
    raise UsageError(
        f"{source}: no split {order[0]!r}", hint=f"there are {', '.join(files) or 'none'}: --split"
    )


# ------------------------------------------------ COCO


def read_coco(file: Path, *, outlines: bool = False) -> DataSet:
    """The data set of a JSON file, photos in the order of their numbers. Raises `UsageError`."""
    top = read_json(file, error=UsageError)

    def entries(key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        found = top.get(key)
        if not isinstance(found, list):
            raise UsageError(f"{file}: {key}: not a list", hint="is it COCO's instances_*.json?")
        for number, entry in enumerate(found):
            if not isinstance(entry, dict):
                raise UsageError(f"{file}: {key}[{number}]: not an object")
            yield f"{file}: {key}[{number}]", entry

    categories: dict[int | str, str] = {}
    for where, entry in entries("categories"):
        key, name = _id(entry, "id", where), entry.get("name")
        if not isinstance(name, str):
            raise UsageError(f"{where}.name: {_shown(name)} is no text")
        if key in categories:
            raise UsageError(f"{where}.id: {_shown(key)} is there twice")
        categories[key] = name
    if not 0 < len(categories) <= _MOST_CLASSES:
        raise UsageError(f"{file}: {len(categories)} categories")
    numbers = _numbers_of(categories)
    photos: dict[int | str, dict[str, Any]] = {}
    for where, entry in entries("images"):
        number = _id(entry, "id", where)
        if number in photos:
            raise UsageError(f"{where}.id: {_shown(number)} is there twice")
        photos[number] = {"path": _photo(file, entry.get("file_name"), where), "things": []}
        if entry.get("height") is not None and entry.get("width") is not None:
            size = (_whole(entry, "height", where), _whole(entry, "width", where))
            photos[number]["size"] = size if min(size) > 0 else None
    for where, entry in entries("annotations"):
        photo = photos.get(_id(entry, "image_id", where))
        if photo is None:
            continue  # of a photo that the file leaves out
        category = _id(entry, "category_id", where)
        if category not in numbers:
            raise UsageError(f"{where}.category_id: {_shown(category)} is no category")
        photo["things"].append(_coco_thing(entry, numbers[category], where, outlines))
    if not photos:
        raise UsageError(f"{file}: no images in it")
    found = []
    for number in sorted(photos, key=_in_order):
        path = photos[number]["path"]
        found.append(
            BoxedPhoto(
                path=path,
                name=path.name,
                things=tuple(photos[number]["things"]),
                size=photos[number].get("size"),
            )
        )
    names = {numbers[key]: name for key, name in categories.items()}
    return DataSet(source=file, names=names, photos=_there(file, found))


def _id(entry: Mapping[str, Any], key: str, where: str) -> int | str:
    """A number, or a text, which pycocotools takes as well; one that is a number's is that number,
    as is 1.0, which table tools write."""
    value = entry.get(key)
    if isinstance(value, str) and value == str(_number_in(value)):
        return int(value)
    if type(value) is int or (isinstance(value, str) and 0 < len(value) <= _MOST_SHOWN):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise UsageError(f"{where}.{key}: {_shown(value)} is no whole number or short text")


def _number_in(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else None


def _in_order(key: int | str) -> tuple[bool, int, str]:
    """Numbers first."""
    return (True, 0, key) if isinstance(key, str) else (False, key, "")


def _numbers_of(categories: Mapping[int | str, str]) -> dict[int | str, int]:
    """Numbers for categories by their ids: these, or their places where some are texts."""
    ids = sorted(categories, key=_in_order)
    if any(isinstance(key, str) for key in ids):
        return {key: number for number, key in enumerate(ids)}
    return {key: int(key) for key in ids}


def _coco_thing(entry: Mapping[str, Any], index: int, where: str, outlines: bool) -> Thing:
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise UsageError(f"{where}.bbox: {_shown(box)} is not left, top, width and height")
    left, top, width, height = (float(one) for one in box)
    if width < 0 or height < 0:
        raise UsageError(f"{where}.bbox: {_shown(box)} has a side below 0")
    area = width * height if entry.get("area") is None else entry["area"]
    if not _is_number(area) or area < 0:
        raise UsageError(f"{where}.area: {_shown(area)} is not an area")
    crowd = 0 if entry.get("iscrowd") is None else entry["iscrowd"]
    if crowd not in (0, 1):
        raise UsageError(f"{where}.iscrowd: {_shown(crowd)} is not 0 or 1")
    return Thing(
        index=index,
        box=(left, top, width, height),
        area=float(area),
        crowd=bool(crowd),
        outline=_coco_outline(entry.get("segmentation"), where) if outlines else None,
    )


def _coco_outline(value: object, where: str) -> Outline | None:
    """The outline in a `segmentation`: polygons, or run lengths, plain or compressed; None if there
    is none. Raises `UsageError`."""
    where = f"{where}.segmentation"
    if value is None or value == []:
        return None
    if isinstance(value, dict):
        return Outline(mask=_coco_mask(value, where))
    if not isinstance(value, list):
        raise UsageError(f"{where}: {_shown(value)} is neither polygons nor run lengths")
    for number, polygon in enumerate(value):
        if (
            not isinstance(polygon, list)
            or len(polygon) < _POLYGON
            or len(polygon) % 2
            or not all(map(_is_number, polygon))
        ):
            raise UsageError(
                f"{where}[{number}]: {_shown(polygon)} is no polygon",
                hint="x, y, x, y, x, y ..., three corners or more",
            )
    return Outline(polygons=tuple(tuple(map(float, polygon)) for polygon in value))


def _coco_mask(table: Mapping[str, Any], where: str) -> BoxMask:
    size, counts = table.get("size"), table.get("counts")
    if (
        not isinstance(size, list)
        or len(size) != 2
        or not all(type(side) is int and 0 < side <= _MOST_SIDE for side in size)
    ):
        raise UsageError(f"{where}.size: {_shown(size)} is not height and width")
    if isinstance(counts, list):
        if not all(type(count) is int and 0 <= count <= size[0] * size[1] for count in counts):
            raise UsageError(f"{where}.counts: {_shown(counts)} are no run lengths")
        counts = write_counts(counts)
    if not isinstance(counts, str):
        raise UsageError(f"{where}.counts: {_shown(counts)} are no run lengths")
    mask = BoxMask(size=(size[0], size[1]), counts=counts)
    try:
        mask.runs()
    except ValueError as error:
        raise UsageError(f"{where}.counts: {one_line(error)}") from None
    return mask


def _photo(file: Path, name: object, where: str) -> Path:
    """A photo by the name that the file has for it: beside it, or where COCO and others keep it.

    Windows parts names by backslashes.
    """
    if isinstance(name, str) and "\\" in name and not (file.parent / name).is_file():
        name = name.replace("\\", "/")
    parts = Path(name).parts if isinstance(name, str) and "\0" not in name else ()
    is_elsewhere = parts[:1] == ("/",) or ".." in parts
    if is_elsewhere and any((one / parts[-1]).is_file() for one in _photo_folders(file)):
        name = parts[-1]  # as it lay on the machine of who labelled it
    elif not parts or is_elsewhere:
        raise UsageError(f"{where}.file_name: {_shown(name)} is no path below the file's folder")
    for folder in _photo_folders(file):
        if (folder / str(name)).is_file():
            return folder / str(name)
    return file.parent / str(name)


def _photo_folders(file: Path) -> tuple[Path, ...]:
    split = file.stem.rpartition("_")[2]
    above = file.parent.parent if file.parent.name == "annotations" else file.parent
    folders = (file.parent, file.parent / "images", above / split, above / "images" / split)
    return (*folders, above / "images")


def _there(source: Path, photos: Sequence[BoxedPhoto]) -> tuple[BoxedPhoto, ...]:
    missing = [photo.path for photo in photos if not photo.path.is_file()]
    if missing:
        raise UsageError(
            f"{source}: {len(missing)} of {len(photos)} photos are not there: {missing[0]}",
            hint="photos lie beside the file, or in images/ there",
        )
    return tuple(photos)


def _whole(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = entry.get(key)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise UsageError(f"{where}.{key}: {_shown(value)} is not a whole number")
    return value


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _MOST_COORDINATE


def _shown(value: object) -> str:
    return shorten(one_line(repr(value)), _MOST_SHOWN)


# ------------------------------------------------ YOLO


def read_yolo(file: Path, split: str | None = None, *, outlines: bool = False) -> DataSet:
    """The data set of a data.yaml: `names`, `path`, and a folder (or several, or a list of photos)
    for each split. Raises `UsageError`."""
    table = read_yaml(file)
    count = table.get("nc")
    is_nameless = table.get("names") is None and _is_count(count)  # which ultralytics reads, too
    names = None if is_nameless else _names(table.get("names"), file)
    if names is not None and str(count or len(names)) != str(len(names)):  # and this it refuses
        raise UsageError(
            f"{file}: nc: {_shown(count)}, but {len(names)} names",
            hint="leave nc out, or name each class",
        )
    root = file.parent
    if isinstance(path := table.get("path"), str) and path:
        # Others look below a folder of data sets of their own, where the path is not there.
        root = next((one for one in (root / path, Path(path)) if one.is_dir()), root)
    splits = {
        name: table[name]
        for known in _SPLITS.values()
        for name in known
        if table.get(name) not in (None, "", "null", "~", [])
    }
    given = _of_split(splits, split, file)
    texts = given if isinstance(given, list) else [given]
    places = []
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"{file}: {_shown(text)} is no path of photos")
        places.append(_place(text, root, file))
    return _yolo(places, names, table, file, outlines)


def _place(text: str, root: Path, file: Path) -> Path:
    """A path of a split. Roboflow's begin with `../`, but mean the folder of the file."""
    if "\\" in text and not (root / text).exists():  # as Windows parts names
        text = text.replace("\\", "/")
    for path in (root / text, root / text.removeprefix("../"), file.parent / text):
        if path.exists():
            return path
    raise UsageError(f"{file}: no such folder or file: {_shown(text)}")


def _names(value: object, file: Path) -> dict[int, str]:
    if isinstance(value, list):
        value = {str(index): name for index, name in enumerate(value)}
    if (
        not isinstance(value, dict)
        or not 0 < len(value) <= _MOST_CLASSES
        or set(value) != {str(index) for index in range(len(value))}
        or not all(isinstance(name, str) for name in value.values())
    ):
        raise UsageError(
            f"{file}: names: {_shown(value)} is no list of classes",
            hint="names: [cat, dog], or a number from 0 and a name in each line",
        )
    return {index: value[str(index)] for index in range(len(value))}


def read_yaml(file: Path) -> dict[str, Any]:
    """The table in a YAML file without aliases. All that is no list or table is text: a class may
    be called `no`."""
    import yaml

    text = read_text(file, error=UsageError)
    if len(text) > _MOST_YAML_BYTES:
        raise UsageError(f"{file}: larger than {_MOST_YAML_BYTES >> 20} MB: no file of settings")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_YAML_DEPTH or isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{file}: line {event.start_mark.line + 1}: too deep, or an alias")
        table = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506, which makes text only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid YAML: {one_line(error)}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{file}: no table of names and splits in it")
    return table


def _yolo(
    places: Sequence[Path],
    names: Mapping[int, str] | None,
    table: Mapping[str, Any],
    source: Path,
    outlines: bool,
) -> DataSet:
    points = table.get("kpt_shape")
    more = 0
    if points is not None:
        if not isinstance(points, list) or not all(map(_is_count, points)) or len(points) != 2:
            raise UsageError(f"{source}: kpt_shape: {_shown(points)} is not points and numbers")
        more = int(points[0]) * int(points[1])
    paths = [path for place in places for path in _photos_of(place)]
    if not paths:
        raise UsageError(f"{source}: no photos in {', '.join(map(str, places))}")
    photos = [
        BoxedPhoto(
            path=path,
            name=path.name,
            things=tuple(_things(path, names, more, outlines)),
            relative=True,
        )
        for path in paths
    ]
    return DataSet(source=source, names=names, photos=_there(source, photos))


def _is_count(text: object) -> bool:
    return isinstance(text, str) and text.isdecimal() and len(text) <= 4


def _photos_of(place: Path) -> list[Path]:
    """Those of a folder, or of a file with a path on each line, from its folder on."""
    if place.is_dir():
        own = photos_in(place)
        return own or (photos_in(place / "images") if (place / "images").is_dir() else [])
    lines = read_text(place, error=UsageError).splitlines()
    return [place.parent / line.strip() for line in lines if line.strip()]


def _label_file(photo: Path) -> Path:
    """The .txt file in `labels`, as the photo is in `images`; else beside the photo."""
    parts = list(photo.parts)
    for at in reversed(range(len(parts) - 1)):
        if parts[at] == "images":
            parts[at] = "labels"
            return Path(*parts).with_suffix(".txt")
    return photo.with_suffix(".txt")


def _things(
    photo: Path, names: Mapping[int, str] | None, more: int, outlines: bool
) -> Iterator[Thing]:
    """The objects of a photo; none if it has no file. `more` numbers follow a box."""
    file = _label_file(photo)
    if not file.is_file():
        return
    rows = read_text(file, error=UsageError).splitlines()
    if len(rows) > _MOST_ROWS:
        raise UsageError(f"{file}: {len(rows)} lines")
    seen = set()
    for number, row in enumerate(rows, start=1):
        words = row.split()
        if not words or tuple(words) in seen:  # one object twice, which ultralytics passes over
            continue
        seen.add(tuple(words))
        where = f"{file}: line {number}"
        class_number = _number_in(re.sub(r"\.0*$", "", words[0]))  # tools for tables write 3.0
        if class_number is None or (names is not None and class_number not in names):
            raise UsageError(f"{where}: {_shown(words[0])} is no number of a class")
        try:
            values = [float(word) for word in words[1:]]
        except ValueError:
            raise UsageError(f"{where}: {_shown(row)} is not a class and numbers") from None
        if not all(-_BESIDE <= value <= 1 + _BESIDE for value in values[: len(values) - more]):
            raise UsageError(
                f"{where}: {_shown(row)} has numbers that are not from 0 to 1",
                hint="coordinates are relative to the photo's size",
            )
        box = _yolo_box(values, more)
        if box is None:
            raise UsageError(
                f"{where}: {len(values)} numbers are neither a box nor an outline",
                hint="class, centre x and y, width, height; or class, x, y, x, y, x, y ...",
            )
        left, top, width, height, area = box
        is_outline = outlines and len(values) != 4 + more
        yield Thing(
            index=class_number,
            box=(left, top, width, height),
            area=area,
            outline=Outline(polygons=(tuple(values),)) if is_outline else None,
        )


def _yolo_box(
    values: Sequence[float], more: int
) -> tuple[float, float, float, float, float] | None:
    """Left, top, width, height and area of a row; None if it is none."""
    if len(values) == 4 + more:
        x, y, width, height = values[:4]
        return x - width / 2, y - height / 2, width, height, width * height
    if more or len(values) < _POLYGON or len(values) % 2:
        return None
    xs, ys = values[::2], values[1::2]
    turned = zip(xs, ys, [*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    area = abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in turned)) / 2
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys), area
