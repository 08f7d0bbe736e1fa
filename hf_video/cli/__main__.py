"""`python -m hf_video.cli`, the same as `hf-video`."""

import sys

from .main import main

sys.exit(main())
