"""`python -m course.exercises` shows what is done, `--reset` forgets it."""

import argparse

from course.exercises import progress
from course.exercises._progress import reset

parser = argparse.ArgumentParser(
    description="Which exercises are right, and which hints were taken."
)
parser.add_argument("--reset", action="store_true", help="forget it all")
print(reset() if parser.parse_args().reset else progress())
