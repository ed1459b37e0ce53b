"""The formats that arrays are stored in, one module each: how to open them and write them."""
