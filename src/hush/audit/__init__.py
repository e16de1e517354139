"""Audits: how much a plan really leaks, measured on its own releases and printed beside what it claims."""
