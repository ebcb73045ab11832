"""Loss and gradient norm of three public spikes, as their teams printed them, and healthy steps to put before them.

BLOOM-176B: bigscience-workshop/bigscience, chronicles of the main training, 2022-04-12. 104B: the same repository,
chronicles of the 104B trials, experiments 11 and 12. The steps before were not printed; they are made up here: the
quantiles of Gaussian noise around the first printed steps, in a fixed order.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

from cleanfeed.training.metrics import Metrics


@dataclass(frozen=True)
class Trace:
    first_step: int
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    loss: tuple[float, float]
    """Level and standard deviation of the loss before."""
    norm: tuple[float, float]
    """Level of the norm before, and standard deviation of its logarithm."""

    def before(self, steps: int) -> list[Metrics]:
        return healthy(steps, self.first_step - steps, self.loss, self.norm)

    def printed(self) -> list[Metrics]:
        pairs = zip(self.losses, self.norms, strict=True)
        return [Metrics(self.first_step + i, loss, norm) for i, (loss, norm) in enumerate(pairs)]


BLOOM_176B = Trace(
    31214,
    (2.198845, 2.220424, 2.595213, 2.241558, 2.345279, 5.098124, 3.492029, 3.213059, 2.804948),
    (0.242, 0.947, 2.390, 15.886, 145.119, 960.351, 353.201, 379.330, 650.246),
    (2.21, 0.012),
    (0.22, 0.15),
)
EXPERIMENT_11 = Trace(
    11446, (3.062589, 3.114286, 7.712340), (12952.562, 262623.331, 254699.302), (3.06, 0.03), (12952.0, 0.3)
)
EXPERIMENT_12 = Trace(
    8738,
    (3.317482, 3.417051, 3.682950, 7.267764, 4.130868, 7.596509),
    (231817.368, 89608.482, 1490753.218, 3273877.676, 1839649.510, 1369067.435),
    (3.367, 0.048),
    (144000.0, 0.45),
)


def quantiles(count: int, seed: int) -> list[float]:
    """Return the quantiles of standard Gaussian noise, in an order of the seed."""
    values = [NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)]
    random.Random(seed).shuffle(values)
    return values


def healthy(
    steps: int,
    first_step: int = 1,
    loss: tuple[float, float] = (2.0, 0.02),
    norm: tuple[float, float] = (0.5, 0.2),
    context: str = "",
) -> list[Metrics]:
    """Return healthy steps of a level and a spread, every 64 of them with the same quantiles."""
    found: list[Metrics] = []
    for begin in range(0, steps, 64):
        for i, (a, b) in enumerate(zip(quantiles(64, begin), quantiles(64, begin + 1), strict=True)):
            norm_value = norm[0] * math.exp(norm[1] * b)
            found.append(Metrics(first_step + begin + i, loss[0] + loss[1] * a, norm_value, context))
    return found[:steps]
