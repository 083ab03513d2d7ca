"""Loading: special ids are resolved, or the error says what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from dataprep import UserError
from dataprep.tokens import Tokenize, load
from dataprep.tokens.tokenizer import EOS_CANDIDATES

CharLevel = Callable[[dict[str, int]], Path]


def test_special_ids_of_tiny_tokenizers(tiny: dict[str, Path]) -> None:
    sp, bpe = load(str(tiny["sentencepiece"])), load(str(tiny["tokenizers"]))
    assert (sp.info.kind, bpe.info.kind) == ("sentencepiece", "tokenizers")
    assert (sp.info.vocab_size, bpe.info.vocab_size) == (600, 600)
    # Without a padding token, the end-of-document id fills: masks never come from ids.
    assert (sp.info.bos_id, sp.info.eos_id, sp.info.pad_id) == (1, 2, 2)
    assert (bpe.info.bos_id, bpe.info.eos_id, bpe.info.pad_id) == (None, 0, 1)
    assert sp.encoder.piece(2) == "</s>" and bpe.encoder.piece(0) == "<|endoftext|>"
    assert len(sp.info.sha256) == 64 and sp.info.sha256 != bpe.info.sha256


@pytest.mark.parametrize("eos", EOS_CANDIDATES)
def test_usual_names_of_the_end_of_document(eos: str, char_level: CharLevel) -> None:
    assert load(str(char_level({"a": 0, eos: 7}))).info.eos_id == 7


def test_the_first_usual_name_wins(char_level: CharLevel) -> None:
    vocab = {name: i for i, name in enumerate(reversed(EOS_CANDIDATES))}
    assert load(str(char_level(vocab))).info.eos_id == vocab["<|endoftext|>"]


def test_names_asked_for(char_level: CharLevel) -> None:
    path = char_level({"a": 0, "</s>": 1, "<end>": 2, "<fill>": 3, "<begin>": 4})
    info = load(str(path), eos_token="<end>", pad_token="<fill>", bos_token="<begin>").info
    assert (info.eos_id, info.pad_id, info.bos_id) == (2, 3, 4)


def test_no_end_of_document_token_names_the_candidates(char_level: CharLevel) -> None:
    with pytest.raises(UserError, match=r"no end-of-document token.*<\|endoftext\|>, </s>,.*eos_t"):
        load(str(char_level({"a": 0})))


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
@pytest.mark.parametrize("key", ["eos_token", "pad_token", "bos_token"])
@pytest.mark.parametrize("name", ["<nope>", "", "nope nope"])
def test_an_unknown_name_is_refused(kind: str, key: str, name: str, tiny: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=f"tokenizer.{key}: '{name}' is not in the vocabulary"):
        load(str(tiny[kind]), **{key: name})


def test_an_unknown_name_tells_those_it_has(tiny: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="it has: </s>"):
        load(str(tiny["sentencepiece"]), eos_token="<eos>")


def test_add_bos_needs_one(tiny: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"add_bos: .*bpe.json has no beginning.*bos_token"):
        Tokenize(str(tiny["tokenizers"]), add_bos=True).load()
    assert Tokenize(str(tiny["sentencepiece"]), add_bos=True).load().info.bos_id == 1


def test_a_model_that_loses_text_is_announced(tiny: dict[str, Path]) -> None:
    """Newlines and runs of spaces: without them, code cannot be learned."""
    lossy = load(str(tiny["lossy"])).lossy
    assert lossy == r"'if x:\n    y  z\t1\n' comes back as 'if x: y z 1'"


def test_ids_with_gaps_count_to_the_last(char_level: CharLevel) -> None:
    assert load(str(char_level({"a": 3, "</s>": 70_000}))).info.vocab_size == 70_001


def test_settings_stored_in_the_file_do_not_cut_or_fill(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    tok = Tokenizer.from_file(str(tiny["tokenizers"]))
    tok.enable_truncation(2)
    tok.enable_padding(length=50)
    tok.save(str(tmp_path / "t.json"))
    assert load(str(tmp_path / "t.json")).encoder.encode(["the house"]) == load(
        str(tiny["tokenizers"])
    ).encoder.encode(["the house"])


def test_added_tokens_count(tiny: dict[str, Path], tmp_path: Path) -> None:
    tok = Tokenizer.from_file(str(tiny["tokenizers"]))
    tok.add_special_tokens([AddedToken("<|im_end|>")])
    tok.save(str(tmp_path / "t.json"))
    loaded = load(str(tmp_path / "t.json"), eos_token="<|im_end|>")
    assert (loaded.info.eos_id, loaded.info.vocab_size) == (600, 601)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"no tokenizer", "is neither a SentencePiece .model nor a tokenizer.json"),
        (bytes(100), "is neither a SentencePiece .model nor a tokenizer.json"),
        (b"{}", "is not a tokenizer.json file"),
        (b' \n{"version": "1.0", "model": {}', "is not a tokenizer.json file"),
        (b'{"a": 0, "</s>": 1}', "is not a tokenizer.json file"),
    ],
)
def test_a_file_that_is_no_tokenizer(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.model"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"tokenizer.path: .*x\.model {message}"):
        load(str(path))


def test_a_tokenizer_that_cannot_encode_any_text(tmp_path: Path) -> None:
    tok = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}))  # no id for unknown words
    tok.save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=r"t\.json cannot encode .*Missing \[UNK\]"):
        load(str(tmp_path / "t.json"))


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer.path: cannot read .*none: No such file"):
        load(str(tmp_path / "none"))
    with pytest.raises(UserError, match="Is a directory; give a SentencePiece .model or"):
        load(str(tmp_path))
