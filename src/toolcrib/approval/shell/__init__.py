"""The analyser of shell commands: lexer, parser, evaluation, and the rules as data."""
