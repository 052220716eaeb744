"""What the commands ``fit``, ``predict`` and ``info`` do; ``cli`` parses and prints."""
