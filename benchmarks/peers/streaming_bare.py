"""`import streaming_bare` before `streaming.base`: the package without its __init__.

MosaicML's __init__ imports its vision, text and multimodal data sets, and with them torchvision,
whose extension loads with no CPU build of torch. Nothing of them is used here.
"""

import importlib.metadata
import importlib.util
import sys
import types

VERSION = importlib.metadata.version("mosaicml-streaming")

spec = importlib.util.find_spec("streaming")
package = types.ModuleType("streaming")
package.__path__ = list(spec.submodule_search_locations)
package.__version__ = VERSION
sys.modules["streaming"] = package
