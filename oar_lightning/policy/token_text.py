"""Maps token ids to bytes: spans are located on the generated ids, and no text is tokenised again."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection
from typing import Any, NamedTuple

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """The text with the replacement character in place of each lone surrogate, that is each byte that is not UTF-8: it can be
    encoded, and ranges of characters stay what they are."""
    return _LONE.sub("\ufffd", text)


class TokenizedText(NamedTuple):
    """A text and, for each of its tokens, the half-open range of the characters of ``text`` that it overlaps.

    Each byte that is not UTF-8 appears as one lone surrogate. A token that holds a part of a multi-byte character overlaps
    that character; a special token has an empty range at its place.
    """

    text: str
    spans: tuple[tuple[int, int], ...]

    def pieces(self) -> list[str]:
        """Each token's characters, which join to the text. A character of several tokens belongs to the first of them."""
        out, position = [], 0
        for _, end in self.spans:
            out.append(encodable(self.text[position:end]))
            position = max(position, end)
        return out


class TokenBytes:
    """Maps token ids to bytes for byte-level BPE and SentencePiece-like tokenizers.

    Args:
        tokenizer: of Hugging Face.
        eos_ids: further ids that end a completion, as the model's own settings may name them. Those that were added to the
            vocabulary are no text, whether or not the tokenizer calls them special.

    Raises:
        ValueError: for a tokenizer of neither kind, recognised by the round trip of a sample text.
    """

    def __init__(self, tokenizer: Any, eos_ids: Collection[int] = ()) -> None:
        self.tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        # reserved tokens are special, too: Llama 3 may end with <|end_of_text|> while its EOS is <|eot_id|>
        self._special = {*tokenizer.all_special_ids, *(i for i, t in added.items() if t.special or i in eos_ids)}
        # added tokens are stored as plain text, not in the vocabulary's byte alphabet
        self._added = {i: t.content for i, t in added.items()}
        self._alphabet = _byte_level_alphabet()
        self._byte_level = self._looks_byte_level()
        sample = "So, 12 + 3 = \\boxed{15}. é"
        ids = tokenizer(sample, add_special_tokens=False).input_ids
        text = b"".join(self.of(i) for i in ids).decode("utf-8", "replace")
        if text.strip() != sample:
            raise ValueError(
                f"policy.name: the tokenizer {type(tokenizer).__name__} is neither byte-level nor SentencePiece-like "
                f"({sample!r} comes back as {text!r}); answer spans cannot be located on its tokens"
            )

    def _looks_byte_level(self) -> bool:
        vocabulary = self.tokenizer.get_vocab()
        return "Ġ" in vocabulary and "▁" not in vocabulary

    @functools.lru_cache(maxsize=1 << 18)  # noqa: B019  one instance lives as long as its tokenizer
    def of(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds to the text; none for a special token."""
        if token_id in self._special:
            return b""
        if token_id in self._added:
            text = self._added[token_id]  # Gemma has its runs of spaces here, spelled as in its vocabulary
            return (text if self._byte_level else text.replace("▁", " ")).encode()
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # an id beyond the tokenizer: embeddings are often padded to a round size
            return b""
        if self._byte_level:
            return bytes(self._alphabet[c] for c in token)
        if fallback := _BYTE_FALLBACK.fullmatch(token):
            return bytes([int(fallback[1], 16)])
        return token.replace("▁", " ").encode()

    def encode(self, before: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens of ``before + text``: those before `text`, and those that overlap it."""
        ids: list[int]
        first, ids = (self.tokenizer(part, add_special_tokens=False).input_ids for part in (before, before + text))
        start = len(self.decode(first).text)  # a tokenizer may normalise a text, and put a space before it
        count = sum(end <= start for _, end in self.decode(ids).spans)
        return ids[:count], ids[count:]

    def decode(self, token_ids: list[int]) -> TokenizedText:
        """The text of `token_ids` with each token's character range, in linear time."""
        pieces = [self.of(i) for i in token_ids]
        text = b"".join(pieces).decode("utf-8", "surrogateescape")
        if text.isascii():  # a byte is a character
            ends = itertools.accumulate(map(len, pieces), initial=0)
            return TokenizedText(text, tuple(itertools.pairwise(ends)))
        starts: list[int] = []  # starts[byte] = index of the character that holds the byte
        for index, character in enumerate(text):
            starts.extend([index] * (1 if 0xDC80 <= ord(character) <= 0xDCFF else len(character.encode())))
        starts.append(len(text))
        spans, position = [], 0
        for piece in pieces:
            begin = starts[position]
            position += len(piece)
            spans.append((begin, starts[position - 1] + 1) if piece else (begin, begin))
        return TokenizedText(text, tuple(spans))


@functools.cache
def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, inverted: printable bytes are themselves, the rest follow 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    alphabet.update({chr(256 + i): b for i, b in enumerate(others)})
    return alphabet
