"""The solver against problems whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.calibration.leastsquares import FORWARD, STEP_TOLERANCE, dependent_columns, jacobian, minimise

FREE = np.array([-np.inf, -np.inf]), np.array([np.inf, np.inf])
ONE = np.ones(2)


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


@pytest.mark.parametrize("start", [(-1.2, 1.0), (5.0, -3.0), (0.0, 0.0)])
def test_a_curved_valley_is_followed_to_its_end(start):
    found = minimise(rosenbrock, np.array(start), ONE, *FREE)
    assert found.converged
    assert np.abs(found.x - 1).max() <= STEP_TOLERANCE


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=3, max_size=6),
    st.lists(st.integers(-9, 9), min_size=6, max_size=6),
)
def test_a_linear_problem_gives_the_normal_equations_answer(rows, goals):
    """Up to the step tolerance, and what rounding does to a forward difference.

    A value rounds by 3 u (|A||x| + |b|), a derivative by twice that over the step; it moves the minimum by
    that times the residual over the smallest singular value squared.
    """
    matrix, goal = np.array(rows, dtype=float), np.array(goals[: len(rows)], dtype=float)
    if np.linalg.cond(matrix) > 100:
        return
    found = minimise(lambda x: matrix @ x - goal, np.zeros(2), ONE, *FREE)
    exact = np.linalg.lstsq(matrix, goal, rcond=None)[0]
    size = float((np.abs(matrix) @ np.abs(exact) + np.abs(goal)).max())
    slope_error = 2 * 3 * np.finfo(float).eps * size / FORWARD
    left = float(np.linalg.norm(matrix @ exact - goal))
    weakest = float(np.linalg.svd(matrix, compute_uv=False)[-1])
    bound = STEP_TOLERANCE + np.sqrt(2 * len(goal)) * slope_error * left / weakest**2
    assert np.abs(found.x - exact).max() <= bound


def test_a_bound_that_the_minimum_lies_beyond_is_met_and_the_other_number_follows():
    """Minimum of (x - 3)^2 + (x + y - 5)^2 with x <= 1: x = 1, y = 4."""
    found = minimise(
        lambda x: np.array([x[0] - 3, x[0] + x[1] - 5]), np.zeros(2), ONE, FREE[0], np.array([1.0, np.inf])
    )
    assert found.converged
    assert found.x[0] == 1.0
    assert abs(found.x[1] - 4) <= STEP_TOLERANCE


def test_a_number_on_its_bound_comes_back_when_it_is_pulled():
    found = minimise(lambda x: x - np.array([2.0, 3.0]), np.zeros(2), ONE, np.zeros(2), FREE[1])
    assert np.abs(found.x - [2, 3]).max() <= STEP_TOLERANCE


def test_the_function_is_never_asked_beyond_a_bound_by_more_than_a_difference():
    """A start outside is brought inside first: log(x) has no value below zero."""
    asked = []

    def residuals(x):
        asked.append(float(x[0]))
        return np.array([x[0] - 2.0])

    minimise(residuals, np.array([-5.0]), np.ones(1), np.array([1.0]), np.array([9.0]))
    assert min(asked) >= 1.0


def test_a_fit_that_cannot_settle_says_so():
    """exp(-x) has no minimum: every step helps, for ever."""
    found = minimise(
        lambda x: np.array([np.exp(-x[0]), 0.0]),
        np.zeros(1),
        np.ones(1),
        *(np.array([v]) for v in (-9e9, 9e9)),
    )
    assert found.x[0] > 10
    assert found.residuals[0] < 1e-4


def test_equal_problems_give_equal_bits():
    runs = [minimise(rosenbrock, np.array([-1.2, 1.0]), ONE, *FREE).x.tobytes() for _ in range(2)]
    assert runs[0] == runs[1]


def test_derivatives_are_those_of_the_function():
    """At (2, 3) they are [[-40, 10], [-1, 0]]; a parabola leaves only rounding in a central difference."""
    slopes = jacobian(rosenbrock, np.array([2.0, 3.0]), ONE)
    assert np.abs(slopes - [[-40, 10], [-1, 0]]).max() <= 40 * np.finfo(float).eps / 6e-6


@pytest.mark.parametrize(
    ("slopes", "blocked"),
    [
        ([[1, 0], [0, 1], [1, 1]], ()),
        ([[1, 2], [2, 4], [3, 6]], (0, 1)),
        ([[1, 0], [2, 0], [3, 0]], (1,)),
        ([[1, 0, 3], [0, 1, 0], [2, 1, 6]], (0, 2)),
        ([[1, 1000], [1, 1001], [1, 999]], ()),
    ],
)
def test_columns_that_cannot_be_told_apart_are_named(slopes, blocked):
    assert dependent_columns(np.array(slopes, dtype=float)) == blocked
