"""Objects and files of Keras itself. Keras is imported by who has it, never here.

`keras_models` makes a module of a model object of Keras. Of files, `h5_files` reads and writes arrays in HDF5,
`keras_archives` the zip of a whole model, `keras_paths` tells under which names Keras keeps the variables of a module,
`keras_slots` those of an optimizer, `keras_configs` writes and reads the configs. `keras_dist.models` puts these
together.
"""
