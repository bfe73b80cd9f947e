"""The commands, run as a user runs them, on small models made on the spot."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from oracles import published
from oracles.commands import olivine
from oracles.waiting import eventually

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 folder with a byte-level tokenizer of 97 tokens: 95 printable characters and two specials."""
    folder = tmp_path_factory.mktemp("gemma")
    published.save(published.case("gemma3-mqa-small-window").make(), folder)
    alphabet = {"Ġ" if code == 32 else chr(code): code - 30 for code in range(32, 127)}
    tokenizer = Tokenizer(models.BPE(vocab={"<end>": 0, "<bos>": 1, **alphabet}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<bos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<end>"}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def test_help_lists_every_command() -> None:
    run = olivine("--help")
    assert run.returncode == 0
    for command in ("chat", "run", "inspect", "tokenize", "perplexity", "transcribe", "bench"):
        assert f"\n  {command} " in run.stdout
        assert "Usage:" in olivine(command, "--help").stdout


def test_inspect_shows_what_matters(model: Path) -> None:
    run = olivine("inspect", model)
    assert run.returncode == 0, run.stderr
    lines = {line[:14].strip(): line[14:] for line in run.stdout.splitlines()}
    assert lines["architecture"] == "gemma3_text (Gemma 3)"
    assert lines["layers"] == "7 of width 36, MLP 50, 4 heads (1 KV) of 12"
    assert lines["context"] == "512 tokens"
    assert lines["vocabulary"] == "97"
    assert lines["tokenizer"] == "byte-level BPE, 97 tokens (2 special)"
    assert "6 layers keep the last 5 tokens" in run.stdout and "1 layer keeps all tokens" in run.stdout


def test_inspect_shows_what_layers_differ_in(tmp_path: Path) -> None:
    run = olivine("inspect", published.save(published.case("gemma4-e2b").make(), tmp_path))
    assert "10 of width 36, MLP 50 or 100, 4 heads (1 KV) of 12 or 24" in run.stdout
    assert "5 layers keep the last 5 tokens" in run.stdout and "1 layer keeps all tokens" in run.stdout


def test_inspect_tells_the_size_of_the_cache(model: Path) -> None:
    cache = json.loads(olivine("inspect", model, "--json").stdout)["kv_cache"]
    each = 2 * 2 * 12  # keys and values of one KV head of 12, in two bytes
    assert cache["bytes_per_token"] == 7 * each
    # The model's context is shorter than the default one, and a window with its chunk is longer still.
    assert (cache["context"], cache["bytes"]) == (512, 512 * 7 * each)
    assert "together 336 B a token; 172.0 kB for 512 tokens (bf16)" in olivine("inspect", model).stdout


def test_run_tells_the_size_of_the_cache_if_asked(model: Path) -> None:
    how = ("run", model, "-p", "Once", "-n", "4", "--context", "2048")
    told = olivine(*how, "-v", "--device", "cpu")
    # 2,048 tokens of one layer; of six, 17 pages of 32 that hold the window and a chunk, and one more.
    assert (
        told.stderr.splitlines()[-1]
        == f"KV cache: up to {(2048 + 6 * 18 * 32) * 48 / 1e3:.1f} kB (bf16, 2048 tokens)"
    )
    assert told.stdout == olivine(*how, "--device", "cpu").stdout
    assert "KV cache" not in olivine(*how).stderr
    assert "(f32, 2048 tokens)" in olivine(*how, "-v", "--device", "reference").stderr


def test_inspect_tensors_plan_and_metadata(model: Path) -> None:
    run = olivine("inspect", model, "--tensors", "--plan", "--metadata")
    assert "model.layers.6.mlp.down_proj.weight" in run.stdout
    assert "attention(" in run.stdout and "group 0:" in run.stdout
    assert "num_hidden_layers = 7" in run.stdout


def test_inspect_json_is_json_and_complete(model: Path) -> None:
    facts = json.loads(olivine("inspect", model, "--json", "--tensors", "--plan", "--metadata").stdout)
    assert facts["runs"] is True and facts["layers"] == 7
    assert facts["parameters"] == sum(_product(tensor["shape"]) for tensor in facts["tensors"])
    assert facts["cache_groups"][0]["window"] == 5
    assert facts["plan"][0].startswith("%0 = embed(")
    assert facts["metadata"]["model_type"] == "gemma3_text"


def _product(shape: list[int]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n


def test_inspect_of_an_architecture_we_cannot_run_still_shows_the_file(model: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    run = olivine("inspect", tmp_path)
    assert run.returncode == 0
    assert "no: the architecture 'mamba' is not supported; known: " in run.stdout
    assert olivine("inspect", tmp_path, "--plan").returncode == 1


def test_tokenize(model: Path) -> None:
    assert olivine("tokenize", model, "Hi!").stdout.splitlines() == [
        '      42  "H"',
        '      75  "i"',
        '       3  "!"',
    ]
    assert olivine("tokenize", model, "Hi!", "--ids").stdout == "42 75 3\n"
    assert olivine("tokenize", model, "--count", text="twelve chars").stdout == "12\n"
    assert json.loads(olivine("tokenize", model, "a b", "--json").stdout) == {
        "tokens": [67, 2, 68],
        "pieces": ["a", " ", "b"],
    }


def test_tokenize_keeps_special_tokens_text_unless_told_otherwise(model: Path) -> None:
    plain = olivine("tokenize", model, "<end>", "--ids").stdout.split()
    assert len(plain) == 5 and "0" not in plain
    assert olivine("tokenize", model, "<end>", "--ids", "--special").stdout == "0\n"


def test_run_continues_a_text_from_an_option_or_standard_input(model: Path) -> None:
    first = olivine("run", model, "-p", "Once upon", "-n", "12", "--temp", "0")
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.rstrip("\n")) == 12
    assert olivine("run", "-m", model, "-n", "12", "--temp", "0", text="Once upon").stdout == first.stdout
    assert first.stderr == "", "nothing but the text when nobody looks"


def test_run_with_a_seed_can_be_had_again(model: Path) -> None:
    def text(seed: str) -> str:
        return olivine(
            "run", model, "-p", "x", "--temp", "1.5", "--top-k", "50", "--seed", seed, "-n", "30"
        ).stdout

    assert text("7") == text("7") != text("8")


def test_run_samples_where_the_publisher_says_nothing(model: Path) -> None:
    def text(*options: str) -> str:
        return olivine("run", model, "-p", "Once", "-n", "30", "--seed", "3", *options).stdout

    hot = ["--temp", "100"]  # where filters make a difference
    told, off = ["--top-k", "40", "--top-p", "0.95"], ["--top-k", "0", "--top-p", "1"]
    assert text(*hot) == text(*hot, *told) != text(*hot, *off)


def test_a_text_that_only_repeats_itself_is_ended_with_a_word(model: Path) -> None:
    """With tied random weights, a letter is the likeliest one after itself."""
    arguments = ["run", model, "-p", "Once", "-n", "450", "--temp", "0", "--regex", "[ab]{400}"]
    ended = olivine(*arguments)
    assert 256 <= len(ended.stdout.strip()) < 400
    assert "stopped: the text only repeated itself" in ended.stderr
    quiet = olivine(*arguments, "-q")
    assert quiet.stdout == ended.stdout and quiet.stderr == ""
    whole = olivine(*arguments, "--allow-repetition")
    assert len(whole.stdout.strip()) == 400 and whole.stderr == ""


def test_run_takes_the_publishers_sampling(model: Path) -> None:
    greedy = olivine("run", model, "-p", "Once", "-n", "30", "--seed", "3", "--temp", "0").stdout
    settings = model / "generation_config.json"
    settings.write_text(json.dumps({"do_sample": True, "temperature": 1.5, "top_k": 64, "top_p": 0.95}))
    try:
        warm = olivine("run", model, "-p", "Once", "-n", "30", "--seed", "3").stdout
        said = ["--temp", "1.5", "--top-k", "64", "--top-p", "0.95", "--min-p", "0"]
        cold = olivine("run", model, "-p", "Once", "-n", "30", "--seed", "3", "--temp", "0").stdout
    finally:
        settings.unlink()
    assert warm != greedy == cold
    assert olivine("run", model, "-p", "Once", "-n", "30", "--seed", "3", *said).stdout == warm


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "/no/such/model", "-p", "x"], 1, "Error: /no/such/model: there is no such file or folder"),
        (["run", "{model}", "-p", ""], 1, "the prompt is empty"),
        (["run", "{model}", "-p", "x", "--temp", "-1"], 2, "temperature must be between 0 and 100"),
        (["run", "{model}", "-p", "x", "--seed", "-2"], 2, "Invalid value for '--seed'"),
        (
            ["run", "{model}", "-p", "x" * 40, "--context", "16"],
            1,
            "the context holds 16: shorten the prompt or raise the context with --context",
        ),
        (["inspect", "{model}/config.json"], 1, "config.json"),
        (["frobnicate"], 2, "There is no command 'frobnicate'."),
        (["chatt"], 2, "There is no command 'chatt'. Did you mean chat?"),
        (
            ["download", "gemma3"],
            2,
            "There is no command 'download'. To download a model: olivine pull MODEL",
        ),
        (["server"], 2, "There is no command 'server'. To serve models over HTTP: olivine serve MODEL"),
        (
            ["info", "{model}"],
            2,
            "There is no command 'info'. To see what is known of a model: olivine show MODEL",
        ),
        (["{model}"], 2, "To chat with that model: "),
        (["inspect", ""], 2, "the name of the model is empty"),
        (["convert", "", "x.gguf", "--type", "F16"], 2, "the name of the model is empty"),
        (
            ["convert", "{model}", "x.gguf", "--type", "F16", "--no-mmproj", "--mmproj-only"],
            2,
            "exclude each other",
        ),
    ],
)
def test_errors_are_one_clear_line_and_no_traceback(
    model: Path, arguments: list[str], status: int, message: str
) -> None:
    run = olivine(*[argument.replace("{model}", str(model)) for argument in arguments])
    assert run.returncode == status
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_a_context_that_does_not_fit_is_reduced_aloud(model: Path) -> None:
    run = olivine("run", model, "-p", "x", "-n", "2", "--context", "9223372036854775807")
    assert run.returncode == 0
    assert run.stderr.startswith("warning: a context of 9223372036854775807 tokens takes ")
    assert "is free for it: the context is 512 tokens" in run.stderr


def test_ctrl_c_keeps_the_text_and_leaves_quietly(model: Path) -> None:
    process = start(
        "run", model, "-p", "Once upon", "-n", "100000", "--context", "100000", "--temp", "1", "-q"
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT  # 130 in a shell
    assert stderr == b""


# Presses Ctrl-C at the import of a given number, counted from the first that Olivine's entry asks for.
EARLY = """
import os, runpy, signal, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event == "import" and (arguments[0] == "olivine.cli" or begun):
        begun.append(True)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
begun = []
sys.addaudithook(hook)
runpy.run_module("olivine", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("moment", [1, 2, 8, 20, 50, 90, 140, 200, 280])
def test_ctrl_c_while_it_starts_leaves_quietly(model: Path, moment: int) -> None:
    arguments = ["run", str(model), "--system", "x", "Once", "-n", "100000", "--context", "100000", "-q"]
    run = subprocess.run(
        [sys.executable, "-c", EARLY, str(moment), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    ("streams", "status", "stderr"),
    [
        ("> /dev/full", 1, "Error: No space left on device\n"),
        ("<&-", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_streams_that_are_full_or_closed(model: Path, streams: str, status: int, stderr: str) -> None:
    command = f'exec "$0" -m olivine run "$1" -p Once -n 5 -q {streams}'
    run = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(model)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (status, stderr)


@pytest.mark.parametrize("stdout", ["full", "closed"])
def test_a_server_that_cannot_introduce_itself_ends(stdout: str) -> None:
    if stdout == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    how = ("--port", "0", "-t", "1", "--device", "cpu")
    run = subprocess.run(
        [sys.executable, "-m", "olivine", "serve", "olivine-mini", *how],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        timeout=240,
    )
    os.close(out)
    assert run.returncode == 1
    assert run.stderr == ("Error: No space left on device\n" if stdout == "full" else "")


def test_standard_input_that_does_not_block_is_read_to_its_end() -> None:
    """As a program in the terminal before this one, or the one at the pipe's other end, may have left it."""
    stdin, ours = os.pipe()
    os.set_blocking(stdin, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "olivine", "tokenize", "olivine-mini"],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    with open(ours, "wb", buffering=0) as pipe:
        pipe.write(b"Once")
        eventually(lambda: process.poll() is not None or not select.select([stdin], [], [], 0)[0])
        time.sleep(0.1)
        pipe.write(b" upon")
    os.close(stdin)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0 and "upon" in stdout, stderr


def test_a_reader_that_leaves_is_no_error_message(model: Path) -> None:
    process = start(
        "run", model, "-p", "Once upon", "-n", "100000", "--context", "100000", "--temp", "1", "-q"
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5)
    process.stdout.close()
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def start(*arguments: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "olivine", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
