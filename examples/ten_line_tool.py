"""A tool in ten lines: type hints and the docstring become the schema, the return value becomes JSON."""

import toolcrib


@toolcrib.tool
def word_count(text: str, min_length: int = 1) -> dict[str, int]:
    """Count the words of a text.

    Args:
        text: The text to look at, for example "the quick fox".
        min_length: Count only words of at least this many letters.
    """
    return {"words": sum(len(word) >= min_length for word in text.split())}


if __name__ == "__main__":
    print(toolcrib.handle_function_call("word_count", {"text": "the quick brown fox", "min_length": 4}))
    # A model that writes a number as text is understood; one that forgets an argument is told what to send.
    print(toolcrib.handle_function_call("word_count", {"text": "the quick brown fox", "min_length": "4"}))
    print(toolcrib.handle_function_call("word_count", {"min_length": 4}))
