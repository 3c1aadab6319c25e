"""Models in files: formats of Keras, safetensors and orbax, read and written on the variables of a built model."""
