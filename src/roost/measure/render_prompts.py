"""Runs inside the engine's container: prompts become text with the chat template applied.

Read from here and handed to the container's own ``python3``, so it imports nothing of roost. The
job comes as JSON on standard input. The prompts stay in the container, since long ones are
megabytes; what is to be known of them goes out as JSON on standard output: what one of them ends
in, which are too long, and how many characters of filler are in those that are made to length.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

#: Repeated and cut to make a prompt of a given length; warm-ups are made of it, too.
FILLER = (
    "The harbour master wrote down every ship that came in, her cargo, and the hour of the tide. "
    "On quiet days he counted gulls instead. "
)
QUESTION = "\n\nContinue this record in the same manner."


def main() -> None:
    job = json.load(sys.stdin)
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        job["tokenizer"], trust_remote_code=job["trust_remote_code"]
    )
    directory = Path(job["directory"])
    directory.mkdir(mode=0o700)
    tail = ""
    too_long: list[list[Any]] = []
    filler: dict[str, int] = {}
    for name, rows in job["files"].items():
        # One prompt at a time: all of them together may be more than a host has left.
        with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for at, row in enumerate(rows):
                asked = job["texts"][row["text"]]
                if row["tokens"] is not None:
                    asked = _filler(tokenizer, job["chat_template_kwargs"], row)
                    filler[name] = len(asked)
                    asked += QUESTION
                text = _templated(tokenizer, job["chat_template_kwargs"], row["nonce"] + asked)
                tail = tail or text[-80:]
                if tokens := _too_many(tokenizer, text, job["limit"]):
                    too_long.append([name, at, tokens])
                file.write(json.dumps(_line(job["format"], text)) + "\n")
    json.dump({"tail": tail, "too_long": too_long, "filler": filler}, sys.stdout)


def _templated(tokenizer: Any, kwargs: dict[str, Any], text: str) -> str:
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, **kwargs
    )
    return rendered


def _filler(tokenizer: Any, kwargs: dict[str, Any], row: dict[str, Any]) -> str:
    """What makes a prompt as long as it is to be, template, digits and question included."""
    rest = _templated(tokenizer, kwargs, row["nonce"] + QUESTION)
    around = len(tokenizer.encode(rest, add_special_tokens=False))
    unit = tokenizer.encode(FILLER, add_special_tokens=False)
    wanted = max(0, row["tokens"] - around)
    text: str = tokenizer.decode((unit * (wanted // len(unit) + 1))[:wanted])
    return text


def _too_many(tokenizer: Any, text: str, limit: int | None) -> int | None:
    """How many tokens a text has, if more than a prompt may have."""
    # A token is a byte at least, but for the one that some tokenizers put before every text.
    if limit is None or len(text.encode(errors="surrogatepass")) < limit:
        return None
    tokens = len(tokenizer.encode(text, add_special_tokens=True))
    return tokens if tokens > limit else None


def _line(style: str, text: str) -> dict[str, Any]:
    if style == "sglang":
        # Its custom data set wants a conversation, and asks the first turn.
        return {"conversations": [{"content": text}, {"content": "…"}]}
    return {"prompt": text}


if __name__ == "__main__":
    main()
