"""The two readers of preprocess.json, in Python and in the app's C++, read the same."""

from __future__ import annotations

import json

from tests.readers import SPECS

MUTANTS = 6000
SEED = 20260402


def test_mutants() -> None:
    texts = [json.dumps(document).encode() for document in SPECS.documents()]
    assert SPECS.compare(texts) == (len(texts), 0)
    accepted, refused = SPECS.compare_mutants(MUTANTS, seed=SEED)
    print(f"{accepted} mutants accepted by both readers, {refused} refused by both")
    # Neither all good nor all bad: else this would say little.
    assert accepted > MUTANTS / 20
    assert refused > MUTANTS / 2
