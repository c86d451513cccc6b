"""The decorator that checks the shapes in the package's signatures. An int passes for a float."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
