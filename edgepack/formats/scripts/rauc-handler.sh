#!/bin/sh
# RAUC starts this from the mounted bundle; what it prints after << is shown as progress.
set -e

bundle=${RAUC_BUNDLE_MOUNT_POINT:-$RAUC_UPDATE_SOURCE}/bundle
root=${EDGEPACK_ROOT:-/var/lib/edgepack}/@NAME@

echo "<< handler installing"
mkdir -p "$root"
# A tool that is there knows the name by what it has, and may be too old to be told.
first="--name @NAME@"
[ ! -x "$root/bin/edgepack-device" ] || first=
# shellcheck disable=SC2086 # two words, or none
if ! "$bundle/install" --root "$root" --by rauc $first 2>&1; then
    echo "<< error @NAME@: not installed; what was current before still is"
    exit 1
fi
