"""HTTP/2 over mutual TLS 1.3 (draft section 5.1): identity, resources, the server's and the client's end."""
