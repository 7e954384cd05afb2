"""Numbers of the embedded model that must not drift: whoever changes them on purpose writes them down anew."""

from __future__ import annotations

import pytest
import torch

from tta_panda.methods import create_method, list_methods

GOLDEN = {
    "clip": [13.1232, 8.9804, 2.1279, 3.2181, 0.3256],
    "clip+panda": [9.522, 5.1119, -2.7299, -1.8563, -2.3772],
    "tent": [13.18, 8.9687, 2.0155, 2.9636, 0.1322],
    "tent+panda": [9.5647, 5.0979, -2.8466, -2.0749, -2.5316],
    "eta": [13.2103, 8.931, 1.983, 2.95, 0.148],
    "eta+panda": [9.6019, 5.0391, -2.9013, -2.0876, -2.5013],
    "sar": [13.1868, 8.9698, 2.0238, 2.9628, 0.1343],
    "sar+panda": [9.575, 5.0921, -2.8694, -2.0897, -2.5407],
    "deyo": [13.1196, 9.0171, 2.1234, 3.0476, 0.1557],
    "deyo+panda": [9.5259, 5.1168, -2.8404, -2.0084, -2.5148],
    "tpt": [13.1231, 8.9558, 2.1228, 3.1965, 0.3058],
    "tpt+panda": [9.5227, 5.0849, -2.7335, -1.8761, -2.3922],
    "dmn": [-0.02, -4.4311, -11.2836, -10.1934, -13.086],
    "dmn+panda": [-0.0107, -4.6863, -12.2507, -11.6545, -12.1755],
    "zero": [3.0, 0.0, 0.0, 0.0, 0.0],
    "zero+panda": [3.0, 0.0, 0.0, 0.0, 0.0],
    "tps": [13.9492, 7.9103, 0.714, 1.788, -1.0175],
    "tps+panda": [10.2598, 4.2944, -3.5615, -2.716, -3.205],
    "bat": [13.4023, 9.0578, 2.1269, 3.1171, 0.3241],
    "bat+panda": [9.6844, 5.1801, -2.7024, -1.9115, -2.361],
}


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Twelve images by integer arithmetic alone, so that no version of any library changes them."""
    n, c, y, x = torch.meshgrid(*(torch.arange(size) for size in (12, 3, 32, 32)), indexing="ij")
    return ((x * (n + 3) + y * (2 * n + c + 1) + 40 * c * n + (x * y) // (n + 2)) % 256).to(torch.uint8)


OPTIONS = {
    "eta": {"margin": 0.9},
    "sar": {"margin": 0.9},
    "tpt": {"views": 6, "keep": 0.5},
    "tps": {"lr": 1e-2, "views": 6},
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_logits_do_not_drift(name, mini_classifier, pictures):
    settings = OPTIONS.get(name.removesuffix("+panda"), {}) | ({"beta": 0.5} if name.endswith("+panda") else {})
    method = create_method(name, mini_classifier, preset="mini", **settings)
    method.adapt(pictures[:6])
    logits = method.adapt(pictures[6:])
    torch.testing.assert_close(logits[0, :5], torch.tensor(GOLDEN[name]), atol=5e-3, rtol=0)


def test_every_method_has_golden_values():
    assert set(GOLDEN) == set(list_methods())
