"""A board's life in the field, accelerated: what goes wrong in a year, again and again.

    ./dev soak [--minutes N] [--kind systemd|busybox|light] [--seed S]

The service of a real release, edgepack-run that watches a folder for photos, runs on a virtual
board under a real systemd, or under busybox's init and its scripts. By turns a link is lost, and
one thing more happens, in a seeded order: releases come and go, power is cut, the disk runs full,
files rot, the clock leaps, photos are poisoned, processes are killed or hang. After each, the
service has to run what is current and to name the colour of a new photo. At the end it runs the
newest release, nothing has leaked and no file is left over.
"""
