"""The multi-level cache (docs/mlc.md): what keeps objects, logs and leases, and how a role reaches it.

`store` says what a store does; `MemoryStore` and `DurableStore` are two of them. `LocalCache` (in `local`) puts one
behind `sdcp.ports.Cache` in this process, `RemoteCache` reaches one behind `sdcp cache` over HTTP.
"""
