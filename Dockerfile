# All tools for contributors, at the versions that ./dev installs on Debian 12:
#
#   docker build -t edgepack-dev - <Dockerfile
#   docker run --rm -it -v "$PWD":/edgepack -v edgepack-cache:/cache edgepack-dev \
#       ./dev check
#
# Without --privileged the virtual boards are full systems, which take longer to start than the
# light ones; see docs/concepts/virtual-boards.md.
FROM debian:bookworm

# What ./dev installs, with python3 itself; tests/unit/test_contributing.py holds them equal.
RUN apt-get update && apt-get install -y --no-install-recommends \
    python3 \
    adb \
    apache2-utils \
    apt-utils \
    binutils-arm-linux-gnueabihf \
    busybox \
    ca-certificates \
    clang \
    clang-format \
    clang-tidy \
    dbus-daemon \
    debian-archive-keyring \
    doctest-dev \
    dpkg \
    e2fsprogs \
    g++ \
    g++-aarch64-linux-gnu \
    g++-arm-linux-gnueabihf \
    gcc \
    git \
    gnupg \
    libc6-dev \
    libclang-rt-dev \
    llvm \
    llvm-19 \
    make \
    mender-artifact \
    mksh \
    mmdebstrap \
    nasm \
    ocl-icd-libopencl1 \
    openssh-client \
    openssh-server \
    openssl \
    pkg-config \
    pocl-opencl-icd \
    python3-venv \
    qemu-system-arm \
    qemu-user \
    qemu-user-static \
    rauc \
    skopeo \
    squashfs-tools \
    systemd \
    tcsh \
    toybox \
    uidmap \
    umoci \
    xz-utils \
    && rm -rf /var/lib/apt/lists/*

ENV LANG=C.UTF-8 EDGEPACK_CACHE=/cache
WORKDIR /edgepack
# The checkout belongs to the user outside.
RUN git config --system --add safe.directory /edgepack
CMD ["./dev", "check"]
