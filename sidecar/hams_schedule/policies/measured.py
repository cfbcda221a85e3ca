"""What the compared policies know: the times of batches by size, measured beforehand."""

import math
from bisect import bisect_right
from itertools import accumulate


class SizeTimes:
    """Mean and standard deviation in seconds of batches of 1 .. n rows, and all times of each, ascending."""

    def __init__(self, times: list[list[float]]) -> None:
        """`times[k - 1]`: times of batches of k rows, at least one each."""
        self.times = [sorted(of_size) for of_size in times]
        self.means = [sum(of_size) / len(of_size) for of_size in self.times]
        self.sds = [
            math.sqrt(sum([(time - mean) ** 2 for time in of_size]) / len(of_size))
            for of_size, mean in zip(self.times, self.means, strict=True)
        ]
        # What was measured of few runs may say that more rows take less time; no policy may rely on that.
        self._cautious = list(accumulate(map(sum, zip(self.means, self.sds, strict=True)), max))

    def __len__(self) -> int:
        return len(self.times)

    def cautious(self, rows: int) -> float:
        """Mean + standard deviation of a batch of `rows`, that of fewer rows at least; the largest known size
        stands for larger ones."""
        return self._cautious[min(rows, len(self._cautious)) - 1]

    def quantile(self, rows: int, share: float) -> float:
        """A quantile of a batch of `rows`."""
        times = self.times[min(rows, len(self.times)) - 1]
        return times[min(int(share * len(times)), len(times) - 1)]

    def largest_within(self, limit: float) -> int:
        """The most rows whose cautious time is `limit` at most; at least 1."""
        return max(bisect_right(self._cautious, limit), 1)
