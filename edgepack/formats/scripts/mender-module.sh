#!/bin/sh
# The Mender update module `edgepack`: one model's release in /var/lib/edgepack/<name>.
# Mender (update module protocol 3) calls it with a state and a folder to work in.
set -e

state=$1
files=$2/files
before=$2/tmp/before

# Other states come before the files are there, or do not need them.
place() {
    name=$(cat "$files/name")
    case $name in
    "" | .* | */*)
        echo "not the name of a model: $name" >&2
        exit 1
        ;;
    esac
    root=${EDGEPACK_ROOT:-/var/lib/edgepack}/$name
    tool=$root/bin/edgepack-device
}

current() { basename "$(readlink "$root/current" 2>/dev/null)" 2>/dev/null || true; }

case $state in
NeedsArtifactReboot) echo No ;;
SupportsRollback) echo Yes ;;
ArtifactInstall)
    place
    mkdir -p "$root"
    current >"$before"
    if [ -x "$tool" ]; then
        "$tool" install "$files/bundle.tar.gz" --root "$root" --by mender
    else
        # The first release brings the tool that checks it; the artifact's signature vouches.
        mkdir "$2/tmp/bundle"
        tar -xzf "$files/bundle.tar.gz" -C "$2/tmp/bundle"
        "$2"/tmp/bundle/*/install --root "$root" --name "$name" --by mender
        rm -rf "$2/tmp/bundle"
    fi
    ;;
ArtifactRollback)
    # An installation that failed has gone back by itself.
    place
    if [ -s "$before" ] && [ "$(current)" != "$(cat "$before")" ]; then
        "$tool" rollback --to "$(cat "$before")" --root "$root"
    fi
    ;;
esac
