"""The compiled core for Python, `_core`: NumPy arrays in and out, without TensorFlow."""

from pathlib import Path

__all__ = ["check_processor"]

# Instructions of x86-64-v3 that x86-64-v2 does not have, as Linux names them.
_OF_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")


def check_processor(march: Path, description: Path) -> None:
    """Raises an error where the libraries would end the process by an unknown instruction.

    Args:
        march: A file with the value of `-march` that the libraries were compiled with. Without it,
            and for other values than `x86-64-v3`, nothing is checked.
        description: `/proc/cpuinfo`. Nothing is checked where it has no flags.

    Raises:
        ImportError: This processor lacks an instruction.
    """
    if not march.exists() or march.read_text().strip() != "x86-64-v3" or not description.exists():
        return
    with description.open() as lines:
        flags = next((line.split() for line in lines if line.startswith("flags")), None)
    missing = [name for name in _OF_V3 if flags and name not in flags]
    if missing:
        raise ImportError(
            "Expected a processor with AVX2, which this sok_embed is compiled for. Received: a "
            f"processor without {', '.join(missing)}. Compile it for older ones: "
            "`CMAKE_ARGS=-DSOK_MARCH=x86-64 pip install .` in the source tree."
        )


check_processor(Path(__file__).with_name("march.txt"), Path("/proc/cpuinfo"))
