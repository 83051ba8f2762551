"""What a check is given: the subject, everybody else, and a session that knows what must come."""
