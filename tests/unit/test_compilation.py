"""Compiled loops."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest

from pymc_rmhmc.linalg.compiled import compilation
from pymc_rmhmc.linalg.compiled.compilation import KeptCode, compiled, compiled_in_any_order


@pytest.mark.parametrize("compiling", [compiled, compiled_in_any_order])
def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, compiling):
    # Numba compiles functions of its own at its first use in a process.
    real, asked = numba.njit, []
    real(lambda x: 2 * x)(3)

    def njit(*args, **options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'twice': no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiling(lambda x: 2 * x)(3) == 6
    assert [options.pop("cache", False) for options in asked] == [True, False]
    assert asked[0] == asked[1]


def test_what_is_kept_on_disk_is_stale_when_any_compiled_file_has_been_edited():
    """The trajectory has BLAS's calls and the sites' products compiled into it, which stand in other files."""
    from pymc_rmhmc.latent import rotation

    package = Path(compilation.__file__).parents[2]
    files = [path.stat() for room in compilation.COMPILED_ROOMS for path in (package / room).rglob("*.py")]
    stamp = rotation.advance_rotation._cache._cache_file._source_stamp
    assert stamp == compilation._stamp()
    assert stamp == (max(file.st_mtime_ns for file in files), sum(file.st_size for file in files))


def kept_in(folder: Path, stamp: int = 1) -> KeptCode:
    return KeptCode(str(folder), "function-1.py3", stamp)


def test_what_is_kept_is_found_again_and_old_code_is_not(tmp_path):
    kept_in(tmp_path).save("a", "old code of a")
    kept_in(tmp_path).save("b", "old code of b")
    assert [kept_in(tmp_path).load(key) for key in "abc"] == ["old code of a", "old code of b", None]
    newer = kept_in(tmp_path, 2)
    assert newer.load("a") is None
    newer.save("a", "new code of a")
    assert newer.load("a") == "new code of a"
    assert kept_in(tmp_path).load("a") is None
    assert len(list(tmp_path.glob("*.nbc"))) == 1  # what was old is gone


@pytest.mark.parametrize("stage", ["_load_index", "_save_data", "_save_index"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_two_processes_that_compile_at_once_never_take_the_others_code(tmp_path, monkeypatch, stage, when):
    """For the same arguments where an older version's code is still there, and for others."""
    kept_in(tmp_path, 0).save("a", "old code of a")
    one, other = kept_in(tmp_path), kept_in(tmp_path)
    usual, seen = getattr(one, stage), []

    def meanwhile(*arguments):
        if when == "after":
            found = usual(*arguments)
        if not seen:
            seen.append(other.load("a"))
            other.save("b", "code of b")
        return found if when == "after" else usual(*arguments)

    monkeypatch.setattr(one, stage, meanwhile)
    one.save("a", "code of a")
    assert seen[0] in (None, "code of a")
    third = kept_in(tmp_path)
    assert third.load("a") in (None, "code of a")
    assert third.load("b") in (None, "code of b")
    assert (third.load("a"), third.load("b")) != (None, None)
