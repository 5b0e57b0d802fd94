"""What the tests of this folder run on one, two and three workers."""
