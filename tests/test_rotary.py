"""The rotation of queries and keys: which angle each pair of coordinates is turned by."""

import pytest
import torch

from lmscaling.kernels.rotary import Rotary


@pytest.mark.parametrize("width", [8, 64])
def test_a_pair_turns_by_its_position_times_a_power_of_ten_thousand(width):
    """Su et al. 2021, eq. 15 and 34: theta_i = 10000^(-2i / d), written out pair by pair."""
    half, position = width // 2, 1000
    first = torch.cat([torch.ones(half), torch.zeros(half)]).double()[None]
    turned = Rotary(width)(first, position)[0]
    for pair in range(half):
        angle = torch.tensor(position * 10_000.0 ** (-2 * pair / width), dtype=torch.float64)
        torch.testing.assert_close(turned[pair], angle.cos())
        torch.testing.assert_close(turned[half + pair], angle.sin())


def test_positions_run_along_the_tokens():
    x = torch.ones(2, 3, 4, 8, dtype=torch.float64)
    together = Rotary(8)(x, 5)
    for t in range(4):
        torch.testing.assert_close(together[:, :, t], Rotary(8)(x[:, :, :1], 5 + t)[:, :, 0])


def test_the_dtype_of_the_input_is_kept_and_bfloat16_is_rounded_once():
    x = torch.randn(1, 3, 8)
    low = x.to(torch.bfloat16)
    turned = Rotary(8)(low, 60_000)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, Rotary(8)(low.float(), 60_000).to(torch.bfloat16))
