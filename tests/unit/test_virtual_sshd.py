from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edgepack.virtual.files import identity
from edgepack.virtual.keys import KeyPair
from edgepack.virtual.sshd import DROPBEAR, OPENSSH, dropbear_key


def pair(folder: Path, key: Ed25519PrivateKey) -> KeyPair:
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    (folder / "key").write_bytes(text)
    return KeyPair(file=folder / "key", public="ssh-ed25519 x edgepack")


def test_dropbears_key_holds_seed_and_public_key(tmp_path: Path) -> None:
    for number in range(8):  # the padding of OpenSSH's form depends on the comment only
        key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        public = key.public_key().public_bytes_raw()
        expected = b"\0\0\0\x0bssh-ed25519\0\0\0\x40" + key.private_bytes_raw() + public
        assert dropbear_key(pair(tmp_path, key)) == expected


def test_a_board_gets_the_key_where_its_server_looks(tmp_path: Path) -> None:
    host = pair(tmp_path, Ed25519PrivateKey.generate())
    login = KeyPair(file=tmp_path, public="ssh-x y z")
    for sshd in (OPENSSH, DROPBEAR):
        made = identity(hostname="b", login=login, host=host, sshd=sshd)
        files = {file.path: file for file in made}
        assert files[sshd.host_key_file].data == sshd.host_key(host)
        assert files[sshd.host_key_file].mode == 0o600
        assert files["/root/.ssh/authorized_keys"].data == b"ssh-x y z\n"
    assert OPENSSH.host_key(host) == host.file.read_bytes()
