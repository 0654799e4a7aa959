"""The config values that decoding needs, as a typed object."""

from dataclasses import dataclass

from tfexport.bundle import Manifest


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model's caches, and the special tokens around a source text.

    Attributes:
        d_model: width of the encoder's output.
        num_decoder_layers: decoder layers, each with a cache.
        num_heads: attention heads of each.
        head_dim: width of a head.
        add_source_bos: the encoder sees the start token in front of a text.
        add_source_eos: the encoder sees the end token behind a text.
    """

    d_model: int
    num_decoder_layers: int
    num_heads: int
    head_dim: int
    add_source_bos: bool
    add_source_eos: bool

    @classmethod
    def of(cls, manifest: Manifest) -> "ModelShape":
        """Read it from the manifest of a Transformer, whose config was checked when it was read."""
        values = {name: manifest.config[name] for name in cls.__dataclass_fields__}
        if heads := manifest.config["decoder_num_heads"]:  # 0 if as in the encoder
            inner = values["num_heads"] * values["head_dim"]
            values |= {"num_heads": heads, "head_dim": inner // heads}
        return cls(**values)
