#!/bin/sh
# RAUC starts this from the mounted bundle; what it prints after << is shown as progress.
set -e

bundle=${RAUC_BUNDLE_MOUNT_POINT:-$RAUC_UPDATE_SOURCE}/bundle
root=${EDGEPACK_ROOT:-/var/lib/edgepack}/@NAME@

echo "<< handler installing"
mkdir -p "$root"
if ! "$bundle/install" --root "$root" --by rauc 2>&1; then
    echo "<< error @NAME@: not installed; what was current before still is"
    exit 1
fi
