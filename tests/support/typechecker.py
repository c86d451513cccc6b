"""The checker behind the shapes in the package's signatures; an int is fine where a float is asked for."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
