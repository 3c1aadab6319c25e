"""Objects of Keras itself: `keras_models` turns a `keras.Model` into a module. Nothing here imports Keras."""
