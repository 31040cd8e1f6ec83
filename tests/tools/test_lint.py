"""Tests that each rule of tools/lint.py finds what breaks it: `python3 tests/tools/test_lint.py`."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import lint  # noqa: E402


class Arrows(unittest.TestCase):
    def found(self, name, *included):
        return list(lint.core_arrows(name, "".join(f'#include "{inc}"\n' for inc in included)))

    def test_a_folder_of_core_includes_itself_and_those_below(self):
        self.assertEqual(self.found("core/engine/step.c", "core/engine/engine.h", "core/delta/delta.h", "core/base/err.h"), [])

    def test_an_arrow_up_or_sideways_is_found(self):
        self.assertIn("core/tok/tok.h", self.found("core/base/buf.c", "core/tok/tok.h")[0])
        self.assertEqual(len(self.found("core/tok/tok.c", "core/pool/pool.h")), 1)
        self.assertEqual(len(self.found("core/delta/delta.c", "core/engine/engine.h")), 1)

    def test_a_folder_without_a_place_in_the_order_is_found(self):
        self.assertIn("CORE_ORDER", self.found("core/misc/a.c")[0])
        self.assertEqual(len(self.found("core/base/a.c", "core/misc/a.h")), 1)

    def test_core_does_not_include_the_server(self):
        self.assertEqual(len(list(lint.layer_arrows("core/base/a.c", '#include "server/srv.h"\n'))), 1)


class Families(unittest.TestCase):
    def found(self, name, text):
        return list(lint.family_names(name, text))

    def test_a_family_in_a_string_is_found_outside_its_file(self):
        code = 'int f(void)\n{\n    return strcmp(a, "roberta");\n}\n'
        self.assertEqual([f.split(":")[1] for f in self.found("core/delta/x.c", code)], ["3"])
        self.assertEqual(self.found("core/families/roberta.c", code), [])

    def test_comments_and_longer_words_are_left_alone(self):
        self.assertEqual(self.found("core/delta/x.c", '/* "bert" */ // "t5"\nconst char *s = "a bert";\n'), [])


class Commits(unittest.TestCase):
    def found(self, message):
        return list(lint.message_faults("abc", message))

    def test_a_commit_says_why(self):
        self.assertEqual(self.found("area: what\n\nBecause.\n"), [])
        self.assertIn("no body", self.found("area: what\n")[0])

    def test_a_subject_has_an_area_and_an_end(self):
        self.assertEqual(len(self.found("what\n\nBecause.\n")), 1)
        self.assertEqual(len(self.found(f"area: {'x' * 60}\n\nBecause.\n")), 1)


class Kernels(unittest.TestCase):
    """Files that are empty without the flags of their machine are read with them."""

    def found(self, name, macro):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(f"#include <string.h>\n#if defined({macro})\nint f(int a)\n{{\n    int b = 0;\n\n    return a / b;\n}}\n#endif\n")
            return list(lint.tidy(str(path)))

    def test_clang_tidy_sees_the_kernels_of_each_machine(self):
        for name, macro in (("kern_neon.c", "__aarch64__"), ("kern_neonbf16.c", "__ARM_FEATURE_BF16"),
                            ("kern_neondotprod.c", "__ARM_FEATURE_DOTPROD"), ("kern_sve.c", "__ARM_FEATURE_SVE"), ("kern_avx2.c", "__AVX2__"),
                            ("kern_avx512bf16.c", "__AVX512BF16__"), ("kern_amx.c", "__AMXTILE__")):
            found = self.found(name, macro)
            self.assertEqual(len(found), 1, (name, found))
            self.assertIn("DivideZero", found[0])


class Rest(unittest.TestCase):
    def test_a_header_out_of_its_home_is_found(self):
        self.assertEqual(len(list(lint.header_homes("server/srv.c", "#include <uv.h>\n"))), 1)

    def test_lapack_away_from_its_file_is_found(self):
        calls = "void f(void)\n{\n    dsyevr_(n); /* dgetrf_( */\n    sort_(n);\n}\n"
        self.assertEqual(len(list(lint.lapack_home("core/delta/read_x.c", calls))), 1)
        self.assertEqual(list(lint.lapack_home("core/gemm/dense.c", calls)), [])

    def test_long_functions_and_leftovers_are_found(self):
        body = "int f(void)\n{\n" + "    a();\n" * 71 + "}\n"
        self.assertEqual(len(list(lint.sizes("core/x.c", body))), 1)
        self.assertEqual(len(list(lint.comments("core/x.c", "/* x */\nint a; /* TO" + "DO */\n"))), 1)


if __name__ == "__main__":
    unittest.main()
