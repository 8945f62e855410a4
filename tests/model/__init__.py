"""Reading models. What the tests of joint models share tells what it found when it fails, as the tests do."""

import pytest

pytest.register_assert_rewrite("tests.model.joint_checks")
