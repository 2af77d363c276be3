"""Backups: copies of a cut of the log, of which each holds what is new since the last, and a folder made from one.

source.py      what is copied: a running node gives it over HTTP
stopped.py     or it is the folder of a stopped one
target.py      where to: a folder, or whatever fsspec knows
manifest.py    what a backup consists of; it is written last, so that what was interrupted is no backup
copying.py     from a source to a target
restoring.py   from a target to a data folder, or a look at whether that would work

TARGET/backups/TIME.json         a manifest: files of the log, each a row of pieces with their checksums
TARGET/pieces/ab/abcdef...       a piece, named by the SHA-256 of its bytes
"""
