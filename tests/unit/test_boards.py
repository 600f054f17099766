from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edgepack import cpus
from edgepack.base.errors import ConfigError
from edgepack.base.paths import data_file
from edgepack.boards import get_board, load_boards, version_tuple
from edgepack.flow.doctor import check_board, cost_model

REQUIRED = {
    "rasp3b", "rasp3b-64", "rasp4b", "rasp4b-64", "rk3399", "pynq", "ultra96",
    "rasp5b", "rasp02w", "rk3588", "orangepi5", "imx8mp", "imx93", "jetson-orin-nano",
    "beagleplay", "stm32mp1", "armv7", "aarch64", "local",
    "pixel2", "mate10", "mate10pro", "p20", "p20pro", "android-arm64",
    "alpine-aarch64", "alpine-armv7", "openwrt-armv7", "jetson-orin-nano-jetpack6",
    "jetson-agx-orin", "jetson-agx-orin-jetpack6", "jetson-xavier-nx", "jetson-agx-xavier",
}  # fmt: skip


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return file


def test_every_promised_board_is_there() -> None:
    assert set(load_boards()) == REQUIRED


def test_every_profile_names_its_sources() -> None:
    page = data_file("docs/reference/boards.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `([\w-]+)` \| (.{20,}) \|$", page.split("## Profiles")[1], flags=re.M)
    )
    assert set(rows) == set(load_boards())


def test_facts_of_the_hardware() -> None:
    boards = load_boards()
    assert boards["rasp3b"].glibc == "2.31"
    assert boards["rasp3b"].float_abi == "hard"
    assert [c.cpu for c in boards["rk3399"].clusters] == ["cortex-a72", "cortex-a53"]
    assert boards["rk3399"].cores == 6
    # The Cortex-A9 has neither fused multiply-add nor hardware divide.
    assert set(boards["pynq"].forbidden) == {"fma", "hwdiv", "armv8"}
    # Broadcom's Cortex-A53 and A72 came without the optional AES and SHA, the others with it.
    assert boards["rasp3b-64"].has == boards["rasp4b-64"].has == ("crc",)
    assert boards["rk3399"].has == boards["ultra96"].has == ("crc", "aes", "sha2")
    # Two kinds of cores with the same instructions.
    assert boards["rk3588"].has == boards["rasp5b"].has == boards["imx93"].has
    assert boards["rk3588"].cores == 8
    assert set(boards["stm32mp1"].forbidden) == {"armv8"}
    assert boards["aarch64"].has == ()
    assert "vfpv4" not in boards["pynq"].hwcaps
    assert boards["local"].triple == f"{platform.machine()}-linux-gnu"


@pytest.mark.parametrize(
    ("name", "arch", "cuda_cores", "driver"),
    # By NVIDIA's data sheets, table "CUDA-Enabled Jetson Products", and notes on JetPack 5 and 6.
    [
        ("jetson-orin-nano", "sm_87", 1024, "11.4"),
        ("jetson-orin-nano-jetpack6", "sm_87", 1024, "12.2"),
        ("jetson-agx-orin", "sm_87", 1792, "11.4"),
        ("jetson-agx-orin-jetpack6", "sm_87", 1792, "12.2"),
        ("jetson-xavier-nx", "sm_72", 384, "11.4"),
        ("jetson-agx-xavier", "sm_72", 512, "11.4"),
    ],
)
def test_gpus_of_jetsons(name: str, arch: str, cuda_cores: int, driver: str) -> None:
    board = get_board(name)
    gpu = board.gpu
    assert gpu is not None
    assert (gpu.arch, gpu.processors * gpu.lanes, gpu.driver) == (arch, cuda_cores, driver)
    # Ubuntu's: 20.04 with JetPack 5, 22.04 with JetPack 6.
    assert board.glibc == {"11.4": "2.31", "12.2": "2.35"}[driver]


def test_the_cpus_are_what_tvms_llvm_knows() -> None:
    """After a new TVM: `python -m tests.llvm_cpus` writes the file again."""
    from tests import llvm_cpus

    assert llvm_cpus.FILE.read_text(encoding="utf-8") == llvm_cpus.text()


def test_a_users_file_is_checked_without_tvm(tmp_path: Path) -> None:
    file = write(tmp_path, '[boards.x]\nbase = "armv7"\ncpu = "cortex-a7"\n')
    code = (
        "import sys; from pathlib import Path; from edgepack.boards import load_boards;"
        "assert load_boards([Path(sys.argv[1])])['x'].cpu == 'cortex-a7';"
        "print(sorted({'tvm', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_names_and_features_are_llvms() -> None:
    for board in load_boards().values():
        if board.is_local:
            continue
        assert board.cpu in cpus.cpu_names(board.llvm_triple), board.name
        for feature in board.features:
            assert feature[1:] in cpus.feature_names(board.llvm_triple), board.name


def test_a_user_file_adds_and_overrides(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [boards.rasp3b]
        glibc = "2.36"
        os = "Raspberry Pi OS bookworm"
        [boards.gate]
        base = "pynq"
        memory_mb = 256
        """,
    )
    boards = load_boards([file])
    assert boards["rasp3b"].glibc == "2.36"
    assert boards["rasp3b"].cpu == "cortex-a53"
    assert boards["rasp3b"].origin == str(file)
    assert (boards["gate"].memory_mb, boards["gate"].cpu) == (256, "cortex-a9")
    assert boards["pynq"].memory_mb == 512


# Arm: the Technical Reference Manual of each core names the version of its architecture; DDI 0487,
# A2 says what each version brings. Linux, Documentation/arch/arm64/elf_hwcaps.rst and
# arch/arm/kernel/setup.c name them in /proc/cpuinfo.
_ARMV8_0 = ({"crc", "aes", "sha2"}, ("fp", "asimd"))
_ARMV8_2 = (
    {"crc", "aes", "sha2", "lse", "rdm", "lor", "fullfp16", "dotprod", "rcpc"},
    ("fp", "asimd", "asimddp", "asimdhp"),
)
_32_BIT_ARMV8 = ({"fma", "hwdiv", "armv8"}, ("neon", "vfpv4", "idiva"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            "rk3399 ultra96 imx8mp beagleplay pixel2 mate10 mate10pro p20 p20pro",
            _ARMV8_0,
        ),
        # Broadcom left the crypto extension out.
        ("rasp3b-64 rasp4b-64", ({"crc"}, _ARMV8_0[1])),
        ("aarch64 android-arm64 alpine-aarch64", (set(), _ARMV8_0[1])),
        ("rasp5b rk3588 orangepi5 imx93 jetson-orin-nano jetson-agx-orin", _ARMV8_2),
        ("jetson-orin-nano-jetpack6 jetson-agx-orin-jetpack6", _ARMV8_2),
        # Carmel is Armv8.2-A without the dot products, which are optional there.
        (
            "jetson-xavier-nx jetson-agx-xavier",
            (_ARMV8_2[0] - {"dotprod", "rcpc"}, ("fp", "asimd", "asimdhp")),
        ),
        ("rasp3b rasp4b rasp02w", _32_BIT_ARMV8),
        # Cortex-A7: VFPv4 and SDIV in ARMv7; Cortex-A9: neither.
        ("stm32mp1", ({"fma", "hwdiv"}, _32_BIT_ARMV8[1])),
        ("armv7 alpine-armv7 openwrt-armv7", (set(), ("neon",))),
        ("pynq", (set(), ("neon", "vfpv3"))),
    ],
)
def test_what_cpus_have_is_what_their_manuals_say(
    names: str, expected: tuple[set[str], tuple[str, ...]]
) -> None:
    for board in map(load_boards().__getitem__, names.split()):
        assert (set(board.has), board.hwcaps) == expected, board.name


def test_the_table_says_only_what_does_not_follow() -> None:
    tables = tomllib.loads(data_file("boards.toml").read_text(encoding="utf-8"))["boards"]
    assert {name for name, table in tables.items() if "has" in table} == {"rasp3b-64", "rasp4b-64"}
    assert {name for name, table in tables.items() if "hwcaps" in table} == {"pynq"}
    assert load_boards()["local"].hwcaps == load_boards()["local"].forbidden == ()


def test_hwcaps_of_a_users_board_follow_from_what_it_has(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [boards.a55]
        base = "aarch64"
        cpu = "cortex-a55"
        clusters = [{ cpu = "cortex-a55", cores = 4, max_mhz = 1900 }]
        [boards.without]
        base = "a55"
        features = ["+neon", "-dotprod"]
        [boards.zynq]
        base = "pynq"
        memory_mb = 1024
        [boards.a15]
        base = "pynq"
        cpu = "cortex-a15"
        clusters = [{ cpu = "cortex-a15", cores = 2, max_mhz = 1700 }]
        [boards.said]
        base = "a55"
        hwcaps = ["asimd"]
        [boards.mine]
        base = "local"
        memory_mb = 512
        clusters = [{ cpu = "native", cores = 2, max_mhz = 0 }]
        """,
    )
    hwcaps = {name: board.hwcaps for name, board in load_boards([file]).items()}
    assert hwcaps["a55"] == _ARMV8_2[1]
    assert hwcaps["without"] == ("fp", "asimd", "asimdhp")
    assert hwcaps["zynq"] == ("neon", "vfpv3")
    assert hwcaps["a15"] == _32_BIT_ARMV8[1]
    assert hwcaps["said"] == ("asimd",)
    assert hwcaps["mine"] == ()


def test_what_a_users_board_has_follows_from_its_cpus(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [boards.a76]
        base = "rasp4b-64"
        cpu = "cortex-a76"
        clusters = [{ cpu = "cortex-a76", cores = 4, max_mhz = 2400 }]
        [boards.a7]
        base = "armv7"
        cpu = "cortex-a7"
        clusters = [{ cpu = "cortex-a7", cores = 4, max_mhz = 900 }]
        [boards.both]
        base = "aarch64"
        cpu = "cortex-a73"
        clusters = [{ cpu = "cortex-a73", cores = 4, max_mhz = 2200 },
                    { cpu = "cortex-a55", cores = 4, max_mhz = 1800 }]
        [boards.more]
        base = "rk3399"
        memory_mb = 4096
        features = ["+neon", "+dotprod"]
        [boards.said]
        base = "a76"
        has = []
        """,
    )
    boards = load_boards([file])
    # Arm, Cortex-A76 Core Technical Reference Manual: ARMv8.2-A with FP16, dot product, RCpc.
    assert {"crc", "lse", "rdm", "fullfp16", "dotprod", "rcpc"} <= set(boards["a76"].has)
    assert not {"sve", "i8mm", "bf16", "pauth"} & set(boards["a76"].has)
    # Cortex-A7: VFPv4 and SDIV, but ARMv7.
    assert boards["a7"].has == ("fma", "hwdiv")
    # The A73 lacks what the A55 beside it has.
    assert set(boards["both"].has) == {"crc", "aes", "sha2"}
    assert set(boards["more"].has) == {"crc", "aes", "sha2", "dotprod"}
    assert boards["said"].has == ()


def test_the_reference_lists_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/boards.md").read_text()
    for triple in ("arm-linux-gnueabihf", "aarch64-linux-gnu"):
        listed = re.findall(rf"^\| `{triple}` \| `([\w-]+)` \|", page, re.MULTILINE)
        assert listed == list(cpus.families_of(triple))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[boards.rasp3b]\ncup = "cortex-a53"', "boards.rasp3b.cup: unknown key", "'cpu'"),
        (
            '[boards.x]\nbase = "armv7"\n'
            'clusters = [{ cpu = "cortex-a99", cores = 2, max_mhz = 1 }]',
            "boards.x.clusters: cpu: LLVM has no CPU 'cortex-a99'",
            "'cortex-a9'",
        ),
        ('[boards.rasp3b]\ncpu = "cortex-a35x"', "LLVM has no CPU 'cortex-a35x'", "'cortex-a35'"),
        ('[boards.rasp3b]\nfeatures = ["+neno"]', "no feature '+neno'", "'neon'"),
        ('[boards.rasp3b]\nfeatures = ["neon"]', "no feature 'neon'", "+name"),
        ("[boards.rasp3b]\nmemory_mb = true", "boards.rasp3b.memory_mb: True", None),
        ('[boards.rasp3b]\nmemory_mb = "big"', "'big' is not a whole number", None),
        ("[boards.rasp3b]\nmemory_mb = 0", "memory_mb: must not be empty", None),
        ('[boards.rasp3b]\nglibc = "new"', "'new' is not a glibc version", "2.31"),
        ('[boards.rasp3b]\nhas = ["fmaa"]', "unknown instruction family 'fmaa'", "'fma'"),
        ('[boards.rk3399]\nhas = ["dotprot"]', "unknown instruction family", "'dotprod'"),
        ('[boards.rk3399]\nforbidden = ["lse"]', "forbidden: unknown key", None),
        ('[boards.rasp3b]\ntoolchain = "clang"', "unknown value 'clang'", "gnu, zig"),
        ('[boards.rasp3b]\nclusters = [{cpu="cortex-a53", cores=0, max_mhz=1}]', "0 is not", None),
        ('[boards.rasp3b]\nclusters = [{cpu="cortex-a53", cores=1}]', "max_mhz: missing", None),
        ("[boards.rasp3b]\nclusters = []", "clusters: must not be empty", None),
        ('[boards.new]\ntitle = "x"', "boards.new.triple: missing", None),
        ('[boards.new]\nbase = "rasp3"', "unknown board 'rasp3'", "'rasp3b'"),
        ('[boards."a b"]\nbase = "rasp3b"', "bad name 'a b'", None),
        ("boards = 3", "boards: 3 is not a table", None),
        ("boards.x = 3", "boards.x: 3 is not a table", None),
        ("[boadrs.x]", "boards: missing", None),
        ("[boards.rasp3b", "not valid TOML", None),
    ],
)
def test_a_broken_file_names_the_key(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_boards([file])
    assert str(file) in caught.value.message
    assert message in caught.value.message
    if hint is not None:
        assert hint in (caught.value.hint or "")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file not found"):
        load_boards([tmp_path / "none.toml"])
    with pytest.raises(ConfigError, match="cannot read"):
        load_boards([tmp_path])
    latin = tmp_path / "latin.toml"
    latin.write_bytes('[boards.x]\ntitle = "Gerät"'.encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8 at byte"):
        load_boards([latin])


def test_an_unknown_board_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="unknown board: rasp3c") as caught:
        get_board("rasp3c")
    assert caught.value.hint == "perhaps you meant 'rasp3b'"


def test_versions_compare_by_number() -> None:
    assert version_tuple("2.4") < version_tuple("2.31")


def test_a_cpu_without_a_cost_model_is_said(tmp_path: Path) -> None:
    new = write(tmp_path, '[boards.new]\nbase = "aarch64"\ncpu = "cortex-a510"\n')
    board = get_board("new", [new])
    [check] = [check for check in check_board(board) if check.tool == "cost model of cortex-a510"]
    assert check.version is None
    assert not check.required
    assert "as for cortex-a72" in check.install
    assert cost_model(board) is None
    assert cost_model(get_board("rk3399")) == "cortex-a72"
    assert cost_model(get_board("local")) is not None


def test_a_board_without_a_c_library(tmp_path: Path) -> None:
    boards = load_boards()
    assert boards["pixel2"].is_static
    assert boards["pixel2"].glibc == ""
    assert [(c.cpu, c.cores) for c in boards["p20pro"].clusters] == [
        ("cortex-a73", 4), ("cortex-a53", 4),
    ]  # fmt: skip
    assert boards["rasp3b"].libc == "glibc"
    assert boards["aarch64"].libc == boards["armv7"].libc == "any"
    assert not boards["aarch64"].is_static
    bare = boards["rasp3b"].without_libc()
    assert (bare.libc, bare.glibc, bare.cpu) == ("none", "", "cortex-a53")

    mine = write(tmp_path, '[boards.router]\nbase = "armv7"\nlibc = "none"\n')
    assert load_boards([mine])["router"].is_static
    for text, words in (
        ('libc = "none"\nglibc = "2.31"', "boards.router.glibc: a board of libc"),
        ('libc = "musl"', "boards.router.libc: unknown value 'musl'"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_boards([write(tmp_path, f'[boards.router]\nbase = "armv7"\n{text}\n')])


def test_a_machine_without_linux_has_no_board_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of it there: a Mac has no sched_getaffinity, and is an arm64."""
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.delattr("os.sched_getaffinity")
    boards = load_boards()
    assert "local" not in boards
    assert boards["rasp3b"].triple == "arm-linux-gnueabihf"
    with pytest.raises(ConfigError, match="unknown board: local"):
        get_board("local")
