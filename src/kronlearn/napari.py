"""The napari plugin: widgets that denoise and inpaint image layers, and sample data.

napari reads ``napari.yaml``, and imports this module when a widget or sample is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from magicgui.widgets import ComboBox, Container, FloatSpinBox, ProgressBar, PushButton
from napari.layers import Image, Labels, Layer
from napari.qt.threading import WorkerBase, WorkerBaseSignals
from napari.utils.notifications import show_error
from numpy.typing import NDArray
from qtpy.QtCore import Signal

from kronlearn import images
from kronlearn.images.stages import Progress

__all__ = ["DenoiseWidget", "InpaintWidget", "sample_layers"]

#: Restores the image at an index of a stack, and reports its progress.
Restore = Callable[[tuple[int, ...], Progress], NDArray[Any]]


class _CancelledError(Exception):
    """Raised in the background to stop the work."""


class _Signals(WorkerBaseSignals):
    progressed = Signal(str, float)


class _Work(WorkerBase):
    """Calls a function, whose argument is a callback for progress, in a thread of its own."""

    def __init__(self, function: Callable[[Progress], NDArray[Any]]) -> None:
        super().__init__(SignalsClass=_Signals)
        self._function = function

    def work(self) -> NDArray[Any] | None:
        try:
            return self._function(self._report)
        except _CancelledError:
            return None

    def _report(self, stage: str, share: float) -> None:
        if self.abort_requested:
            raise _CancelledError
        self.progressed.emit(stage, share)


class _RestorationWidget(Container):
    """Restores an image layer in the background and adds the result as a new layer.

    Parameters
    ----------
    viewer : napari.Viewer
        The viewer that has the layers.
    verb, suffix : str
        The text of the button, and the end of the new layer's name.
    parameters : list of magicgui widgets
        The widgets of the other parameters.
    """

    def __init__(self, viewer: Any, verb: str, suffix: str, parameters: list[Any]) -> None:
        self._viewer, self._suffix = viewer, suffix
        self._work: _Work | None = None
        self.image = ComboBox(label="image", choices=partial(self._layers, Image))
        self.axes = ComboBox(
            label="stack", choices=[("image by image", 2), ("as a volume", 3)], value=2
        )
        self.start = PushButton(text=verb)
        self.cancel = PushButton(text="Cancel", enabled=False)
        self.progress = ProgressBar(label=" ", value=0, min=0, max=100)
        self.start.changed.connect(self._start)
        self.cancel.changed.connect(self._cancel)
        buttons = Container(widgets=[self.start, self.cancel], layout="horizontal", labels=False)
        super().__init__(widgets=[self.image, self.axes, *parameters, buttons, self.progress])

    def _restore(self, values: NDArray[Any], channel_axis: int | None) -> Restore:
        """The function that restores the images in the values of a layer."""
        raise NotImplementedError

    def _layers(self, kind: type[Layer], _: Any = None) -> list[Layer]:
        return [layer for layer in self._viewer.layers if isinstance(layer, kind)]

    def _start(self) -> None:
        layer = self.image.value
        if layer is None:
            show_error("There is no image layer; open an image first.")
            return
        values = np.asarray(layer.data[0] if layer.multiscale else layer.data)
        stack = values.shape[: -self.axes.value - layer.rgb]
        try:
            restore = self._restore(values, -1 if layer.rgb else None)
        except ValueError as problem:
            show_error(str(problem))
            return
        self._work = _Work(partial(_restore_stack, restore, stack))
        self._work.progressed.connect(self._show)
        self._work.returned.connect(partial(self._add, layer))
        self._work.errored.connect(lambda problem: show_error(str(problem)))
        self._work.finished.connect(self._finish)
        self.start.enabled, self.cancel.enabled = False, True
        self._work.start()

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.quit()

    def _show(self, stage: str, share: float) -> None:
        self.progress.label, self.progress.value = stage, round(100 * share)

    def _add(self, layer: Image, values: NDArray[Any]) -> None:
        _, state, kind = layer.as_layer_data_tuple()
        state |= {"name": f"{layer.name} {self._suffix}", "multiscale": False}
        self._viewer.add_layer(Layer.create(values, state, kind))

    def _finish(self) -> None:
        self._work = None
        self.start.enabled, self.cancel.enabled = True, False
        self.progress.label, self.progress.value = " ", 0


class DenoiseWidget(_RestorationWidget):
    """Denoise an image layer with :func:`kronlearn.images.denoise`.

    Parameters
    ----------
    napari_viewer : napari.Viewer
        The viewer that has the layers; napari passes it.
    """

    def __init__(self, napari_viewer: Any) -> None:
        self.sigma = FloatSpinBox(label="noise (0: estimate)", value=0, min=0, max=1e9, step=0.1)
        self.quality = ComboBox(label="quality", choices=["default", "fast", "best"])
        super().__init__(napari_viewer, "Denoise", "denoised", [self.sigma, self.quality])

    def _restore(self, values: NDArray[Any], channel_axis: int | None) -> Restore:
        chosen = {"sigma": self.sigma.value or None, "quality": self.quality.value}
        return lambda index, progress: images.denoise(
            values[index], channel_axis=channel_axis, n_jobs=-1, progress=progress, **chosen
        )


class InpaintWidget(_RestorationWidget):
    """Fill in missing pixels of an image layer with :func:`kronlearn.images.inpaint`.

    Pixels are missing where a labels layer has a label or, if none is chosen, where they are NaN.

    Parameters
    ----------
    napari_viewer : napari.Viewer
        The viewer that has the layers; napari passes it.
    """

    def __init__(self, napari_viewer: Any) -> None:
        # ComboBox calls _choices, which needs the viewer.
        self._viewer = napari_viewer
        self.missing = ComboBox(label="missing", choices=self._choices)
        super().__init__(napari_viewer, "Inpaint", "inpainted", [self.missing])

    def _choices(self, _: Any) -> list[tuple[str, Labels | None]]:
        layers = [(layer.name, layer) for layer in self._layers(Labels)]
        return [("pixels that are NaN", None), *layers]

    def _restore(self, values: NDArray[Any], channel_axis: int | None) -> Restore:
        layer, shape = self.missing.value, values.shape[:channel_axis]
        if layer is None:
            missing = ~np.isfinite(values if channel_axis is None else values.sum(axis=-1))
        elif layer.data.shape != shape[-layer.data.ndim :]:
            raise ValueError(
                f"The labels {layer.name!r} have shape {layer.data.shape}; the image has {shape}."
            )
        else:
            missing = np.broadcast_to(np.asarray(layer.data) > 0, shape)
        return lambda index, progress: images.inpaint(
            values[index], missing[index], channel_axis=channel_axis, n_jobs=-1, progress=progress
        )


def _restore_stack(restore: Restore, stack: tuple[int, ...], progress: Progress) -> NDArray[Any]:
    """Restore all images of a stack, one after the other."""
    count = math.prod(stack)
    restored = []
    for number, index in enumerate(np.ndindex(stack)):
        suffix = f", {number + 1} of {count}" if count > 1 else ""

        def report(stage: str, share: float, suffix: str = suffix) -> None:
            progress(stage + suffix, share)

        restored.append(restore(index, report))
    return np.stack(restored).reshape(*stack, *restored[0].shape)


def sample_layers() -> list[tuple[NDArray[Any], dict[str, Any], str]]:
    """Return a noisy photograph, and one with missing pixels.

    Returns
    -------
    list of (array, dict, str)
        Two layers, in the form that napari expects.

    Examples
    --------
    >>> from kronlearn.napari import sample_layers
    >>> [(layer[0].shape, layer[1]["name"]) for layer in sample_layers()]
    [((512, 512), 'noisy camera'), ((512, 512), 'incomplete camera')]
    """
    from skimage.data import camera

    rng = np.random.default_rng(0)
    clean = camera().astype(np.float32)
    noisy = rng.normal(clean, 20).astype(np.float32)
    incomplete = np.where(rng.random(clean.shape) < 0.5, np.nan, clean)
    return [
        (noisy, {"name": "noisy camera", "contrast_limits": (0, 255)}, "image"),
        (incomplete, {"name": "incomplete camera", "contrast_limits": (0, 255)}, "image"),
    ]
