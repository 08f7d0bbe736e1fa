"""Runs `hf-video`, for `python -m hf_video.cli`."""

import sys

from .main import main

sys.exit(main())
