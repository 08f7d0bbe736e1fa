"""Functions that several sources share: for checkpoints, tables of rules, the command line, and for each family."""
