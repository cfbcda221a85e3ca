"""The stocks graph on real prices."""

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")


@pytest.fixture
def stocks(example: Any) -> Any:
    return example("stocks")


def ticks(count: int) -> list[dict[str, Any]]:
    from stocks.data import stream

    return list(itertools.islice(stream(), count))


def one(symbol: bytes, price: float) -> dict[str, Any]:
    return {"symbol": np.array([symbol], object), "price": np.array([price])}


def test_a_decade_of_prices_is_traded(stocks: Any) -> None:
    replies = [stocks.request(tensors) for tensors in ticks(560)]
    orders = [reply for reply in replies if reply["action"][0] != 0]
    assert 20 < len(orders) < 540
    assert stocks.runs["desk"] == len(orders), "the desk sees orders only"
    assert [int(reply["orders"][0]) for reply in orders] == list(range(1, len(orders) + 1))
    assert all(("worth" in reply) == (reply["action"][0] != 0) for reply in replies)
    assert all(np.isfinite(reply["forecast"]).all() for reply in replies)


def test_the_regressor_finds_a_rule_that_is_there(stocks: Any) -> None:
    made = stocks.engines["regressor"].model
    random = np.random.default_rng(0)
    change, price, forecasts, changes = 0.01, 100.0, [], []
    for _ in range(600):
        change = 0.6 * change + 0.01 * random.standard_normal()
        price *= np.exp(change)
        changes.append(change)
        forecasts.append(float(made.weights[3] @ made._terms(3)))
        stocks.request(one(b"IBM", price))
    assert np.corrcoef(forecasts[100:], changes[100:])[0, 1] > 0.45, "the rule itself explains 0.6"


def test_the_books_balance(stocks: Any) -> None:
    desk = stocks.engines["desk"].model
    for tensors in ticks(200):
        reply = stocks.request(tensors)
        assert float(desk.cash) >= 0
        assert (desk.shares >= 0).all()
        if "worth" in reply:
            assert reply["worth"][0] == pytest.approx(float(desk.cash) + desk.shares @ desk.prices)


@pytest.mark.parametrize(
    ("symbol", "price", "message"),
    [
        (b"TSLA", 1.0, 'unknown symbol "TSLA"; known are AAPL, AMZN, GOOG, IBM, MSFT'),
        (b"IBM", -1.0, "a price must be positive, found -1.0"),
        (b"IBM", float("nan"), "a price must be positive, found nan"),
    ],
)
def test_a_bad_price_is_refused_and_leaves_no_trace(
    stocks: Any, captured: Any, symbol: bytes, price: float, message: str
) -> None:
    for tensors in ticks(20):
        stocks.request(tensors)
    before = [captured(stocks.engines[name]) for name in ("trend", "regressor")]
    with pytest.raises(Exception, match=message):
        stocks.request({"symbol": np.array([b"IBM", symbol], object), "price": np.array([80.0, price])})
    assert [captured(stocks.engines[name]) for name in ("trend", "regressor")] == before


def test_a_fresh_copy_with_the_captured_state_goes_on_the_same(
    stocks: Any, example: Any, captured: Any
) -> None:
    requests = ticks(160)
    for tensors in requests[:80]:
        stocks.request(tensors)
    other = example("stocks")
    for name in ("trend", "regressor", "desk"):
        other.engines[name].load(memoryview(bytearray(captured(stocks.engines[name]))))
    for tensors in requests[80:]:
        mine, theirs = stocks.request(tensors), other.request(tensors)
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_several_prices_of_one_symbol_in_a_request_are_taken_in_order(stocks: Any) -> None:
    reply = stocks.request({"symbol": np.array([b"IBM"] * 3, object), "price": np.array([1.0, 2.0, 4.0])})
    assert reply["forecast"].shape == (3,)
    assert stocks.engines["regressor"].model.last[3] == 4.0
    assert float(stocks.engines["trend"].model.last[3]) == 4.0
