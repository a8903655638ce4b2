"""EdgeLink as a service of systemd: the units, putting them on a machine, taking them away, looking at them.

The units are templates beside this file; what differs from machine to machine is the program's path and the role.
"""
