/* Chat templates as data. Each entry has the text that a model's template writes around messages. The tokens are the
 * same as with Jinja (tests/text/test_chat.c has them side by side; tools/check-chat runs Jinja).
 *
 *   chatml      OpenAI's ChatML: Qwen, SmolLM2, Yi, many fine-tunes
 *   llama3      Meta, Llama 3 model card; llama3.1 (and 3.2, 3.3) has a system message in any case, with two dates, of
 *               which today's is the template's own default here, not the day's
 *   llama2      Meta, "Llama 2", appendix A.3.3 (generation.py of the reference code)
 *   mistral*    Mistral's tokenizers v1/v2 ("[INST] x [/INST]"), v3 ("[INST] x[/INST]") and tekken ("[INST]x[/INST]")
 *   zephyr      Zephyr, TinyLlama, StableLM
 *   tulu        Allen AI: OLMo 2, Tulu 3
 *   phi3        Microsoft
 *   gemma       Google
 *
 * </s> in an entry means the tokenizer's end token, like eos_token in the templates. */
#include "text/chat.h"

#include <string.h>
#include "base/alloc.h"
#include "base/error.h"
#include "base/misuse.h"
#include "text/tokenizer_kinds.h"

enum { TRIM_SYSTEM = 1, TRIM_USER = 2, TRIM_ANSWER = 4, TRIM_ALL = 7 };

struct wn_chat_template {
  const char *name;
  const char *system_begin, *system_end; /* NULL: the system message goes into the first user message, */
  const char *inner_begin, *inner_end;   /* between these two */
  const char *later_begin;               /* of a system message that is not the first; NULL: system_begin */
  const char *user_begin, *user_end;
  const char *answer_mark;               /* before an answer, also the one to be written; NULL: user_end suffices */
  const char *answer_begin, *answer_end; /* around an answer's text that is there */
  bool alternates;                       /* it has only the user and the assistant in turns, after the system message */
  bool bos;                              /* the published template writes bos, */
  bool bos_each;                         /* before every user message */
  int trim;                              /* whose messages are stripped of surrounding white space */
  bool trim_joined;                      /* the first user message is trimmed together with the system message in it */
  bool system_always;                    /* without a system message an empty one is written */
  bool system_last;                      /* with inner_begin: in the last user message, not the first */
  bool spaced;                           /* the space after a marker that is a control token comes from SentencePiece */
};

static const struct wn_chat_template templates[] = {
    {.name = "chatml",
     .system_begin = "<|im_start|>system\n",
     .system_end = "<|im_end|>\n",
     .user_begin = "<|im_start|>user\n",
     .user_end = "<|im_end|>\n",
     .answer_mark = "<|im_start|>assistant\n",
     .answer_end = "<|im_end|>\n"},
    {.name = "llama3",
     .system_begin = "<|start_header_id|>system<|end_header_id|>\n\n",
     .system_end = "<|eot_id|>",
     .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",
     .user_end = "<|eot_id|>",
     .answer_mark = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .answer_end = "<|eot_id|>",
     .bos = true,
     .trim = TRIM_ALL},
    {.name = "llama3.1",
     .system_begin = "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
                     "Today Date: 26 Jul 2024\n\n",
     .system_end = "<|eot_id|>",
     .later_begin = "<|start_header_id|>system<|end_header_id|>\n\n",
     .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",
     .user_end = "<|eot_id|>",
     .answer_mark = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .answer_end = "<|eot_id|>",
     .bos = true,
     .trim = TRIM_ALL,
     .system_always = true},
    {.name = "llama2",
     .inner_begin = "<<SYS>>\n",
     .inner_end = "\n<</SYS>>\n\n",
     .user_begin = "[INST] ",
     .user_end = " [/INST]",
     .answer_begin = " ",
     .answer_end = "</s>",
     .alternates = true,
     .bos = true,
     .bos_each = true,
     .trim = TRIM_USER | TRIM_ANSWER,
     .trim_joined = true},
    {.name = "mistral",
     .inner_begin = "",
     .inner_end = "\n\n",
     .user_begin = "[INST] ",
     .user_end = " [/INST]",
     .answer_begin = " ",
     .answer_end = "</s>",
     .alternates = true,
     .bos = true},
    {.name = "mistral-v3",
     .inner_begin = "",
     .inner_end = "\n\n",
     .user_begin = "[INST] ",
     .user_end = "[/INST]",
     .answer_begin = " ",
     .answer_end = "</s>",
     .alternates = true,
     .bos = true,
     .trim = TRIM_ANSWER,
     .system_last = true,
     .spaced = true},
    {.name = "mistral-tekken",
     .inner_begin = "",
     .inner_end = "\n\n",
     .user_begin = "[INST]",
     .user_end = "[/INST]",
     .answer_end = "</s>",
     .alternates = true,
     .bos = true,
     .system_last = true},
    {.name = "zephyr",
     .system_begin = "<|system|>\n",
     .system_end = "</s>\n",
     .user_begin = "<|user|>\n",
     .user_end = "</s>\n",
     .answer_mark = "<|assistant|>\n",
     .answer_end = "</s>\n"},
    {.name = "tulu",
     .system_begin = "<|system|>\n",
     .system_end = "\n",
     .user_begin = "<|user|>\n",
     .user_end = "\n",
     .answer_mark = "<|assistant|>\n",
     .answer_end = "</s>\n"},
    {.name = "phi3",
     .system_begin = "<|system|>\n",
     .system_end = "<|end|>\n",
     .user_begin = "<|user|>\n",
     .user_end = "<|end|>\n",
     .answer_mark = "<|assistant|>\n",
     .answer_end = "<|end|>\n"},
    {.name = "gemma",
     .inner_begin = "",
     .inner_end = "\n\n",
     .user_begin = "<start_of_turn>user\n",
     .user_end = "<end_of_turn>\n",
     .answer_mark = "<start_of_turn>model\n",
     .answer_end = "<end_of_turn>\n",
     .alternates = true,
     .bos = true,
     .trim = TRIM_USER | TRIM_ANSWER},
};
#define TEMPLATE_COUNT ((int)(sizeof templates / sizeof *templates))

int wn_chat_template_count(void) {
  return TEMPLATE_COUNT;
}
const wn_chat_template *wn_chat_template_at(int i) {
  return i >= 0 && i < TEMPLATE_COUNT ? &templates[i] : NULL;
}
const char *wn_chat_template_name(const wn_chat_template *t) {
  WN_CHECK_OR(NULL, WN_POINTER(t));
  return t->name;
}
const wn_chat_template *wn_chat_template_find(const char *name) {
  WN_CHECK_OR(NULL, WN_POINTER(name));
  for (int i = 0; i < TEMPLATE_COUNT; i++)
    if (!strcmp(templates[i].name, name)) return &templates[i];
  return NULL;
}

/* Does a ChatML template open a thought in the answer? A template that writes an empty thought if thinking is off does
 * not count. */
static bool opens_thought(const char *jinja) {
  const char *at = jinja, *answer = NULL, *thought, *end;
  while ((at = strstr(at, "<|im_start|>assistant"))) answer = at++;
  for (at = answer; at && (thought = strstr(at, "<think>")); at = thought + 1) {
    end = strstr(thought, "</think>");
    if (!end || end - thought > 20) return true;
  }
  return false;
}

/* Templates with <|user|>: Zephyr's ends every message with the end token; Tulu's ends only an answer with it, and a
 * question with a newline. The text between a question's content and the next statement or mark tells which. NULL:
 * neither. */
static const char *zephyr_or_tulu(const char *jinja) {
  const char *user = strstr(jinja, "<|user|>"), *content = user ? strstr(user, "content") : NULL;
  if (!content) return NULL;
  const char *statement = strstr(content, "{%"), *mark = strstr(content, "<|");
  const char *end = statement && (!mark || statement < mark) ? statement : mark;
  const size_t n = end ? (size_t)(end - content) : strlen(content);
  if (memmem(content, n, "eos_token", 9) || memmem(content, n, "</s>", 4)) return "zephyr";
  const bool line = memchr(content, '\n', n) || memmem(content, n, "\\n", 2);
  return line && end && end == statement && strstr(end, "eos_token") ? "tulu" : NULL;
}

const wn_chat_template *wn_chat_template_recognise(const char *jinja) {
  WN_CHECK_OR(NULL, WN_POINTER(jinja));
  static const struct {
    const char *marks[2]; /* all must be present; the first entry that fits wins */
    const char *name;     /* NULL: ask zephyr_or_tulu */
  } rules[] = {
      {{"<|im_start|>"}, "chatml"},
      {{"<|start_header_id|>", "Cutting Knowledge Date: December 2023"}, "llama3.1"},
      {{"<|start_header_id|>", "<|eot_id|>"}, "llama3"},
      {{"<start_of_turn>"}, "gemma"},
      {{"<|user|>", "<|end|>"}, "phi3"},
      {{"<|user|>", "<|assistant|>"}, NULL},
      {{"[INST]", "<<SYS>>"}, "llama2"},
      {{"[INST] ", " [/INST]"}, "mistral"},
      {{"[INST] ", "[/INST]"}, "mistral-v3"},
  };
  /* Templates with these marks are none of ours, whatever other marks they have: Mistral's v7, Phi-4, Llama 3.2's for
   * pictures, ChatML that opens a thought. */
  static const char *const others[] = {"[SYSTEM_PROMPT]", "<|im_sep|>", "<|image|>"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strstr(jinja, others[i])) return NULL;
  if (opens_thought(jinja)) return NULL;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (strstr(jinja, rules[i].marks[0]) && (!rules[i].marks[1] || strstr(jinja, rules[i].marks[1]))) {
      const char *name = rules[i].name ? rules[i].name : zephyr_or_tulu(jinja);
      return name ? wn_chat_template_find(name) : NULL;
    }
  return strstr(jinja, "[INST]") && strstr(jinja, "[/INST]") ? wn_chat_template_find("mistral-tekken") : NULL;
}

wn_status wn_chat_default_system(wn_context *ctx, const wn_chat_template *t, const char *jinja, char **out) {
  WN_CHECK_CALL(WN_POINTER(t), WN_POINTER(out));
  *out = NULL;
  if (!jinja) return WN_OK; /* a tokenizer without a template */
  if (!t->system_begin) return WN_OK;
  /* The literal text between the marks, if it has no expression in it. The newline of a mark may be written as \n. */
  size_t mark = strlen(t->system_begin);
  while (mark > 0 && t->system_begin[mark - 1] == '\n') mark--;
  for (const char *at = jinja; (at = memmem(at, strlen(at), t->system_begin, mark)); at++) {
    const char *text = at + mark;
    while (text[0] == '\n' || (text[0] == '\\' && text[1] == 'n')) text += text[0] == '\n' ? 1 : 2;
    size_t end_mark = strlen(t->system_end);
    while (end_mark > 0 && t->system_end[end_mark - 1] == '\n') end_mark--;
    const char *end = memmem(text, strlen(text), t->system_end, end_mark);
    size_t n = end ? (size_t)(end - text) : 0;
    if (n == 0 || memchr(text, '\'', n) || memchr(text, '"', n) || memchr(text, '{', n) || memchr(text, '\\', n))
      continue;
    void *p;
    WN_TRY(wn_alloc(ctx, "text", n + 1, &p));
    memcpy(p, text, n);
    *out = p;
    return WN_OK;
  }
  return WN_OK;
}

/* The parts of one rendered chat; message texts are borrowed. */
struct parts {
  wn_text_part *list;
  int count;
  const char *end; /* text of the end token, [end_bytes] */
  size_t end_bytes;
  const char *bos; /* of the token that begins a text, [bos_bytes] */
  size_t bos_bytes;
  bool less; /* the tokenizer writes the space after a mark */
};

static void chat_add(struct parts *p, const char *text, size_t bytes, bool special) {
  if (text && bytes) p->list[p->count++] = (wn_text_part){text, bytes, special};
}
static void add_mark(struct parts *p, const char *text) {
  const char *end = text ? strstr(text, "</s>") : NULL;
  if (end) {
    chat_add(p, text, (size_t)(end - text), true);
    chat_add(p, p->end, p->end_bytes, true);
    text = end + strlen("</s>");
  }
  chat_add(p, text, text ? strlen(text) : 0, true);
}
/* Adds a mark. With `less`, without its final space: the tokenizer writes one itself where text follows a control
 * token. */
static void add_spaced(struct parts *p, const char *text) {
  const size_t n = text ? strlen(text) : 0;
  chat_add(p, text, n && p->less && text[n - 1] == ' ' ? n - 1 : n, true);
}
static bool writes_space(const wn_tokenizer *tok, const char *mark) {
  size_t n = strlen(mark);
  while (n > 0 && mark[n - 1] == ' ') n--;
  const int32_t id = tok->spm && tok->info.add_dummy_prefix ? wn_tokenizer_find(tok, mark, n) : -1;
  return id >= 0 && wn_tokenizer_is_control(tok, id);
}
static void add_message(struct parts *p, const char *text, bool trim_begin, bool trim_end) {
  static const char white[] = " \t\r\n\v\f";
  size_t n = strlen(text);
  while (trim_begin && n > 0 && strchr(white, *text)) text++, n--;
  while (trim_end && n > 0 && strchr(white, text[n - 1])) n--;
  chat_add(p, text, n, false);
}

/* Which orders of messages a template takes. */
struct orders {
  bool loose; /* users and assistants in any order */
  bool later; /* system messages that are not the first */
};

/* A mark without the line end that it ends with. */
static size_t chat_core(const char *mark) {
  size_t n = strlen(mark);
  while (n > 0 && mark[n - 1] == '\n') n--;
  return n;
}

/* Does the Jinja text write the role behind the mark by an expression: '<|im_start|>' + message['role']? */
static bool chat_writes_role(const char *jinja, const wn_chat_template *t) {
  size_t n = 0;
  while (t->user_begin[n] && t->user_begin[n] == t->system_begin[n]) n++;
  for (const char *at = jinja; n > 2 && (at = memmem(at, strlen(at), t->user_begin, n)); at++)
    if (memmem(at + n, strnlen(at + n, 24), "role", 4)) return true;
  return false;
}

/* Published templates of one name differ in this, so the tokenizer's own is asked where it is this one. One whose
 * questions have the mark of the answer at their end writes that mark once. */
static struct orders chat_orders(const wn_tokenizer *tok, const wn_chat_template *t) {
  static const char *const skips[] = {"message.role != 'system'", "message.role != \"system\"",
                                      "message['role'] != 'system'", "message[\"role\"] != \"system\""};
  const char *own = tok->chat_template;
  struct orders o = {!t->alternates, !t->alternates};
  if (t->alternates || !own || wn_chat_template_recognise(own) != t) return o;
  const size_t n = chat_core(t->answer_mark);
  const char *first = memmem(own, strlen(own), t->answer_mark, n);
  const bool role = chat_writes_role(own, t);
  o.loose = role || (first && memmem(first + n, strlen(first + n), t->answer_mark, n));
  o.later = o.loose && (role || !strstr(own, "messages[0]"));
  for (size_t i = 0; i < sizeof skips / sizeof *skips; i++) o.later = o.later && !strstr(own, skips[i]);
  return o;
}

wn_status wn_chat_check(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                        const wn_chat_message *messages, int count, bool opening) {
  const struct orders takes = chat_orders(tok, t);
  if (count < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "a conversation has a message for the model to answer");
  for (int i = 0; i < count; i++) {
    if (!messages[i].text) return wn_fail(ctx, WN_ERR_ARGUMENT, "message %d has no text", i);
    if (!takes.later && messages[i].role == WN_CHAT_SYSTEM && (i > 0 || !opening))
      return wn_fail(ctx, WN_ERR_ARGUMENT,
                     "message %d: the model's template (%s) has a system message only at the beginning", i, t->name);
    const bool user = i > 0 && messages[i - 1].role == WN_CHAT_USER;
    if (!takes.loose && messages[i].role != WN_CHAT_SYSTEM && user != (messages[i].role == WN_CHAT_ASSISTANT))
      return wn_fail(ctx, WN_ERR_ARGUMENT,
                     "message %d: with the model's template (%s) the user and the assistant take turns", i, t->name);
  }
  if (!takes.loose && messages[count - 1].role == WN_CHAT_SYSTEM)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a conversation has a message for the model to answer");
  /* Mistral's reference writes it into the last user message nevertheless, its published Jinja not at all. */
  if (t->system_last && messages[0].role == WN_CHAT_SYSTEM && messages[count - 1].role == WN_CHAT_ASSISTANT)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "message 0: the template %s has no place for a system message before an answer that has begun",
                   t->name);
  return WN_OK;
}

/* Does the conversation begin with bos? The tokenizer's own template says so, whatever the tokenizer adds to plain
 * texts; so do the published templates. A template that uses bos as a mark of turns does not count. */
static bool chat_begins_with_bos(const wn_tokenizer *tok, const wn_chat_template *t, const char *bos, size_t bytes) {
  const char *own = tok->chat_template;
  if (!own || wn_chat_template_recognise(own) != t) return t->bos || tok->bos >= 0;
  if (strstr(own, "bos_token")) return true;
  return tok->known_bos != tok->eos && bytes > 0 && memmem(own, strlen(own), bos, bytes) &&
         !memmem(t->user_begin, strlen(t->user_begin), bos, bytes);
}

/* Adds a message; `inner`: the system message to be written into it, or NULL. */
static void chat_add_message(struct parts *p, const struct wn_chat_template *t, const wn_chat_message *message,
                             const char *inner, const char *system_begin) {
  const char *text = message->text;
  const bool trim_system = t->trim & TRIM_SYSTEM, trim_user = t->trim & TRIM_USER, trim_answer = t->trim & TRIM_ANSWER;
  switch (message->role) {
  case WN_CHAT_SYSTEM:
    add_mark(p, system_begin);
    add_message(p, text, trim_system, trim_system);
    add_mark(p, t->system_end);
    break;
  case WN_CHAT_USER:
    add_spaced(p, t->user_begin);
    if (inner) {
      add_mark(p, t->inner_begin);
      add_message(p, inner, trim_system, trim_system);
      add_mark(p, t->inner_end);
    }
    add_message(p, text, trim_user && !(inner && t->trim_joined), trim_user);
    add_mark(p, t->user_end);
    break;
  case WN_CHAT_ASSISTANT:
    add_mark(p, t->answer_mark);
    add_spaced(p, t->answer_begin);
    add_message(p, text, trim_answer, trim_answer);
    break;
  }
}

/* Ends an answer. */
static void chat_end_answer(struct parts *p, const struct wn_chat_template *t, bool spaced) {
  if (t->bos_each && spaced) add_mark(p, " ");
  add_mark(p, t->answer_end);
  if (t->bos_each) chat_add(p, p->bos, p->bos_bytes, true);
}

static void chat_add_all(struct parts *p, const struct wn_chat_template *t, const wn_chat_message *messages, int count,
                         bool opening) {
  const char *system = NULL; /* to be written into a user's message */
  if (!opening) {
    chat_end_answer(p, t, false);
  } else if (t->system_always && messages[0].role != WN_CHAT_SYSTEM) {
    add_mark(p, t->system_begin);
    add_mark(p, t->system_end);
  }
  for (int i = 0; i < count; i++) {
    const bool user = messages[i].role == WN_CHAT_USER, here = user && (!t->system_last || i == count - 1);
    if (messages[i].role == WN_CHAT_SYSTEM && !t->system_begin) {
      system = messages[i].text;
      continue;
    }
    chat_add_message(p, t, &messages[i], here ? system : NULL,
                     (i > 0 || !opening) && t->later_begin ? t->later_begin : t->system_begin);
    if (here) system = NULL;
    if (messages[i].role == WN_CHAT_ASSISTANT && i < count - 1) chat_end_answer(p, t, true);
  }
  if (messages[count - 1].role != WN_CHAT_ASSISTANT) add_mark(p, t->answer_mark);
}

wn_status wn_chat_encode(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                         const wn_chat_message *messages, int count, bool opening, int32_t **ids, size_t *id_count) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(t), WN_ARRAY(messages, count), WN_POINTER(ids),
                WN_POINTER(id_count));
  for (int i = 0; i < count; i++)
    WN_CHECK_CALL(WN_POINTER(messages[i].text), WN_ENUM(messages[i].role, WN_CHAT_ASSISTANT + 1));
  *ids = NULL;
  *id_count = 0;
  WN_TRY(wn_chat_check(ctx, tok, t, messages, count, opening));
  void *memory;
  WN_TRY(wn_alloc(ctx, "messages", (size_t)(8 * count + 8) * sizeof(wn_text_part), &memory));
  struct parts p = {.list = memory};
  p.end = wn_tokenizer_token_name(tok, wn_tokenizer_eos(tok), &p.end_bytes);
  if (!p.end) p.end = "</s>", p.end_bytes = strlen(p.end);
  p.bos = wn_tokenizer_token_name(tok, tok->known_bos, &p.bos_bytes);
  p.less = t->spaced && writes_space(tok, t->user_begin);
  const bool bos = opening && tok->known_bos >= 0 && chat_begins_with_bos(tok, t, p.bos, p.bos_bytes);
  if (bos) chat_add(&p, p.bos, p.bos_bytes, true);
  const bool by_id = bos && p.count == 0 && tok->bos >= 0; /* a token without a name */
  if (!p.bos) p.bos = "<s>", p.bos_bytes = strlen(p.bos);
  chat_add_all(&p, t, messages, count, opening);
  const wn_status status = wn_tokenizer_encode_parts(ctx, tok, p.list, p.count, by_id, false, ids, id_count);
  wn_free(memory);
  return status;
}
