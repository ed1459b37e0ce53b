"""Engines map blocks of samples to codes and add up their moments."""
