"""Imported last by the standard library's fork server: what programs that are forked from it do not repeat."""

import gc

from support.quick_configs import warm_up

warm_up()
gc.collect()
gc.freeze()  # garbage collections of the forks pass over what was imported, and its memory stays shared
