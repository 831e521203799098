"""Models in the layout of Hugging Face's GPT-2, to and fro, as safetensors.

That layout keeps each matrix transposed (its ``Conv1D`` multiplies from the other side), names
things in OpenAI's way and has no padded vocabulary. Only softmax attention has a place in it.

Source: ``transformers`` ``GPT2LMHeadModel``; checked against it in the tests.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

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
"""Our names of a block's parts, and theirs."""


def _theirs(name: str) -> str:
    """Their name of one of our tensors."""
    part, _, kind = name.rpartition(".")
    if part.startswith("blocks."):
        _, number, inner = part.split(".", 2)
        return f"transformer.h.{number}.{BLOCK[inner]}.{kind}"
    return f"transformer.{'ln_f' if part == 'norm' else part}.{kind}"


def _is_transposed(name: str, tensor: Tensor) -> bool:
    return name.startswith("blocks.") and tensor.dim() == 2


def to_huggingface(gpt: GPT) -> dict[str, Tensor]:
    """The weights under their names, padding cut off; the head is tied and not listed."""
    tensors = {}
    for name, p in gpt.named_parameters():
        tensor = p.detach().cpu()
        if name == "wte.weight":
            tensor = tensor[: gpt.vocab_size]
        tensors[_theirs(name)] = (tensor.T if _is_transposed(name, tensor) else tensor).contiguous()
    return tensors


def from_huggingface(tensors: dict[str, Tensor], gpt: GPT) -> None:
    """Put weights in their layout into a model of the same shape; padding rows become zero.

    Raises:
        UserError: A tensor is missing or has another shape.
    """
    with torch.no_grad():
        for name, p in gpt.named_parameters():
            theirs = _theirs(name)
            found = tensors.get(theirs)
            if found is None:
                raise UserError(
                    f"{theirs} is missing; allowed: GPT-2 with {len(gpt.blocks)} blocks"
                )
            tensor = found.T if _is_transposed(name, p) else found
            target = p[: gpt.vocab_size] if name == "wte.weight" else p
            if tensor.shape != target.shape:
                shapes = f"{tuple(tensor.shape)}; allowed: {tuple(target.shape)}"
                raise UserError(f"{theirs} has shape {shapes}")
            p.zero_()
            target.copy_(tensor)


def export(run: Path, folder: Path) -> None:
    """Write a finished run as a folder that ``GPT2LMHeadModel.from_pretrained`` reads.

    Args:
        run: ``results/<study>/runs/<run>``.
        folder: Gets ``model.safetensors`` and ``config.json``.

    Raises:
        UserError: The run is not finished, has no weights, or is no plain GPT-2.
    """
    cell = finished_run.cell(run)
    for kind, found, allowed in (
        ("attention", cell.attention, "softmax"),
        ("position", cell.position, "learned"),
    ):
        if found != allowed:
            raise UserError(
                f"run {run.name} has {kind} {found}; allowed: {allowed}, "
                "for GPT-2's layout has no place for another"
            )
    gpt = finished_run.model(run)
    with new_file(folder / "model.safetensors") as temporary:
        save_file(to_huggingface(gpt), temporary, {"format": "pt"})
    end_of_text = cell.model.vocab_size - 1
    config = {
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
    write_json(folder / "config.json", config)
