"""Damped Newton steps: minima, rows that stop, and what cannot converge."""

import numpy as np
import pytest

from lmscaling.fits import log_sum_exp, newton


def bowl(centre_RK, curvature_RK):
    """A separable quadratic for each row: the minimum is known."""

    def objective(x, rows):
        centre, curvature = centre_RK[rows], curvature_RK[rows]
        away = x - centre
        hessian = np.einsum("rk,kj->rkj", 2 * curvature, np.eye(x.shape[1]))
        return (curvature * away**2).sum(axis=1), 2 * curvature * away, hessian

    return objective


CENTRE = np.array([[1.0, -2.0], [3.0, 0.5], [-1.0, 4.0]])
CURVATURE = np.array([[1.0, 100.0], [1e-3, 1.0], [7.0, 1e4]])


def test_every_row_of_a_batch_reaches_its_own_minimum():
    found = newton.minimize(bowl(CENTRE, CURVATURE), np.zeros((3, 2)))
    np.testing.assert_allclose(found.x_RK, CENTRE, atol=1e-3)
    assert found.cost_R == pytest.approx([0, 0, 0], abs=1e-8)
    assert found.converged_R.all()
    stays = newton.minimize(bowl(CENTRE, CURVATURE), CENTRE)
    np.testing.assert_array_equal(stays.x_RK, CENTRE)
    assert stays.converged_R.all()
    without_effect = bowl(np.array([[2.0, 9.0]]), np.array([[1.0, 0.0]]))
    found = newton.minimize(without_effect, np.array([[0.0, 5.0]]))
    assert found.x_RK[0] == pytest.approx([2.0, 5.0])


def test_a_step_that_would_raise_the_cost_is_not_taken():
    """The Rosenbrock function: plain Gauss-Newton steps overshoot its valley."""

    def rosenbrock(x, rows):
        a, b = x[:, 0], x[:, 1]
        residual = np.stack([1 - a, 10 * (b - a**2)], axis=1)
        slope = np.zeros((len(x), 2, 2))
        slope[:, 0, 0], slope[:, 1, 0], slope[:, 1, 1] = -1, -20 * a, 10
        gradient = 2 * np.einsum("rnk,rn->rk", slope, residual)
        return (residual**2).sum(axis=1), gradient, 2 * slope.transpose(0, 2, 1) @ slope

    starts = np.array([[-1.2, 1.0], [0.0, 5.0], [3.0, -3.0]])
    found = newton.minimize(rosenbrock, starts)
    np.testing.assert_allclose(found.x_RK, np.ones((3, 2)), atol=1e-4)
    assert (found.cost_R <= rosenbrock(starts, None)[0]).all()


def test_a_row_without_a_minimum_is_not_converged_and_spoils_no_other():
    def objective(x, rows):
        endless = rows == 1
        cost = np.where(endless, -1e3 * x[:, 0], (x[:, 0] - 1) ** 2)
        gradient = np.where(endless, -1e3, 2 * (x[:, 0] - 1))
        return cost, gradient[:, None], np.full((len(x), 1, 1), 2.0)

    found = newton.minimize(objective, np.zeros((2, 1)))
    assert found.converged_R.tolist() == [True, False]
    assert found.x_RK[0, 0] == pytest.approx(1)


LOG_N, LOG_D = (axis.ravel() for axis in np.meshgrid([0.0, 1.0, 2.0], [1.0, 2.5], indexing="ij"))
THETA = np.array([[1.0, 2.0, 0.5, 0.4, 0.3], [1.5, 1.0, 0.6, 0.2, 0.7]])


@pytest.mark.parametrize("size", [2e-4, 0.9e-3, 1.1e-3, 5e-2])
def test_the_huber_loss_is_quadratic_up_to_delta_and_linear_beyond(size):
    """A residual of delta, 1e-3, counts 1."""
    log_loss = log_sum_exp.values(THETA, LOG_N, LOG_D)
    cost, _, _ = log_sum_exp.objective(THETA, log_loss - size, LOG_N, LOG_D)
    each = (size / 1e-3) ** 2 if size <= 1e-3 else 2 * size / 1e-3 - 1
    assert cost == pytest.approx([6 * each] * 2)


@pytest.mark.parametrize("size", [2e-4, 5e-2])
def test_its_gradient_is_that_of_finite_differences(size):
    log_loss = log_sum_exp.values(THETA, LOG_N, LOG_D) - size
    _, gradient, hessian = log_sum_exp.objective(THETA, log_loss, LOG_N, LOG_D)
    for k in range(5):
        step = np.zeros(5)
        step[k] = 1e-6
        high, low = (
            log_sum_exp.objective(THETA + s * step, log_loss, LOG_N, LOG_D)[0] for s in (1, -1)
        )
        assert gradient[:, k] == pytest.approx((high - low) / 2e-6, rel=1e-4, abs=1e-3)
    assert np.linalg.eigvalsh(hessian).min() > -1e-6
    np.testing.assert_allclose(hessian, hessian.transpose(0, 2, 1))


def test_the_starts_are_the_4500_of_the_paper():
    assert len(set(log_sum_exp.STARTS)) == 4500
    assert log_sum_exp.STARTS[0] == (0, 0, -1, 0, 0)
    assert log_sum_exp.STARTS[-1] == (25, 25, 1, 2, 2)
