/* winnow: chats. What stands between the messages of a conversation, as models were trained on it: a table of
 * templates, which are recognised in a model's own (Jinja) template by the marks they write, not by running it. */
#ifndef WINNOW_CHAT_H
#define WINNOW_CHAT_H

#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* One of the known templates; static. */
typedef struct wn_chat_template wn_chat_template;
int wn_chat_template_count(void);
const wn_chat_template *wn_chat_template_at(int i); /* NULL past the last */
const char *wn_chat_template_name(const wn_chat_template *t);
const wn_chat_template *wn_chat_template_find(const char *name); /* NULL: unknown */
/* The template whose marks the Jinja text has; NULL: none of those known here. */
const wn_chat_template *wn_chat_template_recognise(const char *jinja);
/* The system message that the Jinja text writes where a conversation has none, allocated (wn_text_free); *out NULL:
 * none found. */
wn_status wn_chat_default_system(wn_context *ctx, const wn_chat_template *t, const char *jinja, char **out);

/* Who speaks. */
typedef enum wn_chat_role { WN_CHAT_SYSTEM, WN_CHAT_USER, WN_CHAT_ASSISTANT } wn_chat_role;
typedef struct wn_chat_message {
  wn_chat_role role;
  const char *text; /* borrowed, NUL-terminated; special tokens in it are plain text */
} wn_chat_message;
/* Tokens of a conversation up to where the model answers. opening: it begins here (with the token that begins a text,
 * where the tokenizer has one); else it goes on behind an answer in the cache, whose end is written first. A system
 * message comes first or not at all, the last message is the user's: else WN_ERR_ARGUMENT. mistral-v3 and
 * mistral-tekken write the system message into the last user message, so that a conversation written anew differs there
 * from one that went on in a cache; with the others the one is the other. */
wn_status wn_chat_encode(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                         const wn_chat_message *messages, int count, bool opening, int32_t **ids, size_t *id_count);

WN_API_END
#endif
