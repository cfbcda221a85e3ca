"""Distributions on the grid against draws and closed forms."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hams_schedule.limits import grid_cells
from hams_schedule.shapes import Grid, maximum, mixture, normal, point, power

GRID = Grid(0.001, 1.0)
DRAWS = 20_000


def learnt(draw: "random.Random", mean: float, sd: float, count: int = DRAWS) -> list[float]:
    counts = [0.0] * grid_cells
    for _ in range(count):
        counts[GRID.cell(max(draw.gauss(mean, sd), 1e-4))] += 1
    return normal(counts)


def test_the_law_of_the_maximum_is_that_of_drawn_maxima() -> None:
    draw = random.Random(1)
    short, long = learnt(draw, 0.02, 0.004), learnt(draw, 0.05, 0.02)
    law = maximum([short, long], [3, 2])
    counts = [0.0] * grid_cells
    for _ in range(DRAWS):
        times = [draw.gauss(0.02, 0.004) for _ in range(3)] + [draw.gauss(0.05, 0.02) for _ in range(2)]
        counts[GRID.cell(max(times))] += 1
    drawn = normal(counts)
    assert max(abs(one - other) for one, other in zip(law, drawn, strict=True)) < 0.015


def test_the_product_is_orlojs_equation_8_integrated() -> None:
    """f(x) = sum over subsets of (-1)^(n-k) ... is the derivative of the product; both are compared as
    masses, with the alternating sum over subsets of 1 - F."""
    draw = random.Random(2)
    laws = [learnt(draw, 0.02 * (1 + index), 0.005, 500) for index in range(6)]
    for count in range(1, 7):
        product = maximum(laws[:count], [1] * count)
        for cell in range(0, grid_cells, 7):
            alternating = 0.0
            for size in range(count + 1):
                for subset in itertools.combinations(range(count), size):
                    alternating += (-1) ** size * math.prod(1 - laws[index][cell] for index in subset)
            assert product[cell] == pytest.approx(alternating, abs=1e-9)


def test_one_class_is_a_power() -> None:
    law = learnt(random.Random(3), 0.05, 0.01)
    assert maximum([law], [4]) == pytest.approx(power(law, 4))
    assert maximum([law, law], [1, 3]) == pytest.approx(power(law, 4))
    assert maximum([law, law], [0, 1]) == law


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 5.0), min_size=grid_cells, max_size=grid_cells).filter(lambda c: sum(c) > 0.1),
    st.integers(1, 20),
)
def test_a_maximum_grows_with_the_draws_and_a_chance_with_the_time(counts: list[float], draws: int) -> None:
    cdf = normal(counts)
    more, less = power(cdf, draws + 1), power(cdf, draws)
    assert all(0.0 <= one <= other <= 1.0 for one, other in zip(more, less, strict=True))
    assert GRID.mean(more) >= GRID.mean(less) - 1e-12 >= GRID.mean(cdf) - 2e-12
    chances = [GRID.chance(cdf, 0.0005 * 1.3**step) for step in range(40)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[-1] == 1.0


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.003, 0.8))
def test_a_quantile_is_the_inverse_of_a_chance(share: float, mean: float) -> None:
    cdf = learnt(random.Random(4), mean, mean / 5, 300)
    assert GRID.chance(cdf, GRID.quantile(cdf, share)) == pytest.approx(share, abs=1e-6)


def test_all_times_are_less_than_an_infinite_one() -> None:
    assert GRID.chance(point(GRID, 0.5), math.inf) == 1.0
    assert GRID.cell(math.inf) == grid_cells - 1


def test_mean_and_mixture() -> None:
    draw = random.Random(5)
    one, other = learnt(draw, 0.02, 0.002), learnt(draw, 0.2, 0.02)
    assert GRID.mean(one) == pytest.approx(0.02, rel=0.01)
    assert GRID.mean(mixture([one, other], [3.0, 1.0])) == pytest.approx(0.065, rel=0.01)
    assert GRID.mean(point(GRID, 0.1)) == pytest.approx(0.1, rel=0.06)


def test_a_move_to_another_grid_keeps_mass_and_mean() -> None:
    wide = Grid(0.0001, 10.0)
    counts = [0.0] * grid_cells
    draw = random.Random(6)
    for _ in range(5_000):
        counts[GRID.cell(draw.gauss(0.05, 0.01))] += 1
    moved = wide.move(counts, GRID)
    assert sum(moved) == pytest.approx(5_000)
    assert wide.mean(normal(moved)) == pytest.approx(GRID.mean(normal(counts)), rel=0.02)
    assert all(count >= 0 for count in moved)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.inf)]
)
def test_a_grid_without_width_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < low < high"):
        Grid(low, high)


def test_counts_and_weights_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="found none"):
        normal([0.0] * grid_cells)
    with pytest.raises(ValueError, match="found none"):
        mixture([], [])
    with pytest.raises(ValueError, match="at least one"):
        maximum([normal([1.0] * grid_cells)], [0])
