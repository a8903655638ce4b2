"""The command line: one file a verb, imported only when its verb is called."""
