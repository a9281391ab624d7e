"""Small metric types that hold figures; prometheus_client writes them out.

Its own types would add a `_created` series to each, which only a global switch turns off, and locks that a single
thread has no use for.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

PREFIX = "vllm_supervisor_"


class Histogram:
    """A distribution over fixed upper bounds, in seconds."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, values up to it), as the exposition format wants them."""
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))

    @property
    def total(self) -> float:
        """The sum of all values."""
        return self._sum


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge with a value for each tuple of label values."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels. `name` ends in `_total`."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a counter with a value for each tuple of label values. `name` ends in `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def histograms(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], Histogram]) -> Metric:
    """Return a histogram for each tuple of label values."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, histogram in values.items():
        family.add_metric(label_values, histogram.buckets(), histogram.total)
    return family
