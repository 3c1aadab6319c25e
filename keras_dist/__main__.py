"""`python -m keras_dist`: what the script `keras-dist` does."""

from keras_dist.cli.app import app

if __name__ == "__main__":
    app(prog_name="keras-dist")
