"""HTTP/2 over mutual TLS 1.3: one small asyncio shell around h2 for both ends, and what breaks the rules on purpose."""
