/* winnow: chats. A table of templates holds the text that models were trained to see between the messages of a
 * conversation. A model's own (Jinja) template is not run: its markers tell which template of the table it is. */
#ifndef WINNOW_CHAT_H
#define WINNOW_CHAT_H

#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* A template of the table; static. */
typedef struct wn_chat_template wn_chat_template;
int wn_chat_template_count(void);
const wn_chat_template *wn_chat_template_at(int i); /* NULL past the last */
const char *wn_chat_template_name(const wn_chat_template *t);
const wn_chat_template *wn_chat_template_find(const char *name); /* NULL: unknown */
/* The template whose markers the Jinja text contains; NULL: it contains those of none, or jinja is NULL. */
const wn_chat_template *wn_chat_template_recognise(const char *jinja);
/* The system message that the Jinja text writes for a conversation without one, allocated (wn_text_free). *out is NULL
 * where none is found, or jinja is NULL. */
wn_status wn_chat_default_system(wn_context *ctx, const wn_chat_template *t, const char *jinja, char **out);

/* Who speaks. */
typedef enum wn_chat_role { WN_CHAT_SYSTEM, WN_CHAT_USER, WN_CHAT_ASSISTANT } wn_chat_role;
typedef struct wn_chat_message {
  wn_chat_role role;
  const char *text; /* borrowed, NUL-terminated; special tokens in it are plain text */
} wn_chat_message;
/* The tokens of a conversation up to the point where the model writes: after the mark that begins its answer, or, where
 * the last message is the assistant's, after that message's text, which the model continues. opening: the conversation
 * begins here, with the token that begins a text where the template writes it: where the tokenizer's own template
 * (Jinja) does, if it is this one; else where the published one does, or the tokenizer puts it before every text.
 * Otherwise it continues after an answer in the cache, and the end of that answer is written first. Messages come in
 * any order that the published template takes: with llama2, the mistral ones and gemma the user and the assistant take
 * turns after at most one system message, anything else is WN_ERR_ARGUMENT; the others write each message by its role.
 * mistral-v3 and mistral-tekken write the system message into the last user message, so with them a conversation
 * encoded as a whole differs from one continued in a cache; with the other templates both are equal. */
wn_status wn_chat_encode(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                         const wn_chat_message *messages, int count, bool opening, int32_t **ids, size_t *id_count);

WN_API_END
#endif
