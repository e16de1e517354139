"""Tables as training data: schema, type inference, reading, encoding."""
