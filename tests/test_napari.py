"""The napari plugin: a valid manifest, and widgets that restore layers in the background."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kronlearn as kl

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("napari", reason="napari is not installed")
    pytest.importorskip("PySide6", reason="PySide6 is not installed")
    from napari.components import ViewerModel
    from npe2 import PluginManifest
    from qtpy.QtWidgets import QApplication

    from kronlearn import napari as plugin

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(name="app", scope="module")
def application() -> Any:
    return QApplication.instance() or QApplication([])


@pytest.fixture(name="viewer")
def layers(app: Any, rng: np.random.Generator) -> ViewerModel:
    """A viewer without a window, with a stack of noisy images."""
    viewer = ViewerModel()
    noisy = rng.normal(100, 10, (2, 48, 56)).astype(np.float32)
    viewer.add_image(noisy, name="noisy", scale=(1, 0.5, 0.5), colormap="magma")
    return viewer


@pytest.fixture(name="shown")
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The errors shown to the user."""
    texts: list[str] = []
    monkeypatch.setattr(plugin, "show_error", texts.append)
    return texts


@pytest.fixture(name="wait")
def waiting(app: Any) -> Callable[[Callable[[], bool]], None]:
    def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end
            app.processEvents()
            time.sleep(0.005)

    return until


def test_the_manifest_is_valid_and_its_commands_exist() -> None:
    manifest = PluginManifest.from_distribution("kronlearn")
    manifest.validate_imports()
    commands = {command.id: command for command in manifest.contributions.commands}
    assert [w.display_name for w in manifest.contributions.widgets] == ["Denoise", "Inpaint"]
    assert {w.command for w in manifest.contributions.widgets} < set(commands)
    assert len(plugin.sample_layers()) == 2


def test_every_image_of_a_stack_is_denoised(viewer: ViewerModel, wait: Any) -> None:
    widget = plugin.DenoiseWidget(viewer)
    widget.quality.value, widget.sigma.value = "fast", 10
    stages: list[str] = []
    widget.progress.label_changed.connect(stages.append)
    widget.start.native.click()
    assert (widget.start.enabled, widget.cancel.enabled) == (False, True)
    wait(lambda: widget.start.enabled)
    given, result = viewer.layers
    expected = [kl.images.denoise(image, 10, quality="fast") for image in given.data]
    np.testing.assert_array_equal(result.data, expected)
    assert result.name == "noisy denoised"
    assert (tuple(result.scale), result.colormap.name) == ((1, 0.5, 0.5), "magma")
    assert {"coding, 1 of 2", "similar patches, 2 of 2"} <= set(stages)
    widget.axes.value = 3
    widget.start.native.click()
    wait(lambda: widget.start.enabled)
    volume = kl.images.denoise(given.data, 10, quality="fast")
    np.testing.assert_array_equal(viewer.layers[-1].data, volume)


def test_work_can_be_cancelled(viewer: ViewerModel, wait: Any, shown: list[str]) -> None:
    viewer.add_image(np.random.default_rng(0).normal(100, 10, (400, 400)), name="large")
    widget = plugin.DenoiseWidget(viewer)
    widget.image.value, widget.quality.value = viewer.layers["large"], "best"
    widget.start.native.click()
    wait(lambda: widget.progress.value > 0)
    widget.cancel.native.click()
    wait(lambda: widget.start.enabled)
    assert len(viewer.layers) == 2
    assert (shown, widget.progress.value, widget.cancel.enabled) == ([], 0, False)


def test_labelled_pixels_and_nan_are_inpainted(
    viewer: ViewerModel, wait: Any, shown: list[str], rng: np.random.Generator
) -> None:
    clean = np.add.outer(np.arange(40.0), np.arange(48.0))
    colours = np.stack([clean, clean + 20, clean[::-1]], axis=-1) / 150
    missing = rng.random(clean.shape) < 0.1
    viewer.add_image(colours, name="rgb", rgb=True)
    viewer.add_labels(missing.astype(int), name="holes")
    widget = plugin.InpaintWidget(viewer)
    widget.image.value = viewer.layers["rgb"]
    for label in ("holes", None):
        if label is None:
            viewer.layers["rgb"].data = np.where(missing[..., None], np.nan, colours)
        widget.missing.value = viewer.layers[label] if label else None
        widget.start.native.click()
        wait(lambda: widget.start.enabled)
        expected = kl.images.inpaint(colours, missing, channel_axis=-1)
        assert viewer.layers[-1].rgb
        np.testing.assert_array_equal(viewer.layers[-1].data, expected)
    widget.image.value, widget.missing.value = viewer.layers["noisy"], viewer.layers["holes"]
    widget.start.native.click()
    assert shown == ["The labels 'holes' have shape (40, 48); the image has (2, 48, 56)."]


def test_errors_are_shown(viewer: ViewerModel, wait: Any, shown: list[str]) -> None:
    widget = plugin.DenoiseWidget(viewer)
    viewer.layers[0].data[0, 3, 4] = np.nan
    widget.start.native.click()
    wait(lambda: widget.start.enabled)
    assert len(shown) == 1
    assert "fill in missing pixels with images.inpaint" in shown[0]
    viewer.layers.clear()
    widget.reset_choices()
    widget.start.native.click()
    assert shown[1:] == ["There is no image layer; open an image first."]
