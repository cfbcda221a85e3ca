"""The airports of the United States, as vega_datasets ships them, and questions about them."""

from collections.abc import Iterator

import numpy as np
from vega_datasets import data

FORMS = (
    "Where is {name} in {city}?",
    "where is the {name}, {city}",
    "{name} in {city}: where is it?",
    "Tell me where {name} in {city} is!",
)


def airports() -> list[tuple[str, str]]:
    """(answer, words to find it by) of each airport."""
    table = data.airports().fillna("")
    return [
        (
            f"{row.iata}: {row.name}, {row.city}, {row.state}, {row.country} ({row.latitude:.4f}, "
            f"{row.longitude:.4f})",
            f"{row.name} {row.city}",
        )
        for row in table.itertuples(index=False, name="Airport")
    ]


def stream(seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Questions without end, one row each: question (1,) BYTES. Few airports are asked for often, most
    seldom, in four forms of words."""
    random = np.random.default_rng(seed)
    table = data.airports().fillna("")
    order = random.permutation(len(table))
    while True:
        row = table.iloc[order[min(int(random.zipf(1.3)) - 1, len(order) - 1)]]
        question = FORMS[int(random.integers(len(FORMS)))].format(name=row["name"], city=row["city"])
        yield {"question": np.array([question.encode()], object)}
