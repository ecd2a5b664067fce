/* POST /v1/embeddings: the request, and the work of each of its texts. Private to src/serve. */
#ifndef WN_SERVE_EMBED_H
#define WN_SERVE_EMBED_H

#include "serve/job.h"

/* False: what is wrong is in `error`. wn_serve_request_clear it in either case. */
bool wn_embed_request_read(const struct wn_serve_model *m, const char *body, size_t bytes, struct wn_serve_request *out,
                           struct wn_serve_error *error);
/* The next piece of a text; *more: there is another one. */
wn_status wn_embed_step(const struct wn_serve_model *m, struct wn_serve_choice *c, bool *more);
/* The answer, once all texts are read; NULL: out of memory. A text whose states are not finite is named in `error`. */
json_t *wn_embed_answer(const struct wn_serve_model *m, const struct wn_serve_job *job, struct wn_serve_error *error);

#endif
