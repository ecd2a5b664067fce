/* Chats, for the layers above. */
#ifndef WN_TEXT_CHAT_H
#define WN_TEXT_CHAT_H

#include "winnow/chat.h"

/* Checks the order of messages as wn_chat_encode requires it; the error names a message by its number. */
wn_status wn_chat_check(wn_context *ctx, const wn_tokenizer *tok, const wn_chat_template *t,
                        const wn_chat_message *messages, int count, bool opening);

#endif
