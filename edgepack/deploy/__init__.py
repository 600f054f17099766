"""From a bundle to a release on a device: transfer, activation, smoke test, service."""
