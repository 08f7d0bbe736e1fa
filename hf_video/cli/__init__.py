"""The `hf-video` command. Each command has its own file. Slow imports are inside functions, so that help is fast."""

USER_ERROR = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
# As in shells: 128 plus the number of the signal.
INTERRUPTED, CLOSED_OUTPUT, TERMINATED = 130, 141, 143

EXIT_CODES = f"""\
exit codes: 0 all went well, 1 some inputs failed, {USER_ERROR} a mistake in the input or on the machine, \
{BUG} a bug of hf-video,
{INTERRUPTED} Ctrl-C, {TERMINATED} SIGTERM, {CLOSED_OUTPUT} the reader of the output went away"""
