/* Chats from the inside. */
#ifndef WN_TEXT_CHAT_H
#define WN_TEXT_CHAT_H

#include "winnow/chat.h"

/* What wn_chat_encode asks of the order of messages; the error names one of them by its number. */
wn_status wn_chat_check(wn_context *ctx, const wn_chat_message *messages, int count, bool opening);

#endif
