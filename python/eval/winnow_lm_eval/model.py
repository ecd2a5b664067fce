"""The model "winnow" of lm-evaluation-harness: its requests answered by winnow's library, under budgets where asked for.

Requests are tokenized as the harness does it (TemplateLM), and scored as `winnow eval --task` scores questions: those of one
task together, what the requests of one question begin with once. So sums are the command's to the bit."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Optional, Union

import numpy as np
import winnow_lm
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tqdm import tqdm

Number = Union[None, int, float, str]


def _budgets(value: Number) -> Optional[Union[int, float, str]]:
    """64, 0.25, "2MiB", a path; and "64+32+32" for layers, as a comma ends an argument of lm_eval's."""
    if isinstance(value, str):
        return value.replace("+", ",") if value.replace("+", "").replace(":", "").isdigit() else value
    return value


class WinnowLM(TemplateLM):
    """--model_args path=MODEL and what Model.load and Model.score_requests take.

    path (or pretrained): a checkpoint, a Hugging Face folder or a GGUF file. budgets: tokens that a layer holds: 64, 64+32+..
    for each layer, 0.25, 2MiB, a budgets.json. policy, policy_options ("recent=0.25"). cache: float, half, auto. attention:
    "threshold.tau=0.9". threads, backend, weights (auto, file, bfloat16), tokenizer: as in Model.load. max_length: tokens of the longest text; the
    model's. max_gen_toks: tokens of an answer where the task does not say (256). batch_size and device are accepted and not
    used: texts are put together by their lengths."""

    def __init__(
        self,
        path: Optional[str] = None,
        pretrained: Optional[str] = None,
        budgets: Number = None,
        policy: Optional[str] = None,
        policy_options: Optional[str] = None,
        cache: str = "auto",
        attention: Optional[str] = None,
        tokenizer: Optional[str] = None,
        template: Optional[str] = None,
        threads: int = 0,
        backend: Optional[str] = None,
        weights: str = "auto",
        max_length: int = 0,
        max_gen_toks: int = 256,
        batch_size: Union[int, str, None] = None,
        max_batch_size: Optional[int] = None,
        device: Optional[str] = None,
    ) -> None:
        super().__init__()
        found = path or pretrained
        if not found:
            raise ValueError("winnow: --model_args needs path=MODEL")
        self.winnow = winnow_lm.Model.load(
            found, tokenizer=tokenizer, threads=int(threads), backend=backend, weights=weights
        )
        if attention:
            self.winnow.set_attention(attention)
        self._room: dict[str, Any] = {}
        given = _budgets(budgets)
        if given is not None:
            self._room = {"budgets": given, "policy": policy, "policy_options": policy_options}
        elif policy or policy_options:
            raise ValueError("winnow: policy and policy_options need budgets")
        self._cache, self._template = cache, template
        self._special = False  # a chat template was applied: names of special tokens are special
        self._max_gen_toks, self._context = int(max_gen_toks), int(max_length) or self.winnow.context
        if given is not None:
            self.winnow.budgets(given, policy, policy_options)  # report mistakes before the first question

    # --- what the harness asks for ---

    @property
    def eot_token_id(self) -> int:
        eos = self.winnow.tokenizer.eos
        if eos is None:
            raise ValueError(f"{self.winnow.path}: the tokenizer has no token that ends a text")
        return eos

    @property
    def prefix_token_id(self) -> int:
        bos = self.winnow.tokenizer.bos
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self._context

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return str(self.winnow.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> list[int]:
        first = self.winnow.tokenizer.bos
        bos = add_special_tokens
        if self._special and bos is None and first is not None and string.startswith(self.winnow.tokenizer.name(first)):
            bos = False  # a chat's text has its own first token
        ids: list[int] = self.winnow.tokenize(string, bos=bos, special=self._special).tolist()
        return ids

    def tok_decode(self, tokens: list[int], **_: Any) -> str:
        return self.winnow.detokenize(tokens)

    # --- scores ---

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = []
        for _, asked in groupby(requests, key=lambda r: r.task_name):  # a task at a time, as `winnow eval` reads them
            found += self._score_task(list(asked), disable_tqdm)
        return found

    def _score_task(self, requests: list[Instance], quiet: bool) -> list[tuple[float, bool]]:
        questions: list[list[tuple[Any, int]]] = []
        for _, of_one in groupby(requests, key=lambda r: r.doc_id):
            questions.append([self._pair(*r.args) for r in of_one])
        scored = self._score(questions, quiet)
        flat = [(s.log_probability, s.greedy) for question in scored for s in question]
        for request, answer in zip(requests, flat):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return flat

    def _pair(self, context: str, continuation: str) -> tuple[Any, int]:
        if context == "":
            after = self.tok_encode(continuation, add_special_tokens=False)
            before = [self.prefix_token_id] if not after or self.prefix_token_id != after[0] else after[:1]
            after = after[1:] if before == after[:1] else after
        else:
            before, after = self._encode_pair(context, continuation)
        return self._cut(list(before) + list(after), len(before))

    def _cut(self, tokens: list[int], context: int) -> tuple[Any, int]:
        """Cuts the beginning of a text that is too long, and of a continuation that is too long, as the harness does."""
        drop = max(0, len(tokens) - self._context - 1)
        return np.array(tokens[drop:], np.int32), max(1, context - drop)

    def _score(self, questions: list[list[tuple[Any, int]]], quiet: bool) -> list[list[winnow_lm.ScoredChoice]]:
        with tqdm(total=len(questions), desc="Scoring questions", disable=quiet) as bar:

            def told(done: int, total: int) -> None:
                bar.update(done - bar.n)

            return self.winnow.score_requests(
                questions, cache=self._cache, context=self._context, progress=told, **self._room
            )

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        questions = [[self._cut(list(before) + list(after), len(before))] for _, before, after in requests]
        return [(s.log_probability, s.greedy) for (s,) in self._score(questions, disable_tqdm)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        questions = []
        for request in requests:
            (text,) = request.args
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._context,
                context_len=1,
            )
            pairs = map(utils.make_disjoint_window, windows)
            questions.append([self._cut(list(before) + list(after), len(before)) for before, after in pairs])
        # Windows of a text have nothing in common: each is a question of its own.
        flat = self._score([[window] for question in questions for window in question], disable_tqdm)
        sums, at = [], 0
        for request, question in zip(requests, questions):
            total = sum(s.log_probability for (s,) in flat[at : at + len(question)])
            at += len(question)
            sums.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    # --- texts ---

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        texts = []
        for request in tqdm(requests, desc="Generating", disable=disable_tqdm):
            context, given = request.args
            text = self._generate(context, dict(given))
            texts.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _generate(self, context: str, given: dict[str, Any]) -> str:
        until = given.pop("until", None) or []
        stop = [s for s in ([until] if isinstance(until, str) else until) if s]
        tokens = int(given.pop("max_gen_toks", given.pop("max_new_tokens", self._max_gen_toks)))
        temperature = float(given.pop("temperature", 0.0))
        temperature *= bool(given.pop("do_sample", True))
        options = {"top_p": float(given.pop("top_p", 1.0)), "top_k": int(given.pop("top_k", 0))}
        options["seed"] = int(given.pop("seed", 0))
        if given:
            raise ValueError(f"winnow: generation arguments that are not served: {', '.join(sorted(given))}")
        prompt = np.array(self.tok_encode(context) or [self.prefix_token_id], np.int32)
        prompt = prompt[-max(1, self._context - tokens) :]
        generation = self.winnow.generate(
            prompt, max_tokens=tokens, temperature=temperature, stop=stop, cache=self._cache, **options, **self._room
        )
        return generation.read()

    # --- chats ---

    def chat_template(self, chat_template: Union[bool, str] = False) -> Optional[str]:
        return self.winnow.tokenizer.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text, with the names of its special tokens, which are those tokens from here on. Without
        add_generation_prompt the last message is the answer's beginning (a task's gen_prefix), which the model goes on with."""
        if add_generation_prompt == (chat_history[-1]["role"] == "assistant"):
            raise ValueError("winnow: a conversation ends with the user's message, or with the beginning of an answer")
        messages = [(m["role"], m["content"]) for m in chat_history]
        self._special = True
        tok = self.winnow.tokenizer
        text = ""
        for control, run in groupby(self.winnow.encode_chat(messages, template=self._template).tolist(), tok.is_control):
            text += "".join(map(tok.name, run)) if control else tok.decode(list(run))
        return text
