#!/bin/sh
# An upgrade leaves the service running: it goes over to the new release once that is tested.
set -e

unit=edgepack-@NAME@.service

if [ "$1" = remove ] && [ -d /run/systemd/system ] && [ -e "/lib/systemd/system/$unit" ]; then
    systemctl disable --now "$unit"
fi
