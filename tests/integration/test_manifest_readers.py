"""The two readers of manifest.json, in Python and in the device's C++, read the same.

What one accepts and the other refuses would be a bundle that is made and never installed, or one
that is installed and cannot be opened here. Both get the manifests of the fuzzer's corpus and
thousands of mutants, the same ones each time. They differ on purpose in two things:

- Python recomputes the release id. The device need not: what it trusts is the signature over the
  bytes, and the hash of each file.
- Python takes no service arguments with letters that cannot be printed; the device, which has no
  tables of Unicode, refuses ASCII's control characters only.
"""

from __future__ import annotations

import json
import zipfile

from tests.fuzz import CORPUS
from tests.readers import MANIFESTS

MUTANTS = 6000
SEED = 20260401


def test_mutants() -> None:
    texts = [json.dumps(document, indent=1).encode() for document in MANIFESTS.documents()]
    assert MANIFESTS.compare(texts) == (len(texts), 0)
    accepted, refused = MANIFESTS.compare_mutants(MUTANTS, seed=SEED)
    print(f"{accepted} mutants accepted by both readers, {refused} refused by both")
    # Neither all good nor all bad: else this would say little.
    assert accepted > MUTANTS / 20
    assert refused > MUTANTS / 2


def test_what_the_fuzzer_found() -> None:
    with zipfile.ZipFile(CORPUS / "manifest.zip") as corpus:
        texts = [corpus.read(name) for name in corpus.namelist()]
    accepted, refused = MANIFESTS.compare(texts)
    assert accepted > 0
    assert refused > 500


def test_manifests_that_are_too_large() -> None:
    text = json.dumps(MANIFESTS.documents()[0]).encode()
    limit = 4 << 20
    assert MANIFESTS.compare([text + b" " * (limit - len(text))]) == (1, 0)
    assert MANIFESTS.compare([text + b" " * (limit + 1 - len(text))]) == (0, 1)
