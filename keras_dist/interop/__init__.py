"""Files of Keras: what is in them, and where.

`h5_files` reads and writes arrays in HDF5, `keras_archives` the zip of a whole model, `keras_paths` tells under which
names Keras keeps the variables of a module, `keras_slots` those of an optimizer, `keras_configs` writes and reads the
configs, `keras_operations` the operations in them. `legacy_h5` and `legacy_configs` are for what Keras 2 wrote.
`keras_dist.models` puts them together.
"""
