"""``python -m tests.support.chaos FIRST_SEED SEEDS SECONDS KEEP``."""

import sys

from tests.support.chaos.driver import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
