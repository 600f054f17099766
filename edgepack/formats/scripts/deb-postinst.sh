#!/bin/sh
# Installs the release that this package brought, or fails and leaves the one before it.
set -e

name=@NAME@
root=/var/lib/edgepack/$name
unit=edgepack-$name.service

if [ "$1" = configure ]; then
    mkdir -p "$root"
    # A tool that is there knows the name by what it has, and may be too old to be told.
    first="--name $name"
    [ ! -x "$root/bin/edgepack-device" ] || first=
    # shellcheck disable=SC2086 # two words, or none
    "/usr/lib/edgepack/$name/install" --root "$root" --by dpkg $first
    # udev makes the group, and the service of a GPU does not start without it.
    if grep -qs '^SupplementaryGroups=.*render' "/lib/systemd/system/$unit" &&
        ! getent group render >/dev/null; then
        groupadd --system render
    fi
    # A service notices the new release by itself; here it is started for the first time.
    if [ -d /run/systemd/system ] && [ -e "/lib/systemd/system/$unit" ]; then
        systemctl daemon-reload
        if [ -z "$2" ]; then
            systemctl enable --now "$unit"
        fi
    fi
fi
