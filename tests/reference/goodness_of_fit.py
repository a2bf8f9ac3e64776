"""Goodness of fit for samples with fixed seeds; tests/meta shows that a biased sampler is rejected."""

import numpy as np


def frequencies(columns, outcomes):
    """Count how often each outcome (a tuple) occurs among columns [K, T]."""
    index = {outcome: i for i, outcome in enumerate(outcomes)}
    found = [index[tuple(column)] for column in np.asarray(columns).T.tolist()]
    return np.bincount(found, minlength=len(outcomes))


def check_frequencies(counts, probabilities):
    """Assert that counts fit the probabilities: Pearson's statistic within 4 deviations, both ways.

    Deviations are those of its cube root, which is nearly normal (Wilson and Hilferty). A statistic far
    below its mean is as suspect as one far above: it shows a sample that was arranged.
    """
    counts, probabilities = np.asarray(counts, dtype=float), np.asarray(probabilities, dtype=float)
    assert counts.shape == probabilities.shape
    assert not counts[probabilities == 0].any(), "an impossible outcome occurred"
    expected = counts.sum() * probabilities[probabilities > 0]
    statistic = float(((counts[probabilities > 0] - expected) ** 2 / expected).sum())
    freedom = expected.size - 1
    if freedom == 0:
        return  # one possible outcome, and nothing else occurred
    spread = 2 / (9 * freedom)
    deviations = ((statistic / freedom) ** (1 / 3) - 1 + spread) / np.sqrt(spread)
    assert abs(deviations) <= 4, f"chi-square {statistic} for {freedom} degrees of freedom"


def check_proportion(hits, total, probability):
    """Assert that a binomial count lies within 4 deviations of its mean."""
    deviation = np.sqrt(total * probability * (1 - probability))
    assert abs(hits - total * probability) <= 4 * deviation, f"{hits} of {total}, expected {probability}"
