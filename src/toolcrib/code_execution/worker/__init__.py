"""Programs that run inside the script's environment. They cannot import toolcrib and need nothing but Python 3.7."""
