"""EasyTier out of the wheel ``easytier-pyo3``: two programs in place of ``easytier-core`` and ``easytier-cli``.

The wheel is a third party's build of EasyTier's main branch as a Python module. ``programs/`` holds the two commands,
which are installed as ``share/edgelink/easytier-wheel``: off PATH, so that nobody gets them without asking.
They answer what EdgeLink asks, and take the flags that people type by hand; EasyTier has more of both.

Nothing here imports the rest of EdgeLink: each program is a process of its own, and starts often.
"""

DISTRIBUTION = "easytier-pyo3"
MODULE = "easytier_pyo3"
DESCRIPTION = "a third party's build of EasyTier's main"
DEFAULT_RPC_PORT = 15888
