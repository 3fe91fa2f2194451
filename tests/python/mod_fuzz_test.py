"""mod_fuzz_test.py: some programs of mod_fuzz.py, which LUATTN_TEST_SEED draws: none is stale or wrong."""

import os
import random
import unittest
import warnings

from mod_grammar import draw
from mod_runner import Difference, Invalid, live

from mod_fuzz import text_of

warnings.simplefilter("ignore")
SEED, COUNT = os.environ.get("LUATTN_TEST_SEED", ""), 40


class Programs(unittest.TestCase):
    def test_programs(self):
        right = 0
        for i in range(COUNT):
            program = draw(random.Random(f"{SEED} {i}"))
            try:
                right += not live(program)
            except Invalid:
                pass
            except Difference as e:
                self.fail(f"{e.kind} at call {e.step}: {e}\n{text_of(program)}")
        self.assertGreater(right, COUNT // 2)


if __name__ == "__main__":
    unittest.main()
