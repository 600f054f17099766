"""What travels to a device: files, manifest, signatures, as a folder or a tarball."""
