"""Singularity HAL: device proxies, the contract for backends, and the launcher.

The core imports no backend; backends register themselves under the entry-point group
``singularity.backends`` and use nothing but ``singularity_core.hal``.
"""

__version__ = "0.1.0"
