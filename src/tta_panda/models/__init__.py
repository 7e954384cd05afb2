"""Models of several libraries behind one protocol, and the classifiers made from them.

`__init__.pyi` lists the public names. They are imported on first use, so that models can be listed without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
