"""Layers for images, text, audio and features, which nothing else in keras_dist uses."""
