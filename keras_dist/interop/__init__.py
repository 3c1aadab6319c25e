"""Objects and files of Keras itself. Nothing here imports Keras.

`keras_models` turns a `keras.Model` into a module. For files, `h5_files` reads and writes arrays in HDF5,
`keras_archives` the zip of a whole model, `keras_paths` finds the names under which Keras stores the variables of a
module, `keras_slots` those of an optimizer, `keras_configs` and `keras_operations` convert configs, `legacy_h5` and
`legacy_configs` handle the format of Keras 2. `keras_dist.models` combines them.
"""
