"""Fakes and worlds for tests, the simulator and integrators. Nothing of it is used by the product."""
