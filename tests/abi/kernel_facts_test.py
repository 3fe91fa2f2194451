"""kernel_facts_test.py: the tables of abi/kernel_facts.def leave nothing out that the public headers have."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Members of luattn_target that do not say what to compile: how, where it is kept, and by whom it is loaded.
HOW = {"struct_size", "cache_dir", "nvrtc", "device", "tiles", "driver_version"}


def plain(path):
    with open(f"{ROOT}/{path}") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


HEADERS = "".join(plain(f"include/luattn/{name}.h") for name in ("image", "tensors", "compiler", "pack"))
TABLES = plain("abi/kernel_facts.def")


def members(struct):
    body = re.search(r"typedef struct " + struct + r" \{(.*?)\} " + struct + ";", HEADERS, re.S)[1]
    names = []
    for declaration in body.split(";"):
        names += re.findall(r"(\w+)(?:\[\w+\])*\s*(?:,|$)", declaration.strip())
    return names


def enumerators(enum):
    body = re.search(r"typedef enum " + enum + r" \{(.*?)\} " + enum + ";", HEADERS, re.S)[1]
    return [name.split("=")[0].strip() for name in body.split(",")]


def rows(macro):
    return re.findall(r"^" + macro + r"\((\w+),", TABLES, re.M)


class Tables(unittest.TestCase):
    def test_target(self):
        facts = rows("TARGET_FACT")
        self.assertEqual(len(facts), len(set(facts)))
        self.assertEqual(set(facts) | HOW, set(members("luattn_target")))

    def test_values(self):
        for macro, enum in (("KERNEL_PASS", "luattn_pass"), ("KERNEL_FAMILY", "luattn_family"), ("KERNEL_DTYPE", "luattn_dtype")):
            self.assertEqual(rows(macro), enumerators(enum))

    def test_variants(self):
        held, others = rows("KERNEL_VARIANT"), rows("KERNEL_UNPACKED")
        self.assertLessEqual(set(held + others), set(members("luattn_target")))
        # As the query of packs has them behind `deterministic`.
        query = members("luattn_pack_query")
        self.assertIn(query[query.index("deterministic") + 1 :], (held, [*held, "unused"]))

    def test_choices_of_a_call(self):
        variants = set(rows("KERNEL_VARIANT")) | set(rows("KERNEL_UNPACKED"))
        self.assertLessEqual(set(rows("CALL_CHOICE")), set(members("luattn_args")) & variants)

    def test_sections(self):
        tags = re.findall(r'^IMAGE_SECTION\("(\w+)", (\w+),', TABLES, re.M)
        self.assertEqual(len(tags), len({tag for tag, _ in tags}))
        for tag, need in tags:
            self.assertRegex(tag, "^[A-Z]{4}$")
            self.assertIn(need, ("REQUIRED", "OPTIONAL"))


if __name__ == "__main__":
    unittest.main()
