"""The room for Keras's layers. It is empty so far: any `flax.nnx` module serves through `Model.from_nnx`."""

__all__: list[str] = []
