"""What pyproject.toml cannot say: the one piece of C, and that a node also works, more slowly, without it."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("meshnet_node.engine._tap", ["meshnet_node/engine/_tap.c"], optional=True)])
