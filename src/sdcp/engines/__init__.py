"""Models behind the ports: the reference model, prompt lookup, transformers; heavy ones are imported when chosen."""
