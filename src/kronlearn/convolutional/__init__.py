"""Convolutional dictionaries: images as sums of shifted copies of small filters."""

from kronlearn.convolutional.coding import convolutional_code, largest_penalty
from kronlearn.convolutional.filters import ConvolutionalDictionary, load_filters
from kronlearn.convolutional.learning import SeparableConvolutionalLearning
from kronlearn.convolutional.maps import SparseMaps, reconstruct
from kronlearn.convolutional.smoothing import lowpass

__all__ = [
    "ConvolutionalDictionary",
    "SeparableConvolutionalLearning",
    "SparseMaps",
    "convolutional_code",
    "largest_penalty",
    "load_filters",
    "lowpass",
    "reconstruct",
]
