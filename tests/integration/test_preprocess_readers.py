"""The readers of preprocess.json and postprocess.json, in Python and in the app's C++, agree."""

from __future__ import annotations

import json

import pytest

from tests.readers import POSTPROCESSES, SPECS, Readers

MUTANTS = 6000
SEED = 20260402


@pytest.mark.parametrize("readers", [SPECS, POSTPROCESSES], ids=["preprocess", "postprocess"])
def test_mutants(readers: Readers) -> None:
    texts = [json.dumps(document).encode() for document in readers.documents()]
    assert readers.compare(texts) == (len(texts), 0)
    accepted, refused = readers.compare_mutants(MUTANTS, seed=SEED)
    print(f"{accepted} mutants accepted by both readers, {refused} refused by both")
    # Neither all good nor all bad: else this would say little.
    assert accepted > MUTANTS / 20
    assert refused > MUTANTS / 2
