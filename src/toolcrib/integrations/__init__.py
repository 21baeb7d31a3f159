"""External services that tools act on: homes, chats, music, documents. One module each."""
