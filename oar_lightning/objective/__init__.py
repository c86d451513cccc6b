"""The maths of the update: group advantages, the clipped policy loss, metrics as sums that add up over ranks."""
