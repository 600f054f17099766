"""A static sshd and scp for boards without a C library: dropbear, built with zig and musl.

One that logs in by ed25519 keys only and has one cipher, for tests on this machine: what makes a
server fit for the world outside is left out, and it is not part of what edgepack ships.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

from edgepack.base.kept import zig_cache
from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.process import run
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tools import explain_missing
from edgepack.boards import Board
from edgepack.native.toolchain import zig_executable, zig_version
from edgepack.virtual import apt

# The Debian release that has this version.
_SUITE = "bookworm"
_VERSION = "2022.83"
_SOURCE = f"pool/main/d/dropbear/dropbear_{_VERSION}.orig.tar.bz2"
_SHA256 = "bc5a121ffbc94b5171ad5ebe01be42746d50aa797c9549a4639894a16749443b"

# What ./configure would find with musl: it asks the compiler a hundred times.
_FOUND = """
BASENAME CLEARENV CLOCK_GETTIME CONST_GAI_STRERROR_PROTO DAEMON EXPLICIT_BZERO FORK FREEADDRINFO
GAI_STRERROR GETADDRINFO GETGROUPLIST GETNAMEINFO GETRANDOM GETSPNAM GETUSERSHELL INTTYPES_H
LIBGEN_H NETDB_H NETINET_IN_H NETINET_IN_SYSTM_H NETINET_TCP_H OPENPTY PATHS_H PTY_H PUTENV SHADOW_H
STRLCAT STRLCPY STRUCT_ADDRINFO STRUCT_IN6_ADDR STRUCT_SOCKADDR_IN6 STRUCT_SOCKADDR_STORAGE
STRUCT_SOCKADDR_STORAGE_SS_FAMILY SYS_PRCTL_H SYS_RANDOM_H SYS_SELECT_H SYS_SOCKET_H SYS_UIO_H
SYS_WAIT_H UINT8_T UINT16_T UINT32_T U_INT8_T U_INT16_T U_INT32_T WRITEV
"""
# Not SYSLOG: without it dropbear refuses to serve a connection that it is handed.
_WITHOUT = ("LASTLOG", "PAM", "UTMP", "UTMPX", "WTMP", "WTMPX", "ZLIB")
# Of dropbear's default_options.h: what is left are curve25519, ed25519, AES in counter mode and
# SHA-256, which need none of its big numbers but the shared secret.
_OFF = (
    *("DO_MOTD", "DROPBEAR_CHACHA20POLY1305", "DROPBEAR_DELAY_HOSTKEY", "DROPBEAR_DH_GROUP14_SHA1"),
    *("DROPBEAR_DH_GROUP14_SHA256", "DROPBEAR_ECDH", "DROPBEAR_ECDSA", "DROPBEAR_RSA"),
    *("DROPBEAR_RSA_SHA1", "DROPBEAR_SHA1_HMAC", "DROPBEAR_SK_KEYS", "DROPBEAR_SMALL_CODE"),
    *("DROPBEAR_SVR_AGENTFWD", "DROPBEAR_SVR_LOCALTCPFWD", "DROPBEAR_SVR_PASSWORD_AUTH"),
    *("DROPBEAR_SVR_REMOTETCPFWD", "DROPBEAR_USER_ALGO_LIST"),
)
_SERVER = """
atomicio bignum buffer circbuffer common-algo common-channel common-chansession common-kex
common-runopts common-session compat crypto_desc dbhelpers dbmalloc dbrandom dbutil ed25519 list
listener loginrec netio packet process-packet queue signkey sshpty svr-auth svr-authpubkey
svr-authpubkeyoptions svr-chansession svr-kex svr-main svr-runopts svr-service svr-session
svr-tcpfwd termcodes
"""
_CRYPTO = """
ciphers/aes/aes hashes/helper/hash_memory hashes/sha2/sha256 mac/hmac/hmac_done
mac/hmac/hmac_init mac/hmac/hmac_process misc/base64/base64_decode misc/base64/base64_encode
misc/crypt/crypt_argchk
misc/crypt/crypt_cipher_descriptor misc/crypt/crypt_cipher_is_valid misc/crypt/crypt_find_cipher
misc/crypt/crypt_find_hash misc/crypt/crypt_hash_descriptor misc/crypt/crypt_hash_is_valid
misc/crypt/crypt_register_cipher misc/crypt/crypt_register_hash misc/mem_neq misc/zeromem
modes/ctr/ctr_decrypt modes/ctr/ctr_done modes/ctr/ctr_encrypt modes/ctr/ctr_start
"""
_OPTIONS = "\n".join(
    [
        "#ifndef DROPBEAR_OPTIONS_H",  # which would include what configure makes
        "#define DROPBEAR_OPTIONS_H",
        "#define _GNU_SOURCE 1",
        "#define _FILE_OFFSET_BITS 64",
        "#define BUNDLED_LIBTOM 1",
        "#define DROPBEAR_SERVER 1",
        "#define DROPBEAR_FUZZ 0",
        "#define DROPBEAR_PLUGIN 0",
        *(f"#define HAVE_{name} 1" for name in _FOUND.split()),
        *(f"#define DISABLE_{name} 1" for name in _WITHOUT),
        '#include "default_options.h"',
        *(f"#undef {name}\n#define {name} 0" for name in _OFF),
        '#include "sysoptions.h"',
        # Which the release leaves switched on, whatever is asked for.
        "#undef DROPBEAR_DSS\n#define DROPBEAR_DSS 0",
        "#endif",
        "",
    ]
)
# Few large files: headers take most of a compiler's time. Two files have names that others have.
_TOM = "#define LTC_SOURCE\n"
_UNITS = {
    "server.c": "".join(f'#include "{name}.c"\n' for name in _SERVER.split()),
    "curve.c": '#include "curve25519.c"\n',
    "crypto.c": _TOM
    + "".join(f'#include "libtomcrypt/src/{name}.c"\n' for name in _CRYPTO.split()),
    "sha512.c": _TOM + '#include "libtomcrypt/src/hashes/sha2/sha512.c"\n',
    "copying.c": '#include "atomicio.c"\n#include "compat.c"\n#include "scpmisc.c"\n',
}
_PROGRAMS = {
    "dropbear": ("server.c", "curve.c", "crypto.c", "sha512.c", "math.c"),
    "scp": ("copying.c", "scp.c"),
}


def static_sshd(board: Board, *, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with `dropbear` and `scp` for all boards of `board`'s architecture.

    They need no library, and no file but keys and accounts. From the cache if they were built
    before; equal tools give equal bytes. Raises RootfsError if the source cannot be had,
    ToolchainError if zig fails.
    """
    zig = zig_executable()
    if zig is None:
        raise explain_missing("zig")
    triple, flags = board.triple.replace("-gnu", "-musl"), board.runtime_flags["zig"]
    # As the device tool is built: zig makes one musl for both.
    options = (
        *("-target", triple, *flags, "-pie", "-fPIE", "-O2", "-g0", "-s", "-w"),
        *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"),
        *("-include", "config.h", "-I.", "-Ilibtomcrypt/src/headers", "-Ilibtommath"),
    )
    recipe = [zig_version(zig), _SHA256, options, _OPTIONS, _UNITS, _PROGRAMS]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    folder = cache_dir() / "static-sshd" / f"{triple}-{digest}"
    with locked(folder):
        if not folder.exists():
            progress.step(f"building a static sshd for {triple}")
            with atomic_dir(folder) as work:
                source = _source(work)
                for name, files in _PROGRAMS.items():
                    with zig_cache() as env:
                        run(
                            [zig, "cc", *options, *files, "-o", work / name],
                            cwd=source,
                            env=env,
                            what=f"building a static {name}",
                        )
                shutil.rmtree(source)
    return folder


def _source(folder: Path) -> Path:
    """The folder with dropbear's source, and with what it is compiled as."""
    archive = folder / "source.tar.bz2"
    apt.download(_SOURCE, archive, suite=_SUITE, sha256=_SHA256)
    # The hash is that of a release whose members are known.
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    source = folder / f"dropbear-{_VERSION}"
    math = sorted(path.name for path in source.glob("libtommath/bn_*.c"))
    units = {**_UNITS, "math.c": "".join(f'#include "libtommath/{name}"\n' for name in math)}
    for name, text in {"config.h": _OPTIONS, **units}.items():
        (source / name).write_text(text)
    return source
