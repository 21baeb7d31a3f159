"""A fresh process until it has all definitions; run as `python start.py ours|peer`."""

import sys

if sys.argv[1] == "ours":
    from toolcrib import get_tool_definitions
else:
    from model_tools import get_tool_definitions

assert get_tool_definitions(quiet_mode=True)
