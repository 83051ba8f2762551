"""The messages of SDCP (4.1, 5.2): one frozen dataclass per CDDL rule, fields named as the CDDL keys."""
