"""Compiled loops."""

from __future__ import annotations

from pathlib import Path

import numba

from pymc_rmhmc.geometry.compilation import compiled


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
    # Numba compiles functions of its own at its first use in a process.
    real, asked = numba.njit, []
    real(lambda x: 2 * x)(3)

    def njit(*args, **options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'twice': no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(lambda x: 2 * x)(3) == 6
    assert asked == [{"cache": True}, {}]


def test_what_is_kept_on_disk_is_stale_when_any_compiled_file_has_been_edited():
    """The trajectory has BLAS's calls and the sites' products compiled into it, which stand in other files."""
    from pymc_rmhmc.geometry import compilation, rotation

    newest = max(path.stat().st_mtime_ns for path in Path(compilation.__file__).parent.rglob("*.py"))
    stamp = rotation.follow_rotation._cache._cache_file._source_stamp
    assert stamp == compilation._stamp()
    assert stamp[0] == newest
