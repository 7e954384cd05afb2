"""Numbers of the embedded model that must not drift: whoever changes them on purpose writes them down anew."""

from __future__ import annotations

import pytest
import torch

from tta_panda.methods import METHODS, create_method, list_methods, parse_method

GOLDEN = {
    "clip": [13.1232, 8.9804, 2.1279, 3.2181, 0.3256],
    "clip+panda": [9.522, 5.1119, -2.7299, -1.8563, -2.3772],
    "clip+center": [4.0778, -0.8123, -10.9526, -4.6614, -5.9957],
    "clip+running": [4.302, -0.6695, -8.7857, -5.4299, -5.2464],
    "clip+level": [10.4497, 5.1343, 1.7412, 1.7342, 1.7351],
    "clip+panda+level": [10.4085, 4.9501, 2.7236, 2.1081, 1.5169],
    "tent": [13.18, 8.9687, 2.0155, 2.9636, 0.1322],
    "tent+panda": [9.5647, 5.0979, -2.8466, -2.0749, -2.5316],
    "tent+center": [4.1548, -0.7491, -11.0018, -4.7015, -6.0278],
    "tent+running": [4.3517, -0.6518, -8.7765, -5.4986, -5.2838],
    "tent+level": [10.469, 5.0899, 1.6589, 1.5908, 1.6163],
    "tent+panda+level": [10.4224, 4.9029, 2.6537, 1.9872, 1.3908],
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
    "dmn+center": [-0.1125, -5.3014, -15.4416, -9.1505, -10.4848],
    "dmn+running": [-0.06, -5.3126, -13.4288, -10.0731, -9.8895],
    "dmn+level": [-0.0212, -5.6053, -8.9983, -9.0054, -9.0045],
    "dmn+panda+level": [-0.0177, -5.7437, -7.9702, -8.5857, -9.1769],
    "zero": [3.0, 0.0, 0.0, 0.0, 0.0],
    "zero+panda": [3.0, 0.0, 0.0, 0.0, 0.0],
    "tps": [13.9492, 7.9103, 0.714, 1.788, -1.0175],
    "tps+panda": [10.2598, 4.2944, -3.5615, -2.716, -3.205],
    "bat": [13.4023, 9.0578, 2.1269, 3.1171, 0.3241],
    "bat+panda": [9.6844, 5.1801, -2.7024, -1.9115, -2.361],
    "tda": [16.3606, 8.253, 0.6587, 1.7489, 0.3256],
    "tda+panda": [11.2024, 2.8346, -4.221, -3.3039, -2.3772],
    "oga": [-0.0031, -9.3152, -12.4241, -15.398, -19.4738],
    "oga+panda": [-0.0003, -10.774, -13.785, -18.1877, -19.8795],
    "stata": [-0.0028, -6.4304, -12.8136, -12.403, -15.5665],
    "stata+panda": [-0.0015, -6.5998, -14.0106, -13.8257, -14.5662],
    "mint": [14.7507, 8.1233, -2.5932, -0.076, -1.8435],
    "mint+panda": [9.9783, 4.0096, -7.0834, -4.3815, -4.0302],
    "im": [13.1698, 8.9581, 2.1721, 3.1616, 0.3457],
    "im+panda": [9.5501, 5.1124, -2.7612, -1.9369, -2.4225],
    "vte": [11.1201, 5.2525, -6.6372, 1.5755, 0.9142],
    "vte+panda": [7.5189, 1.384, -11.4951, -3.4989, -1.7885],
    "mta": [13.1235, 8.9803, 2.1273, 3.2183, 0.3259],
    "mta+panda": [9.5223, 5.1119, -2.7304, -1.8561, -2.3769],
    "subtta": [14.8714, 7.3302, -11.6065, -9.6483, -19.1138],
    "subtta+panda": [16.2495, 5.3142, -15.9569, -14.1775, -15.8103],
    "latte": [45.9168, 8.9804, 2.1279, 3.2181, 0.3256],
    "latte+panda": [42.3156, 5.1119, -2.7299, -1.8563, -2.3772],
    "ecalp": [206.7496, 34.9573, 4.8406, 0.9257, 0.0],
    "ecalp+panda": [48.5666, 4.9406, 0.6882, 0.0249, 0.0],
    "onzeta": [-0.0909, -3.1065, -5.3832, -6.4852, -5.4875],
    "onzeta+panda": [-0.0926, -3.9744, -8.2575, -8.1978, -7.5075],
    "dota": [11.2692, 5.2768, -6.6375, 1.5323, 0.9191],
    "dota+panda": [7.6403, 1.4, -11.4968, -3.5213, -1.7786],
    "boostadapter": [14.7776, 8.8953, 1.956, 3.0462, 0.3256],
    "boostadapter+panda": [10.9942, 4.8455, -2.7718, -2.0257, -2.3772],
    "dpe": [14.1042, 8.8387, 2.0604, 4.15, 0.2804],
    "dpe+panda": [10.7636, 5.0682, -2.7339, -1.0292, -2.3938],
    "rotta": [13.4205, 8.8161, 1.7577, 1.1443, -1.1214],
    "rotta+panda": [9.1601, 5.3008, -0.9233, -0.3793, -1.274],
    "roid": [11.1578, 6.2439, 0.6803, 0.3975, -2.3753],
    "roid+panda": [7.5451, 2.4768, -4.1723, -4.6076, -5.012],
    "cliptta": [13.1047, 8.9766, 2.1661, 3.3132, 0.4038],
    "cliptta+panda": [9.5165, 5.1296, -2.6809, -1.7908, -2.3286],
    "eata": [13.848, 8.4564, 0.7758, 0.766, -1.3199],
    "eata+panda": [10.0961, 4.3431, -4.2894, -3.8055, -3.3614],
    "memo": [13.8067, 8.655, 1.6228, 3.0204, 0.497],
    "memo+panda": [9.6633, 5.0053, -2.8974, -2.0202, -2.4211],
    "ramen": [15.151, 7.7715, -0.0151, 1.0299, 0.0834],
    "ramen+panda": [11.4213, 3.7209, -4.4991, -3.9539, -2.47],
    "clipartt": [13.3298, 9.2368, 2.5764, 3.371, 0.5051],
    "clipartt+panda": [9.8071, 5.1955, -2.8682, -2.0486, -2.3684],
    "watt": [10.6938, 8.2759, 3.9946, 1.3365, 1.5261],
    "watt+panda": [6.5962, 3.3879, -1.2478, -3.4899, -2.9582],
    "lame": [-0.0099, -5.1374, -8.891, -10.9058, -13.7987],
    "lame+panda": [-0.0052, -5.4074, -10.153, -12.3816, -12.9024],
}


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """Twelve images by integer arithmetic alone, so that no version of any library changes them."""
    n, c, y, x = torch.meshgrid(*(torch.arange(size) for size in (12, 3, 32, 32)), indexing="ij")
    return ((x * (n + 3) + y * (2 * n + c + 1) + 40 * c * n + (x * y) // (n + 2)) % 256).to(torch.uint8)


OPTIONS = {
    "eta": {"margin": 0.9},
    "eata": {"lr": 1e-2, "margin": 0.9, "fisher_weight": 2000.0},
    "memo": {"lr": 0.1},
    "oga": {"temperature": 0.005},  # Gaussians of twelve images are sharp
    "sar": {"margin": 0.9},
    "tpt": {"views": 6, "keep": 0.5},
    "tps": {"lr": 1e-2, "views": 6},
    "rotta": {"lr": 1e-2, "capacity": 6, "decay": 0.1},
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_logits_do_not_drift(name, mini_classifier, pictures):
    parsed = parse_method(name)
    settings = OPTIONS.get(parsed.base, {}) | ({"beta": 0.5, "pool": 0} if parsed.debias == "panda" else {})
    method = create_method(name, mini_classifier, preset="mini", **settings)
    method.adapt(pictures[:6])
    logits = method.adapt(pictures[6:])
    torch.testing.assert_close(logits[0, :5], torch.tensor(GOLDEN[name]), atol=5e-3, rtol=0)


def test_every_method_and_every_way_to_debias_has_golden_values():
    by_base = {
        base: {parse_method(name).debias for name in GOLDEN if parse_method(name).base == base} for base in METHODS
    }
    assert all({"", "panda"} <= ways for ways in by_base.values())
    assert {"clip", *list_methods("clip+*")} <= set(GOLDEN)
