from pathlib import Path

from setuptools import setup

version = Path("VERSION").read_text().strip()

setup(name="naming", version=version, py_modules=["naming"])
