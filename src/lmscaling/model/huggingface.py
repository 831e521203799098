"""Export of models in the layout of Hugging Face's GPT-2, as safetensors.

That layout transposes each matrix (its ``Conv1D`` multiplies from the other side), uses OpenAI's
names and has no padded vocabulary. It can express softmax attention only.

Source: ``transformers`` ``GPT2LMHeadModel``; checked against it in the tests.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.files import new_file, write_json
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT

BLOCK = {
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm_2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
"""Our names of the parts of a block, and those of Hugging Face."""


def _huggingface_name(name: str) -> str:
    """The name in Hugging Face's layout of one of our tensors."""
    part, _, kind = name.rpartition(".")
    if part.startswith("blocks."):
        _, number, inner = part.split(".", 2)
        return f"transformer.h.{number}.{BLOCK[inner]}.{kind}"
    return f"transformer.{'ln_f' if part == 'norm' else part}.{kind}"


def _is_transposed(name: str, tensor: Tensor) -> bool:
    return name.startswith("blocks.") and tensor.dim() == 2


def to_huggingface(gpt: GPT) -> dict[str, Tensor]:
    """The weights in Hugging Face's layout, without padding; the head is tied and not listed."""
    tensors = {}
    for name, p in gpt.named_parameters():
        tensor = p.detach().cpu()
        if name == "wte.weight":
            tensor = tensor[: gpt.vocab_size]
        tensor = tensor.T if _is_transposed(name, tensor) else tensor
        tensors[_huggingface_name(name)] = tensor.contiguous()
    return tensors


def export(run: Path, folder: Path) -> None:
    """Write a finished run as a folder that ``GPT2LMHeadModel.from_pretrained`` reads.

    Args:
        run: ``results/<study>/runs/<run>``.
        folder: Gets ``model.safetensors`` and ``config.json``.

    Raises:
        UserError: The run is not finished, has no weights, or is not a plain GPT-2.
    """
    cell = finished_run.cell(run)
    for field, value, allowed in (
        ("attention", cell.attention, "softmax"),
        ("position", cell.position, "learned"),
        ("token_shift", str(cell.model.token_shift).lower(), "false"),
    ):
        if value != allowed:
            raise UserError(
                f"run {run.name} has {field} {value}; allowed: {allowed}, "
                "the only one that GPT-2's layout can express"
            )
    gpt = finished_run.model(run)
    with new_file(folder / "model.safetensors") as temporary:
        save_file(to_huggingface(gpt), temporary, {"format": "pt"})
    write_json(folder / "config.json", _config(cell))


def _config(cell: Cell) -> dict[str, Any]:
    """``config.json`` of ``GPT2LMHeadModel``."""
    end_of_text = cell.model.vocab_size - 1
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": cell.model.vocab_size,
        "n_positions": cell.context,
        "n_embd": cell.model.d_model,
        "n_layer": cell.model.n_layer,
        "n_head": cell.model.n_head,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
    }
