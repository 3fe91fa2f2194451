"""online_fuzz_test.py: some functions of online_fuzz.py, which LUATTN_TEST_SEED draws: each is right or refused. Exits with 77 where torch is not
installed."""

import os
import random
import unittest

import with_torch  # noqa: F401  exits without torch, so first
from online_fuzz import AtKink, Case, OutOfRange

import luattn

SEED, COUNT = os.environ.get("LUATTN_TEST_SEED", ""), 60
FOUND = (846, 21385)  # sums that cancel to rounding; a sum whose terms are all the same and underflow to 0
# Once refused: where() of a comparison that only some elements ask about the row; x + (2 - x) of an x of 1e20.
TAKEN = (60187, 60286, 71689)


class Online(unittest.TestCase):
    def test_none_is_wrong(self):
        draw, right = random.Random(SEED), 0
        for seed in (*FOUND, *(draw.randrange(10**9) for _ in range(COUNT))):
            case = Case(seed)
            try:
                wrong = case.wrong()
                self.assertEqual("", wrong, f"seed {seed}, {case.keys} keys, x = {case.x!r}:\n{case.source}")
                right += 1
            except (AtKink, OutOfRange, luattn.Error):
                pass
        self.assertGreater(right, COUNT // 4)


    def test_none_of_these_is_refused(self):
        for seed in TAKEN:
            case = Case(seed)
            self.assertEqual("", case.wrong(), f"seed {seed}:\n{case.source}")


if __name__ == "__main__":
    unittest.main()
