"""Live modules: what a training script ends with."""

from collections.abc import Callable

import pytest
import torch

from tests.support import tutorial
from tfexport.errors import ConfigError
from tfexport.model_src.checkpoint.read_options import checkpoint_of


def test_live_module_says_what_its_state_dict_cannot() -> None:
    model = tutorial.make(norm_first=True, activation="gelu", layer_norm_eps=1e-3)
    found = checkpoint_of(model, {"pad_id": 0}, require=["pad_id"])
    config = found.config
    assert (config.num_heads, config.norm_placement, config.activation) == (4, "pre", "gelu")
    assert config.norm_eps == 1e-3
    assert found.origins["num_heads"] == "module"


def test_live_module_is_taken_as_it_is_now() -> None:
    model = tutorial.make()
    found = checkpoint_of(model)
    before = found.weights["output_proj.weight"].clone()
    model.generator.weight.fill_(7.0)
    torch.testing.assert_close(found.weights["output_proj.weight"], before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.transformer.encoder.layers[0], "norm_first", True), "norm_placement"),
        (lambda m: setattr(m.transformer.encoder.layers[0], "activation", torch.tanh), "tanh"),
    ],
    ids=["mixed placements", "foreign activation"],
)
def test_live_module_that_cannot_be_said_is_refused(
    change: Callable[[tutorial.TutorialModel], None], message: str
) -> None:
    model = tutorial.make()
    change(model)
    with pytest.raises(ConfigError, match=message):
        checkpoint_of(model)
