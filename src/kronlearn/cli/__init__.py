"""The command line: one module per command does the work, ``app.py`` says what is accepted."""
