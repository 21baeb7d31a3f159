"""What tools did to files, and how it is taken back."""
