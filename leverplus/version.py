"""The version, in its one home: the build, run folders, bundles and `lever --version` read it here."""

__version__ = "0.3.0"
