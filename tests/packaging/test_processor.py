"""A processor that lacks what the libraries use is told at import, and does not end the process."""

import pytest

from sok_embed.binding import check_processor

HASWELL = "flags\t\t: fpu sse4_2 avx fma f16c movbe bmi1 avx2 bmi2 abm"


@pytest.mark.parametrize(
    ("march", "flags"),
    [("x86-64-v3", HASWELL), ("x86-64-v3", "Features: neon"), ("x86-64", "flags : sse4_2")],
)
def test_a_processor_that_has_all_is_taken(tmp_path, march, flags):
    (tmp_path / "march.txt").write_text(f"{march}\n")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    check_processor(tmp_path / "march.txt", tmp_path / "cpuinfo")


def test_a_processor_that_lacks_instructions_is_an_error_that_names_them(tmp_path):
    (tmp_path / "march.txt").write_text("x86-64-v3\n")
    (tmp_path / "cpuinfo").write_text(HASWELL.replace(" avx2", "").replace(" fma", ""))
    with pytest.raises(
        ImportError, match="Received: a processor without avx2, fma. Compile it for older"
    ):
        check_processor(tmp_path / "march.txt", tmp_path / "cpuinfo")


def test_without_the_files_nothing_is_asked(tmp_path):
    check_processor(tmp_path / "march.txt", tmp_path / "cpuinfo")
    (tmp_path / "march.txt").write_text("x86-64-v3\n")
    check_processor(tmp_path / "march.txt", tmp_path / "cpuinfo")
