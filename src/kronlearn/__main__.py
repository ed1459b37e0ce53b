"""``python -m kronlearn`` is the command ``kronlearn``."""

from kronlearn.cli.app import main

if __name__ == "__main__":
    main()
