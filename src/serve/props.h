/* What a server says of its model and its tokenizer. Private to src/serve. */
#ifndef WN_SERVE_PROPS_H
#define WN_SERVE_PROPS_H

#include "serve/request.h"

/* NULL: out of memory. */
json_t *wn_serve_tokenizer_info(const struct wn_serve_model *m);
/* In llama-server's form, as far as it is true here. */
json_t *wn_serve_props(const struct wn_serve_model *m, int slots);

#endif
