"""What everything else speaks of: contracts, properties, targets, trials, findings."""
