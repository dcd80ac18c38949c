"""``python -m singularity_core.proxy --backend NAME --device K --directory DIR [--directory DIR ...]``"""

from __future__ import annotations

import sys

from .process import main

sys.exit(main())
