"""A completion's text -> answer span -> verdict -> reward."""
