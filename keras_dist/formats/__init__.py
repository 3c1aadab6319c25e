"""Models in files: the formats of Keras, safetensors and orbax, read and written on the variables of a model."""
