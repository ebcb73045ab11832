"""The files of a training run, its ledger and its incidents: written while it trains, read later; no torch."""
