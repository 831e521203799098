"""The gated delta rule in plain PyTorch; its kernels are tested by delta_cases.py, in processes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from delta_rule import distances, outcome, recurrence, sample
from test_fused import WITH_TRITON, run_cases
from torch import Tensor

from lmscaling.kernels import segments
from lmscaling.kernels.gated_delta import chunked, plain

CASES = Path(__file__).with_name("delta_cases.py")
PARTS = ["numbers_are", "same", "operator"]
SLOW = [pytest.param(part, marks=pytest.mark.ci) for part in PARTS[1:]]


def test_every_case_belongs_to_a_part() -> None:
    names = [line for line in CASES.read_text().splitlines() if line.startswith("def test_")]
    assert [line for line in names if not any(part in line for part in PARTS)] == []


@WITH_TRITON
@pytest.mark.parametrize("part", [PARTS[0], *SLOW])
def test_kernels_are_right_in_the_interpreter(part: str) -> None:
    run_cases(part, interpret=True, cases=CASES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("part", PARTS)
def test_kernels_are_right_on_a_device(part: str) -> None:
    run_cases(part, interpret=False, cases=CASES)


def with_options(attend: Any, *options: Any) -> Any:
    """With the last arguments given."""
    return lambda *tensors: attend(*tensors, *options)


@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 64])
@pytest.mark.parametrize("gate", [True, False])
def test_it_is_the_recurrence_at_any_chunk(gate: bool, chunk: int) -> None:
    lengths = [[12, 1, 16], [29]]
    tensors: list[Any] = list(sample(lengths, 2, 6, 5))
    tensors[4] = tensors[4] if gate else None
    flat = [n for row in lengths for n in row]
    found = outcome(with_options(plain.attend, flat, 0.3, chunk), tensors)
    exact = outcome(recurrence(lengths, 0.3), tensors)
    assert max(distances(found, exact).values()) <= 1e-12


@pytest.mark.parametrize("decay", [-20.0, -200.0, 0.0])
def test_gradients_are_finite_and_right_at_strong_decays_in_float32(decay: float) -> None:
    tensors = sample([[70]], 1, 8, 6, torch.float32)
    tensors[4] = torch.full_like(tensors[4], decay)
    found = outcome(lambda *x: chunked.attend(*x, scale=0.3), tensors)
    exact = outcome(recurrence([[70]], 0.3), [x.double() for x in tensors])
    assert max(distances(found, exact).values()) <= 3e-5


def attended(*tensors: Tensor | None) -> Tensor:
    return chunked.attend(*tensors, scale=1.0)[0]  # pyright: ignore[reportArgumentType]


def test_a_unit_key_reads_back_the_value_that_replaced_all_it_read() -> None:
    _, k, v, beta, g = sample([[40]], 2, 8, 6)[:5]
    torch.testing.assert_close(attended(k, k, v, torch.ones_like(beta), g), v)


def test_nothing_is_written_at_beta_0() -> None:
    q, k, v, beta, g = sample([[40]], 2, 8, 6)[:5]
    assert not attended(q, k, v, 0 * beta, g).any()


def test_orthogonal_keys_make_it_linear_attention_with_decay() -> None:
    q, _, v, _, g = sample([[8]], 1, 8, 6)[:5]
    k = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0].view(1, 8, 1, 8)
    sums = g[0, :, 0].cumsum(0)
    weights = (q[0, :, 0] @ k[0, :, 0].T * (sums[:, None] - sums).exp()).tril()
    torch.testing.assert_close(
        attended(q, k, v, torch.ones_like(g), g)[0, :, 0], weights @ v[0, :, 0]
    )


def test_states_keep_their_norm_at_beta_2_without_values() -> None:
    q, k, v, beta, _, initial = sample([[40]], 2, 8, 6)[:6]
    _, final = chunked.attend(q, k, 0 * v, 0 * beta + 2, None, initial)
    torch.testing.assert_close(final.norm(dim=(2, 3)), initial.norm(dim=(2, 3)))


def test_the_gradient_of_a_decay_is_a_sum_over_those_of_later_tokens() -> None:
    """``dg_t = sum_{s>=t} (q dq - k dk - 2 (v dv - beta dbeta)) + S dS`` of the final state."""
    tensors = sample([[40]], 2, 8, 6)
    q, k, v, beta, *_, dfinal = tensors
    made = outcome(lambda *x: chunked.attend(*x), tensors)
    terms = (q * made["dq"] - k * made["dk"]).sum(-1)
    terms -= 2 * ((v * made["dv"]).sum(-1) - beta * made["dbeta"])
    sums = terms.flip(1).cumsum(1).flip(1) + (made["final"] * dfinal).sum((2, 3)).unsqueeze(1)
    torch.testing.assert_close(made["dg"], sums)


def test_steps_continue_a_longer_forward_pass() -> None:
    q, k, v, beta, g, state = sample([[29]], 2, 6, 5)[:6]
    whole, final = chunked.attend(q, k, v, beta, g, state)
    for gate, (y, last) in (
        (g, (whole, final)),
        (None, chunked.attend(q, k, v, beta, None, state)),
    ):
        head = [x[:, :13] for x in (q, k, v, beta)]
        early = None if gate is None else gate[:, :13]
        _, now = chunked.attend(head[0], head[1], head[2], head[3], early, state)
        for t in range(13, 29):
            token = None if gate is None else gate[:, t]
            found = chunked.step(q[:, t], k[:, t], v[:, t], beta[:, t], token, now)
            torch.testing.assert_close(found, y[:, t])
        torch.testing.assert_close(now, last)


def test_it_needs_no_triton_without_a_gpu() -> None:
    code = """
import sys
sys.modules["triton"] = None
import torch
from lmscaling.kernels.gated_delta import chunked
x = torch.ones(1, 1, 1, 1)
assert chunked.attend(x, x, 4 * x, x[0])[0].equal(4 * x)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, beta, g, initial = sample([[9]], 2, 6, 5)[:6]
    with pytest.raises(ValueError, match=r"beta has shape \(1, 8, 2\); allowed: \(1, 9, 2\)"):
        chunked.attend(q, k, v, beta[:, 1:])
    with pytest.raises(ValueError, match=r"log_decay has shape .*; allowed: \(1, 9, 2\)"):
        chunked.attend(q, k, v, beta, g.unsqueeze(-1))
    with pytest.raises(ValueError, match=r"initial has shape .*; allowed: \(2, 2, 6, 5\)"):
        chunked.attend(q, k, v, beta, g, initial, (4, 5))
    with pytest.raises(ValueError, match="lengths sum to 8 tokens; allowed: 9"):
        chunked.attend(q, k, v, beta, g, lengths=(8,))


def test_tables_name_each_segment_and_each_chunk_once() -> None:
    made = segments.cut(2, 34, (33, 1, 34), 64, 32, torch.device("cpu"))
    assert made.table.tolist() == [[0, 0, 33, 0], [0, 33, 1, 2], [1, 0, 34, 3]]
    assert made.chunks.tolist() == [[0, 0, 32], [0, 32, 1], [0, 33, 1], [1, 0, 32], [1, 32, 2]]
    assert made.ranges.tolist() == [[0, 1], [1, 1], [2, 1]]


def test_a_long_sequence_has_several_segments() -> None:
    made = segments.cut(1, 100, (10, 90), 32, 16, torch.device("cpu"))
    assert made.table.tolist() == [
        [0, 0, 10, 0], [0, 10, 32, 1], [0, 42, 32, 3], [0, 74, 26, 5]
    ]  # fmt: skip
    assert made.ranges.tolist() == [[0, 1], [1, 3]]
    assert (made.first.tolist(), made.last.tolist(), made.is_split) == ([0, 1], [0, 3], True)
