"""Conversations, in a model's own chat template, over one cache."""

from __future__ import annotations

import weakref
from operator import index
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from ._library import copied, decoded, encoded, ffi, lib, named, taken_text
from .budgets import BudgetSpec, Options, PolicyLike
from .errors import ArgumentError
from .generation import Generation
from .session import Session

if TYPE_CHECKING:
    from .model import Model

ROLES = ("system", "user", "assistant")


def templates() -> list[str]:
    """Names of the chat templates that winnow writes."""
    return [decoded(lib.wn_chat_template_name(lib.wn_chat_template_at(i))) for i in range(lib.wn_chat_template_count())]


def find_template(model: "Model", name: Optional[str]) -> Any:
    """A template by its name, or the model's own."""
    if name is not None:
        found = lib.wn_chat_template_find(named(name, "template"))
        if not found:
            raise ArgumentError(f"template {name!r} is not one of {', '.join(templates())}")
        return found
    jinja = model.tokenizer.chat_template
    found = lib.wn_chat_template_recognise(encoded(jinja)) if jinja is not None else ffi.NULL
    if not found:
        why = "has no chat template" if jinja is None else "has a chat template that cannot be read"
        raise ArgumentError(f"{model.path} {why}: pass template=, one of {', '.join(templates())}")
    return found


def default_system(model: "Model", template: Any) -> Optional[str]:
    """The system message that the model's template writes for a conversation without one."""
    jinja = model.tokenizer.chat_template
    out = ffi.new("char **")
    text = ffi.NULL if jinja is None else ffi.new("char[]", encoded(jinja))
    model._context.call(lib.wn_chat_default_system, template, text, out)
    return taken_text(out[0]) if out[0] else None


def encode_messages(
    model: "Model", template: Any, messages: Sequence[tuple[str, str]], opening: bool = True
) -> NDArray[np.int32]:
    """The tokens of messages (role, text) up to where the model answers, or goes on with the last message if that is the
    assistant's. opening: a conversation begins with them."""
    kept = []
    for role, text in messages:
        if role not in ROLES:
            raise ArgumentError(f"role {role!r} is not one of {', '.join(ROLES)}")
        raw = encoded(text)
        if b"\0" in raw:
            raise ArgumentError("a message has a NUL byte in it")
        kept.append((ROLES.index(role), ffi.new("char[]", raw)))
    ids, count = ffi.new("int32_t **"), ffi.new("size_t *")
    array = ffi.new("wn_chat_message[]", kept)
    model._context.call(
        lib.wn_chat_encode, model.tokenizer._handle, template, array, len(kept), opening, ids, count
    )
    try:
        return copied(ids[0], count[0], np.int32)
    finally:
        lib.wn_tokens_free(ids[0])


class Chat:
    """A conversation. `for piece in chat.say("Hello"): print(piece, end="")`.

    system: the system message; None: the template's default, if it has one; "": none. template: the name of another than the
    model's own (templates() lists them). context: tokens of the whole conversation; 0: the model's context. budgets,
    policy, policy_options, cache: which tokens the cache keeps. pin_system: the system message stays whole. Further options
    are those of Generation, for every answer."""

    def __init__(
        self,
        model: "Model",
        system: Optional[str] = None,
        *,
        template: Optional[str] = None,
        context: int = 0,
        budgets: Optional[BudgetSpec] = None,
        policy: Optional[PolicyLike] = None,
        policy_options: Optional[Options] = None,
        cache: str = "auto",
        pin_system: bool = False,
        **options: Any,
    ) -> None:
        self.model = model
        self._template = find_template(model, template)
        self.template = decoded(lib.wn_chat_template_name(self._template))  #: its name
        own = default_system(model, self._template) if template is None else None
        found = own if system is None else system
        self.system = found if found or own else None  #: "" stands in place of the one that the template would write
        self.options = options
        self._room = context or model.context
        #: The conversation's cache: Session.kept and cache_bytes say what is held of it.
        self.session: Session = model.session(
            capacity=self._room, budgets=budgets, policy=policy, policy_options=policy_options, cache=cache
        )
        self._said = np.zeros(0, np.int32)  # tokens of the conversation; what the session has not read begins the next prompt
        self._steps = 0
        self._opened = False
        self._last: Optional[Generation] = None
        self._messages: list[tuple[str, str]] = []
        self._begins: list[int] = []  # where the tokens of each message begin
        self._pinned: set[int] = set()
        self._pin_system = pin_system

    @property
    def messages(self) -> list[tuple[str, str]]:
        """(role, text) of what has been said, with the answer as far as it was read."""
        return [*self._messages, *([("assistant", self._last.text)] if self._last is not None else [])]

    def say(self, message: str, **options: Any) -> Generation:
        """Says something; the answer is an iterator of pieces of text. What was not read of the last answer is not drawn any
        more. Options are those of Generation, for this answer alone."""
        self._settle()
        messages = [("user", message)]
        if not self._opened and self.system is not None:
            messages.insert(0, ("system", self.system))
        ids = encode_messages(self.model, self._template, messages, not self._opened)
        room = self._room - int(self._said.size)
        if room < ids.size + 1:
            raise ArgumentError(
                f"the conversation has {self._room - room} tokens and the message {ids.size}: more than the context of "
                f"{self._room}; reset() begins a new one"
            )
        room -= int(ids.size)
        wanted = {**self.options, **options}
        wanted["max_tokens"] = min(index(wanted.get("max_tokens", 256)), room)
        # The template's own turns end an answer: the token that begins a text is not looked for.
        said = np.concatenate([self._said, ids])
        begins = [*self._begins, int(self._said.size)]
        if len(messages) > 1:  # the system message's tokens are there whatever is said
            other = encode_messages(self.model, self._template, [messages[0], ("user", "b" if message[:1] == "a" else "a")])
            n = min(other.size, ids.size)
            begins.append(int(np.argmin(np.append(other[:n] == ids[:n], False))))
            if self._pin_system:
                self._pinned.add(0)
        begins.append(int(said.size))  # of the answer
        self._apply_pins(begins)
        answer = Generation(self.session, said[self.session.position :], first_step=self._steps, turn=True, **wanted)
        self._opened = True
        self._messages += messages
        self._begins = begins
        self._said = said
        self.session._generation = weakref.ref(answer)
        self._last = answer
        return answer

    def _apply_pins(self, begins: list[int]) -> None:
        for i in sorted(self._pinned):
            if i + 1 < len(begins) and begins[i + 1] > begins[i]:
                self.session.pin(begins[i], begins[i + 1] - begins[i])

    def pin(self, message: int) -> None:
        """Nothing more is dropped of messages[message], whatever the policy: its tokens count against the budgets."""
        self._settle()
        count = len(self._messages)
        if not -count <= index(message) < count:
            raise ArgumentError(f"chat: there is no message {message}: it has {count}")
        message %= count
        ends = [*self._begins, int(self._said.size)]
        if ends[message + 1] > ends[message]:
            self.session.pin(ends[message], ends[message + 1] - ends[message])
        self._pinned.add(message)

    def held(self) -> list[tuple[str, int, float]]:
        """(role, tokens, how many of them a layer holds on average) of each message. What a template writes before a message
        belongs to it."""
        self._settle()
        heads = self.session.kept().sum(axis=0) / (self.model.layers * self.model.kv_heads)
        ends = [*self._begins, int(self._said.size)]
        return [
            (role, ends[i + 1] - ends[i], float(heads[ends[i] : ends[i + 1]].sum()) + max(0, ends[i + 1] - max(ends[i], heads.size)))
            for i, (role, _) in enumerate(self._messages)
        ]

    def ask(self, message: str, **options: Any) -> str:
        """The whole answer at once."""
        return self.say(message, **options).read()

    def _settle(self) -> None:
        """Adds the last answer, as far as it was read, to the conversation."""
        answer, self._last = self._last, None
        if answer is None:
            return
        answer.close()
        self._steps += answer.steps
        tokens = answer.tokens
        if answer.end == "stop":  # what was cut off is no part of the conversation
            kept = self.model.tokenizer.encode(answer.text, bos=False)
            n = min(kept.size, tokens.size)
            same = int(np.argmin(np.append(kept[:n] == tokens[:n], False)))
            if self.session.position > self._said.size + same:
                self.session.reset()
            tokens = kept
        self._said = np.concatenate([self._said, tokens])
        self._messages.append(("assistant", answer.text))

    def reset(self) -> None:
        """Forgets the conversation."""
        self._settle()
        self.session.reset()
        self._said, self._steps, self._opened = self._said[:0], 0, False
        self._messages = []
        self._begins, self._pinned = [], set()

    def close(self) -> None:
        """Frees its cache."""
        self.session.close()

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
