"""GPUs without one: copies between memories, text in two dialects, profiles, the gate."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.boards import load_boards
from edgepack.cli.result_lines import answer_lines
from edgepack.compiler.backend.plan import Call, PlacedTensor, Plan, PlanBlock, StatePlace
from edgepack.compiler.gpu.dialect import whole_text, with_offsets
from edgepack.compiler.gpu.epilogue import number, statements
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch
from edgepack.compiler.gpu.matrices import MatrixProduct
from edgepack.compiler.gpu.transfers import Copy, find_copies, find_unified
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer
from edgepack.device.facts import parse_gpu
from edgepack.gate import gate
from edgepack.gpus import oldest_driver
from edgepack.kernels.tiles.expression import Operation, Scalar, Step

Array = np.ndarray


def _plan(calls: list[Call], count: int, **more: Any) -> Plan:
    """Tensors of 64 bytes, one after the other; the first is the input, the last the output."""
    tensors = tuple(
        PlacedTensor(
            name=f"t{index}",
            dtype="float32",
            shape=(16,),
            storage="arena",
            offset=64 * index,
            nbytes=64,
        )
        for index in range(count)
    )
    return Plan(
        model="m",
        tensors=tensors,
        inputs=(0,),
        outputs=(count - 1,),
        calls=tuple(calls),
        arena_bytes=64 * count,
        params=b"",
        **more,
    )


def _call(kernel: str, reads: list[int], writes: list[int]) -> Call:
    return Call(kernel=kernel, args=(*reads, *writes), inputs=len(reads))


def _copies(plan: Plan) -> list[tuple[int, str, int, int]]:
    found = find_copies(plan, lambda name: name.startswith("gpu"))
    assert all(isinstance(copy, Copy) for copy in found)
    return [(copy.before, copy.to, copy.offset, copy.nbytes) for copy in found]


def test_copies_follow_what_is_read() -> None:
    plan = _plan(
        [
            _call("gpu_a", [0], [1]),
            _call("gpu_b", [1, 0], [2]),
            _call("cpu_c", [2], [3]),
            _call("gpu_d", [2, 3], [4]),
        ],
        5,
    )
    # Tensor 2 is in both memories after it was copied once; so is the input.
    assert _copies(plan) == [
        (0, "gpu", 0, 64),
        (2, "cpu", 128, 64),
        (3, "gpu", 192, 64),
        (4, "cpu", 256, 64),
    ]


def test_bytes_that_are_used_again_are_the_last_writers() -> None:
    calls = [_call("gpu_a", [0], [1]), _call("cpu_b", [1], [0]), _call("gpu_c", [0], [1])]
    assert _copies(_plan(calls, 2)) == [
        (0, "gpu", 0, 64),
        (1, "cpu", 64, 64),
        (2, "gpu", 0, 64),
        (3, "cpu", 64, 64),
    ]


def test_the_cpu_waits_until_what_it_writes_over_is_copied() -> None:
    """The GPU's driver reads the first tensor later than it is told to."""
    calls = [
        _call("gpu_a", [0], [1]),
        _call("cpu_b", [2], [3]),
        _call("cpu_c", [2], [0]),
        _call("cpu_d", [2], [0]),
        _call("gpu_e", [0], [4]),
    ]
    assert _copies(_plan(calls, 5)) == [
        (0, "gpu", 0, 64),
        (2, "cpu", 0, 0),
        (4, "gpu", 0, 64),
        (5, "cpu", 256, 64),
    ]


def test_a_block_is_the_cpus_as_a_whole() -> None:
    """What its second turn reads is with the CPU, too, although the first one finds it there."""
    calls = [
        _call("gpu_a", [0], [1]),
        _call("gpu_b", [0], [2]),
        _call("cpu_c", [1], [3]),
        _call("cpu_d", [3], [1]),
        _call("gpu_e", [1], [4]),
    ]
    block = PlanBlock(first=2, end=4, condition=2, most=3, name="loop", operator="Loop")
    assert _copies(_plan(calls, 5, blocks=(block,))) == [
        (0, "gpu", 0, 64),
        (2, "cpu", 64, 64),
        (2, "cpu", 128, 64),
        (4, "gpu", 64, 64),
        (5, "cpu", 256, 64),
    ]


def test_a_state_returns_to_the_cpu() -> None:
    """The next run finds it there, or a new value that somebody wrote."""
    plan = _plan([_call("gpu_a", [0], [1]), _call("gpu_b", [1], [0])], 2)
    plan = Plan(**{**vars(plan), "outputs": (0,), "states": (StatePlace(input=0, output=0),)})
    assert _copies(plan) == [(0, "gpu", 0, 64), (2, "cpu", 0, 64)]


def _on_gpu(kernel: str) -> bool:
    return kernel.startswith("gpu")


def test_what_both_processors_use_is_in_unified_memory() -> None:
    plan = _plan(
        [
            _call("gpu_a", [0], [1]),
            _call("gpu_b", [1], [2]),
            _call("cpu_c", [2], [3]),
            _call("gpu_d", [3], [4]),
            _call("gpu_e", [4], [5]),
        ],
        6,
    )
    found = find_unified(plan, _on_gpu)
    assert found.tensors == (0, 2, 3, 5)
    assert [(use.before, use.to, use.offset, use.nbytes) for use in found.uses] == [
        (2, "cpu", 128, 128),
        (5, "cpu", 0, 64),
        (5, "cpu", 320, 64),
    ]


def test_what_is_written_in_place_is_where_what_was_read_is() -> None:
    """A kernel may leave a part of it as it was."""
    plan = _plan([_call("gpu_a", [0], [1]), _call("gpu_b", [1, 0], [2])], 3)
    tensors = (*plan.tensors[:2], replace(plan.tensors[2], offset=96, nbytes=32))
    found = find_unified(replace(plan, tensors=tensors), _on_gpu)
    assert found.tensors == (0, 1, 2)


def test_what_the_cpu_does_first_is_its_own_between_runs() -> None:
    plan = _plan([_call("cpu_a", [0], [1]), _call("gpu_b", [1], [2])], 3)
    found = find_unified(plan, _on_gpu)
    assert found.tensors == (0, 1, 2)
    assert [(use.before, use.offset, use.nbytes) for use in found.uses] == [(2, 0, 192)]


@pytest.mark.parametrize("seed", range(100))
def test_unified_memory_has_what_one_arena_would(seed: int) -> None:
    """Calls on tensors that lie over each other anywhere, some of which write a part of what they
    read in place, with the GPU's own memory apart: who reads something finds it."""
    random = np.random.default_rng(seed)
    count, size = 12, 24
    places = [slice(at, at + random.integers(2, 9)) for at in random.integers(0, 16, count)]
    tensors = tuple(
        PlacedTensor(
            name=f"t{index}",
            dtype="uint8",
            shape=(place.stop - place.start,),
            storage="arena",
            offset=int(place.start),
            nbytes=int(place.stop - place.start),
        )
        for index, place in enumerate(places)
    )
    written = np.zeros(size, bool)
    written[places[0]] = True
    calls = []
    for _ in range(10):
        known = [index for index in range(count) if written[places[index]].all()]
        reads = random.choice(known, min(len(known), int(random.integers(1, 3))), replace=False)
        writes = [] if random.random() < 0.3 else [int(random.integers(count))]
        kernel = "cpu" if random.random() < 0.2 else "gpu"
        calls.append(_call(kernel, [int(index) for index in reads], writes))
        for index in writes:
            written[places[index]] = True
    plan = Plan(
        model="m",
        tensors=tensors,
        inputs=(0,),
        outputs=(calls[-1].written[0],),
        calls=tuple(calls),
        arena_bytes=size,
        params=b"",
    )
    found = find_unified(plan, _on_gpu)

    def run(memory: Callable[[int], Array]) -> list[int]:
        memory(0)[places[0]] = 1
        for at, call in enumerate(plan.calls):
            total = sum(int(memory(index)[places[index]].sum()) for index in call.read)
            for index in call.written:
                place = places[index]
                in_place = any(
                    places[other].start < place.stop and place.start < places[other].stop
                    for other in call.read
                )
                part = slice(place.start, place.start + 1) if in_place else place
                memory(index)[part] = (7 * total + at) % 1009
        output = plan.outputs[0]
        return [int(value) for value in memory(output)[places[output]]]

    whole, both, alone = (np.full(size, -1) for _ in range(3))
    due = run(lambda _: whole)
    for call in plan.calls:
        assert call.kernel == "gpu" or set(call.args) <= set(found.tensors)
    assert {*plan.inputs, *plan.outputs} <= set(found.tensors)
    if all(value >= 0 for value in due):
        assert run(lambda index: both if index in found.tensors else alone) == due


def test_opencl_takes_a_buffer_and_a_place() -> None:
    text = (
        "KERNEL(64) f(const GLOBAL float* RESTRICT x, GLOBAL int* RESTRICT y) {\n"
        "  y[0] = x[0];\n}\n"
        "__kernel void g(__global float* restrict z);\n"
        "__kernel void g(__global float* restrict z) {\n  z[0] = 1.0f;\n}"
    )
    made = with_offsets(text)
    assert made.count("__kernel void g(") == 1
    assert "f(__global uchar* x_in, ulong x_at, __global uchar* y_in, ulong y_at) {" in made
    assert "const __global float* x = (const __global float*)(x_in + x_at);" in made
    assert "__global int* y = (__global int*)(y_in + y_at);" in made
    assert "restrict z" not in made
    # Other text, with its parentheses, stays.
    assert "y[0] = x[0];" in made


def test_equal_functions_are_written_once() -> None:
    launch = Launch(function="@f", grid=(1, 1, 1), block=(1, 1, 1), args=(0,))
    text = "KERNEL(1) @f(GLOBAL float* RESTRICT y) { y[0] = 1.0f; }"
    shapes = [("float32", (1,))]
    one, same = (DeviceKernel.from_text(text, [launch], shapes) for _ in range(2))
    other = DeviceKernel.from_text(text.replace("1.0f", "2.0f"), [launch], shapes)
    assert one.launches == same.launches != other.launches
    for api in ("cuda", "opencl"):
        made = whole_text(api, [one.text, same.text, other.text])
        assert len(re.findall(r"KERNEL\(1\) k", made)) == 2
        assert "@" not in made


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, -2.5, 1e-45, 3.4028235e38, 0.1, 16777217.0, 1 / 3]
)
def test_a_number_is_read_back_as_it_was(value: float) -> None:
    text = number(value).strip("()")
    assert text.endswith("f")
    read = np.float32(text.removesuffix("f"))
    assert read.tobytes() == np.float32(value).tobytes()


def test_numbers_that_are_none() -> None:
    assert number(float("inf")) == "INFINITE"
    assert number(float("-inf")) == "(-INFINITE)"
    assert number(float("nan")) == "(INFINITE - INFINITE)"


def test_an_epilogue_names_each_step() -> None:
    steps = (
        Operation(name="multiply", arguments=(Step(index=0), Scalar(value=-2.0))),
        Operation(name="maximum", arguments=(Step(index=1), Scalar(value=0.0))),
    )
    text, result = statements(steps, "e0", channel=str, operand=lambda i, _: str(i))
    assert text == "const float e1 = e0 * (-2.0f); const float e2 = maximum(e1, 0.0f);"
    assert result == "e2"
    assert statements((), "e0", channel=str, operand=lambda i, _: str(i)) == ("", "e0")


@pytest.mark.parametrize(
    ("left", "right", "count", "shared"),
    [
        ((4, 5), (5, 6), 1, (True, True)),
        ((2, 3, 4, 5), (2, 3, 5, 6), 6, (False, False)),
        ((2, 3, 4, 5), (5, 6), 6, (False, True)),
        ((1, 1, 4, 5), (2, 3, 5, 6), 6, (True, False)),
    ],
)
def test_products_of_a_batch(
    left: tuple[int, ...], right: tuple[int, ...], count: int, shared: tuple[bool, bool]
) -> None:
    product = MatrixProduct.of(left, right)
    assert product is not None
    assert (product.count, product.left_shared, product.right_shared) == (count, *shared)


@pytest.mark.parametrize(
    ("left", "right"), [((5,), (5, 6)), ((2, 1, 4, 5), (1, 3, 5, 6)), ((2, 4, 5), (3, 2, 5, 6))]
)
def test_other_products_are_not_ours(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert MatrixProduct.of(left, right) is None


_TABLE = (
    'api = "cuda", device = "x", arch = "sm_87", driver = "12.2", '
    "processors = 8, lanes = 128, threads = 1024, shared_kb = 48"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('api = "cuda"', 'api = "metal"', r"gpu\.api.*metal"),
        ('"sm_87"', '"ampere"', r"gpu\.arch: 'ampere' is none"),
        ('driver = "12.2", ', "", r"gpu\.driver: '' is none"),
        ("threads = 1024", "threads = 2048", r"gpu\.threads: 2048 is above 1024"),
        ("lanes = 128", "lanes = 0", r"gpu\.lanes: 0 is below 1"),
        ("shared_kb", "bytes_per_cycle = -1, shared_kb", r"gpu\.bytes_per_cycle: -1 is below 0"),
        ("shared_kb", "unified_memory = 1, shared_kb", r"gpu\.unified_memory"),
        ("lanes = 128", 'lanes = "many"', r"gpu\.lanes"),
        ('api = "cuda"', 'api = "opencl"', r"gpu\.arch: OpenCL's drivers compile"),
        ("shared_kb = 48", "shared_kb = 48, cores = 1", r"gpu\.cores"),
    ],
)
def test_a_profile_with_a_mistake(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "boards.toml"
    file.write_text(f'[boards.mine]\nbase = "rk3399"\ngpu = {{ {_TABLE.replace(old, new)} }}\n')
    with pytest.raises(ConfigError, match=message):
        load_boards([file])


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "boards.toml"
    file.write_text(f'[boards.mine]\nbase = "rk3399"\ngpu = {{ {_TABLE} }}\n')
    gpu = load_boards([file])["mine"].gpu
    assert gpu is not None
    assert (gpu.api, gpu.arch, gpu.driver) == ("cuda", "sm_87", "12.2")


@pytest.mark.parametrize(
    ("driver", "promise"),
    [
        ((12, 8), "12.0"),  # NVRTC 12
        ((12, 0), "12.0"),
        ((13, 0), "12.0"),  # which NVRTC 12 is for, too
        ((11, 8), "11.4"),  # NVRTC 11, and what the app calls
        ((11, 4), "11.4"),
        ((11, 2), "11.2"),
        ((10, 2), "10.2"),  # for which there is no NVRTC
    ],
)
def test_what_is_made_for_a_driver_runs_on_older_ones_of_its_version(
    driver: tuple[int, int], promise: str
) -> None:
    assert oldest_driver(driver) == promise


@pytest.mark.parametrize(
    ("files", "drivers", "closed", "said"),
    [
        (["model/kernels.cl"], (), (), "libOpenCL.so.1, which is not there"),
        (["model/kernels.cubin"], ("libOpenCL.so.1",), (), "libcuda.so.1, which is not there"),
        (["model/kernels.cl"], ("libOpenCL.so.1",), ("/dev/mali0",), "/dev/mali0 ann may not"),
        (["model/kernels.cl"], ("libOpenCL.so.1",), (), ""),
        (["model/kernels.cl", "model/cpu/graph.json"], (), (), ""),
        (["model/graph.json"], (), (), ""),
    ],
)
def test_the_gate_wants_a_driver_unless_the_cpu_can_run_it(
    files: list[str], drivers: tuple[str, ...], closed: tuple[str, ...], said: str
) -> None:
    bundle = SimpleNamespace(manifest=SimpleNamespace(files=dict.fromkeys(files)))
    facts = SimpleNamespace(gpu_drivers=drivers, gpu_closed=closed, user="ann")
    texts = [problem.text for problem in gate.gpu_problems(bundle, facts)]  # type: ignore[arg-type]
    assert [said in text for text in texts] == [True] * bool(said)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"on": "gpu", "gpu": "Mali-G610", "gpu_failures": 0}, "the GPU, Mali-G610"),
        (
            {"on": "gpu", "gpu": "Mali-G610", "gpu_bytes": 12_300_000, "gpu_failures": 0},
            "the GPU, Mali-G610, 12.3 MB of its memory",
        ),
        (
            {
                "on": "gpu",
                "gpu": "Mali-G610",
                "gpu_bytes": 12_300_000,
                "unified_memory": True,
                "gpu_failures": 0,
            },
            "the GPU, Mali-G610, 12.3 MB of unified memory",
        ),
        (
            {"on": "cpu", "gpu_failures": 3, "why": "it is gone"},
            "the CPU; 3 runs failed on the GPU: it is gone",
        ),
        ({"on": "cpu", "gpu_failures": 0, "why": "no driver"}, "the CPU: no driver"),
    ],
)
def test_an_answer_says_which_processor_ran_the_model(said: dict[str, Any], line: str) -> None:
    answer = AppAnswer.read(Answer({"edgepack": "1", "processor": said}, "app"))
    assert str(answer.ran_on) == line
    assert f"ran on    {line}" in answer_lines(answer)
    assert AppAnswer.read(Answer({"edgepack": "1"}, "app")).ran_on is None


def test_what_a_device_says_of_its_gpu() -> None:
    answer = "libOpenCL.so.1\nlibOpenCL.so.1\n/dev/mali0\nrubbish ; rm -rf\n"
    assert parse_gpu(answer) == {"libOpenCL.so.1", "/dev/mali0"}
    assert parse_gpu("") == frozenset()
