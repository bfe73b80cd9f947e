"""Tokens that are recognized by their spelling, regardless of the file's flags."""

from __future__ import annotations

# A file that ships these as ordinary or user-defined tokens would let any user text end a turn or open one
# (Gemma's tokenizer.model does). They are special in every source. `<s>` and `</s>` are not here: Gemma uses
# them as HTML tags.
ALWAYS_SPECIAL = frozenset(
    {
        "<bos>",
        "<eos>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<start_of_image>",
        "<end_of_image>",
        "<image_soft_token>",
        "<|turn>",
        "<turn|>",
        "<|image>",
        "<image|>",
        "<|image|>",
        "<|audio>",
        "<audio|>",
        "<|audio|>",
        "<|video|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    }
)

# Gemma 4's converter makes these user-defined so that decoding shows them to the output parser. User text
# must still not be able to spell them, so they are guarded like special tokens and shown like ordinary ones.
GUARDED_BUT_SHOWN = frozenset(
    {
        "<|channel>",
        "<channel|>",
        "<|tool>",
        "<tool|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        '<|"|>',
        "<|think|>",
    }
)

# Ends a turn in OpenChat's models and their descendants; llama.cpp does not know it by name.
END_OF_TURN = "<|end_of_turn|>"

# A special token with one of these names ends generation. Gemma 4 stops at <|tool_response> because what
# follows is the caller's to write.
END_NAMES = frozenset(
    {
        "<eos>",
        "</s>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        END_OF_TURN,
        "<|end|>",
        "<|return|>",
    }
)


def looks_like_marker(text: str) -> bool:
    """Whether a token that a file names as BOS, EOS, … is a marker and not an ordinary piece such as a
    newline."""
    return len(text) >= 3 and text[0] in "<[" and text[-1] in ">]"


def is_guarded(text: str) -> bool:
    """Whether user text must not be able to spell this token, by its name alone."""
    return text in ALWAYS_SPECIAL or text in GUARDED_BUT_SHOWN
