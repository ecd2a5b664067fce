/* POST /v1/embeddings: the request, and the work of each of its texts. Private to src/serve. */
#ifndef WN_SERVE_EMBED_H
#define WN_SERVE_EMBED_H

#include "serve/job.h"

/* False: `error` says what is wrong. Call wn_serve_request_clear in either case. */
bool wn_embed_request_read(const struct wn_serve_model *m, const char *body, size_t bytes, struct wn_serve_request *out,
                           struct wn_serve_error *error);
/* Reads the next piece of a text; *more: another one follows. */
wn_status wn_embed_step(const struct wn_serve_model *m, struct wn_serve_choice *c, bool *more);
/* The answer, once all texts have been read; NULL: out of memory, or `error` names a text whose states are not
 * finite. */
json_t *wn_embed_answer(const struct wn_serve_model *m, const struct wn_serve_job *job, struct wn_serve_error *error);

#endif
