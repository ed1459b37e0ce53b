"""Convolutional dictionaries: images as sums of small filters, shifted."""

from kronlearn.convolutional.coding import (
    SparseMaps,
    convolutional_code,
    largest_penalty,
    reconstruct,
)
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.learning import SeparableConvolutionalLearning
from kronlearn.convolutional.smoothing import lowpass

__all__ = [
    "ConvolutionalDictionary",
    "SeparableConvolutionalLearning",
    "SparseMaps",
    "convolutional_code",
    "largest_penalty",
    "lowpass",
    "reconstruct",
]
