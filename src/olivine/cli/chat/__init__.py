"""`olivine chat`: a conversation in the terminal. See docs/chat.md."""
