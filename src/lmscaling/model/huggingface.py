"""Export of runs as folders for ``transformers``, with weights as safetensors.

A plain GPT-2 gets the layout of ``GPT2LMHeadModel``, which needs nothing of this package. It
transposes each matrix (its ``Conv1D`` multiplies from the other side), uses OpenAI's names and has
no padded vocabulary. Any other run gets ``modeling_lmscaling.py`` beside its weights.

Source: ``transformers`` ``GPT2LMHeadModel``; checked against it in the tests.
"""

from itertools import chain
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from lmscaling.config.cell import Cell, Parts
from lmscaling.files import new_file, write_json, write_text
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.types import dump

MODULE = "modeling_lmscaling"

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
    """Write a finished run as a folder that ``AutoModelForCausalLM.from_pretrained`` reads.

    With softmax and learned positions it is a GPT-2. Others need ``trust_remote_code=True``.

    Args:
        run: ``results/<study>/runs/<run>``.
        folder: Gets ``model.safetensors``, ``config.json`` and, if the run is no GPT-2,
            ``generation_config.json`` and ``modeling_lmscaling.py``.

    Raises:
        UserError: The run is not finished or has no weights.
    """
    cell, gpt = finished_run.cell(run), finished_run.model(run)
    plain = cell.attention, cell.position, cell.documents, cell.match, cell.block, cell.width_rule
    usual = "softmax", "learned", "mixed", (), Parts(), None
    is_gpt2 = plain == usual and not cell.model.token_shift
    tensors = to_huggingface(gpt) if is_gpt2 else _tensors(gpt)
    with new_file(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    write_json(
        folder / "config.json", _common(cell) | (_gpt2(cell) if is_gpt2 else _own(cell, gpt))
    )
    if not is_gpt2:
        padding = [*range(gpt.vocab_size, gpt.wte.num_embeddings)]
        never = {"suppress_tokens": padding} if padding else {}
        write_json(folder / "generation_config.json", {"use_cache": False, **never})
        write_text(folder / f"{MODULE}.py", Path(__file__).with_name(f"{MODULE}.py").read_text())


def _tensors(gpt: GPT) -> dict[str, Tensor]:
    """Parameters and buffers by their names in ``modeling_lmscaling.py``."""
    named = chain(gpt.named_parameters(), gpt.named_buffers())
    return {f"gpt.{name}": tensor.detach().contiguous() for name, tensor in named}


def _common(cell: Cell) -> dict[str, Any]:
    """Keys of ``config.json`` of both kinds; documents begin and end with end-of-text."""
    end_of_text = cell.model.vocab_size - 1
    return {"bos_token_id": end_of_text, "eos_token_id": end_of_text}


def _own(cell: Cell, gpt: GPT) -> dict[str, Any]:
    """Those of ``LmscalingConfig``."""
    return {
        "architectures": ["LmscalingForCausalLM"],
        "model_type": "lmscaling",
        "auto_map": {
            "AutoConfig": f"{MODULE}.LmscalingConfig",
            "AutoModelForCausalLM": f"{MODULE}.LmscalingForCausalLM",
        },
        "vocab_size": gpt.wte.num_embeddings,
        "max_position_embeddings": cell.context,
        "hidden_size": cell.model.d_model,
        "num_hidden_layers": cell.model.n_layer,
        "num_attention_heads": cell.model.n_head,
        "tie_word_embeddings": False,
        "cell": dump(cell),
    }


def _gpt2(cell: Cell) -> dict[str, Any]:
    """Those of ``GPT2LMHeadModel``."""
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
    }
