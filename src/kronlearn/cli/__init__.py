"""The command line: ``kronlearn demo | learn | show | bench``."""
