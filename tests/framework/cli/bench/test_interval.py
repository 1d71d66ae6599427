import random
import statistics

from quire.cli.bench.interval import Figure, bootstrap


def test_the_interval_holds_the_median_and_is_the_same_each_time():
    rng = random.Random(1)
    samples = [rng.gauss(10, 1) for _ in range(50)]
    low, high = bootstrap(samples, statistics.median)
    assert low < statistics.median(samples) < high
    assert (low, high) == bootstrap(samples, statistics.median)


def test_about_ninety_five_of_a_hundred_intervals_hold_the_truth():
    rng = random.Random(2)
    hits = 0
    for _ in range(200):
        low, high = bootstrap(
            [rng.gauss(0, 1) for _ in range(40)], statistics.fmean, num_resamples=400
        )
        hits += low <= 0 <= high
    assert 176 <= hits <= 198  # of 200; of a few samples the method makes it somewhat narrow


def test_a_fortieth_of_the_resamples_lies_outside_on_either_side():
    numbers = iter(range(1000))
    assert bootstrap([0.0], lambda _: next(numbers), num_resamples=1000) == (25, 974)


def test_more_samples_make_the_interval_narrower():
    rng = random.Random(3)
    widths = []
    for count in (10, 1000):
        low, high = bootstrap([rng.gauss(0, 1) for _ in range(count)], statistics.median)
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_a_figure_has_the_median_the_interval_and_the_mean():
    figure = Figure.of([1.0, 2.0, 3.0, 10.0, 100.0], scale=2)
    assert (figure.median, figure.mean) == (6.0, 46.4)
    assert figure.low < figure.median < figure.high


def test_a_figure_is_divided_and_reduced_by_a_fixed_cost():
    figure = Figure(8.0, 6.0, 10.0, 9.0)
    assert figure.divided_by(2) == (4.0, 3.0, 5.0, 4.5)
    assert figure.less(1.0) == (7.0, 5.0, 9.0, 8.0)
