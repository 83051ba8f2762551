"""The multi-level cache (docs/mlc.md): what keeps objects, logs and leases, and how a role reaches it.

`store` says what a store does; `MemoryStore` and `DurableStore` are two of them. `LocalCache` (in `local`) puts one
behind `sdcp.ports.Cache` in this process, `RemoteCache` reaches one behind `sdcp cache` over HTTP; `S3Cache` and
`ValkeyCache` are that port over servers of others. `opening` chooses by URI, `composite` makes one of several.
"""
