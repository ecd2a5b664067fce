/* The page at / (page/): a chat that shows what the model keeps. The build makes the page, and a content security
 * policy that lets it run only its own script and ask only this server. */
#ifndef WN_SERVE_PAGE_H
#define WN_SERVE_PAGE_H

#include "serve/request.h"

extern const char wn_chat_page[], wn_chat_page_policy[];

/* The data for the page's settings: the model, and the policies that suit it. NULL: out of memory. */
json_t *wn_page_info(const struct wn_serve_model *m);

#endif
