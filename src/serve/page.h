/* The page at / (page/): a chat that shows what the model keeps. It is made while winnow is built, with the policy that
 * lets it run its own script and ask this server, and nothing else. */
#ifndef WN_SERVE_PAGE_H
#define WN_SERVE_PAGE_H

#include "serve/request.h"

extern const char wn_chat_page[], wn_chat_page_policy[];

/* What the page's settings are made of: the model, and the policies that suit it. NULL: out of memory. */
json_t *wn_page_info(const struct wn_serve_model *m);

#endif
