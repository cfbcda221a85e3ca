"""Dependency vectors (section 1)."""

from kit import dep

from hams_protocol.deps import Dep, merge


def test_merging_takes_the_newest_state_of_each_operator():
    assert merge([(Dep("p", 1, 5), Dep("q", 2, 1)), dep("p", 1, 9), dep("r", 1, 0)]) == (
        Dep("p", 1, 9),
        Dep("q", 2, 1),
        Dep("r", 1, 0),
    )


def test_a_later_epoch_wins_over_a_higher_seq():
    assert merge([dep("p", 1, 10), dep("p", 2, 8)]) == dep("p", 2, 8)


def test_no_vectors_make_an_empty_one():
    assert merge([]) == merge([(), ()]) == ()
