from __future__ import annotations

import pytest

from edgepack.boards import Board, load_boards
from edgepack.virtual import profile

BOARDS = [board for board in load_boards().values() if board.virtual]


def stanzas(board: Board) -> list[dict[str, str]]:
    assert board.virtual
    text = profile.cpuinfo(board, board.virtual)
    blocks = [block for block in text.split("\n\n") if block.startswith("processor")]
    pairs = [[line.partition(":") for line in block.splitlines()] for block in blocks]
    return [{key.strip(): value.strip() for key, _, value in lines} for lines in pairs]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_cpuinfo_has_a_stanza_per_core_with_the_boards_features(board: Board) -> None:
    found = stanzas(board)
    assert [int(stanza["processor"]) for stanza in found] == list(range(board.cores))
    for stanza in found:
        assert set(board.hwcaps) <= set(stanza["Features"].split())
        assert "crc32" in stanza["Features"] or "cortex-a9" in board.cpu
        # Of all our 64-bit chips only Broadcom's before the Pi 5's lack the crypto extension, and
        # no generic board counts on it.
        without = ("rasp3b-64", "rasp4b-64", "aarch64", "alpine-aarch64", "android-arm64")
        has_aes = board.triple.startswith("aarch64") and board.name not in without
        assert ("aes" in stanza["Features"].split()) == has_aes


def test_a_cortex_a9_has_neither_divide_nor_fma() -> None:
    names = stanzas(load_boards()["pynq"])[0]["Features"].split()
    assert "neon" in names
    assert not {"idiva", "idivt", "vfpv4"} & set(names)


def test_the_slow_cluster_comes_first() -> None:
    parts = [stanza["CPU part"] for stanza in stanzas(load_boards()["rk3399"])]
    assert parts == ["0xd03"] * 4 + ["0xd08"] * 2


def test_model_name_and_hardware_are_the_boards() -> None:
    board = load_boards()["rasp3b"]
    assert board.virtual
    text = profile.cpuinfo(board, board.virtual)
    assert f"model name\t: {board.virtual.model}\n" in text
    assert f"Hardware\t: {board.title}\n" in text


def test_sys_says_which_cores_are_fast() -> None:
    files = profile.sys_files(load_boards()["rk3399"])
    cpu = "devices/system/cpu"
    assert files[f"{cpu}/online"] == "0-5\n"
    assert files[f"{cpu}/cpu0/cpufreq/cpuinfo_max_freq"] == "1400000\n"
    assert files[f"{cpu}/cpu5/cpufreq/cpuinfo_max_freq"] == "1800000\n"
    assert files[f"{cpu}/cpu5/cpu_capacity"] == "1024\n"
    assert int(files[f"{cpu}/cpu0/cpu_capacity"]) < 1024


def test_one_core_is_no_range() -> None:
    assert profile.sys_files(load_boards()["armv7"])["devices/system/cpu/online"] == "0\n"


def test_meminfo_is_the_boards_memory() -> None:
    lines = profile.meminfo(load_boards()["pynq"]).splitlines()
    assert lines[0].split() == ["MemTotal:", str(512 * 1024), "kB"]
    assert {line.split(":")[0] for line in lines} >= {"MemFree", "MemAvailable"}
