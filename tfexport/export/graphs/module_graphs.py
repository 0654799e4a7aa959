"""The encoder and decoder graphs of a user's module."""

import onnx_ir as ir
from torch import Tensor, nn

from tfexport.export.graphs import exporter
from tfexport.export.graphs.input_checks import checked_ids
from tfexport.export.modules.examine import Examination


class ModuleEncoder(nn.Module):
    """See ``ModuleIO.encoder_graph``."""

    def __init__(self, found: Examination) -> None:
        super().__init__()
        self.model, self.found = found.module, found

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs -> memory, state before the first step."""
        given = [
            checked_ids(tensor, self.found.io.below[each.name])
            if each.name in self.found.io.below
            else tensor
            for each, tensor in zip(self.found.inputs, tensors, strict=True)
        ]
        memory = self.model.encode(given)
        return (*memory, *self.model.start(memory))


class ModuleDecoder(nn.Module):
    """See ``ModuleIO.decoder_graph``."""

    def __init__(self, found: Examination) -> None:
        super().__init__()
        self.model, self.found = found.module, found

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Ids, position, state, memory -> logits, next state."""
        token, position, *others = tensors
        token = checked_ids(token, self.found.vocab_size)
        count = len(self.found.io.state)
        state, memory = others[:count], others[count:]
        if self.found.io.many_tokens:
            logits, after = self.model.advance(token, state, memory)
        else:
            logits, after = self.model.step(token, position, state, memory)
            logits = logits.unsqueeze(1)
        return (logits.float(), *after)


def export_module_encoder(found: Examination, opset: int) -> ir.Model:
    """Export ``encoder``."""
    spec = found.io.encoder_graph()
    return exporter.export_graph_module(ModuleEncoder(found), spec, opset, found.sizes)


def export_module_decoder(found: Examination, opset: int) -> ir.Model:
    """Export ``decoder``."""
    spec = found.io.decoder_graph(found.vocab_size)
    return exporter.export_graph_module(ModuleDecoder(found), spec, opset, found.sizes)
