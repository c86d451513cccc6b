"""The LightningModule and what its step is made of: collector, slots, passes, schedule, callbacks."""
