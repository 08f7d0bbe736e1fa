"""What several sources share: reading checkpoints, tables of rules, the command line, and the parts of each family."""
