"""The same counting states, on a GPU."""

from typing import Any

import torch

import hams_sdk
from nonce.models import nonce


class Tally(hams_sdk.Model):
    """Stateful: counts rows and sums them up, on the GPU. Every batch changes all of the ballast, too."""

    def initialize(self, config: dict[str, Any]) -> dict[str, Any]:
        self.count = torch.zeros((), dtype=torch.int64, device="cuda")
        self.total = torch.zeros((), dtype=torch.float64, device="cuda")
        self.last = torch.zeros((), dtype=torch.int64, device="cuda")
        self.ballast = torch.zeros(int(config["stateBytes"]) // 4, device="cuda")
        return {"count": self.count, "total": self.total, "last": self.last, "ballast": self.ballast}

    def run(self, batch: hams_sdk.Batch, update: hams_sdk.Update) -> dict[str, Any]:
        x = batch.torch("x", "cuda")
        fresh = nonce(len(x))
        count = self.count + torch.arange(1, len(x) + 1, device="cuda")
        total = self.total + torch.cumsum(x.to(torch.float64), 0)
        with update:
            self.count += len(x)
            self.total += x.sum()
            self.last.fill_(int(fresh[-1]))
            self.ballast += 1
        return {"x": x, "count": count, "total": total, "nonce": fresh}
