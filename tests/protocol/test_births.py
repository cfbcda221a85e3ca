"""Births of chunks: what a follower lacks, and what it makes of it (protocol.md, section 2)."""

import pytest

from hams_protocol.births import born_after, laid_over


@pytest.mark.parametrize(
    ("version", "places"), [(0, None), (1, [1, 2]), (4, [2]), (6, [])], ids=["all", "two", "one", "none"]
)
def test_a_follower_lacks_the_chunks_born_after_what_it_holds(version, places):
    assert born_after((1, 4, 6), version) == places


def test_an_image_without_chunks_travels_whole():
    assert born_after((), 3) is None


@pytest.mark.parametrize(
    ("changed", "number", "births"),
    [
        ((1,), 3, [1, 9, 6]),
        ((), 2, [1, 4]),
        ((3, 4), 5, [1, 4, 6, 9, 9]),
        ((4,), 5, None),
        ((0, 1, 2), 3, [9, 9, 9]),
    ],
    ids=["changed", "shorter", "longer", "with a hole", "all"],
)
def test_what_is_laid_over_a_base_is_born_in_the_newer_version(changed, number, births):
    assert laid_over((1, 4, 6), changed, number, 9) == births
