"""The command line: one module per command; ``app.py`` finds and runs them."""
