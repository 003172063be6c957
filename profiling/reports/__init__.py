"""Profiles as tables, HTML, trtexec's JSON and Chrome traces; differences between two profiles; SVG plots."""
