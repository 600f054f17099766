"""Bundles with the real device tool and a fake edgepack-run.

That is a real program that hands its work to a shell script, so that it can crash, hang or be
wrong on command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgepack.base.kept import zig_cache
from edgepack.base.process import run
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle
from edgepack.native.device_tool import build_device_tool
from edgepack.native.toolchain import zig_executable
from tests.bundles import small_bundle
from tests.support import require_tool

_PROGRAM = """
#include <unistd.h>
int main(int argc, char **argv) {
  char *words[64] = {"sh", "-c", SCRIPT};
  for (int i = 0; i < argc && i < 60; ++i) words[3 + i] = argv[i];
  execv("/bin/sh", words);
  return 127;
}
"""
# As a service (--orders FOLDER) it says what it may do, tells the watchdog that it lives, and does
# what the file `order` in the folder says. Otherwise it is the fake edgepack-run, for the test of
# a release.
SERVICE_PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void sign(const char *text) {
  const char *name = getenv("NOTIFY_SOCKET");
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  strcpy(to.sun_path, name);
  to.sun_path[0] = 0;
  int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to,
         offsetof(struct sockaddr_un, sun_path) + strlen(name));
  close(fd);
}

static const char *writing(const char *path) {
  errno = 0;
  int fd = open(path, O_WRONLY | O_CREAT, 0644);
  if (fd >= 0) close(fd);
  return strerror(errno);
}

int main(int argc, char **argv) {
  char *words[64] = {"sh", "-c", SCRIPT};
  if (argc > 2 && strcmp(argv[1], "--orders") == 0) {
    char order[256], path[256];
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(path, sizeof path, "%s/written", argv[2]);
    printf("app: uid %d, own folder: %s, orders: %s\n", getuid(),
           writing("/home/pi/edgepack/tiny/x"), writing(path));
    sign("READY=1");
    snprintf(path, sizeof path, "%s/order", argv[2]);
    for (;;) {
      FILE *file = fopen(path, "r");
      if (file != NULL && fgets(order, sizeof order, file) != NULL) {
        unlink(path);
        if (strncmp(order, "hang", 4) == 0) for (;;) pause();
        if (strncmp(order, "hog", 3) == 0)
          for (;;) {
            memset(malloc(1 << 20), 1, 1 << 20);
            sign("WATCHDOG=1");
            usleep(5000);
          }
        if (strncmp(order, "exit", 4) == 0) return 3;
        // 3 MB in bursts that no pipe holds; every byte has to be taken.
        if (strncmp(order, "talk", 4) == 0) {
          static char text[30000];
          memset(text, 'x', sizeof text);
          text[sizeof text - 1] = '\n';
          for (int i = 0; i < 100; ++i)
            if (write(1, text, sizeof text) != sizeof text) return 4;
          puts("app: said all");
        }
      }
      if (file != NULL) fclose(file);
      sign("WATCHDOG=1");
      usleep(200000);
    }
  }
  for (int i = 0; i < argc && i < 60; ++i) words[3 + i] = argv[i];
  execv("/bin/sh", words);
  return 127;
}
"""
# For boards they are static: glibc there may be older than the compiler's. In 64 bits they have no
# glibc at all, whose string functions hold instructions that the gate does not let pass.
_COMPILERS = {"local": "gcc", "rasp3b": "arm-linux-gnueabihf-gcc"}

# Answers as edgepack-run does; every file of the bundle has to be there.
FAKE_APP = """#!/bin/sh
# A fake edgepack-run.
here=$(dirname "$0")/..
for file in manifest.json model/model.so model/graph.json model/params.bin golden/output.npy; do
  [ -s "$here/$file" ] || { echo "error: $file is missing" >&2; exit 5; }
done
expected=; top=; output=
while [ $# -gt 0 ]; do
  case $1 in
    --golden) expected='"expected":{"max_abs_error":1e-7,"max_abs_reference":1.0,
      "tolerance":1e-4,"ok":true},'; shift;;
    --image) [ -s "$2" ] || exit 2
      case $(head -c 4 "$2") in
        *PNG) ;;
        *) name=$(printf %s "$2" | sed 's|/|\\\\/|g')  # as the real one writes JSON
          echo '{"error":{"code":2,"message":"not an image: '"$name"'","hint":"use a PNG"}}'
          exit 2;;
      esac
      top='"top":[{"index":1,"label":"dog","score":0.9}],'; shift 2;;
    --output) output=$2; shift 2;;
    --tolerance) shift 2;;
    --json) shift;;
    *) shift;;
  esac
done
[ -z "$output" ] || cp "$here/golden/output.npy" "$output"
echo "{\\"edgepack\\":\\"fake\\",$expected $top\\"run_ms\\":1.5}"
"""
FAKE_HANGING_APP = FAKE_APP.replace("here=", "sleep 600\nhere=", 1)
FAKE_CRASHING_APP = FAKE_APP.replace("here=", "kill -SEGV $$\nhere=", 1)
FAKE_WRONG_APP = FAKE_APP.replace('"max_abs_error":1e-7', '"max_abs_error":0.5')
FAKE_BLIND_APP = FAKE_APP.replace('"index":1,"label":"dog"', '"index":0,"label":"cat"')


def compiler(board: Board) -> list[str]:
    """A C compiler for a board: GNU's, or zig's for musl."""
    if board.name in _COMPILERS:
        return [require_tool(_COMPILERS[board.name])]
    zig = zig_executable()
    assert zig is not None
    # As the device tool is built: then zig's musl is there already.
    flags = [*board.runtime_flags["zig"], "-O2", "-g0"]
    return [str(zig), "cc", "-target", board.triple.replace("gnu", "musl"), *flags]


def fake_bundle(
    folder: Path,
    *,
    board: str | Board = "local",
    app: str = FAKE_APP,
    program: str = _PROGRAM,
    weights: bytes = bytes(range(256)) * 400,
    **changes: Any,
) -> Bundle:
    """A bundle for `board` whose app is the shell script `app` in a `program` of its own."""
    profile = board if isinstance(board, Board) else get_board(board)
    if profile.is_static:
        app = app.replace(" model/model.so ", " ")
    command = compiler(profile)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.c").write_text(f"#define SCRIPT {json.dumps(app)}\n{program}")
    (folder / "library.c").write_text("int kernel(void) { return 0; }\n")
    program, library = folder / "app", folder / "library.so"
    local = ["-static-pie"] if profile.is_static else []
    static = {"local": local, "rasp3b": ["-static"]}.get(profile.name, ["-pie", "-fPIE"])
    for words in (
        [*command, *static, "-s", "-o", program, folder / "app.c"],
        [*command, "-s", "-shared", "-nostdlib", "-o", library, folder / "library.c"],
    ):
        with zig_cache() as env:
            run(words, env=env)
    if "tool" not in changes:
        changes["tool"] = build_device_tool(profile)
    return small_bundle(
        folder, board=profile, app=program, library=library, params=weights, **changes
    )
