"""Compiled loops."""

from __future__ import annotations

import numba

from pymc_rmhmc.geometry.compilation import compiled


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
    real, asked = numba.njit, []

    def njit(*args, **options):
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'twice': no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(lambda x: 2 * x)(3) == 6
    assert asked == [{"cache": True}, {}]
