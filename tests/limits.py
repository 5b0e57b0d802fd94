"""The time after which a test takes what it waits for to hang."""

# Far longer than anything takes that the tests wait for, on a machine that is busy with much else.
HANG_S = 1800
