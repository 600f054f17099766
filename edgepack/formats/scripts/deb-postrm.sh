#!/bin/sh
# Removal takes the releases; who may sign, and the highest version seen, stay until purge.
set -e

root=/var/lib/edgepack/@NAME@

case $1 in
remove)
    rm -rf "$root/bin" "$root/current" "$root/incoming" "$root/previous" "$root/releases" \
        "$root/store"
    if [ -d "$root/state" ]; then
        find "$root/state" -type f ! -name highest.json -delete
    fi
    ;;
purge)
    rm -rf "$root"
    rmdir --ignore-fail-on-non-empty /var/lib/edgepack 2>/dev/null || true
    ;;
esac
case $1 in
remove | purge)
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
    ;;
esac
