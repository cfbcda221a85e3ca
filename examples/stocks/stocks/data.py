"""Monthly closing prices of five companies, January 2000 to March 2010, as vega_datasets ships them."""

from collections.abc import Iterator

import numpy as np
from vega_datasets import data


def prices() -> list[tuple[str, float]]:
    """(symbol, price in US dollars) in order of time, all 560 of them."""
    table = data.stocks().sort_values(["date", "symbol"])
    return [
        (str(symbol), float(price)) for symbol, price in zip(table["symbol"], table["price"], strict=True)
    ]


def stream() -> Iterator[dict[str, np.ndarray]]:
    """Requests without end, one row each: symbol (1,) BYTES, price (1,) FP64. The decade starts over when it
    is through."""
    ticks = prices()
    while True:
        for symbol, price in ticks:
            yield {"symbol": np.array([symbol.encode()], object), "price": np.array([price])}
