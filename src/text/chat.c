/* Chats. A conversation is rendered by the model's own template (template/template.h), or by one of those here that
 * --template names; these are short ones with the text that the published templates write:
 *
 *   chatml      OpenAI's ChatML: Qwen, SmolLM2, Yi, many fine-tunes
 *   llama3      Meta, Llama 3 model card; llama3.1 (and 3.2, 3.3) has a system message in any case, with two dates
 *   llama2      Meta, "Llama 2", appendix A.3.3 (generation.py of the reference code)
 *   mistral*    Mistral's tokenizers v1/v2 ("[INST] x [/INST]"), v3 ("[INST] x[/INST]") and tekken ("[INST]x[/INST]")
 *   zephyr      Zephyr, TinyLlama, StableLM
 *   tulu        Allen AI: OLMo 2, Tulu 3
 *   phi3        Microsoft
 *   gemma       Google
 *
 * Each byte of the text knows whether the template or a message wrote it; special tokens are recognised in what the
 * template wrote alone. */
#include "text/chat.h"

#include <string.h>
#include "base/alloc.h"
#include "base/misuse.h"
#include "text/normalize.h"
#include "text/template/template.h"
#include "text/tokenizer_kinds.h"

struct wn_chat_template {
  const char *name, *source; /* source NULL: the tokenizer's own */
};

/* The user and the assistant take turns after at most one system message, which is then `system`. */
#define TURNS                                                                                                          \
  "{% set system = messages[0].content if messages[0].role == 'system' %}"                                             \
  "{% set talk = messages[1:] if messages[0].role == 'system' else messages %}"                                        \
  "{% for m in talk %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role == 'system' %}"                     \
  "{{ raise_exception('the user and the assistant take turns') }}{% endif %}"                                          \
  "{% else %}{{ raise_exception('there is no message to answer') }}{% endfor %}"
#define LLAMA3                                                                                                         \
  "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content|trim }}<|eot_id|>{% endfor %}"                     \
  "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
#define MARKED(mark, end)                                                                                              \
  "{% for m in messages %}" mark "{{ '\n' ~ m.content ~ " end " ~ '\n' }}{% endfor %}"                                 \
  "{% if add_generation_prompt %}{% set m = {'role': 'assistant'} %}" mark "{{ '\n' }}{% endif %}"
#define LAST_SYSTEM "{{ system ~ '\n\n' if loop.last and system is defined }}"

static const struct wn_chat_template
    own = {"own", NULL},
    templates[] = {
        {"chatml", MARKED("<|im_start|>{{ m.role }}", "'<|im_end|>'")},
        {"llama3", "{{ bos_token }}{% for m in messages %}" LLAMA3},
        {"llama3.1",
         "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
         "Today Date: 26 Jul 2024\n\n{% if messages[0].role == 'system' %}{{ messages[0].content|trim }}"
         "{% set messages = messages[1:] %}{% endif %}<|eot_id|>{% for m in messages %}" LLAMA3},
        {"llama2",
         TURNS "{% for m in talk %}{% if m.role == 'user' %}"
               "{% set text = '<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' ~ m.content if loop.first and system is "
               "defined else m.content %}{{ bos_token ~ '[INST] ' ~ text.strip() ~ ' [/INST]' }}"
               "{% else %}{{ ' ' ~ m.content.strip() ~ ' ' ~ eos_token }}{% endif %}{% endfor %}"},
        {"mistral", TURNS "{{ bos_token }}{% for m in talk %}{% if m.role == 'user' %}[INST] "
                          "{{ system ~ '\n\n' if loop.first and system is defined }}{{ m.content }} [/INST]"
                          "{% else %}{{ ' ' ~ m.content ~ eos_token }}{% endif %}{% endfor %}"},
        {"mistral-v3",
         TURNS "{{ bos_token }}{% for m in talk %}{% if m.role == 'user' %}[INST] " LAST_SYSTEM
               "{{ m.content }}[/INST]{% else %}{{ ' ' ~ m.content|trim ~ eos_token }}{% endif %}{% endfor %}"},
        {"mistral-tekken", TURNS "{{ bos_token }}{% for m in talk %}{% if m.role == 'user' %}[INST]" LAST_SYSTEM
                                 "{{ m.content }}[/INST]{% else %}{{ m.content ~ eos_token }}{% endif %}{% endfor %}"},
        {"zephyr", MARKED("<|{{ m.role }}|>", "eos_token")},
        {"tulu", MARKED("<|{{ m.role }}|>", "(eos_token if m.role == 'assistant' else '')")},
        {"phi3", MARKED("<|{{ m.role }}|>", "'<|end|>'")},
        {"gemma", TURNS "{{ bos_token }}{% for m in talk %}<start_of_turn>{{ 'user' if m.role == 'user' else 'model' }}"
                        "{{ '\n' }}{{ system ~ '\n\n' if loop.first and system is defined }}{{ m.content|trim }}"
                        "<end_of_turn>{{ '\n' }}{% endfor %}"
                        "{% if add_generation_prompt %}<start_of_turn>model{{ '\n' }}{% endif %}"},
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
  return !strcmp(own.name, name) ? &own : NULL;
}
const wn_chat_template *wn_chat_template_recognise(const char *jinja) {
  WN_CHECK_OR(NULL, WN_POINTER(jinja));
  return wn_template_check(NULL, jinja) == WN_OK ? &own : NULL;
}

static const char *const role_names[] = {
    [WN_CHAT_SYSTEM] = "system", [WN_CHAT_USER] = "user", [WN_CHAT_ASSISTANT] = "assistant"};

static json_t *chat_message(enum wn_chat_role role, const char *text) {
  return json_pack("{s:s, s:o}", "role", role_names[role], "content", json_stringn_nocheck(text, strlen(text)));
}

/* --- the text --- */

/* A name of a special token as the template's variable. */
static json_t *chat_token(const wn_tokenizer *tok, int32_t id, const char *otherwise) {
  size_t bytes = 0;
  const char *name = tok && id >= 0 ? wn_tokenizer_token_name(tok, id, &bytes) : NULL;
  return name ? json_stringn_nocheck(name, bytes) : json_string(otherwise);
}

static wn_status chat_render(wn_context *ctx, const wn_tokenizer *tok, const char *source,
                             const struct wn_chat_request *request, const json_t *before, const json_t *last,
                             struct wn_template_text *out) {
  json_t *names = json_object(), *given = request->more ? json_copy((json_t *)(uintptr_t)request->more) : json_object();
  bool ok = names && given &&
            !json_object_set_new(names, "bos_token", chat_token(tok, tok ? tok->known_bos : -1, "")) &&
            !json_object_set_new(names, "eos_token", chat_token(tok, tok ? tok->eos : -1, "</s>")) &&
            !json_object_set(given, "messages", (json_t *)(uintptr_t)request->messages) &&
            !json_object_set_new(given, "add_generation_prompt", json_boolean(!last)) &&
            (!request->tools || !json_object_set(given, "tools", (json_t *)(uintptr_t)request->tools));
  const struct wn_template_input input = {
      .own = names, .given = given, .marked = {before, last}, .numbered = request->messages};
  const wn_status status =
      ok ? wn_template_render(ctx, source, &input, out) : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a conversation");
  json_decref(names);
  json_decref(given);
  return status;
}

/* Where the bytes of this origin end; 0: there are none. */
static size_t chat_end(const struct wn_template_text *text, enum wn_origin origin) {
  size_t at = text->bytes;
  while (at > 0 && text->from[at - 1] != origin) at--;
  return at;
}

/* The system message that stands between what two conversations have in common: one without, one with it (marked). */
static wn_status chat_between(wn_context *ctx, const struct wn_template_text *without,
                              const struct wn_template_text *with, char **out) {
  const size_t end = chat_end(with, WN_ORIGIN_MARKED), after = with->bytes - end;
  size_t begin = end;
  while (begin > 0 && with->from[begin - 1] == WN_ORIGIN_MARKED) begin--;
  if (end == 0 || without->bytes <= begin + after || memcmp(without->data, with->data, begin) != 0 ||
      memcmp(without->data + without->bytes - after, with->data + end, after) != 0)
    return WN_OK;
  const size_t n = without->bytes - after - begin;
  WN_TRY(WN_ALLOC(ctx, "text", n + 1, out));
  memcpy(*out, without->data + begin, n);
  return WN_OK;
}

wn_status wn_chat_default_system(wn_context *ctx, const wn_chat_template *t, const char *jinja, char **out) {
  WN_CHECK_CALL(WN_POINTER(t), WN_POINTER(out));
  *out = NULL;
  if (!jinja) return WN_OK; /* a tokenizer without a template */
  json_t *user = chat_message(WN_CHAT_USER, "u"), *system = chat_message(WN_CHAT_SYSTEM, "s");
  json_t *alone = json_pack("[O]", user), *both = json_pack("[O, O]", system, user);
  struct wn_template_text without = {0}, with = {0};
  const struct wn_chat_request one = {.messages = alone}, two = {.messages = both};
  wn_status status = WN_OK;
  /* A template that has no place for one of the two has no default either. */
  if (user && system && alone && both && chat_render(ctx, NULL, jinja, &one, NULL, NULL, &without) == WN_OK &&
      chat_render(ctx, NULL, jinja, &two, json_object_get(system, "content"), NULL, &with) == WN_OK)
    status = chat_between(ctx, &without, &with, out);
  wn_template_text_clear(&without);
  wn_template_text_clear(&with);
  json_decref(user);
  json_decref(system);
  json_decref(alone);
  json_decref(both);
  return status;
}

/* --- the tokens --- */

/* Does the tokenizer write the space after Mistral's marks, so that the template's would be a second one? */
static bool chat_writes_space(const wn_tokenizer *tok) {
  const int32_t id = tok->spm && tok->info.add_dummy_prefix ? wn_tokenizer_find(tok, "[INST]", 6) : -1;
  return id >= 0 && wn_tokenizer_is_control(tok, id);
}

/* The text from `at` on, in parts: the template's and the messages'. */
static wn_status chat_tokens(wn_context *ctx, const wn_tokenizer *tok, const struct wn_template_text *text, size_t at,
                             bool add_bos, int32_t **ids, size_t *id_count) {
  const bool less = chat_writes_space(tok);
  size_t runs = 1; /* and one more for each change and each space left out */
  int count = 0;
  for (size_t i = at; i + 1 < text->bytes; i++)
    runs += (text->from[i] != text->from[i + 1]) + (less && text->data[i] == ']');
  wn_text_part *parts;
  WN_TRY(WN_ALLOC(ctx, "messages", runs, &parts));
  while (at < text->bytes) {
    const bool special = text->from[at] == WN_ORIGIN_TEMPLATE;
    size_t end = at;
    bool space = false;
    while (end < text->bytes && (text->from[end] == WN_ORIGIN_TEMPLATE) == special) {
      const char *mark = text->data + end;
      space = less && special && *mark == ' ' &&
              ((end >= 6 && !memcmp(mark - 6, "[INST]", 6)) || (end >= 7 && !memcmp(mark - 7, "[/INST]", 7)));
      if (space) break;
      end++;
    }
    if (end > at) parts[count++] = (wn_text_part){text->data + at, end - at, special};
    at = end + space;
  }
  const wn_status status = wn_tokenizer_encode_parts(ctx, tok, parts, count, add_bos, false, ids, id_count);
  wn_free(parts);
  return status;
}

/* ---- whose tokens are whose ---- */

/* Turns origins into the numbers of messages, of which those of a long conversation are known modulo WN_ORIGINS: the
 * one nearest to the message before. Bytes of the template belong to what follows. owner [bytes] */
static void chat_bytes_owners(const struct wn_template_text *text, int32_t messages, int32_t *owner) {
  int32_t last = 0, next = messages;
  for (size_t i = 0; i < text->bytes; i++) {
    const int origin = text->from[i];
    owner[i] = -1;
    if (origin == WN_ORIGIN_MARKED2) owner[i] = last = messages - 1;
    if (origin < WN_ORIGIN_NUMBERED) continue;
    int32_t number = last - last % WN_ORIGINS + origin - WN_ORIGIN_NUMBERED;
    if (number < last - WN_ORIGINS / 2) number += WN_ORIGINS;
    if (number > last + WN_ORIGINS / 2 && number >= WN_ORIGINS) number -= WN_ORIGINS;
    owner[i] = last = number < messages ? number : messages - 1;
  }
  for (size_t i = text->bytes; i-- > 0;) {
    if (owner[i] >= 0) next = owner[i];
    owner[i] = next;
  }
}

/* Goes over `piece` in the text from *at on, white space aside. False: it is not there. */
static bool chat_pass(const struct wn_template_text *text, const char *piece, size_t bytes, size_t *at) {
  size_t to = *at;
  for (size_t i = 0; i < bytes; i++) {
    if (wn_json_is_space(piece[i])) continue;
    while (to < text->bytes && wn_json_is_space(text->data[to])) to++;
    if (to == text->bytes || text->data[to++] != piece[i]) return false;
  }
  *at = to;
  return true;
}

/* Finds the tokens in the text, one after the other. A token belongs to the message of its last byte. */
static wn_status chat_owners(wn_context *ctx, const wn_tokenizer *tok, const struct wn_template_text *text,
                             const int32_t *ids, size_t count, int32_t messages, struct wn_chat_owners *out) {
  wn_text_stream *stream;
  int32_t *owner;
  size_t at = 0;
  bool found = true;
  *out = (struct wn_chat_owners){.tokens = (int64_t)count, .count = messages};
  WN_TRY(WN_ALLOC(ctx, "owners of tokens", count, &out->of));
  wn_status status = WN_ALLOC(ctx, "owners of a text", text->bytes + 1, &owner);
  if (status != WN_OK) return status;
  chat_bytes_owners(text, messages, owner);
  owner[text->bytes] = messages;
  WN_TRY_GOTO(wn_text_stream_create(ctx, tok, &stream), done);
  for (size_t i = 0; i < count && status == WN_OK && found; i++) {
    const bool control = wn_tokenizer_is_control(tok, ids[i]);
    const char *piece;
    size_t n;
    status = wn_text_stream_push(ctx, stream, ids[i], &piece, &n);
    if (status != WN_OK) break;
    if (control) piece = wn_tokenizer_token_name(tok, ids[i], &n);
    found = (piece && chat_pass(text, piece, n, &at)) || control; /* the tokenizer's own first token has no text */
    out->of[i] = owner[at > 0 && n > 0 ? at - 1 : at];
  }
  wn_text_stream_destroy(stream);
done:
  wn_free(owner);
  if (found && status == WN_OK) return WN_OK;
  wn_free(out->of);
  out->of = NULL;
  return status;
}

const char *wn_chat_source(const wn_tokenizer *tok, bool tools) {
  return tools && tok->tool_template ? tok->tool_template : tok->chat_template;
}

static bool chat_blank(const json_t *text) {
  return json_is_string(text) && strspn(json_string_value(text), " \t\r\n\v\f") == json_string_length(text);
}

wn_status wn_chat_encode_request(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                                 const struct wn_chat_request *request, int32_t **ids, size_t *id_count,
                                 struct wn_chat_owners *owners) {
  const char *source = t->source ? t->source : wn_chat_source(tok, request->tools != NULL);
  const size_t count = json_array_size(request->messages);
  const json_t *message = count ? json_array_get(request->messages, count - 1) : NULL;
  const json_t *before = request->before ? json_array_get(request->messages, request->before - 1) : NULL;
  const char *role = json_string_value(json_object_get(message, "role"));
  const json_t *last = role && !strcmp(role, "assistant") ? json_object_get(message, "content") : NULL;
  struct wn_chat_request shorter = *request;
  struct wn_template_text text;
  json_t *cut = NULL;
  if (!source) return wn_fail(ctx, WN_ERR_ARGUMENT, "the tokenizer has no chat template");
  if (count <= request->before)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a conversation has a message for the model to answer");
  if (chat_blank(last)) { /* an answer that begins with nothing */
    cut = json_copy((json_t *)(uintptr_t)request->messages);
    if (!cut || json_array_remove(cut, count - 1)) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a conversation");
    shorter.messages = cut, last = NULL;
  }
  if (!json_is_string(last)) last = NULL;
  wn_status status = chat_render(ctx, tok, source, &shorter, json_object_get(before, "content"), last, &text);
  json_decref(cut);
  WN_TRY(status);
  const size_t begin = before ? chat_end(&text, WN_ORIGIN_MARKED) : 0;
  if (last) text.bytes = chat_end(&text, WN_ORIGIN_MARKED2);
  size_t bytes;
  const bool writes = strstr(source, "bos_token") && wn_tokenizer_token_name(tok, tok->bos, &bytes);
  const bool add_bos = !before && t->source && tok->bos >= 0 && !writes;
  if ((before && begin == 0) || (last && text.bytes == 0))
    status = wn_fail(ctx, WN_ERR_ARGUMENT, "the chat template does not write the answer that is continued");
  else
    status = chat_tokens(ctx, tok, &text, begin, add_bos, ids, id_count);
  if (status == WN_OK && owners) {
    status = chat_owners(ctx, tok, &text, *ids, *id_count, (int32_t)count, owners);
    if (status != WN_OK) wn_tokens_free(*ids), *ids = NULL;
  }
  wn_template_text_clear(&text);
  return status;
}

wn_status wn_chat_encode(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                         const wn_chat_message *messages, int count, bool opening, int32_t **ids, size_t *id_count) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_POINTER(t), WN_ARRAY(messages, count), WN_POINTER(ids),
                WN_POINTER(id_count));
  for (int i = 0; i < count; i++)
    WN_CHECK_CALL(WN_POINTER(messages[i].text), WN_ENUM(messages[i].role, WN_CHAT_ASSISTANT + 1));
  *ids = NULL;
  *id_count = 0;
  /* What stands in the cache: a question and its answer, whatever they are. */
  json_t *all = opening ? json_array()
                        : json_pack("[o, o]", chat_message(WN_CHAT_USER, "u"), chat_message(WN_CHAT_ASSISTANT, "a"));
  bool ok = all != NULL;
  for (int i = 0; ok && i < count; i++)
    ok = !json_array_append_new(all, chat_message(messages[i].role, messages[i].text));
  const struct wn_chat_request request = {.messages = all, .before = opening ? 0 : 2};
  const wn_status status = ok ? wn_chat_encode_request(ctx, tok, t, &request, ids, id_count, NULL)
                              : wn_fail(ctx, WN_ERR_MEMORY, "out of memory: a conversation");
  json_decref(all);
  return status;
}
