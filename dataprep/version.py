"""The package's version; part of every fingerprint, so a new version redoes old work."""

__version__ = "0.3.0"
