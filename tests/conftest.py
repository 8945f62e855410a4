"""What all tests share."""

import gc


def pytest_collection_finish() -> None:
    """Look for garbage seldom: among PyTensor's graphs that takes a quarter of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 20)
