"""Where samples, images and cubes come from and go to; model files and checkpoints."""
