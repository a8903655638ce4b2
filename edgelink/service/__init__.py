"""EdgeLink as a service of systemd: the units, putting them on a machine, taking them away, looking at them.

The units are templates in `systemd/` at the top of the repository, which a link beside this file
makes part of the package. What differs from machine to machine is the program's path and the role.
"""
