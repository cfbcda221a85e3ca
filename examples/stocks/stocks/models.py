"""The four models of the stocks graph.

trend (a recurrent network) and regressor (recursive least squares) both forecast the next return of a symbol
and learn from every price; decide combines the two and routes only what is worth an order to desk, which
keeps the books. All but decide have state, kept per symbol.

Rows are handled in their order, so a request may hold several prices of one symbol. A request with an unknown
symbol or a price that is no positive number is refused as a whole and leaves no trace.
"""

import math
from typing import Any

import numpy as np

import hams_sdk

SYMBOLS = ("AAPL", "AMZN", "GOOG", "IBM", "MSFT")
LAGS = 3
REPLY, DESK = "reply", "desk"


def accepted(batch: hams_sdk.Batch, symbols: dict[bytes, int]) -> list[tuple[int, int, float]]:
    """(row, symbol number, price) of every row of every sound request; the other requests fail with what is
    wrong."""
    names, prices = batch["symbol"], batch["price"]
    seen = []
    for unit in batch.units:
        rows = [
            (row, symbols.get(bytes(names[row]), -1), float(prices[row]))
            for row in range(unit.rows.start, unit.rows.stop)
        ]
        bad = next(
            (
                (row, number, price)
                for row, number, price in rows
                if number < 0 or not (math.isfinite(price) and price > 0)
            ),
            None,
        )
        if bad is None:
            seen += rows
        elif bad[1] < 0:
            batch.fail(
                unit,
                f'unknown symbol "{bytes(names[bad[0]]).decode(errors="replace")}"; known are '
                f"{', '.join(s.decode() for s in symbols)}",
            )
        else:
            batch.fail(unit, f"a price must be positive, found {bad[2]}")
    return seen


def numbered(config: dict[str, Any]) -> dict[bytes, int]:
    """The symbols of a model, in order."""
    return {name.encode(): number for number, name in enumerate(config.get("symbols", SYMBOLS))}


class Trend(hams_sdk.Model):
    """A recurrent network (LSTM) over the returns of each symbol. It learns from the error of its previous
    forecast."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        import torch  # noqa: PLC0415 - takes seconds and memory; only this model pays

        torch.set_num_threads(1)
        self.torch = torch
        torch.manual_seed(int(config.get("seed", 7)))
        self.symbols = numbered(config)
        width = int(config.get("width", 16))
        self.cell = torch.nn.LSTMCell(1, width)
        self.head = torch.nn.Linear(width, 1)
        self.opt = torch.optim.SGD(
            [*self.cell.parameters(), *self.head.parameters()], lr=float(config.get("rate", 0.05))
        )
        self.hidden = torch.zeros(len(self.symbols), width)
        self.memory = torch.zeros(len(self.symbols), width)
        self.last = torch.zeros(len(self.symbols), dtype=torch.float64)  # last price; 0 = none yet
        return {
            "cell": self.cell,
            "head": self.head,
            "opt": self.opt,
            "hidden": self.hidden,
            "memory": self.memory,
            "last": self.last,
        }

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        forecasts = np.zeros(len(batch), np.float32)
        rows = accepted(batch, self.symbols)
        if not rows:
            return {"forecast": forecasts}
        # Compute stage: on copies of each symbol's memory; the weights stay as they are.
        now = {
            number: (
                self.hidden[number : number + 1],
                self.memory[number : number + 1],
                float(self.last[number]),
            )
            for _, number, _ in rows
        }
        losses = []
        for row, number, price in rows:
            hidden, memory, last = now[number]
            if last:
                scaled = self.torch.tensor([[10 * math.log(price / last)]], dtype=self.torch.float32)
                losses.append((self.head(hidden) - scaled).square().mean())
                hidden, memory = self.cell(scaled, (hidden.detach(), memory.detach()))
            now[number] = (hidden, memory, price)
            forecasts[row] = float(self.head(hidden).detach()) / 10
        if losses:
            self.opt.zero_grad(set_to_none=True)
            self.torch.stack(losses).mean().backward()
        with update:
            if losses:
                self.opt.step()
            for number, (hidden, memory, price) in now.items():
                self.hidden[number], self.memory[number], self.last[number] = (
                    hidden.detach()[0],
                    memory.detach()[0],
                    price,
                )
        return {"forecast": forecasts}


class Regressor(hams_sdk.Model):
    """The next return out of the last three and a constant, by recursive least squares with forgetting; one
    set of weights per symbol."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.symbols = numbered(config)
        self.forgetting = float(config.get("forgetting", 0.99))
        count, terms = len(self.symbols), LAGS + 1
        self.weights = np.zeros((count, terms))
        self.spread = np.tile(np.eye(terms) * 10.0, (count, 1, 1))
        self.lags = np.zeros((count, LAGS))  # newest first
        self.last = np.zeros(count)
        self.count = np.zeros(count, np.int64)
        return {
            "weights": self.weights,
            "spread": self.spread,
            "lags": self.lags,
            "last": self.last,
            "count": self.count,
        }

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        forecasts = np.zeros(len(batch), np.float32)
        rows = accepted(batch, self.symbols)
        if rows:
            with update:
                for row, number, price in rows:
                    self._learn(number, price)
                    forecasts[row] = self.weights[number] @ self._terms(number)
        return {"forecast": forecasts}

    def _terms(self, number: int) -> np.ndarray:
        return np.append(self.lags[number], 0.1)  # the constant at the scale of a return

    def _learn(self, number: int, price: float) -> None:
        if self.last[number]:
            change = math.log(price / self.last[number])
            if self.count[number] > LAGS:
                terms, spread = self._terms(number), self.spread[number]
                gain = spread @ terms / (self.forgetting + terms @ spread @ terms)
                self.weights[number] += gain * (change - self.weights[number] @ terms)
                self.spread[number] = (spread - np.outer(gain, terms @ spread)) / self.forgetting
            self.lags[number] = np.append(change, self.lags[number][:-1])
        self.last[number] = price
        self.count[number] += 1


class Decide(hams_sdk.Model):
    """The mean of both forecasts, and an order if it is beyond the threshold: +1 buy, -1 sell, 0 hold. Only
    orders go to the desk."""

    def initialize(self, config: dict[str, Any]) -> None:
        self.threshold = float(config.get("threshold", 0.02))

    def run(self, batch: hams_sdk.Batch) -> hams_sdk.Outputs:
        forecast = (batch["trend"] + batch["regression"]) / 2
        action = (forecast > self.threshold).astype(np.int8) - (forecast < -self.threshold).astype(np.int8)
        routes = [[REPLY, DESK] if action[unit.rows].any() else [REPLY] for unit in batch.units]
        return hams_sdk.Outputs({"forecast": forecast, "action": action}, routes)


class Desk(hams_sdk.Model):
    """The books: buys for a fixed amount of cash, sells all, never borrows. `worth` is cash and shares at the
    last prices seen here."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.symbols = numbered(config)
        self.amount = float(config.get("amount", 1000.0))
        self.cash = np.full((), float(config.get("cash", 10_000.0)))
        self.shares = np.zeros(len(self.symbols))
        self.prices = np.zeros(len(self.symbols))
        self.orders = np.zeros((), np.int64)
        return {"cash": self.cash, "shares": self.shares, "prices": self.prices, "orders": self.orders}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        worth, orders = np.zeros(len(batch)), np.zeros(len(batch), np.int64)
        action = batch["action"]
        with update:
            for row, number, price in accepted(batch, self.symbols):
                self.prices[number] = price
                if action[row] > 0:
                    spent = min(self.amount, float(self.cash))
                    self.shares[number] += spent / price
                    self.cash -= spent
                elif action[row] < 0:
                    self.cash += self.shares[number] * price
                    self.shares[number] = 0
                self.orders += abs(int(action[row]))
                worth[row], orders[row] = self.cash + self.shares @ self.prices, self.orders
        return {"worth": worth, "orders": orders}
