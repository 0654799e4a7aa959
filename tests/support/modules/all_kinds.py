"""Every kind of module that the contract is tested with."""

from tests.support.modules import (
    conv_encoder,
    conv_state,
    coverage,
    experts,
    factored,
    image,
    lstm,
    relative_bias,
    rotary,
    speech,
    stock,
    two_inputs,
)

KINDS = (
    image.KIND,
    speech.KIND,
    rotary.KIND,
    lstm.KIND,
    conv_encoder.KIND,
    relative_bias.KIND,
    experts.KIND,
    factored.KIND,
    two_inputs.KIND,
    conv_state.KIND,
    stock.KIND,
    coverage.KIND,
)
