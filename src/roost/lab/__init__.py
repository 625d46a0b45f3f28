"""The lab: a fleet on one machine, real in everything but the GPU (see ``docs/lab.md``)."""
