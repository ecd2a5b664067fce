/* winnow: chats. A conversation becomes the text that a model was trained to see. The model's own template (Jinja) is
 * run as it is, docs/tokenizers.md says what of the language is known; a few templates have names. */
#ifndef WINNOW_CHAT_H
#define WINNOW_CHAT_H

#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* A template; static. */
typedef struct wn_chat_template wn_chat_template;
int wn_chat_template_count(void);                   /* of those with names */
const wn_chat_template *wn_chat_template_at(int i); /* NULL past the last */
const char *wn_chat_template_name(const wn_chat_template *t);
/* By its name; "own": whichever a tokenizer has. NULL: unknown. */
const wn_chat_template *wn_chat_template_find(const char *name);
/* "own", if the Jinja text can be run; NULL: it has something that is not known (wn_chat_encode says what), or jinja is
 * NULL. */
const wn_chat_template *wn_chat_template_recognise(const char *jinja);
/* The system message that the Jinja text writes for a conversation without one, allocated (wn_text_free). *out is NULL
 * where there is none, or jinja is NULL. */
wn_status wn_chat_default_system(wn_context *ctx, const wn_chat_template *t, const char *jinja, char **out);

/* Who speaks. */
typedef enum wn_chat_role { WN_CHAT_SYSTEM, WN_CHAT_USER, WN_CHAT_ASSISTANT } wn_chat_role;
typedef struct wn_chat_message {
  wn_chat_role role;
  const char *text; /* borrowed, NUL-terminated; special tokens in it are plain text */
} wn_chat_message;
/* The tokens of a conversation up to the point where the model writes: after the mark that begins its answer, or, where
 * the last message is the assistant's, after that message's text, which the model continues. opening: the conversation
 * begins here, with the token that begins a text where the template writes it (with a template that has a name also
 * where the tokenizer puts it before every text). Otherwise it continues after an answer in the cache, and the end of
 * that answer is written first. Messages come in any order that the template takes; what it refuses is WN_ERR_ARGUMENT
 * with its words, what it has that is not known WN_ERR_UNSUPPORTED. Where a template writes earlier messages otherwise
 * in a longer conversation (mistral-v3 and mistral-tekken, whose last user message has the system message), one that is
 * encoded as a whole differs from one continued in a cache. */
wn_status wn_chat_encode(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                         const wn_chat_message *messages, int count, bool opening, int32_t **ids, size_t *id_count);

WN_API_END
#endif
