/* Chats, for the layers above. */
#ifndef WN_TEXT_CHAT_H
#define WN_TEXT_CHAT_H

#include <jansson.h>
#include "winnow/chat.h"

/* Whose tokens are whose. */
struct wn_chat_owners {
  int32_t
      *of; /* [tokens] the message that a token belongs to, or the number of messages: the answer's opening. What a
            * template writes before a message belongs to it. wn_free; NULL: the tokens were not found in the text */
  int64_t tokens;
  int32_t count; /* messages */
};
/* A conversation as the API has it; borrowed. */
struct wn_chat_request {
  const json_t *messages; /* {"role", "content", ..}; texts are special tokens nowhere */
  const json_t *tools;    /* or NULL */
  const json_t *more;     /* further variables of the template; or NULL */
  size_t before;          /* so many messages, the last of them an answer, are in the cache: its end comes first */
};
/* The text of the tokenizer's own template, with tools or without; NULL: none. */
const char *wn_chat_source(const wn_tokenizer *tok, bool tools);
wn_status wn_chat_encode_request(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                                 const struct wn_chat_request *request, int32_t **ids, size_t *id_count,
                                 struct wn_chat_owners *owners); /* NULL: not wanted */

#endif
