"""Bundles with the real device tool and a fake edgepack-run.

That is a real program that hands its work to a shell script, so that it can crash, hang or be
wrong on command.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.native.device_tool import build_device_tool
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
# Static for boards, whose glibc may be older than the compiler's.
_COMPILERS = {
    "local": ["gcc"],
    "rasp3b": ["arm-linux-gnueabihf-gcc", "-static"],
    "rasp3b-64": ["aarch64-linux-gnu-gcc", "-static"],
}

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


def fake_bundle(
    folder: Path,
    *,
    board: str = "local",
    app: str = FAKE_APP,
    weights: bytes = bytes(range(256)) * 400,
    **changes: Any,
) -> Bundle:
    """A bundle for `board` whose app is the shell script `app` in a program of its own."""
    command = _COMPILERS[board]
    require_tool(command[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.c").write_text(f"#define SCRIPT {json.dumps(app)}\n{_PROGRAM}")
    (folder / "library.c").write_text("int kernel(void) { return 0; }\n")
    program, library = folder / "app", folder / "library.so"
    subprocess.run([*command, "-s", "-o", program, folder / "app.c"], check=True)
    subprocess.run(
        [command[0], "-s", "-shared", "-nostdlib", "-o", library, folder / "library.c"], check=True
    )
    if "tool" not in changes:
        changes["tool"] = build_device_tool(get_board(board))
    return small_bundle(
        folder, board=board, app=program, library=library, params=weights, **changes
    )
