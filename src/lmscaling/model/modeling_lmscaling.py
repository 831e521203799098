"""A run as a model of ``transformers``, for its ``AutoModelForCausalLM``.

``huggingface.export`` puts a copy of this file beside the weights. It needs the package lmscaling,
which has the model, and for an attention of one's own the working directory with ``attention/``.

Legend: B sequences, T tokens, V vocabulary (padded).
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.model.gpt import GPT


class LmscalingConfig(PretrainedConfig):
    """What ``config.json`` has: the cell of the run, beside keys that libraries look for."""

    model_type = "lmscaling"

    def __init__(self, cell: dict[str, Any] | None = None, **others: Any) -> None:
        self.cell = cell
        super().__init__(**others)


class LmscalingForCausalLM(PreTrainedModel, GenerationMixin):
    """The model of a cell; ``logits`` have the padding of the vocabulary, as in training."""

    config_class = LmscalingConfig
    base_model_prefix = "gpt"

    def __init__(self, config: LmscalingConfig) -> None:
        super().__init__(config)
        self.gpt = GPT(checked(Cell, config.cell, "config.json"))
        for module in self.gpt.modules():  # saved and read as the weights: none is drawn again
            for name, buffer in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, buffer)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.gpt.wte

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **ignored: Any,
    ) -> CausalLMOutput:
        """Logits ``[B, T, V]`` and, with labels, the mean loss of the next tokens in nats.

        Args:
            input_ids: Tokens ``[B, T]``, up to the context of the run.
            attention_mask: May leave out the ends of sequences, which nothing before them sees.
            labels: Usually ``input_ids``; -100 does not count.

        Raises:
            UserError: Sequences are padded on the left, or too long for learned positions.
        """
        if attention_mask is not None and not attention_mask[:, 0].all():
            raise UserError(
                "the sequences are padded on the left, which their tokens would see; set "
                "padding_side='right', or pass sequences of one length"
            )
        logits_BTV = self.gpt(input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits_BTV)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *others: Any, **named: Any
    ) -> dict[str, Any]:
        """All tokens so far: the model has no cache of keys and values."""
        return {"input_ids": input_ids, "attention_mask": named.get("attention_mask")}
