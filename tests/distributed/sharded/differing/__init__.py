"""Cases in which one of several workers has another model, and what each of them raises."""
